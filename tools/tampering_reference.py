"""Write the reference of tampering from the tests that try it.

``python -m tools.tampering_reference`` writes ``docs/reference/tampering.md``; with
``--check`` it writes nothing, and exits 1 if the page is out of date.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.tampering import COLUMNS, NOT_PROVED, OTHERS, Tampering

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "tampering.md"

_HEAD = """# Tampering

The tests try each of these attacks on a store, on both engines. The tables show the
code with which `refold verify` reports the attack. `make fix` writes this page. See
[what Refold proves, and its limits](../explanation/integrity.md).

A problem is `{"user_id", "session_id", "stream", "seq", "code", "detail"}`. Problems of
the tree have the stream `tree` and no user. Their `seq` is the number of a leaf or the
size of a tree head.

| code | meaning |
|---|---|
| `gap`, `chain` | an event is missing here, or is not what was written |
| `corrupt`, `unreadable`, `key` | it cannot be decrypted; its key is missing or wrong |
| `replaced` | its ciphertext is not the one that a redaction wrote |
| `rule` | it breaks a rule of its session |
| `head` | the head is missing, is not the end of the events, or has a wrong status |
| `blob`, `view`, `receipt`, `label` | one of these is not what was written |
| `source`, `request` | a summary's source or a recorded request cannot be derived |
| `seal` | the stream is not what was sealed |
| `leaf` | a leaf is missing, or belongs to no stream |
| `root`, `signature` | leaves do not give a tree head, or it was not signed here |
| `anchor` | the tree heads in the database, the anchor and the key store differ |
| `erasure`, `certificate` | a leaf has no certificate; one is forged or missing |
| `hold`, `subject` | a hold, a freeze or a user's status is not what was signed |
| `guard` | a trigger or a setting that protects events was changed |
| `stray` | a row belongs to no session |
| `opening` | the store does not open, and reports the reason |

"""


def page() -> str:
    """Return the whole page."""
    text = _HEAD + "## Attacks\n\n| attack | reported as | remark |\n|---|---|---|\n"
    text += "".join(map(_row, OTHERS))
    text += "\n## A flipped bit in each column\n\n"
    text += "| table | columns | reported as | remark |\n|---|---|---|---|\n"
    text += "".join(_columns())
    text += "\nNot proved, table by table:\n\n"
    return text + "".join(
        f"- `{name}`: {why}\n" for name, (_, why) in NOT_PROVED.items()
    )


def _columns() -> Iterator[str]:
    """Yield a row for the columns of a table that ``verify`` reports alike."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for name, (code, why) in COLUMNS.items():
        table, _, column = name.partition(".")
        alike.setdefault((table, code, why), []).append(f"`{column}`")
    for (table, code, why), columns in alike.items():
        reported = f"`{code}`" if code else "not detected"
        cells = (f"`{table}`", ", ".join(columns), reported, why)
        yield f"| {' | '.join(cells)} |\n".replace("|  |", "| |")


def _row(tampering: Tampering) -> str:
    code = f"`{tampering.code}`" if tampering.code else "not detected"
    action = tampering.what
    if tampering.engine:
        action += " (SQLite)"
    return f"| {action} | {code} | {tampering.why} |\n".replace("|  |", "| |")


def main(arguments: Sequence[str]) -> int:
    """Write the page, or check it; return 1 if it is out of date."""
    if arguments != ["--check"]:
        PAGE.write_text(page(), encoding="utf-8")
    elif not PAGE.exists() or page() != PAGE.read_text(encoding="utf-8"):
        print(f"{PAGE}: out of date: `make fix` writes it")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
