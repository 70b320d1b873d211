"""``redact`` is a filter: values in, the same values without secrets out."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SAMPLE, Refold

MAIL = "write to lin.wei@campus-mail.test\n"
CLEAN = "write to [REDACTED:EMAIL]\n"


def test_text_is_redacted_from_stdin(refold: Refold) -> None:
    ran = refold("redact", stdin=MAIL.encode())

    assert (ran.code, ran.out, ran.err) == (0, CLEAN, "")


def test_text_is_redacted_from_a_file(refold: Refold, tmp_path: Path) -> None:
    (tmp_path / "mail.txt").write_text(MAIL)

    assert refold("redact", "mail.txt").out == CLEAN


def test_text_without_findings_stays_byte_for_byte(refold: Refold) -> None:
    text = "nothing here\r\nof interest\t…\n\n中文"

    assert refold("redact", "-", stdin=text.encode()).out == text


def test_a_receipt_is_printed_with_the_value(refold: Refold) -> None:
    printed = refold("redact", "--json", stdin=MAIL.encode()).json()

    assert list(printed) == ["value", "redaction"]
    assert printed["value"] == CLEAN
    assert printed["redaction"]["types"] == {"EMAIL": 1}


def test_a_json_value_stays_json(refold: Refold) -> None:
    value = {"to": "lin.wei@campus-mail.test", "n": [1, None, True, 2.5], "z": "中文"}

    ran = refold("redact", "--format", "json", stdin=json.dumps(value).encode())

    assert ran.json() == {**value, "to": "[REDACTED:EMAIL]"}


def test_each_input_line_gives_one_output_line(refold: Refold) -> None:
    values: list[Any] = ["lin.wei@campus-mail.test", {"a": 1}, 7, None, ["x"]]
    lines = "\n".join(map(json.dumps, values)) + "\n"

    ran = refold("redact", "--format", "jsonl", stdin=lines.encode())

    assert ran.lines() == ["[REDACTED:EMAIL]", *values[1:]]


def test_each_line_has_its_receipt(refold: Refold) -> None:
    lines = '"lin.wei@campus-mail.test"\n"clean"\n'

    ran = refold("redact", "--format", "jsonl", "--json", stdin=lines.encode())

    first, second = ran.lines()
    assert first["redaction"]["n"] == 1
    assert (second["value"], second["redaction"]["n"]) == ("clean", 0)


def test_valid_lines_before_an_invalid_one_are_written(refold: Refold) -> None:
    ran = refold("redact", "--format", "jsonl", stdin=b'"a"\n\n"b"\nnot json\n"c"\n')

    assert ran.code == 1
    assert ran.lines() == ["a", "b"]
    assert "stdin line 4: is not JSON" in ran.err


def test_numbers_of_any_size_stay_as_they_are(refold: Refold) -> None:
    number = "123456789012345678901234567890123"

    ran = refold("redact", "--format", "json", stdin=f'{{"n": {number}}}'.encode())

    assert ran.out == f'{{"n":{number}}}\n'


@pytest.mark.parametrize("form", ["text", "json", "jsonl"])
def test_input_that_is_not_utf_8_is_an_error(refold: Refold, form: str) -> None:
    ran = refold("redact", "--format", form, stdin='"café"'.encode("latin-1"))

    assert ran.code == 1
    assert "UTF-8" in ran.err


def test_an_error_does_not_repeat_the_text(refold: Refold) -> None:
    ran = refold("redact", "--format", "json", stdin=b'{"key": sk-secret}')

    assert ran.code == 1
    assert "sk-secret" not in ran.err


POLICY = r"""version = 1
engine = "stdlib"
[[rules]]
id = "org.badge"
type = "BADGE"
pattern = '\bBDG-\d{4}\b'
examples = ["«BDG-4711»"]
"""
BADGES = f"BDG-1234 {MAIL}".encode()


def test_a_policy_selects_what_is_redacted(refold: Refold, tmp_path: Path) -> None:
    (tmp_path / "acme.toml").write_text(POLICY)

    ran = refold("redact", "--policy", "acme.toml", stdin=BADGES)

    assert (ran.code, ran.out) == (0, f"[REDACTED:BADGE] {CLEAN}")


def test_the_environment_names_a_policy(
    refold: Refold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme.toml").write_text(POLICY)
    monkeypatch.setenv("REFOLD_POLICY", "acme.toml")

    assert refold("redact", stdin=BADGES).out == f"[REDACTED:BADGE] {CLEAN}"


def test_an_option_wins_over_the_environment(
    refold: Refold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme.toml").write_text(POLICY)
    (tmp_path / "bare.toml").write_text("version = 1\npacks = []")
    monkeypatch.setenv("REFOLD_POLICY", "acme.toml")

    ran = refold("redact", "--policy", "bare.toml", stdin=BADGES)

    assert ran.out == BADGES.decode()


def test_packs_replace_those_of_the_policy(refold: Refold, tmp_path: Path) -> None:
    (tmp_path / "acme.toml").write_text(POLICY)

    ran = refold("redact", "--policy", "acme.toml", "--packs", "pii-cn", stdin=BADGES)

    assert ran.out == f"[REDACTED:BADGE] {MAIL}"


@pytest.mark.parametrize("engine", ["vectorscan", "stdlib"])
def test_the_engine_can_be_chosen(refold: Refold, engine: str) -> None:
    ran = refold("redact", "--engine", engine, "--json", stdin=MAIL.encode())

    assert ran.json()["value"] == CLEAN
    assert ran.json()["redaction"]["engine"].startswith(engine)


@pytest.mark.parametrize(
    "args",
    [["redact"], ["import", str(SAMPLE), "--user", "u"], ["stats"]],
    ids=lambda args: args[0],
)
def test_an_invalid_policy_stops_the_command_before_it_reads(
    refold: Refold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str]
) -> None:
    (tmp_path / "acme.toml").write_text("version = 1\n\naudit = 'all'\n")
    (tmp_path / "refold.db").touch()
    monkeypatch.setenv("REFOLD_POLICY", "acme.toml")
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))

    ran = refold(*args, stdin=BADGES)

    assert (ran.code, ran.out) == (2, "")
    assert "acme.toml line 3: audit: it should be 'silent'" in ran.err
    assert not (tmp_path / "home").exists()
    assert (tmp_path / "refold.db").stat().st_size == 0


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--policy", "none.toml"], "none.toml cannot be read: No such file"),
        (["--policy", "latin.toml"], "latin.toml cannot be read: not UTF-8"),
        (["--packs", "pii-cn,secret"], "no pack of that name: pii-common, pii-cn"),
        (["--engine", "hyper"], "'vectorscan'"),
        (["--engine", "re2"], "is not one of"),
    ],
)
def test_a_wrong_option_exits_with_2(
    refold: Refold, tmp_path: Path, args: list[str], reason: str
) -> None:
    (tmp_path / "latin.toml").write_bytes('name = "café"'.encode("latin-1"))

    ran = refold("redact", *args, stdin=BADGES)

    assert (ran.code, ran.out) == (2, "")
    assert reason in ran.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a@build.test b@build.test 13867541209", "redacted EMAIL\u00d72, PHONE"),
        (b"nothing here", "scanned: nothing found that the policy redacts"),
    ],
)
def test_people_see_the_findings_on_stderr(
    refold: Refold, monkeypatch: pytest.MonkeyPatch, text: bytes, message: str
) -> None:
    quiet = refold("redact", stdin=text)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    ran = refold("redact", stdin=text)

    assert ran.err == f"refold: {message}\n"
    assert (quiet.out, quiet.err) == (ran.out, "")
    assert refold("redact", "--json", stdin=text).err == ""


def test_kept_types_are_scanned_too(
    refold: Refold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('version = 1\n[types.EMAIL]\naction = "keep"\n')
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    ran = refold("redact", "--policy", policy, stdin=b"write to a@build.test")

    assert ran.out == "write to a@build.test"
    assert ran.err == "refold: scanned: nothing found that the policy redacts\n"
