"""Events as words and lines for people: one form for each type."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, assert_never

from refold.adapters.display.values import STUB, size as size_text
from refold.domain import events
from refold.domain.errors import RefoldError, counted
from refold.projections.context.text import leaves
from refold.projections.context.units import Thread, key_of, place
from refold.projections.rejections import is_rejected

if TYPE_CHECKING:
    from refold.domain.envelope import Envelope

DIGEST: Final = 12  # characters of a digest that are shown
_LONG: Final = 100  # characters from which a field comes after the short ones


class Preview(NamedTuple):
    """An event for people.

    note:     the text next to its type.
    body:     the text below it.
    failed:   whether the event is a failure.
    rejected: whether it is the result of a call that a person rejected.
    """

    note: str = ""
    body: str = ""
    failed: bool = False
    rejected: bool = False


def preview(event: events.SessionEvent) -> Preview:
    """Return the whole content of an event for people."""
    match event:
        case events.UserInput(text=text, attachments=attachments):
            return Preview(body=_lines(text, *map(_attachment, attachments)))
        case events.AgentResponse(text=text, thinking=blocks, stop_reason=reason):
            thoughts = [f"(thinking) {b.thinking or '(encrypted)'}" for b in blocks]
            note = "cut off" if reason == "max_tokens" else ""
            return Preview(note, _lines(*thoughts, text))
        case events.ToolCall(tool_name=name, arguments=arguments):
            return Preview(name, readable(arguments))
        case events.ToolResult():
            return _result(event)
        case events.Planner(plan=plan, iteration=iteration):
            note = f"version {iteration}" if iteration is not None else ""
            return Preview(note, readable(plan))
        case events.Reflection():
            return _reflection(event)
        case events.Aggregate(results=results):
            verdicts = (f"{item.item_id}: {item.verdict}" for item in results)
            return Preview(counted(len(results), "item"), _lines(*verdicts))
        case events.Final(text=text, result=result, outcome=outcome, reward=reward):
            note = _note(outcome, "" if reward is None else f"reward {reward:g}")
            body = _lines(text, "" if result is None else readable(result))
            return Preview(note, body, failed=outcome == "failure")
        case events.HumanReview(decision=None, trigger=trigger, severity=severity):
            return Preview(f"{trigger} · {severity}", event.question)
        case events.HumanReview():
            return _decision(event)
        case events.AgentError(code=code, where=where, context=context):
            note = _note(code, where, "retryable" if event.retryable else "")
            body = _lines(event.message, readable(context) if context else "")
            return Preview(note, body, failed=True)
        case events.SystemPrompt(where="conversation", text=text):
            return Preview("in the conversation", text or "")
        case events.SystemPrompt(text=text, closed=closed):
            return Preview("the session was closed" if closed else "prompt", text or "")
        case events.StateUpdate(set=values, unset=keys):
            unset = [f"{key}: (unset)" for key in keys]
            return Preview(body=_lines(readable(values) if values else "", *unset))
        case events.Request():
            body = f"{counted(event.tokens, 'token')} through seq {event.through_seq}"
            body += f", digest {event.digest[:DIGEST]}"
            return Preview(event.strategy.name, body)
        case events.Summary():
            return _summary(event)
        case events.CompactionNote(phase=phase, why=why):
            span = _span(event.first_seq, event.last_seq)
            return Preview(f"{phase}{span}", why, failed=phase == "failed")
        case events.Pin(seqs=seqs, reason=reason, unpin=unpin):
            listed = ", ".join(map(str, seqs))
            return Preview(f"{'unpinned' if unpin else 'pinned'} seq {listed}", reason)
        case events.Fork(session_id=parent, at_seq=at):
            return Preview(f"continues {parent} from seq {at}")
        case events.ProviderEdit(reason=reason) if event.spans:
            return Preview(f"the client changed its history: {reason}", _changes(event))
        case events.ProviderEdit(edits=edits, blocks=blocks):
            counts = f"{counted(len(edits), 'edit')}, {counted(len(blocks), 'block')}"
            return Preview(f"{counts} of the provider")
        case events.RedactionApplied(stream=stream, seqs=()):
            span = _span(event.first_seq, event.last_seq)
            return Preview(f"new key for {stream}{span}")
        case events.RedactionApplied(stream=stream, seqs=seqs):
            return Preview(f"{counted(len(seqs), 'event')} of {stream} redacted again")
        case events.Consent(scope=scope, granted=granted, reason=reason):
            return Preview(f"{scope} {'granted' if granted else 'withdrawn'}", reason)
        case events.Forget(item_id=item, reason=reason):
            return Preview(f"item {item}", reason)
        case events.Item(format=form, kind=kind, value=value):
            return Preview(f"{form} {kind}".strip(), readable(value))
        case unknown:
            assert_never(unknown)


class Changes(NamedTuple):
    """The changes to an event before it was written.

    redacted: the number of replaced values, by type.
    stubs:    the number of texts that became stubs.
    warnings: their codes.
    """

    redacted: Mapping[str, int]
    stubs: int
    warnings: tuple[str, ...]


def changes_to(envelope: Envelope) -> Changes:
    """Return the changes to an event before it was written."""
    redacted: dict[str, int] = {}
    counts = envelope.redaction.get("types")
    if isinstance(counts, dict):
        for kind, count in counts.items():
            if isinstance(count, int):
                redacted[str(kind)] = count
    stubs = 0
    for text in leaves(envelope.payload.payload(), keys=False):
        if STUB.search(text):
            stubs += 1
    warnings = tuple(warning.code for warning in envelope.meta.warnings)
    return Changes(redacted, stubs, warnings)


def readable(value: Any) -> str:
    """Return a JSON value as lines: a text unchanged, an object as ``key: value``."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value:
        fields = [_field(key, item) for key, item in value.items()]
        # Short fields come first.
        return "\n".join(sorted(fields, key=lambda f: "\n" in f or len(f) > _LONG))
    if isinstance(value, list) and value:
        items = ["- " + _indented(_text(item)).lstrip(" ") for item in value]
        return "\n".join(items)
    return _compact(value)


def result_text(value: Any) -> str:
    """Return the content of a tool's result: the texts of blocks, or all of it."""
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return "\n".join(map(_block, value))
    return readable(value)


def _block(block: dict[str, Any]) -> str:
    if isinstance(block.get("text"), str):
        return str(block["text"])
    kind = block.get("type")
    if kind not in ("image", "document"):
        return _compact(block)
    source = block.get("source")
    if not isinstance(source, dict):
        return f"[{kind}]"
    media_type = source.get("media_type")
    data = source.get("data")
    return _file(
        str(kind),
        media_type if isinstance(media_type, str) else "",
        _size_of(data) if isinstance(data, str) else "",
    )


def _field(key: str, item: Any) -> str:
    text = _text(item)
    return f"{key}:\n{_indented(text)}" if "\n" in text else f"{key}: {text}"


def _text(item: Any) -> str:
    return item if isinstance(item, str) else _compact(item)


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def preview_of(envelope: Envelope) -> Preview:
    """Return the content of an event, with the notes in its meta.

    These are the time at which a summary was rebuilt, and a reviewer's note.
    """
    shown = preview(envelope.payload)
    extra = envelope.meta.model_extra or {}
    rebuilt_at = extra.get("rebuilt_at")
    if isinstance(envelope.payload, events.Summary) and rebuilt_at:
        shown = shown._replace(note=_note(shown.note, f"rebuilt at {rebuilt_at}"))
    if isinstance(envelope.payload, events.HumanReview) and envelope.note:
        shown = shown._replace(body=_lines(shown.body, envelope.note))
    return shown


def _lines(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


def _note(*parts: str | None) -> str:
    return " · ".join(filter(None, parts))


def _attachment(item: events.Attachment) -> str:
    size = _size_of(item.data) if item.data else ""
    return _file(item.kind, item.name, item.media_type, size, item.url)


def _file(kind: str, *facts: str | None) -> str:
    """Return a line in place of an image or a file, with what is known about it."""
    about = ", ".join(fact for fact in facts if fact)
    return f"[{kind}: {about}]" if about else f"[{kind}]"


# The size of the whole text, which a stub states for a text that it replaces.
_SIZE_IN_STUB: Final = re.compile(r"\[refold: \d+ of (\d+) bytes left out here; ")


def _size_of(data: str) -> str:
    """Return the size of a file in base64, of which the event may have only a part."""
    stub = _SIZE_IN_STUB.search(data)
    characters = int(stub[1]) if stub else len(data.rstrip("="))
    return size_text(characters * 3 // 4)


def _decision(event: events.HumanReview) -> Preview:
    note = f"{event.trigger} · decided"
    if event.decided_by:
        note += f" by {event.decided_by}"
    if event.refers_to:
        note += f", on seq {event.refers_to}"
    return Preview(note, event.decision or "")


def _result(event: events.ToolResult) -> Preview:
    duration = ""
    milliseconds = event.duration_ms
    if milliseconds is not None:
        if milliseconds < 1000:
            duration = f"{milliseconds:.0f} ms"
        else:
            duration = f"{milliseconds / 1000:.1f} s"
    trust = "untrusted" if event.untrusted else ""
    rejected = is_rejected(event)
    status = "rejected" if rejected else event.status
    return Preview(
        note=_note(event.tool_name, status, duration, trust),
        body=result_text(event.content),
        failed=event.status == "error" and not rejected,
        rejected=rejected,
    )


def _reflection(event: events.Reflection) -> Preview:
    verdict = {True: "passed", False: "not passed", None: ""}[event.pass_]
    confidence = ""
    if event.confidence is not None:
        confidence = f"confidence {event.confidence:g}"
    issues = [f"- {_text(issue)}" for issue in event.issues]
    return Preview(
        _note(verdict, confidence),
        _lines(*issues, event.suggestion or ""),
        failed=event.pass_ is False,
    )


def _summary(event: events.Summary) -> Preview:
    span = f"seq {event.first_seq} to {event.last_seq}"
    size = f"{event.tokens_before:,} → {counted(event.tokens_after, 'token')}"
    absorbs = f"absorbs {', '.join(map(str, event.absorbs))}" if event.absorbs else ""
    note = _note(event.strategy.name, span, size, absorbs)
    return Preview(note, _lines(event.abridged, event.text))


def _span(first: int | None, last: int | None) -> str:
    return "" if first is None or last is None else f" · seq {first} to {last}"


def _changes(edit: events.ProviderEdit) -> str:
    """Return the changes of a client's edit, with a line for each kind of change."""
    has_arguments = edit.arguments is not None or bool(edit.without_arguments)
    changes = {
        "leaves out": edit.left_out,
        "shows again": edit.restored,
        "clears the results": () if has_arguments else edit.cleared,
        "changes the arguments of": edit.cleared if has_arguments else (),
        "puts in their place": edit.in_place,
    }
    lines: list[str] = []
    for change, spans in changes.items():
        if spans:
            places = [seqs(*span).removeprefix("seq ") for span in spans]
            lines.append(f"{change} seq {', '.join(places)}")
    if edit.arguments is not None:
        lines.append(readable(edit.arguments))
    if edit.without_arguments:
        lines.append(f"without {', '.join(edit.without_arguments)}")
    return _lines(*lines)


def seqs(first: int | None, last: int | None) -> str:
    """Return a span of seqs in words."""
    return f"seq {first}" if first == last else f"seq {first} to {last}"


Countable = Literal["tool call", "response"]


class Numbered(NamedTuple):
    """An event with its number.

    response: the number of the model's response that it is part of.
    call:     the number of a tool call; a result has that of its call.
    began_at: the first seq of the response; the model saw everything before it.
    """

    envelope: Envelope
    response: int | None = None
    call: int | None = None
    began_at: int | None = None


@dataclass(slots=True)
class Numbering:
    """Numbers the events of a session, from its first on.

    Events with the same ``response_id`` are one response.  Without that id, the events
    that a context shows as one response are one.
    """

    responses: int = 0
    calls: int = 0
    _began_at: int = 0
    _thread: Thread = Thread()  # noqa: RUF009  # frozen
    _open: dict[str, int] = field(default_factory=dict)

    def number(self, envelopes: Iterable[Envelope]) -> Iterator[Numbered]:
        """Yield each event with its number; entries of derived streams have none."""
        for envelope in envelopes:
            is_main = envelope.stream == "main"
            yield self._numbered(envelope) if is_main else Numbered(envelope)

    def _numbered(self, envelope: Envelope) -> Numbered:
        event = envelope.payload
        before = self._thread
        # The thread is not stored, so it may hold ids and texts in place of digests.
        self._thread, _ = place(before, envelope, str)
        if isinstance(event, events.ToolResult):
            return Numbered(envelope, call=self._open.pop(event.call_id, None))
        if not isinstance(event, events.AgentResponse | events.ToolCall):
            return Numbered(envelope)
        name = envelope.meta.response_id
        continues = name is not None and key_of(name) == before.response_key
        if self._thread.response != before.response and not continues:
            self.responses += 1
            self._began_at = envelope.seq
        call = None
        if isinstance(event, events.ToolCall):
            self.calls += 1
            call = self.calls
            self._open[event.call_id] = call
        return Numbered(envelope, self.responses, call, self._began_at)


def seq_before(envelopes: Iterable[Envelope], unit: Countable, n: int) -> int:
    """Return the last seq before the ``n``-th response or tool call of a session.

    For a tool call, this is the seq before its response.

    Raises RefoldError if there is no such response or call, or nothing before it.
    """
    numbering = Numbering()
    for item in numbering.number(envelopes):
        if unit == "response":
            number = item.response
        elif isinstance(item.envelope.payload, events.ToolCall):
            number = item.call
        else:
            continue
        if number == n:
            began_at = item.began_at or 1
            if began_at > 1:
                return began_at - 1
            raise RefoldError(
                "the session begins with that response: nothing was sent before it"
            )
    count = numbering.responses if unit == "response" else numbering.calls
    raise RefoldError(
        f"the session has {counted(count, unit)}, there is no number {n}: `refold log` "
        "shows the numbers"
    )
