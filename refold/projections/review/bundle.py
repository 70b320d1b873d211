"""What a human is shown with a question: all that it takes, and no store behind it.

It is made of the log, which is redacted, is at most ``MOST_BYTES`` of JSON, and the
rule fires again on its events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import orjson
from pydantic import Field, JsonValue, ValidationError

from refold.domain import events as log
from refold.domain.canonical import canonical, repaired, text_digest
from refold.domain.envelope import Envelope, Warn
from refold.domain.erasure import timestamp
from refold.domain.errors import InvalidConfiguration, InvalidEvent
from refold.domain.events import JsonObject
from refold.domain.model import Model, explain
from refold.projections.memory.sessions import reason_of, said_failed
from refold.projections.review.incidents import Due, Watch
from refold.projections.review.rules import ReviewRules, risks, rule_of, told

DEEPEST: Final = 20  # that a value in a bundle is nested
_MARK: Final = " [… {} characters left out …] "
_MORE: Final = "[… {} more …]"
_NESTED: Final = '\\\\\\"'  # JSON in JSON in JSON: it would be tried for too long
_TOO_DEEP: Final = "[… too deep to show …]"
_STOPS: Final = "，。；：！？、"  # noqa: RUF001 - they end words where no spaces do
_NEAR: Final = 80  # characters in which a word next to a cut is looked for
_Named = list[tuple[str, Any]]
_LEAST, _SPARE, _LONGEST_KEY = 60, 30, 100


def cut(text: str, most: int) -> str:
    """Head and tail of ``text`` in at most ``most`` bytes of JSON, or all of it.

    It is cut between words only, and not between words with digits: a number may be
    written in groups.  What has no such place is left out.  JSON stays JSON.
    """
    size = _size(text)
    if size <= most:
        return text
    as_json = _cut_json(text, most)
    if as_json is not None:
        return as_json
    keep = len(text) * most // size
    while keep >= 2:
        shown = _ends(text, keep)
        if _size(shown) <= most:
            return shown
        keep = keep * 9 // 10
    return "…" if _size("…") <= most else ""


def squeezed(value: Any, most: int, items: int) -> Any:
    """JSON in at most ``most`` bytes, of the same shape as far as there is room.

    items: how many entries are kept of a list or an object.
    """
    short = _squeezed(value, most, items, DEEPEST)
    if _size(short) <= most:
        return short
    return _TOO_DEEP if _size(_TOO_DEEP) <= most else ""


def _ends(text: str, keep: int) -> str:
    head, tail = keep - keep // 3, len(text) - keep // 3
    while head > 0 and not _between(text, head):
        head -= 1
    while tail < len(text) and not _between(text, tail):
        tail += 1
    return f"{text[:head]}{_MARK.format(tail - head)}{text[tail:]}".strip(" ")


def _between(text: str, at: int) -> bool:
    """Whether nothing that may be one value is parted at this place."""
    before, after = text[at - 1], text[at : at + 1]
    if before == "\n" or after in ("\n", ""):
        return True
    if not (before.isspace() or after.isspace() or before in _STOPS):
        return False
    last, first = text[max(at - _NEAR, 0) : at].split(), text[at : at + _NEAR].split()
    beside = ("".join(last[-1:]), "".join(first[:1]))
    return not all(any(map(str.isdigit, word)) for word in beside)


def _cut_json(text: str, most: int) -> str | None:
    """JSON in a text, cut as JSON; None if there is none in it."""
    if not text.lstrip().startswith(("{", "[")) or _NESTED in text:
        return None
    try:
        # No number loses digits: half of them would be half of a value.
        value, _ = repaired(json.loads(text, parse_float=str))
    except (ValueError, RecursionError):
        return None
    room = most
    while room > _LEAST:
        short = orjson.dumps(squeezed(value, room, most)).decode()
        if _size(short) <= most:
            return short
        room = room * 3 // 4
    return None


def _squeezed(value: Any, room: int, items: int, depth: int) -> Any:
    if isinstance(value, str):
        return cut(value, room)
    if not isinstance(value, dict | list):
        return value
    if _size(value) <= room and not deeper(value, depth):
        return value
    if not depth:
        return _TOO_DEEP
    if isinstance(value, list):
        named = [("", one) for one in value]
        return [one for _, one in _entries(named, room, items, depth)]
    return dict(_entries(list(value.items()), room, items, depth))


def _entries(pairs: _Named, room: int, items: int, depth: int) -> _Named:
    """The first entries, each with its share of the room, and how many more."""
    made: _Named = []
    names: set[str] = set()
    left, count = room - _SPARE, min(len(pairs), items)
    for index, (key, value) in enumerate(pairs[:count]):
        if left < _LEAST // 2:
            break
        share = max(left // (count - index), min(left, _LEAST))
        name = cut(key, min(max(share // 2, 40), _LONGEST_KEY))
        if key and name in names:
            break  # another long one of that length
        names.add(name)
        used = _size(name) + 2
        made.append((name, _squeezed(value, share - used, items, depth - 1)))
        left -= used + _size(made[-1][1])
    if len(made) < len(pairs):
        made.append(("…", _MORE.format(len(pairs) - len(made))))
    return made


def deeper(value: Any, most: int) -> bool:
    """Whether lists and objects are nested more than ``most`` deep."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return not most or any(deeper(one, most - 1) for one in inner)


def _size(value: Any) -> int:
    return len(canonical(value))


def answered(events: Iterable[Envelope]) -> dict[int, int]:
    """By the seq of each result that of its call, in these events, in order."""
    waiting: dict[str, int] = {}
    calls: dict[int, int] = {}
    for envelope in events:
        match envelope.payload:
            case log.ToolCall(call_id=call_id):
                waiting[call_id] = envelope.seq
            case log.ToolResult(call_id=call_id) if call_id in waiting:
                calls[envelope.seq] = waiting.pop(call_id)
    return calls


def units(
    events: Iterable[Envelope], calls: Mapping[int, int]
) -> list[tuple[int, ...]]:
    """The seqs that belong together, in the order of their newest."""
    done, seqs = {*calls.values()}, (envelope.seq for envelope in events)
    return [(calls[s], s) if s in calls else (s,) for s in seqs if s not in done]


class Fit(NamedTuple):
    """How much of an event is kept: bytes of JSON of one text, entries of a list."""

    bytes: int
    items: int


FITS: Final = (Fit(2_000, 20), Fit(500, 10), Fit(160, 3))
# What may be any JSON.
_ANY: Final = frozenset({"content", "arguments", "plan", "result"})
# What is not needed to see what happened: signatures, files, and other bundles.
_LEFT_OUT: Final = frozenset({"thinking", "usage", "bundle"})
_CODE: Final = 1_000  # bytes of an error's code: rules look at all of it


def slim(
    envelope: Envelope, fit: Fit, *, call: str, keep: Sequence[JsonValue] = ()
) -> JsonObject:
    """The payload of an event, cut; what rules look at stays as it is for them.

    call: what the call is called that it is, or answers.
    keep: the issues that stay, whichever go.
    """
    payload: dict[str, Any] = envelope.payload.payload()
    names = [str(code) for code in keep]
    slimmed: dict[str, Any] = {}
    for key, value in payload.items():
        if key in _LEFT_OUT:
            continue
        if key == "issues":
            value = sorted(value, key=lambda issue: not risks([issue], names))
            slimmed[key] = [_issue(one, fit, names) for one in value[: fit.items]]
        else:
            slimmed[key] = call if key == "call_id" else _cut(key, value, fit)
    if isinstance(envelope.payload, log.ToolResult):
        slimmed["content"] = _still_failed(envelope.payload, slimmed["content"], fit)
    return slimmed


def _cut(key: str, value: Any, fit: Fit) -> Any:
    if isinstance(value, str):
        return cut(value, max(fit.bytes, _CODE) if key == "code" else fit.bytes)
    if key == "attachments":
        named = ("kind", "media_type", "name")  # what it is, not what is in it
        return [
            {name: cut(one[name], 100) for name in named if one.get(name)}
            for one in value[: fit.items]
        ]
    if key == "results":
        return [  # objects of texts
            one
            if _size(one) <= fit.bytes
            else {k: cut(v, 40) if isinstance(v, str) else v for k, v in one.items()}
            for one in value[: fit.items]
        ]
    if key in _ANY:
        return squeezed(value, fit.bytes, fit.items)
    if key == "context":
        short = squeezed(value, fit.bytes, fit.items)
        return {"cut": short} if isinstance(short, str) else short
    return value


def _still_failed(result: log.ToolResult, content: Any, fit: Fit) -> Any:
    """What is left of a result, with the words by which it says that it failed."""
    if reason_of(result) is None or _fails(result, content):
        return content
    words, rest = said_failed(result.content)
    room = max(fit.bytes - _size(words), 0)
    for more in (cut(rest, room), ""):
        if _fails(result, f"{words} {more}"):
            return f"{words} {more}"
    return words


def _fails(result: log.ToolResult, content: Any) -> bool:
    return reason_of(result.model_copy(update={"content": content})) is not None


def _issue(value: Any, fit: Fit, names: Sequence[str]) -> Any:
    short = squeezed(value, fit.bytes, fit.items)
    found = risks([value], names)
    return short if risks([short], names) == found else found[0]


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

    def event(self) -> log.SessionEvent:
        """The event.  Raises InvalidEvent if it is none."""
        return log.event_of(self.type, self.payload)


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
    tried = (_chosen(source, shown, fit, most) for fit in FITS)
    # So little room that none fits is asked for only where the store has no more.
    entries = next((chosen for chosen in tried if chosen is not None), [])
    return _head(source, entries)


def bare(source: Source, refused: str) -> Bundle:
    """The bundle without events, and why it has none."""
    return _head(source, (), cut(refused, 300))


_NOT_SHOWN: Final = frozenset(
    {"system", "request", "state", "pin", "fork", "provider_edit", "redaction_applied"}
)


def _chosen(
    source: Source, shown: Sequence[Envelope], fit: Fit, most: int
) -> list[Entry] | None:
    """The entries for these events; None if those that must be there do not fit."""
    calls, due, taken = answered(shown), source.due, set[int]()
    made = {one.seq: _entry(one, calls, fit, due) for one in shown}
    sizes = {seq: _size(entry.model_dump(mode="json")) for seq, entry in made.items()}
    wanted = {*due.seqs, due.turn_seq}
    head = _head(source, ()).model_copy(update={"left_out": 0})
    room = most - _size(head.to_json()) - 200
    for must in (True, False):
        for unit in reversed(units(shown, calls)):
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


def _entry(envelope: Envelope, calls: Mapping[int, int], fit: Fit, due: Due) -> Entry:
    risky = due.figures.get("issues")
    call = f"call-{calls.get(envelope.seq, envelope.seq)}"  # an id may look like a key
    named, few = risky if isinstance(risky, list) else [], envelope.meta.warnings[:10]
    return Entry(
        seq=envelope.seq,
        ts=timestamp(envelope.at),
        type=envelope.type,
        payload=slim(envelope, fit, call=call, keep=named),
        hash=envelope.hash,
        agent=envelope.agent and cut(envelope.agent, 200),
        warnings=tuple(o for o in few if len(o.code + (o.detail or "")) <= 300),
    )


def _head(source: Source, entries: Sequence[Entry], why: str | None = None) -> Bundle:
    due, stream = source.due, source.events[0]
    whose = {"user_id": stream.user_id, "session_id": stream.session_id}
    kept = sum(entry.seq >= due.turn_seq for entry in entries)
    # What the model was sent, by digests: what it was is in the log.
    found: dict[str, Any] = {}
    match source.system and source.system.payload:
        case log.SystemPrompt(text=str(text)):
            found["system_digest"] = text_digest(text)
    match source.request and source.request.payload:
        case log.Request() as request:
            strategy = request.strategy.model_dump(mode="json")
            if _size(strategy) > 2_000:
                strategy.pop("params")  # the fingerprint stands for them
            model = request.model and cut(request.model, 200)
            found |= {"strategy": strategy, "model": model}
            found["request_digest"] = request.digest
    return Bundle(
        refold=source.refold,
        rules=source.rules.digest(),
        rule=due.rule.says(),
        figures=due.figures,
        where=Where(**whose, first_seq=due.first_seq, at_seq=due.at_seq, seqs=due.seqs),
        events=tuple(entries),
        left_out=due.at_seq - due.turn_seq + 1 - kept,
        refused=why,
        **found,
    )


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
        none = "there is no review bundle in it"
        raise InvalidEvent(f"{none}: one says its format, {FORMAT}")
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
    watch = Watch(ReviewRules((rule,)))
    for entry in bundle.events:
        event = entry.event()
        if entry.seq in bundle.where.seqs:
            watch.take(entry.seq, event, entry.warnings)
    wanted = (bundle.where.first_seq, bundle.where.at_seq)
    return wanted in [(due.first_seq, due.at_seq) for due in watch.due]
