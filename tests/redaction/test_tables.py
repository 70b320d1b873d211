"""Secrets and personal data in tables are found by the names of their columns."""

from __future__ import annotations

import csv
import io
import json
from importlib.resources import files
from random import Random

import pytest

from benchmarks.redaction import values
from refold.redaction.checks.extents import _split
from refold.redaction.checks.names import patterns
from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor
from refold.redaction.rules import PACKS
from refold.redaction.rules.default import DEFAULT_RULES

redactor = Redactor(Plan(rules=(*DEFAULT_RULES, *PACKS["person"])))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'user,password,note\nada,bear-77Q,"a, b"\nbob,Amber_River42,"c, d, e"\n',
            'user,password,note\nada,*,"a, b"\nbob,*,"c, d, e"\n',
        ),
        (
            'user;note;password\nada;"first\nsecond";bear-77Q\nbob;"x;y";"Amber_7!x"\n',
            'user;note;password\nada;"first\nsecond";*\nbob;"x;y";"*"\n',
        ),
        (
            'id,full_name,dob,city\r\n1,"Ana Lee",1951-01-14,"A, B"\r\n',
            'id,full_name,dob,city\r\n1,"*",*,"A, B"\r\n',
        ),
        (
            'user,password\nada,"x7""hi""7Q"\nbob,bear-77Q\n',
            'user,password\nada,"*"\nbob,*\n',
        ),
        (
            '5" pipe,password\n6" pipe,bear-77Q\n',
            '5" pipe,password\n6" pipe,*\n',
        ),
        (
            'size,user,password\n6" pipe,ada,bear-77Q\n8" rod,bob,Amber_River42\n',
            'size,user,password\n6" pipe,ada,*\n8" rod,bob,*\n',
        ),
        (
            'note;password;size\n"5"" a; b";bear-77Q;3" rod\n"c\nd";"Amber_7!x";2"\n',
            'note;password;size\n"5"" a; b";*;3" rod\n"c\nd";"*";2"\n',
        ),
    ],
)
def test_cells_in_quotes_hide_no_other_column(text: str, expected: str) -> None:
    clean = redactor.text(text)[0]
    for kind in ("SECRET", "PERSON", "DATE_OF_BIRTH"):
        clean = clean.replace(f"[REDACTED:{kind}]", "*")

    assert clean == expected


@pytest.mark.parametrize(
    ("text", "passwords"),
    [
        (
            'note,password\n "q",x\n"open,{}\na,{}\n"a ""b""","{}"\n',
            ["Garnet#Orchard25", "JcBrD2mX77d17", "Amber#River42"],
        ),
        (
            'size;password;user\n"a""b";{};"\na "b" c;"{}";12\n',
            ["Jtdabm#Fptxgp33", "nydxid@22fdyikr"],
        ),
        (
            'user,size,password,note\n"l1\nl2",5",{},"a ""b\n"a b","open,x,""',
            ["Jcgrqxtq89INCRNW77d93"],
        ),
        (
            'user,password,size\n"a"b,{},"l1\nl2"\n12,{},ada\n',
            ["Jchazi20MKWFXS77d14", "Zfpka5704#q"],
        ),
    ],
)
def test_a_malformed_row_of_csv_hides_no_password(
    text: str, passwords: list[str]
) -> None:
    clean = redactor.text(text.format(*passwords))[0]

    assert clean == text.format(*["[REDACTED:SECRET]"] * len(passwords))


# Far more rows than a window of some thousand characters holds.
ROWS = 590
# A statement that names no column of secrets.
OTHER_STATEMENT = "INSERT INTO u (id, note) VALUES (1, 'bear-77Q');\n"


@pytest.mark.parametrize(
    ("head", "row", "end"),
    [
        (
            "INSERT INTO u (id, password) VALUES",
            "\n(7, '{password}'),",
            "\n(8, NULL);\n",
        ),
        (
            "INSERT INTO u (password, id) VALUES",
            '\n("{password}", 7),',
            "\n(NULL, 8);\n",
        ),
        ("COPY u (id, password) FROM stdin;", "\n7\t{password}", "\n\\.\n"),
        ("COPY u (password) FROM stdin;", "\n{password}", "\n\\.\n"),
    ],
)
def test_every_row_of_a_statement_is_searched(head: str, row: str, end: str) -> None:
    rows = [row.format(password=f"bear-{number}Qx") for number in range(ROWS)]
    text = head + "".join(rows) + end + OTHER_STATEMENT

    clean = redactor.text(text)[0]

    clean_row = row.format(password="[REDACTED:SECRET]")
    assert clean == head + clean_row * ROWS + end + OTHER_STATEMENT


HEAD = "INSERT INTO users (id, password) VALUES "
LOG = "one line of a log 12\n" * 240


@pytest.mark.parametrize(
    "rows",
    [
        "(1,'{0}'),\n-- two\n(2,'{1}');",
        "(1,'{0}'),\n# two\n(2,'{1}');",
        "(1,'{0}'), -- don't\n(2,'{1}');",
        "/* a */ (1,'{0}'), /* b */ (2,'{1}');",
        "\n-- the first (of two)\n(1,'{0}'),(2,'{1}');",
        "\n+(1,'{0}'),\n+(2,'{1}')",
        "\n> (1,'{0}'),\n> (2,'{1}')",
        "\n  11 | (1,'{0}'),\n  12 | (2,'{1}')",
        "\npsql-> (1,'{0}'),\npsql-> (2,'{1}')",
        "\n...   (1,'{0}'),\n...   (2,'{1}')",
        "ROW(1,'{0}'),ROW(2,'{1}')",
        "(1,'{0}'),\" +\n \"(2,'{1}')",
        "\n" + " " * 70 + "(1,'{0}'),\n" + " " * 70 + "(2,'{1}')",
        "(5\" , '{0}'),('b\"', '{1}')",
        "('x\\\\'y', '{0}'), (2, '{1}')",
        "('insert into x (a) values (1)', '{0}'), (2, '{1}')",
    ],
)
def test_text_between_rows_hides_no_row(rows: str) -> None:
    text = HEAD + rows.format("Raven7803*", "amber@16eagle")

    clean = redactor.text(text)[0]

    assert clean == HEAD + rows.format("[REDACTED:SECRET]", "[REDACTED:SECRET]")


def test_a_string_with_two_quotes_at_its_end_may_be_closed_by_the_first() -> None:
    clean = redactor.text(f"{HEAD}(1, 'Raven7803*'')")[0]

    assert clean == f"{HEAD}(1, '[REDACTED:SECRET]'')"


@pytest.mark.parametrize(
    "broken",
    [
        "(1, 'abc... [truncated]\n",
        '(1, "abc... [truncated]\n',
        "(1, 'abc', [truncated]\n",
        "(1, lower('x'\n",
        "(?, ?\n",
        "(1, don't\n",
        "(1, 'a\\'\n",
    ],
)
@pytest.mark.parametrize("log", [LOG, LOG[:1050], ""])
def test_a_broken_row_hides_no_other_statement(broken: str, log: str) -> None:
    text = f"{HEAD}{broken}{log}{HEAD}(2, '{{password}}');\n"

    clean = redactor.text(text.format(password="amber@16eagle"))[0]

    assert clean == text.format(password="[REDACTED:SECRET]")


@pytest.mark.parametrize(
    "sentence",
    [
        "\n\nThen call foo('alpha', 'beta gamma') and bar(1, \"README.md\")",
        "\nSELECT substr(name, 'from here')",
        "\n    return g('alpha', 'beta')",
    ],
)
def test_calls_behind_a_statement_are_no_rows(sentence: str) -> None:
    clean = redactor.text(f"{HEAD}(1, 'bear-77Q'){sentence}")[0]

    assert clean == f"{HEAD}(1, '[REDACTED:SECRET]'){sentence}"


def test_rows_in_a_literal_with_escaped_quotes_are_searched() -> None:
    rows = r"(\'tiger-8215w\', 78),\n-- (note)\n(\'tiger_9779Q\',27)"
    statement = f"x = 'INSERT INTO u (password, id) values{rows}'"

    clean = redactor.text(statement)[0]

    assert "tiger" not in clean
    assert "-- (note)" in clean


def test_a_password_cut_at_the_end_of_its_line_is_found() -> None:
    text = f"{HEAD}(1, '{{0}}\nmore\n{HEAD}(2, '{{0}}');\n"

    clean = redactor.text(text.format("amber@16eagle"))[0]

    assert clean == text.format("[REDACTED:SECRET]")


def test_an_escaped_statement_behind_another_is_found() -> None:
    text = f"{HEAD}(1, {{0}});\n{HEAD}\n({{0}}, 2);".replace(" VALUES", "\nVALUES")
    text = json.dumps({"sql": text.replace("(id, password)", "(password, password)")})

    clean = redactor.text("out: " + text.replace("{0}", "'bear-77Q'"))[0]

    assert clean == "out: " + text.replace("{0}", "'[REDACTED:SECRET]'")


def test_all_patterns_of_sql_agree_about_the_head_of_a_statement() -> None:
    extents = patterns("extents")
    head = extents.SQL_HEAD.pattern

    assert extents.SQL_ITEM.pattern.startswith(f"{head}|")
    carriers = files("refold.redaction.rules.packs") / "carriers.toml"
    assert head in carriers.read_text(encoding="utf-8")


def test_far_rows_continue_only_behind_a_comma() -> None:
    rows = ", ".join(f"({number}, 'bear-{number}Qx')" for number in range(ROWS))
    calls = "\nfind(1, 'name-1Qx')" * 3

    clean = redactor.text(f"{HEAD}{rows}{calls}")[0]

    assert clean.count("[REDACTED:SECRET]") == ROWS
    assert clean.endswith(calls)


@pytest.mark.parametrize("quote", ["'", '"'])
def test_rows_in_escaped_text_are_searched(quote: str) -> None:
    rows = [f"(7, {quote}bear-{number}Qx{quote})" for number in range(ROWS)]
    statement = f"INSERT INTO u (id, password) VALUES {','.join(rows)};"
    text = f"out: {json.dumps({'sql': statement})}"

    clean = redactor.text(text)[0]

    assert clean.count("[REDACTED:SECRET]") == ROWS
    json.loads(clean.removeprefix("out: "))


@pytest.mark.parametrize("is_escaped", [False, True])
def test_a_wrapped_token_ends_with_its_short_line(is_escaped: bool) -> None:
    token = (
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9."
        "eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6IkpvaG4gRG9lIn0."
        "q7Zt0Kx3Vb9Lm2Np5Rs8Wd1Yf4Hj6CgTuEaXoIiGkMz"
    )
    lines = "\n".join(token[start : start + 40] for start in range(0, len(token), 40))
    before = "a line that is longer than those of the token which follows it\n"
    text = f"{before}{lines}\nnextword\nmore words"
    expected = f"{before}[REDACTED:JWT]\nnextword\nmore words"
    if is_escaped:
        text = f"out: {json.dumps({'text': text})}"
        expected = f"out: {json.dumps({'text': expected})}"

    assert redactor.text(text)[0] == expected


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_row_has_the_cells_that_a_reader_of_csv_sees(delimiter: str) -> None:
    random = Random(delimiter)
    for _ in range(500):
        cells: list[str] = []
        for _ in range(random.randrange(1, 6)):
            cells.append(values.run(random, random.randrange(6), f'ab "{delimiter}'))
        out = io.StringIO()
        csv.writer(out, delimiter=delimiter, lineterminator="").writerow(cells)
        row = out.getvalue()

        spans = _split(row, 0, delimiter)

        dialect = csv.reader([row], delimiter=delimiter)
        assert len(spans) == len(next(dialect, [""])), row
