"""The texts that take redaction longest: seconds of CPU per MB, on each engine.

``python -m benchmarks.redaction.worst`` prints them.  They were found by hill climbing:
random combinations of triggers and examples, changed where that took longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import process_time
from typing import Final

from refold.redaction.engines import EngineName, installed
from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor
from refold.redaction.values import OverBudget

_SIZE: Final = 100_000
WORST: Final[Mapping[str, str]] = {
    "one letter": "A",
    "one digit": "9",
    "short numbers": ".E12345678",
    "numbers with a word": "学号：2021001234........9434765870",
    "telephone numbers": "13912345670\n",
    "addresses": "10.0.0.1 ",
    "addresses with a word": "ip addr 10.0.0.1 ",
    "dots and digits": "1.1.1.",
    "e-mail addresses": "a.b@c.co ",
    "names of secrets": "password=",
    "options": "--token --token=",
    "values that hide each other": "CLIENT_SECRET=a8f5f167f44f4964",
    "heads of keys": "-----BEGIN PRIVATE KEY----",
    "ends of keys": "-----END PRIVATE KEY-----\n",
    "beginnings of keys in base64": "LS0tLS1CRUdJTiBQ" + "a" * 30 + "\n",
    "logins and escaped breaks": "login" + "\\n" * 20,
    "heads of tables": "name,password\n",
    "prefixes of lines": "12: pw=\n",
    "folded letters": "p\u200ba\u200bs\u200bs\u200bw\u200bo\u200br\u200bd\u200b=",
    "placeholders": "[REDACTED:SECRET]abcd",
    "brackets": '[{"a":"',
}


def taken(engine: EngineName) -> Iterator[tuple[str, float, bool]]:
    """(name, seconds of CPU a MB, whether it was refused) of each text."""
    redactor = Redactor(Plan(engine=engine))
    redactor.text("password: hunter2-in-plain")
    for name, unit in WORST.items():
        text = (unit * _SIZE)[:_SIZE]
        refused = False
        began = process_time()
        try:
            redactor.text(text)
        except OverBudget:
            refused = True
        yield name, (process_time() - began) / len(text.encode()) * 1e6, refused


def main() -> None:
    """Print a line for each text and engine."""
    engines: tuple[EngineName, ...] = ("stdlib", "vectorscan")
    for engine in engines if installed() else engines[:1]:
        for name, seconds, refused in taken(engine):
            note = "  refused: over the budget of work" if refused else ""
            print(f"{engine:10}  {name:30}  {seconds:6.2f} s/MB{note}")


if __name__ == "__main__":
    main()
