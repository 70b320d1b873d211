"""Secrets and personal data in tables are found by the names of their columns."""

from __future__ import annotations

import csv
import io
from random import Random

import pytest

from benchmarks.redaction import values
from refold.redaction.checks.extents import _split
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
