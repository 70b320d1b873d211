"""How often replayed edits yield what a later read of the file shows.

``python -m benchmarks.files DIR`` imports the session files of a folder into a store in
memory, with redaction, and compares each read with the lines that the reads and edits
before it yield.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import refold
from refold.domain.errors import ImportFailed
from refold.projections.files.history import Compared
from refold.store import SessionStore
from refold.store.files import file_histories, with_sub_agents


class Figures(NamedTuple):
    """Counts of reads: by outcome, and the unknown ones by reason.

    first:  reads of lines that no event had shown before.
    edited: those of the comparable reads that follow an edit of the file by the run.
    """

    first: int
    equal: int
    unequal: int
    edited: int
    edited_equal: int
    unknown: Counter[str]

    @property
    def share(self) -> float:
        """The share of the comparable reads that show what the replay yields."""
        comparable = self.equal + self.unequal
        return self.equal / comparable if comparable else 0.0


def figures_of(reads: Iterable[Compared]) -> Figures:
    """Count the outcomes of these reads."""
    first = 0
    outcomes: Counter[str] = Counter()
    edited: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    for read in reads:
        if read.reason == "not_read":
            first += 1
        elif read.outcome == "unknown":
            unknown[str(read.reason)] += 1
        else:
            outcomes[read.outcome] += 1
            if read.edited:
                edited[read.outcome] += 1
    return Figures(
        first=first,
        equal=outcomes["equal"],
        unequal=outcomes["unequal"],
        edited=edited.total(),
        edited_equal=edited["equal"],
        unknown=unknown,
    )


def reads_in(store: SessionStore, folder: Path) -> Iterator[Compared]:
    """Import the files of a folder; yield the reads of each run and its sub-agents."""
    for path in sorted(folder.glob("*.jsonl")):
        try:
            store.import_transcript(path, user_id="bench")
        except ImportFailed as error:
            print(f"left out: {error}", file=sys.stderr)
    for info in store.sessions("bench"):
        if "~" in info.session_id:
            continue
        session = store.session(user_id="bench", session_id=info.session_id)
        yield from file_histories(with_sub_agents(session)).compared


def report(figures: Figures) -> str:
    """Return the figures as a table in Markdown."""
    rows = [
        ("the read shows what the replay yields", figures.equal),
        ("the read shows other lines", figures.unequal),
        ("of the two, after an edit by the run", figures.edited),
        ("first read of these lines, nothing to compare", figures.first),
    ]
    for reason, count in figures.unknown.most_common():
        rows.append((f"marked unknown: `{reason}`", count))
    lines = ["| reads | number |", "| --- | --- |"]
    lines += [f"| {name} | {count:,} |" for name, count in rows]
    lines += ["", f"{figures.share:.2%} of the comparable reads are equal."]
    return "\n".join(lines)


def main() -> int:
    """Print the figures; 1 if fewer than 99 % of the comparable reads are equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, metavar="DIR")
    folder = parser.parse_args().folder
    with refold.open("memory://") as store:
        figures = figures_of(reads_in(store, folder))
    print(report(figures))
    return 0 if figures.share >= 0.99 else 1


if __name__ == "__main__":
    sys.exit(main())
