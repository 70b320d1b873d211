"""What a human is shown with a question: all that it takes, and no store behind it.

It is made of the log, which is redacted, is at most ``MOST_BYTES`` of JSON, and the
rule fires again on its events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import orjson
from pydantic import Field, ValidationError

from refold.domain.canonical import canonical, text_digest
from refold.domain.certificate import timestamp
from refold.domain.envelope import Envelope, Warn
from refold.domain.errors import InvalidConfiguration, InvalidEvent
from refold.domain.events import (
    JsonObject,
    Request,
    SessionEvent,
    SystemPrompt,
    event_of,
)
from refold.domain.model import Model, explain
from refold.projections.review.cutting import FITS, Fit, slim
from refold.projections.review.incidents import Due, Seen, Watching
from refold.projections.review.pairs import Pairs, units
from refold.projections.review.rules import ReviewRules, rule_of, said_by
from refold.projections.review.texts import cut, deeper
from refold.projections.review.triggers import told

_DEEPEST: Final = 128
FORMAT: Final = "refold-review-bundle/1"
MOST_BYTES: Final = 65_536


class Entry(Model):
    """An event of a bundle: cut to size, its call named by the seq of the call."""

    seq: int = Field(ge=1)
    ts: str
    type: str
    payload: JsonObject
    hash: str
    agent: str | None = None
    warnings: tuple[Warn, ...] = ()

    def event(self) -> SessionEvent:
        """The event.  Raises InvalidEvent if it is none."""
        return event_of(self.type, self.payload)


class Where(Model):
    """Which session and events: where the rule fired first, and was for a human."""

    user_id: str
    session_id: str
    first_seq: int = Field(ge=1)
    at_seq: int = Field(ge=1)
    seqs: tuple[int, ...]


class Bundle(Model):
    """A question to a human with all that it takes to judge it.

    refold, rules: the version that asked, and the digest of all its rules.
    system_digest: the SHA-256 of the system prompt in force; ``strategy``, ``model``
                   and ``request_digest`` are those of the last request.
    left_out:      how many events of the turn are not in it.
    refused:       why it has no events, where the store took none.
    """

    format: Literal["refold-review-bundle/1"] = FORMAT
    refold: str
    rules: str
    rule: JsonObject
    figures: JsonObject
    where: Where
    system_digest: str | None = None
    strategy: JsonObject | None = None
    model: str | None = None
    request_digest: str | None = None
    events: tuple[Entry, ...]
    left_out: int = Field(default=0, ge=0)
    refused: str | None = None

    @property
    def says(self) -> str:
        """What the rule found, as a sentence."""
        return told(self.figures)

    def to_json(self) -> JsonObject:
        """The bundle as it is stored and handed on."""
        return self.model_dump(mode="json", exclude_none=True)


class Source(NamedTuple):
    """What a bundle is made of.

    events: of the turn up to where it was for a human, and those of before that show
            it, in order.
    system, request: the newest up to there.
    """

    due: Due
    rules: ReviewRules
    refold: str
    events: Sequence[Envelope]
    system: Envelope | None
    request: Envelope | None


def bundle_of(source: Source, most: int = MOST_BYTES) -> Bundle:
    """The largest bundle within ``most`` bytes: what shows it first, then what is new.

    Texts are cut as far as what shows it needs room.  A call stands with its result.
    """
    shown = [e for e in source.events if e.type not in _NOT_SHOWN]
    for fit in FITS:
        entries = _chosen(source, shown, fit, most)
        if entries is not None:
            break
    else:
        entries = []  # so little room is asked for only where the store has no more
    head = _head(source)
    kept = sum(entry.seq >= source.due.turn_seq for entry in entries)
    left = source.due.at_seq - source.due.turn_seq + 1 - kept
    return head.model_copy(update={"events": tuple(entries), "left_out": left})


def bare(source: Source, refused: str) -> Bundle:
    """The bundle without events, and why it has none."""
    left = source.due.at_seq - source.due.turn_seq + 1
    return _head(source).model_copy(
        update={"left_out": left, "refused": cut(refused, 300)}
    )


_NOT_SHOWN: Final = frozenset(
    {"system", "request", "state", "pin", "fork", "provider_edit", "redaction_applied"}
)


def _chosen(
    source: Source, shown: Sequence[Envelope], fit: Fit, most: int
) -> list[Entry] | None:
    """The entries for these events; None if those that must be there do not fit."""
    pairs = Pairs.of(shown)
    made = {
        envelope.seq: _entry(envelope, pairs, fit, source.due) for envelope in shown
    }
    sizes = {
        seq: len(canonical(entry.model_dump(mode="json")))
        for seq, entry in made.items()
    }
    due, taken = source.due, set[int]()
    wanted = {*due.seqs, due.turn_seq}
    room = most - len(canonical(_head(source).to_json())) - 200
    grouped = units(shown, pairs)
    for must in (True, False):
        for unit in reversed(grouped):
            if must is not bool(wanted.intersection(unit)):
                continue
            size = sum(sizes[seq] + 1 for seq in unit)
            if size > room:
                if must:
                    return None
                break  # what is older than a gap would be out of its place
            taken.update(unit)
            room -= size
    return [made[envelope.seq] for envelope in shown if envelope.seq in taken]


def _entry(envelope: Envelope, pairs: Pairs, fit: Fit, due: Due) -> Entry:
    risky = due.figures.get("issues")
    named = risky if isinstance(risky, list) else []
    return Entry(
        seq=envelope.seq,
        ts=timestamp(envelope.at),
        type=envelope.type,
        payload=slim(envelope, fit, call=pairs.name(envelope), keep=named),
        hash=envelope.hash,
        agent=envelope.agent and cut(envelope.agent, 200),
        warnings=tuple(w for w in envelope.meta.warnings[:10] if _is_short(w)),
    )


def _is_short(warning: Warn) -> bool:
    return len(warning.code) + len(warning.detail or "") <= 300


def _head(source: Source) -> Bundle:
    """All of it but the events."""
    due = source.due
    stream = source.events[0]
    where = Where(
        user_id=stream.user_id,
        session_id=stream.session_id,
        first_seq=due.first_seq,
        at_seq=due.at_seq,
        seqs=due.seqs,
    )
    return Bundle(
        refold=source.refold,
        rules=source.rules.digest(),
        rule=said_by(due.rule),
        figures=due.figures,
        where=where,
        events=(),
        **_context(source),
    )


def _context(source: Source) -> dict[str, Any]:
    """What the model was sent, by digests: what it was is in the log."""
    found: dict[str, Any] = {}
    match source.system and source.system.payload:
        case SystemPrompt(text=str(text)):
            found["system_digest"] = text_digest(text)
    match source.request and source.request.payload:
        case Request() as request:
            strategy = request.strategy.model_dump(mode="json")
            if len(canonical(strategy)) > 2_000:
                strategy.pop("params")  # the fingerprint stands for them
            model = request.model and cut(request.model, 200)
            found |= {"strategy": strategy, "model": model}
            found["request_digest"] = request.digest
    return found


def read_bundle(data: str | bytes) -> Bundle:
    """The bundle in this JSON: alone, in a question as it is listed, or in its event.

    Raises InvalidEvent for anything else.
    """
    try:
        found = orjson.loads(data)
    except (orjson.JSONDecodeError, RecursionError):
        raise InvalidEvent("a review bundle is one JSON object") from None
    if deeper(found, _DEEPEST):
        raise InvalidEvent(f"a review bundle is nested {_DEEPEST} deep at most")
    for key in ("payload", "bundle"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InvalidEvent(
            f"there is no review bundle in it: one says its format, {FORMAT}"
        )
    try:
        return Bundle.model_validate_json(orjson.dumps(found))
    except ValidationError as error:
        reason = explain("the review bundle", error, Bundle.model_fields)
        raise InvalidEvent(reason) from None


def fires_again(bundle: Bundle) -> bool:
    """Whether the rule asks a human for the same, on the events alone that show it.

    Raises InvalidEvent if an event or the rule in it is none.
    """
    try:
        rule = rule_of(bundle.rule)
    except InvalidConfiguration as error:
        raise InvalidEvent(f"the review bundle: {error}") from None
    watching = Watching(ReviewRules((rule,)))
    for entry in bundle.events:
        event = entry.event()
        if entry.seq in bundle.where.seqs:
            watching.take(Seen(entry.seq, event, entry.warnings))
    wanted = (bundle.where.first_seq, bundle.where.at_seq)
    return wanted in [(due.first_seq, due.at_seq) for due in watching.state.due]
