"""Whether memory warns of failures before real sessions repeat them.

``python -m benchmarks.warnings FOLDER [--threshold 0.5] [--json FILE]``

FOLDER has session files of Claude Code.  They are replayed in order of time: at the
begin of each, the advice is chosen that the memory of the sessions before it gives.
docs/benchmarks-memory.md says what is counted.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.history import envelopes
from refold.adapters import importers
from refold.domain.errors import ImportFailed
from refold.projections.memory.items import Item
from refold.projections.memory.sessions import Failure, SessionFacts, facts_of
from refold.store.memory.procedural import memory_from

_USER = "ada"


class Place(NamedTuple):
    """A session, and the seqs of events in it."""

    session: str
    seqs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Warned:
    """A line of advice that names a failure, and what the session then showed.

    kind:     ``failure`` says that the tool often fails so; ``recovery`` says what to
              do if it does.
    evidence: the events of earlier sessions that the line rests on.
    came:     the failed calls and their results, if the failure came.
    right:    whether it held; None if the session did not put it to the test.
    """

    session: str
    memory_id: str
    kind: str
    tool: str
    reason: str
    fix: str | None
    evidence: tuple[Place, ...]
    came: tuple[int, ...]
    right: bool | None


class Recurrence(NamedTuple):
    """A failure that an earlier session had too.

    seqs:    of the failed call and its result.
    warned:  the items of memory that the session was shown about it.
    """

    session: str
    tool: str
    reason: str
    seqs: tuple[int, int]
    warned: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """All warnings and recurrences of the sessions, in order of time.

    lines: how many lines of advice of each kind the sessions were shown.
    """

    sessions: int
    failures: int
    lines: dict[str, int]
    warnings: tuple[Warned, ...]
    recurrences: tuple[Recurrence, ...]

    def precision(self, *kinds: str) -> tuple[int, int]:
        """How many tested warnings of these kinds held, and how many there were."""
        tested = [
            warning
            for warning in self.warnings
            if warning.kind in kinds and warning.right is not None
        ]
        return sum(bool(warning.right) for warning in tested), len(tested)

    def to_json(self) -> dict[str, Any]:
        """All figures, and every warning and recurrence with its seqs."""
        right, tested = self.precision("failure", "recovery")
        return {
            "sessions": self.sessions,
            "failures": self.failures,
            "lines": self.lines,
            "tested": tested,
            "right": right,
            "warnings": [_plain(warning) for warning in self.warnings],
            "recurrences": [entry._asdict() for entry in self.recurrences],
        }


def _plain(warning: Warned) -> dict[str, Any]:
    return {
        "session": warning.session,
        "memory_id": warning.memory_id,
        "kind": warning.kind,
        "tool": warning.tool,
        "reason": warning.reason,
        "fix": warning.fix,
        "evidence": [place._asdict() for place in warning.evidence],
        "came": warning.came,
        "right": warning.right,
    }


def shown(folder: Path) -> Iterator[SessionFacts]:
    """Return the observations in each session of the files."""
    for path in sorted(folder.glob("*.jsonl")):
        try:
            transcripts = importers.read(path, format="claude-code")
        except ImportFailed as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        for number, transcript in enumerate(transcripts):
            name = f"{path.stem}:{number}" if number else path.stem
            yield facts_of(name, envelopes(transcript))


def replayed(facts: Iterable[SessionFacts], *, threshold: float = 0.5) -> Replay:
    """Replay the sessions in order of their begin.

    A session is advised by those that ended before it began.
    """
    in_order = sorted(facts, key=lambda session: (session.began_at, session.session_id))
    lines: dict[str, int] = {}
    warnings: list[Warned] = []
    recurrences: list[Recurrence] = []
    for session in in_order:
        earlier = [other for other in in_order if other.ended_at < session.began_at]
        memory = memory_from(_USER, earlier)
        advice = memory.advice(now=session.began_at, threshold=threshold)
        items = [item for item in memory.items if item.memory_id in advice.items]
        for item in items:
            lines[item.kind] = lines.get(item.kind, 0) + 1
            if item.kind in ("failure", "recovery"):
                warnings.append(_warning(item, session))
        recurrences += _recurrences(session, earlier, items)
    return Replay(
        sessions=len(in_order),
        failures=sum(len(session.failures) for session in in_order),
        lines=lines,
        warnings=tuple(warnings),
        recurrences=tuple(recurrences),
    )


def _warning(item: Item, session: SessionFacts) -> Warned:
    content: dict[str, Any] = dict(item.content)
    fix = content.get("fix")
    came = [failure for failure in session.failures if _is_of(failure, item)]
    right: bool | None = None
    if fix is not None and came:
        # The line holds if the agent's next success was with the tool that it names.
        right = sum(failure.fix == fix for failure in came) * 2 > len(came)
    elif fix is None and content["tool"] in _tools(session):
        right = bool(came)
    seqs: list[int] = []
    for failure in came:
        seqs += [failure.called, failure.seq]
    return Warned(
        session=session.session_id,
        memory_id=item.memory_id,
        kind=item.kind,
        tool=content["tool"],
        reason=content["reason"],
        fix=fix,
        evidence=tuple(Place(*evidence) for evidence in item.evidence),
        came=tuple(seqs),
        right=right,
    )


def _is_of(failure: Failure, item: Item) -> bool:
    named = item.content["tool"], item.content["reason"]
    return (failure.tool, failure.reason) == named


def _tools(session: SessionFacts) -> set[str]:
    tools: set[str] = set()
    for _, _, step in session.walked:
        tools.update(step)
    return tools


def _recurrences(
    session: SessionFacts, earlier: Iterable[SessionFacts], items: Sequence[Item]
) -> Iterator[Recurrence]:
    before = {
        (failure.tool, failure.reason)
        for other in earlier
        for failure in other.failures
    }
    named = [item for item in items if item.kind in ("failure", "recovery")]
    for failure in session.failures:
        if (failure.tool, failure.reason) in before:
            warned = [item.memory_id for item in named if _is_of(failure, item)]
            yield Recurrence(
                session.session_id,
                failure.tool,
                failure.reason,
                (failure.called, failure.seq),
                tuple(warned),
            )


def _printed(replay: Replay) -> str:
    warned = sum(bool(entry.warned) for entry in replay.recurrences)
    rows = [
        ("sessions", str(replay.sessions)),
        ("failed calls", str(replay.failures)),
        ("of them, as in an earlier session", str(len(replay.recurrences))),
        ("of those, warned of", str(warned)),
    ]
    for kind, count in sorted(replay.lines.items()):
        rows.append((f"lines of advice: {kind}", str(count)))
    for kind in ("failure", "recovery"):
        right, tested = replay.precision(kind)
        share = f"{right / tested:.2f}" if tested else "-"
        rows.append((f"tested {kind} warnings that held", f"{right}/{tested} {share}"))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:{width}}  {value}" for name, value in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Replay the sessions of a folder, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.warnings")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threshold", type=float, default=0.5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    replay = replayed(shown(options.folder), threshold=options.threshold)
    print(_printed(replay))
    if options.json:
        options.json.write_text(json.dumps(replay.to_json(), indent=1) + "\n")
    return 0 if replay.sessions else 1


if __name__ == "__main__":
    sys.exit(main())
