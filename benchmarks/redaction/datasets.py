"""Labelled data that lies elsewhere, in the folder that ``--data`` names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.redaction.finding import Span
from benchmarks.redaction.labelled import Item

SENTENCES = "pii_presidio_synth_v2.json"
CASES = "pii_cases_dev.json"
STRUCTURED = {
    "CREDIT_CARD": "BANK_CARD",
    "EMAIL_ADDRESS": "EMAIL",
    "IBAN_CODE": "IBAN",
    "IP_ADDRESS": "IP",
    "PHONE_NUMBER": "PHONE",
    "US_SSN": "SSN",
}


class Case(NamedTuple):
    """A text that must, or must not, lose what it holds: of it, ``expected``."""

    id: str
    text: str
    must: bool
    expected: str


def sentences(folder: Path) -> list[Item]:
    """The sentences with spans; those of odd index are held out."""
    return [
        Item(entry["full_text"], tuple(map(_span, entry["spans"])), index % 2 == 1)
        for index, entry in enumerate(_read(folder / SENTENCES))
    ]


def cases(folder: Path) -> list[Case]:
    """The cases."""
    return [
        Case(
            f"{entry['fixture']}/{entry['id']}",
            entry["input"],
            entry["should_match"],
            entry.get("expected_text") or "",
        )
        for entry in _read(folder / CASES)
    ]


def _span(span: dict[str, Any]) -> Span:
    kind = span["entity_type"]
    kind = STRUCTURED.get(kind, f"other:{kind}")
    return Span(span["start_position"], span["end_position"], kind)


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
