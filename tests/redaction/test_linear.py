"""No text takes long, not even one that is designed to trip patterns."""

from time import process_time
from typing import Literal

import pytest

from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor

UNITS = (
    "a.",
    "@",
    "a@",
    "a@a.",
    "a@a.com,",
    "%40",
    "://",
    "://a:b@",
    "a:b@",
    "1",
    "1 ",
    "1-",
    "(1)",
    "+1",
    "0.1,",
    "12345678901 ",
    "4111 ",
    "2024-01-01 ",
    "13912345670",
    "phone ",
    "phone 1",
    "学号 1",
    "card 4111",
    "1234567 office",
    "eyJ",
    "eyJ.",
    "eyJabcdefghijkl.",
    "eyJhdXRocyI6a",
    "ewoJ\n",
    "ewoJ" + "a" * 20 + "\n",
    "sk-",
    "sk-a",
    "SG.a.",
    "ghp_",
    "xoxb-1-",
    "-----BEGIN ",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\nAAAAAAAA",
    "login" + "\\n" * 20,
    "login\n12: \n12: x\n# ",
    "api_key" + "\n" * 20,
    '"',
    "'",
    "\\",
    "\\\\u",
    "\\u0031",
    "{",
    "[",
    '{"a":',
    "[[",
    "\n",
    "password=",
    "password='",
    'password="a',
    "pass: str = ",
    "token:",
    "key=",
    "api_key=",
    "password: ",
    'password="',
    "secret_key_token=",
    "a://b:",
    "a@b.com ",
    "13912345670 ",
    "eyJhbGciOiJIUzI1NiJ9.",
    "use aaaaaaaa",
    "secret value",
    "--",
    "--a-a-a-pass ",
    "-u a:b ",
    "Bearer ",
    "basic ",
    "密码：",
    "密码",
    "call a at ",
    "[REDACTED:",
    "[REDACTED:PHONE",
    "[REDACTED:PHONE]",
    "１",
    "\u200b",
    "１\u200b",
    "a—",
)
LENGTH = 25_000
# The engine is named: `auto` chooses it by how much it has scanned, and a result would
# depend on the tests that ran before in the same process.
redactor = Redactor(Plan(engine="vectorscan"))


@pytest.fixture(autouse=True, scope="module")
def compiled_rules() -> None:
    """Compile the rules first: that takes seconds, and belongs to no text."""
    redactor.text("any text")


@pytest.mark.parametrize("unit", UNITS)
def test_a_text_made_to_trip_patterns_is_soon_done(unit: str) -> None:
    text = (unit * LENGTH)[:LENGTH]

    began = process_time()
    redactor.value({"password": text, "lines": [f"{text}\n{text[::-1]}"]})

    # Quadratic work would take minutes; a slow machine takes a second.
    assert process_time() - began < 5


@pytest.mark.parametrize("unit", ["a", "a/", "/"])
def test_a_long_text_at_the_head_of_a_list_is_soon_done(unit: str) -> None:
    text = unit * 500_000

    began = process_time()
    redactor.value({"command": [text, "-u", "b"]})

    assert process_time() - began < 5


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\\n", "<br>"])
def test_many_entries_under_data_are_soon_done(line_end: str) -> None:
    lines = ["kind: ConfigMap", "data:"]
    for number in range(60):
        lines.append(f"  key-{number}: value of a setting {number}")
    text = line_end.join((*lines, "end"))

    began = process_time()
    redactor.text(text)

    assert process_time() - began < 5


SQL_HEAD = "INSERT INTO t (id,password) VALUES ("


@pytest.mark.parametrize(
    "text",
    [
        SQL_HEAD + "\\'" * 100_000,
        f"{SQL_HEAD}1, '\\'" * 5_000,
        f"{SQL_HEAD}'\\'" * 5_000,
        f"{SQL_HEAD}1, '" * 5_000,
        f"{SQL_HEAD}1, ' '," * 5_000,
        SQL_HEAD * 5_000,
        SQL_HEAD + "(" * 200_000,
        SQL_HEAD + '"' * 200_000,
        SQL_HEAD + ', "' * 60_000,
    ],
)
def test_rows_that_do_not_close_are_soon_done(text: str) -> None:
    began = process_time()
    redactor.text(text)

    assert process_time() - began < 5


@pytest.mark.parametrize("program", ["sshpass", "/usr/bin/sshpass"])
def test_a_program_is_known_in_any_folder(program: str) -> None:
    redacted, _ = redactor.value({"argv": [program, "-p", "hunter2", "ssh", "a@host"]})

    assert "hunter2" not in str(redacted)


@pytest.mark.parametrize("engine", ["stdlib", "vectorscan"])
def test_the_steps_of_a_long_list_of_phones_grow_with_its_length(
    engine: Literal["stdlib", "vectorscan"],
) -> None:
    redactor = Redactor(Plan(engine=engine))
    numbers = "13912345670 " * 4_000

    clean, tally = redactor.text(numbers)

    assert clean == "[REDACTED:PHONE] " * 4_000
    assert tally.types == {"PHONE": 4_000}
