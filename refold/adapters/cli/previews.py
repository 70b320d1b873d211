"""What an event says, in words and lines: one form for each type."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, assert_never

from refold.adapters.cli.wording import counted
from refold.domain import events
from refold.domain.events import (
    AgentError,
    AgentResponse,
    Aggregate,
    Attachment,
    CompactionNote,
    Consent,
    Forget,
    Fork,
    HumanReview,
    Pin,
    Planner,
    ProviderEdit,
    RedactionApplied,
    Reflection,
    Request,
    SessionEvent,
    StateUpdate,
    Summary,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)

STYLES: Final[Mapping[str, str]] = {
    "user_input": "bold cyan",
    "agent_response": "bold",
    "planner": "magenta",
    "tool_call": "yellow",
    "tool_result": "green",
    "reflection": "magenta",
    "aggregate": "magenta",
    "final": "bold green",
    "summary": "bold blue",
    "compaction": "blue",
    "hitl": "bold yellow",
    "error": "bold red",
}
OTHER_STYLE: Final = "dim"
DIGEST: Final = 12
_LONG: Final = 100


class Preview(NamedTuple):
    """An event for people: ``note`` stands beside its type, ``body`` below it."""

    note: str = ""
    body: str = ""
    failed: bool = False


def preview(event: SessionEvent) -> Preview:
    """Say what ``event`` says; nothing of it is cut here."""
    match event:
        case UserInput(text=text, attachments=attachments):
            return Preview(body=_lines(text, *map(_attachment, attachments)))
        case AgentResponse():
            return _response(event)
        case ToolCall(tool_name=name, arguments=arguments):
            return Preview(name, readable(arguments))
        case ToolResult():
            return _result(event)
        case Planner(plan=plan, iteration=iteration):
            note = f"version {iteration}" if iteration is not None else ""
            return Preview(note, readable(plan))
        case Reflection():
            return _reflection(event)
        case Aggregate(results=results):
            verdicts = (f"{item.item_id}: {item.verdict}" for item in results)
            return Preview(counted(len(results), "item"), _lines(*verdicts))
        case events.Final():
            return _final(event)
        case HumanReview():
            return _review(event)
        case AgentError():
            return _error(event)
        case _:
            return _bookkeeping(event)


def _bookkeeping(event: SessionEvent) -> Preview:
    match event:
        case SystemPrompt(text=text, closed=closed):
            return Preview("the session was closed" if closed else "prompt", text or "")
        case StateUpdate(set=changed, unset=gone):
            unset = (f"{key}: (unset)" for key in gone)
            return Preview(body=_lines(readable(changed) if changed else "", *unset))
        case Request():
            sent = f"{event.tokens:,} tokens through seq {event.through_seq}"
            return Preview(
                event.strategy.name, f"{sent}, digest {event.digest[:DIGEST]}"
            )
        case Summary():
            return _summary(event)
        case CompactionNote(phase=phase, why=why):
            span = _span(event.first_seq, event.last_seq)
            return Preview(f"{phase}{span}", why, failed=phase == "failed")
        case Pin(seqs=seqs, reason=reason, unpin=unpin):
            which = ", ".join(map(str, seqs))
            return Preview(f"{'unpinned' if unpin else 'pinned'} seq {which}", reason)
        case Fork(session_id=parent, at_seq=at):
            return Preview(f"goes on from {parent} at seq {at}")
        case ProviderEdit(edits=edits, blocks=blocks):
            counts = f"{counted(len(edits), 'edit')}, {counted(len(blocks), 'block')}"
            return Preview(f"{counts} of the provider")
        case RedactionApplied(stream=stream, seqs=()):
            span = _span(event.first_seq, event.last_seq)
            return Preview(f"a new key for {stream}{span}")
        case RedactionApplied(stream=stream, seqs=seqs):
            return Preview(f"{counted(len(seqs), 'event')} of {stream} redacted again")
        case Consent(scope=scope, granted=granted, reason=reason):
            return Preview(f"{scope} {'granted' if granted else 'withdrawn'}", reason)
        case Forget(item_id=item, reason=reason):
            return Preview(f"item {item}", reason)
        case (
            UserInput()
            | AgentResponse()
            | ToolCall()
            | ToolResult()
            | Planner()
            | Reflection()
            | Aggregate()
            | events.Final()
            | HumanReview()
            | AgentError()
        ):
            raise AssertionError("said by preview")
        case unknown:
            assert_never(unknown)


def readable(value: Any) -> str:
    """A JSON value as lines: a text as it is, an object as ``key: value``."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value:
        fields = [_field(key, item) for key, item in value.items()]
        return "\n".join(sorted(fields, key=_is_long))  # what is short, first
    if isinstance(value, list) and value:
        return "\n".join(_item(item) for item in value)
    return _compact(value)


def content(value: Any) -> str:
    """What a tool returned: its texts, where it is made of blocks."""
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return "\n".join(_block(item) for item in value)
    return readable(value)


def _block(block: dict[str, Any]) -> str:
    if isinstance(block.get("text"), str):
        return str(block["text"])
    kind = block.get("type")
    return f"[{kind}]" if kind in ("image", "document") else _compact(block)


def _field(key: str, item: Any) -> str:
    text = item if isinstance(item, str) else _compact(item)
    return f"{key}:\n{_indented(text)}" if "\n" in text else f"{key}: {text}"


def _is_long(field: str) -> bool:
    return "\n" in field or len(field) > _LONG


def _item(item: Any) -> str:
    text = item if isinstance(item, str) else _compact(item)
    return "- " + _indented(text).lstrip(" ")


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _lines(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


def _attachment(item: Attachment) -> str:
    about = " ".join(filter(None, (item.name, item.media_type, item.url)))
    return f"[{item.kind}{': ' if about else ''}{about}]"


def _response(event: AgentResponse) -> Preview:
    thoughts = [block.thinking or "(encrypted)" for block in event.thinking]
    thinking = _lines(*(f"(thinking) {thought}" for thought in thoughts))
    cut_off = event.stop_reason == "max_tokens"
    return Preview("cut off" if cut_off else "", _lines(thinking, event.text))


def _result(event: ToolResult) -> Preview:
    took = "" if event.duration_ms is None else _duration(event.duration_ms)
    marks = (
        event.tool_name,
        event.status,
        took,
        "untrusted" if event.untrusted else "",
    )
    note = " · ".join(mark for mark in marks if mark)
    return Preview(note, content(event.content), failed=event.status != "ok")


def _duration(milliseconds: float) -> str:
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.1f} s"


def _reflection(event: Reflection) -> Preview:
    verdict = {True: "passed", False: "not passed", None: ""}[event.pass_]
    sure = "" if event.confidence is None else f"confidence {event.confidence:g}"
    issues = (
        f"- {issue if isinstance(issue, str) else _compact(issue)}"
        for issue in event.issues
    )
    return Preview(
        " · ".join(filter(None, (verdict, sure))),
        _lines(*issues, event.suggestion or ""),
        failed=event.pass_ is False,
    )


def _final(event: events.Final) -> Preview:
    reward = "" if event.reward is None else f"reward {event.reward:g}"
    result = "" if event.result is None else readable(event.result)
    note = " · ".join(filter(None, (event.outcome, reward)))
    return Preview(note, _lines(event.text, result), failed=event.outcome == "failure")


def _review(event: HumanReview) -> Preview:
    if event.decision is None:
        return Preview(f"{event.trigger} · {event.severity}", event.question)
    by = f" by {event.decided_by}" if event.decided_by else ""
    about = f", on seq {event.refers_to}" if event.refers_to else ""
    return Preview(f"{event.trigger} · decided{by}{about}", event.decision)


def _error(event: AgentError) -> Preview:
    again = "may be tried again" if event.retryable else ""
    note = " · ".join(filter(None, (event.code, event.where, again)))
    context = readable(event.context) if event.context else ""
    return Preview(note, _lines(event.message, context), failed=True)


def _summary(event: Summary) -> Preview:
    span = f"seq {event.first_seq} to {event.last_seq}"
    size = f"{event.tokens_before:,} → {event.tokens_after:,} tokens"
    absorbs = (
        f" · absorbs {', '.join(map(str, event.absorbs))}" if event.absorbs else ""
    )
    note = f"{event.strategy.name} · {span} · {size}{absorbs}"
    return Preview(note, _lines(event.abridged, event.text))


def _span(first: int | None, last: int | None) -> str:
    return "" if first is None or last is None else f" · seq {first} to {last}"
