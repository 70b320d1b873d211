"""Compares reconstructed contexts with the billed tokens of real sessions.

``python -m benchmarks.history FOLDER [--worst 10] [--json FILE]``

FOLDER has session files of Claude Code.  Each answer in them names the input tokens
that were billed for it.  docs/benchmarks-history.md says how they are compared.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from refold.adapters import importers
from refold.adapters.importers import Transcript
from refold.domain.envelope import Envelope
from refold.domain.errors import ImportFailed
from refold.domain.events import AgentResponse
from refold.domain.ids import StreamId
from refold.domain.tokens import estimate
from refold.projections.compare import Element, Elements, Requests, texts_in
from refold.projections.context.budget import NO_EXTRAS
from refold.projections.context.edits import HistoryEdited, edit_of
from refold.projections.context.outline import Outline
from refold.projections.context.strategies.keep_all import KeepAll
from refold.projections.tokens import (
    Weights,
    input_tokens,
    of_json,
    of_text,
    starting_weights,
)
from refold.store.marks import with_own_seqs

_NEAR: Final = 0.10  # a count within this share of the bill is right
_KEEP_ALL: Final = KeepAll()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Answer(NamedTuple):
    """An answer: the tokens that were billed for its request, and our count.

    edited: whether the client changed its history since the answer before.
    """

    session: str
    seq: int
    model: str
    billed: int
    counted: float
    edited: bool


# Tokens per character of a thinking block's signature, and of the frame of a call or a
# result.  They were fitted on the growth of bills from answer to answer: the text of a
# thinking block is a summary, and its signature has the length of the original.
_BY_SIGNATURE: Final = 0.22
_CALL: Final = 57
_RESULT: Final = 57
_MESSAGE: Final = 8
# Of these models, the API drops the thinking of earlier turns.
_DROPS_THINKING: Final = re.compile(r"claude-(sonnet|haiku)-4-5")


class Count(NamedTuple):
    """The tokens of an element.

    thinking:   whether it is a thinking block.
    begins_turn: whether it is text of a user.
    """

    tokens: float
    thinking: bool = False
    begins_turn: bool = False


@dataclass(slots=True)
class Counter:
    """Counts the tokens of elements, equal ones only once."""

    weights: Weights = field(default_factory=lambda: starting_weights("claude-3"))
    counts: dict[bytes, Count] = field(default_factory=dict)

    def count(self, elements: Sequence[Element], model: str) -> float:
        """The tokens of a request to this model."""
        counts = [self._count(element) for element in elements]
        drops = _DROPS_THINKING.match(model) is not None
        total = 0.0
        is_current = True  # whether the elements are of the newest turn
        for count in reversed(counts):
            if count.begins_turn:
                is_current = False
            if not (count.thinking and drops and not is_current):
                total += count.tokens
        return total

    def _count(self, element: Element) -> Count:
        count = self.counts.get(element.key)
        if count is None:
            count = self._counted(element)
            self.counts[element.key] = count
        return count

    def _counted(self, element: Element) -> Count:
        role, _, content = element.key.decode().partition("{")
        block = json.loads("{" + content)
        if "thinking" in block["type"]:
            sealed = block.get("signature") or block.get("data") or ""
            return Count(_BY_SIGNATURE * len(sealed), thinking=True)
        tokens = sum(self.weights.tokens(of_text(text)) for text in texts_in(block))
        if block["type"] == "tool_use":
            arguments = self.weights.tokens(of_json(block["input"]))
            return Count(arguments + _CALL)
        if block["type"] == "tool_result":
            return Count(tokens + _RESULT)
        is_text = block["type"] == "text"
        return Count(tokens + _MESSAGE, begins_turn=role == "user" and is_text)


def envelopes(transcript: Transcript) -> list[Envelope]:
    """The events of a transcript as a log would have them."""
    stream = StreamId("bench", "session")
    log: list[Envelope] = []
    for seq, draft in enumerate(with_own_seqs(transcript.drafts), start=1):
        event = draft.event
        log.append(
            Envelope.imagined(
                event,
                seq,
                draft.ts or _EPOCH,
                stream,
                tokens=estimate(event.payload()),
                meta=draft.meta,
                agent=draft.agent,
            )
        )
    return log


def answers(name: str, log: Sequence[Envelope], counter: Counter) -> Iterator[Answer]:
    """Return the answers of a log whose bill is known."""
    requests = Requests(_KEEP_ALL, log, NO_EXTRAS, Elements())
    outline: Outline = _KEEP_ALL.begin()
    billed: set[str] = set()
    edited = False
    for index, envelope in enumerate(log):
        if edit_of(envelope) is not None:
            edited = True
        bill = _bill(envelope)
        response_id = envelope.meta.response_id or ""
        if bill and response_id not in billed and envelope.seq > 1:
            billed.add(response_id)
            model = envelope.meta.model or ""
            elements = requests.next(outline, ()).elements
            counted = counter.count(elements, model)
            yield Answer(name, envelope.seq, model, bill, counted, edited)
            edited = False
        try:
            outline = _KEEP_ALL.fold(outline, envelope)
        except HistoryEdited:
            outline = _KEEP_ALL.read_whole(log[: index + 1])


def _bill(envelope: Envelope) -> int:
    response = envelope.payload
    usage = response.usage if isinstance(response, AgentResponse) else None
    return input_tokens(usage or envelope.meta.usage)


class Session(NamedTuple):
    """The answers of a session file.

    whole:    whether the file has the beginning of the conversation.
    rebuilt:  counted in the contexts that the import reconstructs.
    straight: counted in the list of all entries in the order of the file.
    """

    name: str
    whole: bool
    rebuilt: list[Answer]
    straight: list[Answer]


def sessions(folder: Path) -> Iterator[Session]:
    """Return the sessions with at least two answers whose bill is known."""
    counter = Counter()
    for path in sorted(folder.glob("*.jsonl")):
        try:
            transcripts = importers.read(path, format="claude-code")
        except ImportFailed as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        for number, transcript in enumerate(transcripts):
            name = f"{path.stem}:{number}" if number else path.stem
            log = envelopes(transcript)
            plain = [event for event in log if edit_of(event) is None]
            rebuilt = list(answers(name, log, counter))
            edited = {answer.seq: answer.edited for answer in rebuilt}
            straight: list[Answer] = []
            for answer in answers(name, plain, counter):
                straight.append(answer._replace(edited=edited[answer.seq]))
            if len(rebuilt) > 1:
                yield Session(name, begins(path), rebuilt, straight)


def begins(path: Path) -> bool:
    """Whether a file has the begin of its conversation: an entry without a parent.

    A file that was cut begins with an entry whose parent is not in it.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict) and "parentUuid" in entry:
                return entry["parentUuid"] is None
    return True


def stretches(run: Sequence[Answer]) -> list[list[Answer]]:
    """The answers between two edits of the client."""
    parts: list[list[Answer]] = [[]]
    for answer in run:
        if answer.edited:
            parts.append([])
        parts[-1].append(answer)
    return [part for part in parts if len(part) > 1]


def fitted(runs: Iterable[Sequence[Answer]]) -> dict[str, float]:
    """Return the scale of each model that brings most answers near their bills.

    It is the weighted median of the scales that answers need, so that sessions with
    content that no transcript has do not move it.
    """
    asked: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for run in runs:
        first = run[0]
        for answer in run[1:]:
            counted = answer.counted - first.counted
            if counted > 0:
                scale = (answer.billed - first.billed) / counted
                asked[answer.model].append((scale, counted / answer.billed))
    return {model: _median(scales) for model, scales in asked.items()}


def _median(weighted: Sequence[tuple[float, float]]) -> float:
    """The weighted median of (value, weight)."""
    half = sum(weight for _, weight in weighted) / 2
    passed = 0.0
    for value, weight in sorted(weighted):
        passed += weight
        if passed >= half:
            return value
    return 1.0


class Checked(NamedTuple):
    """An answer and the bill that its context predicts."""

    answer: Answer
    expected: float

    @property
    def error(self) -> float:
        return self.expected / self.answer.billed - 1

    @property
    def is_near(self) -> bool:
        return abs(self.error) <= _NEAR


def checked(
    runs: Iterable[Sequence[Answer]], scales: Mapping[str, float]
) -> list[Checked]:
    """Return every answer of each run except the first, which sets the run's offset."""
    results: list[Checked] = []
    for run in runs:
        first = run[0]
        for answer in run[1:]:
            scale = scales.get(answer.model, 1.0)
            offset = first.billed - scale * first.counted
            results.append(Checked(answer, offset + scale * answer.counted))
    return results


class Row(NamedTuple):
    """A line of the table: answers, and the share that is within 10 % of the bill.

    after_edits: the first answers after a compaction, a rewind, or another edit.
    """

    contexts: str
    answers: int
    near: float
    after_edits: int
    near_after_edits: float
    median_error: float


def row(contexts: str, results: Sequence[Checked]) -> Row:
    plain = [result for result in results if not result.answer.edited]
    edited = [result for result in results if result.answer.edited]
    errors = sorted(abs(result.error) for result in results)
    return Row(
        contexts=contexts,
        answers=len(plain),
        near=_share_near(plain),
        after_edits=len(edited),
        near_after_edits=_share_near(edited),
        median_error=errors[len(errors) // 2] if errors else 0.0,
    )


def _share_near(results: Sequence[Checked]) -> float:
    near = sum(1 for result in results if result.is_near)
    return near / len(results) if results else 0.0


def rows(measured: Sequence[Session]) -> Iterator[tuple[Row, list[Checked]]]:
    """The lines of the table, each with its answers."""
    whole = [session for session in measured if session.whole]
    rebuilt = [session.rebuilt for session in whole]
    scales = fitted(rebuilt[::2])
    results = checked(rebuilt, scales)
    yield row("reconstructed", results), results
    held_out = checked(rebuilt[1::2], scales)
    yield row("reconstructed, sessions without a part in the fit", held_out), held_out
    parts = [part for run in rebuilt for part in stretches(run)]
    results = checked(parts, scales)
    yield row("reconstructed, an offset after each edit", results), results
    cut = [session.rebuilt for session in measured if not session.whole]
    results = checked(cut, scales)
    yield row("reconstructed, files without their begin", results), results
    straight = [session.straight for session in whole]
    results = checked(straight, scales)
    yield row("straight list", results), results


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history")
    parser.add_argument("folder", type=Path, help="with session files of Claude Code")
    parser.add_argument(
        "--worst", type=int, default=0, help="print so many of the largest errors"
    )
    parser.add_argument("--json", type=Path, help="write the table here, too")
    options = parser.parse_args(arguments)
    measured = list(sessions(options.folder))
    table = list(rows(measured))
    print("| contexts | answers | within 10 % | after edits | within 10 % | median |")
    print("| --- | --- | --- | --- | --- | --- |")
    for line, _ in table:
        print(
            f"| {line.contexts} | {line.answers:,} | {line.near:.1%} | "
            f"{line.after_edits} | {line.near_after_edits:.1%} | "
            f"{line.median_error:.1%} |"
        )
    worst = sorted(table[0][1], key=lambda result: -abs(result.error))
    for result in worst[: options.worst]:
        answer = result.answer
        print(
            f"{answer.session} seq {answer.seq} {answer.model}: billed "
            f"{answer.billed:,}, expected {result.expected:,.0f} ({result.error:+.0%})"
        )
    if options.json:
        lines = [line._asdict() for line, _ in table]
        options.json.write_text(json.dumps(lines, indent=1))
    return 0 if measured else 1


if __name__ == "__main__":
    sys.exit(main())
