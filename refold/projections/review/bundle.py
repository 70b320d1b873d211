"""The bundle that a human judges a question by, without access to the store.

A bundle holds events of the log, which are redacted, in at most ``MOST_BYTES`` of JSON.
The rule that asked the question fires again on these events.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import orjson
from pydantic import Field, JsonValue, ValidationError

from refold.domain import events
from refold.domain.canonical import canonical, repaired, text_digest
from refold.domain.envelope import Envelope, Warn
from refold.domain.erasure import timestamp
from refold.domain.errors import InvalidConfiguration, InvalidEvent
from refold.domain.events import JsonObject, SessionEvent, event_of
from refold.domain.model import Model, explain
from refold.projections.memory.sessions import reason_of, said_failed
from refold.projections.review.incidents import Question, Watch
from refold.projections.review.rules import ReviewRules, describe, risks, rule_of

DEEPEST: Final = 20
"""How deep a value in a bundle may be nested."""
_OMISSION: Final = " [… {} characters left out …] "
_MORE: Final = "[… {} more …]"
_TOO_DEEP: Final = "[… too deep to show …]"
# JSON in JSON in JSON: cutting each level would take too long.
_NESTED_JSON: Final = '\\\\\\"'
# Punctuation that ends words in scripts that use no spaces.
_STOPS: Final = "，。；：！？、"  # noqa: RUF001  # ends of Chinese sentences
# Characters around a cut in which the neighboring words are looked for.
_NEAR: Final = 80
# Bytes: the least room for an entry, the reserve for the ``_MORE`` entry, and the most
# for a key.
_LEAST: Final = 60
_SPARE: Final = 30
_LONGEST_KEY: Final = 100
_Entries = list[tuple[str, Any]]


def cut(text: str, most: int) -> str:
    """Shorten ``text`` to head and tail in at most ``most`` bytes of JSON.

    A cut falls between words, and never between two words with digits, because a
    number may be written in groups.  A text without such a place becomes the notice of
    the omission alone.  JSON is shortened as JSON.
    """
    size = _size(text)
    if size <= most:
        return text
    as_json = _cut_json(text, most)
    if as_json is not None:
        return as_json
    characters = len(text) * most // size
    while characters >= 2:
        short = _head_and_tail(text, characters)
        if _size(short) <= most:
            return short
        characters = characters * 9 // 10
    return "…" if _size("…") <= most else ""


def squeezed(value: Any, most: int, items: int) -> Any:
    """Shorten a JSON value to at most ``most`` bytes, keeping its shape if possible.

    items: the most entries of a list or an object to keep.
    """
    short = _squeezed(value, most, items, DEEPEST)
    if _size(short) <= most:
        return short
    return _TOO_DEEP if _size(_TOO_DEEP) <= most else ""


def _head_and_tail(text: str, characters: int) -> str:
    head = characters - characters // 3
    tail = len(text) - characters // 3
    while head > 0 and not _separates_values(text, head):
        head -= 1
    while tail < len(text) and not _separates_values(text, tail):
        tail += 1
    omission = _OMISSION.format(tail - head)
    return f"{text[:head]}{omission}{text[tail:]}".strip(" ")


def _separates_values(text: str, at: int) -> bool:
    """Whether a cut at this place cannot split a value, such as a grouped number."""
    before = text[at - 1]
    after = text[at : at + 1]
    if before == "\n" or after in ("\n", ""):
        return True
    if not (before.isspace() or after.isspace() or before in _STOPS):
        return False
    words_before = text[max(at - _NEAR, 0) : at].split()
    words_after = text[at : at + _NEAR].split()
    return not (
        _has_digit("".join(words_before[-1:])) and _has_digit("".join(words_after[:1]))
    )


def _has_digit(word: str) -> bool:
    return any(character.isdigit() for character in word)


def _cut_json(text: str, most: int) -> str | None:
    """Shorten a text that is JSON; None if it is not JSON or does not fit."""
    if not text.lstrip().startswith(("{", "[")) or _NESTED_JSON in text:
        return None
    try:
        # Floats become texts, so that none loses digits: part of a number would be
        # part of a value.
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
    if depth == 0:
        return _TOO_DEEP
    if isinstance(value, list):
        unnamed = [("", item) for item in value]
        return [item for _, item in _first_entries(unnamed, room, items, depth)]
    return dict(_first_entries(list(value.items()), room, items, depth))


def _first_entries(entries: _Entries, room: int, items: int, depth: int) -> _Entries:
    """Keep the first entries, each within its share of the room.

    An entry with the number of the others comes last.
    """
    first: _Entries = []
    keys: set[str] = set()
    room_left = room - _SPARE
    count = min(len(entries), items)
    for index, (key, value) in enumerate(entries[:count]):
        if room_left < _LEAST // 2:
            break
        share = max(room_left // (count - index), min(room_left, _LEAST))
        short_key = cut(key, min(max(share // 2, 40), _LONGEST_KEY))
        if key and short_key in keys:
            break  # two long keys became the same short one
        keys.add(short_key)
        key_size = _size(short_key) + 2
        short_value = _squeezed(value, share - key_size, items, depth - 1)
        first.append((short_key, short_value))
        room_left -= key_size + _size(short_value)
    if len(first) < len(entries):
        first.append(("…", _MORE.format(len(entries) - len(first))))
    return first


def deeper(value: Any, most: int) -> bool:
    """Whether lists and objects are nested more than ``most`` deep."""
    if not isinstance(value, dict | list):
        return False
    if most == 0:
        return True
    children = value.values() if isinstance(value, dict) else value
    return any(deeper(child, most - 1) for child in children)


def _size(value: Any) -> int:
    """Return the bytes of a value as JSON."""
    return len(canonical(value))


def answered(envelopes: Iterable[Envelope]) -> dict[int, int]:
    """Map the seq of each tool result among these events to the seq of its call."""
    open_calls: dict[str, int] = {}
    calls: dict[int, int] = {}
    for envelope in envelopes:
        match envelope.payload:
            case events.ToolCall(call_id=call_id):
                open_calls[call_id] = envelope.seq
            case events.ToolResult(call_id=call_id) if call_id in open_calls:
                calls[envelope.seq] = open_calls.pop(call_id)
    return calls


def units(
    envelopes: Iterable[Envelope], calls: Mapping[int, int]
) -> list[tuple[int, ...]]:
    """Group the seqs that a bundle keeps together: a call with its result.

    The groups are in the order of their last event.

    calls: from ``answered``.
    """
    answered_calls = set(calls.values())
    groups: list[tuple[int, ...]] = []
    for envelope in envelopes:
        seq = envelope.seq
        if seq in calls:
            groups.append((calls[seq], seq))
        elif seq not in answered_calls:
            groups.append((seq,))
    return groups


class Fit(NamedTuple):
    """The most that a bundle keeps of an event.

    bytes: of JSON, for one text.
    items: entries of one list.
    """

    bytes: int
    items: int


FITS: Final = (Fit(2_000, 20), Fit(500, 10), Fit(160, 3))
# Fields that may hold any JSON.
_ANY_JSON: Final = frozenset({"content", "arguments", "plan", "result"})
# Fields that do not help to see what happened: signatures, files, and other bundles.
_LEFT_OUT: Final = frozenset({"thinking", "usage", "bundle"})
# Parts of an attachment that are kept: what it is, without its content.
_ATTACHMENT_FIELDS: Final = ("kind", "media_type", "name")
_CODE: Final = 1_000  # bytes of an error's code: rules read all of it


def slim(
    envelope: Envelope, fit: Fit, *, call: str, keep: Sequence[JsonValue] = ()
) -> JsonObject:
    """Shorten the payload of an event; a rule that fired on it still fires.

    call: the id that replaces the call's id in the call and its result.
    keep: the issues that are kept first.
    """
    issue_names = [str(code) for code in keep]
    slimmed: dict[str, Any] = {}
    payload: dict[str, Any] = envelope.payload.payload()
    for key, value in payload.items():
        if key in _LEFT_OUT:
            continue
        if key == "issues":
            slimmed[key] = _slim_issues(value, fit, issue_names)
        elif key == "call_id":
            slimmed[key] = call
        else:
            slimmed[key] = _slim_field(key, value, fit)
    if isinstance(envelope.payload, events.ToolResult):
        slimmed["content"] = _with_failure(envelope.payload, slimmed["content"], fit)
    return slimmed


def _slim_field(key: str, value: Any, fit: Fit) -> Any:
    if isinstance(value, str):
        return cut(value, max(fit.bytes, _CODE) if key == "code" else fit.bytes)
    if key == "attachments":
        return [_slim_attachment(attachment) for attachment in value[: fit.items]]
    if key == "results":
        return [_slim_verdict(verdict, fit) for verdict in value[: fit.items]]
    if key in _ANY_JSON:
        return squeezed(value, fit.bytes, fit.items)
    if key == "context":
        context = squeezed(value, fit.bytes, fit.items)
        # The field holds an object: a shortened one that became a text is wrapped.
        return {"cut": context} if isinstance(context, str) else context
    return value


def _slim_attachment(attachment: Mapping[str, Any]) -> JsonObject:
    return {
        name: cut(attachment[name], 100)
        for name in _ATTACHMENT_FIELDS
        if attachment.get(name)
    }


def _slim_verdict(verdict: JsonObject, fit: Fit) -> JsonObject:
    if _size(verdict) <= fit.bytes:
        return verdict
    return {
        name: cut(value, 40) if isinstance(value, str) else value
        for name, value in verdict.items()
    }


def _with_failure(result: events.ToolResult, content: Any, fit: Fit) -> Any:
    """Shorten a failed result's content so that it still reads as a failure.

    content: the content shortened without regard to failure.
    """
    if reason_of(result) is None or _fails(result, content):
        return content
    failure, detail = said_failed(result.content)
    room = max(fit.bytes - _size(failure), 0)
    for shortened in (cut(detail, room), ""):
        if _fails(result, f"{failure} {shortened}"):
            return f"{failure} {shortened}"
    return failure


def _fails(result: events.ToolResult, content: Any) -> bool:
    return reason_of(result.model_copy(update={"content": content})) is not None


def _slim_issues(
    issues: Sequence[JsonValue], fit: Fit, names: Sequence[str]
) -> list[Any]:
    kept_first = sorted(issues, key=lambda issue: not risks([issue], names))
    return [_slim_issue(issue, fit, names) for issue in kept_first[: fit.items]]


def _slim_issue(issue: JsonValue, fit: Fit, names: Sequence[str]) -> Any:
    short = squeezed(issue, fit.bytes, fit.items)
    risky = risks([issue], names)
    if risks([short], names) == risky:
        return short
    return risky[0]


_DEEPEST_FILE: Final = 128
FORMAT: Final = "refold-review-bundle/1"
MOST_BYTES: Final = 65_536


class Entry(Model):
    """One event of a bundle.

    payload: shortened; the seq of the call stands for the call's id.
    """

    seq: int = Field(ge=1)
    ts: str
    type: str
    payload: JsonObject
    hash: str
    agent: str | None = None
    warnings: tuple[Warn, ...] = ()

    def event(self) -> SessionEvent:
        """Return the event.  Raises InvalidEvent if the entry is not valid."""
        return event_of(self.type, self.payload)


class Where(Model):
    """The session and events of a question.

    first_seq: the event at which the rule fired first.
    at_seq:    the event at which recovery ended without success.
    seqs:      the events that show what happened.
    """

    user_id: str
    session_id: str
    first_seq: int = Field(ge=1)
    at_seq: int = Field(ge=1)
    seqs: tuple[int, ...]


class Bundle(Model):
    """A question to a human with the events to judge it by.

    refold:         the version of Refold that asked.
    rules:          the digest of all its rules.
    system_digest:  the SHA-256 of the system prompt in force.
    strategy, model, request_digest: of the last request.
    left_out:       the number of events of the turn that the bundle leaves out.
    refused:        the reason for a bundle without events: the store refused them.
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
    def description(self) -> str:
        """One sentence about the rule's finding."""
        return describe(self.figures)

    def to_json(self) -> JsonObject:
        """Return the bundle as JSON, the form in which it is stored."""
        return self.model_dump(mode="json", exclude_none=True)


class Source(NamedTuple):
    """The parts that a bundle is built from.

    events:  in order, the turn up to the question's ``at_seq`` and the earlier events
             that show what happened.
    system:  the newest system prompt up to ``at_seq``.
    request: the newest request up to ``at_seq``.
    """

    question: Question
    rules: ReviewRules
    refold: str
    events: Sequence[Envelope]
    system: Envelope | None
    request: Envelope | None


def bundle_of(source: Source, most: int = MOST_BYTES) -> Bundle:
    """Build the largest bundle within ``most`` bytes of JSON.

    Events that show what happened come first, then the newest of the turn.  Texts are
    shortened when the former need the room.  A call stays with its result.
    """
    visible = [event for event in source.events if event.type not in _NOT_SHOWN]
    for fit in FITS:
        entries = _fitting_entries(source, visible, fit, most)
        if entries is not None:
            return _head(source, entries)
    # Only a caller whose larger bundle the store refused asks for so little room.
    return _head(source, [])


def bare(source: Source, refused: str) -> Bundle:
    """Build the bundle without events, with the reason that it has none."""
    return _head(source, (), cut(refused, 300))


_NOT_SHOWN: Final = frozenset(
    {"system", "request", "state", "pin", "fork", "provider_edit", "redaction_applied"}
)


def _fitting_entries(
    source: Source, visible: Sequence[Envelope], fit: Fit, most: int
) -> list[Entry] | None:
    """Return the entries for these events, or None if the required ones do not fit."""
    calls = answered(visible)
    question = source.question
    entries = {e.seq: _entry(e, calls, fit, question) for e in visible}
    sizes = {
        seq: _size(entry.model_dump(mode="json")) for seq, entry in entries.items()
    }
    head = _head(source, ()).model_copy(update={"left_out": 0})
    room = most - _size(head.to_json()) - 200
    required_seqs = {*question.seqs, question.turn_seq}
    required: list[tuple[int, ...]] = []
    optional: list[tuple[int, ...]] = []
    for group in reversed(units(visible, calls)):
        if required_seqs.isdisjoint(group):
            optional.append(group)
        else:
            required.append(group)
    chosen: set[int] = set()
    for group in required:
        chosen.update(group)
        room -= sum(sizes[seq] + 1 for seq in group)
        if room < 0:
            return None
    for group in optional:
        size = sum(sizes[seq] + 1 for seq in group)
        if size > room:
            break  # an older event would follow a gap
        chosen.update(group)
        room -= size
    return [entries[event.seq] for event in visible if event.seq in chosen]


def _entry(
    envelope: Envelope, calls: Mapping[int, int], fit: Fit, question: Question
) -> Entry:
    issues = question.figures.get("issues")
    # A provider's call id may look like a key, so the seq of the call replaces it.
    call = f"call-{calls.get(envelope.seq, envelope.seq)}"
    keep = issues if isinstance(issues, list) else []
    warnings = [
        warning
        for warning in envelope.meta.warnings[:10]
        if len(warning.code + (warning.detail or "")) <= 300
    ]
    return Entry(
        seq=envelope.seq,
        ts=timestamp(envelope.at),
        type=envelope.type,
        payload=slim(envelope, fit, call=call, keep=keep),
        hash=envelope.hash,
        agent=envelope.agent and cut(envelope.agent, 200),
        warnings=tuple(warnings),
    )


def _head(
    source: Source, entries: Sequence[Entry], refused: str | None = None
) -> Bundle:
    question = source.question
    first_event = source.events[0]
    in_turn = [entry for entry in entries if entry.seq >= question.turn_seq]
    return Bundle(
        refold=source.refold,
        rules=source.rules.digest(),
        rule=question.rule.to_json(),
        figures=question.figures,
        where=Where(
            user_id=first_event.user_id,
            session_id=first_event.session_id,
            first_seq=question.first_seq,
            at_seq=question.at_seq,
            seqs=question.seqs,
        ),
        events=tuple(entries),
        left_out=question.at_seq - question.turn_seq + 1 - len(in_turn),
        refused=refused,
        **_request_fields(source),
    )


def _request_fields(source: Source) -> dict[str, Any]:
    """Return the last request's fields as digests, because the log has the contents."""
    fields: dict[str, Any] = {}
    match source.system and source.system.payload:
        case events.SystemPrompt(text=str(text), where=None):
            fields["system_digest"] = text_digest(text)
    match source.request and source.request.payload:
        case events.Request() as request:
            strategy = request.strategy.model_dump(mode="json")
            if _size(strategy) > 2_000:
                strategy.pop("params")  # the fingerprint identifies them
            fields["strategy"] = strategy
            fields["model"] = request.model and cut(request.model, 200)
            fields["request_digest"] = request.digest
    return fields


def read_bundle(data: str | bytes) -> Bundle:
    """Read a bundle from JSON: the bundle itself, a listed question, or its event.

    Raises InvalidEvent for anything else.
    """
    try:
        value = orjson.loads(data)
    except (orjson.JSONDecodeError, RecursionError):
        raise InvalidEvent("a review bundle is one JSON object") from None
    if deeper(value, _DEEPEST_FILE):
        raise InvalidEvent(f"a review bundle is nested {_DEEPEST_FILE} deep at most")
    for key in ("payload", "bundle"):
        if isinstance(value, dict) and isinstance(value.get(key), dict):
            value = value[key]
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise InvalidEvent(
            f"the JSON contains no review bundle: its format would be {FORMAT}"
        )
    try:
        return Bundle.model_validate_json(orjson.dumps(value))
    except ValidationError as error:
        reason = explain("the review bundle", error, Bundle.model_fields)
        raise InvalidEvent(reason) from None


def fires_again(bundle: Bundle) -> bool:
    """Whether the rule asks the same question on the bundle's events alone.

    Raises InvalidEvent if an event or the rule in the bundle is not valid.
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
    return any(
        question.first_seq == bundle.where.first_seq
        and question.at_seq == bundle.where.at_seq
        for question in watch.questions
    )
