"""What real transcripts take on the disk, and what their summaries add."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.store.engines import Engine
from benchmarks.store.figures import Figures
from benchmarks.store.ours import USER, Refold
from benchmarks.store.reads import STRATEGY
from refold.adapters.importers import read
from refold.adapters.importers.base import Transcript
from refold.domain.envelope import Envelope
from refold.domain.events import Event, ToolCall, ToolResult
from refold.store import Session
from refold.store.sessions import extend

TAU = "tau-bench"


def transcripts(engine: Engine, figures: Figures, folder: Path, *, quick: bool) -> None:
    """Import ``tau_bench*.json`` of the folder, weigh it, and compact it again."""
    files = sorted(folder.glob("tau_bench*.json"))
    if not files:
        figures.note(f"{TAU}: not measured, there is no tau_bench*.json in {folder}")
        return
    found = [transcript for file in files for transcript in read(file)]
    figures.sizes.setdefault(engine.name, {}).update(_sizes(engine, found))
    wanted = 20 if quick else 1_000
    figures.summaries[engine.name] = _summaries(engine, found, wanted)


def _sizes(engine: Engine, found: Sequence[Transcript]) -> dict[str, float]:
    """Bytes of one event, stored and as ``refold log --json`` prints it."""
    ours = Refold(engine)
    with ours.store as store:
        empty = ours.stored()
        events = text = 0
        for transcript in found:
            session = store.session(USER, transcript.session_id)
            extend(session, transcript.drafts, where=transcript.session_id)
            for envelope in session.pages():
                events += 1
                text += len(orjson.dumps(envelope.to_json())) + 1
        taken = ours.stored() - empty
    return {TAU: taken / events, f"{TAU}, JSON": text / events}


def _summaries(
    engine: Engine, found: Sequence[Transcript], wanted: int
) -> dict[str, float]:
    """The share of summaries in a session that was compacted so often.

    The session is made of the transcripts, one after another and again.
    """
    with Refold(engine).store as store:
        session, made = store.session(USER, "talk"), 0
        for number in itertools.count():
            drafts = found[number % len(found)].drafts
            session.append([_renamed(draft.event, number) for draft in drafts])
            while session.compact(STRATEGY) is not None:
                made += 1
            if made >= wanted:
                break
        (derived,) = (name for name in session.streams() if name != "main")
        text = _text(session.derived(derived)) / _text(session.pages())
        rows = _rows(session, derived) / _rows(session, "main")
    return {
        f"{made} compactions, on the disk": rows,
        f"{made} compactions, as JSON": text,
    }


def _renamed(event: Event, number: int) -> Event:
    """The event with a call id that is new to the session."""
    if not isinstance(event, ToolCall | ToolResult):
        return event
    return event.model_copy(update={"call_id": f"{number}-{event.call_id}"})


def _text(events: Iterable[Envelope]) -> int:
    return sum(len(orjson.dumps(event.to_json())) for event in events)


def _rows(session: Session, name: str) -> int:
    log: Any = session.writer.log
    rows = log.recorder.select_events(session.stream._replace(stream=name))
    return sum(len(row.state) for row in rows)
