"""Events that are no API message of their own, as text between tags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from refold.domain.envelope import Envelope
from refold.domain.events import (
    AgentError,
    AgentResponse,
    Aggregate,
    Attachment,
    Event,
    Final,
    HumanReview,
    Planner,
    Reflection,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.projections.context.tags import tagged, value_text

Role = Literal["user", "assistant"]
_NONE_ASKED: Mapping[int, str] = MappingProxyType({})


class Entry(NamedTuple):
    """A tagged text.  ``content`` is what of it the log said: its words are counted."""

    role: Role
    tag: str
    body: str
    attributes: Mapping[str, object]
    content: tuple[Any, ...]

    def text(self, **more: object) -> str:
        """The body between its tags."""
        return tagged(self.tag, self.body, **more, **self.attributes)


def entry_of(event: Event, asked: Mapping[int, str] = _NONE_ASKED) -> Entry | None:
    """The entry of an event that is shown, or None of one that never is.

    ``asked`` are the questions that decisions may refer to, by their seq.
    """
    match event:
        case UserInput(text=text, attachments=attachments):
            named = [attachment_text(attachment) for attachment in attachments]
            texts = tuple(attachment.text or "" for attachment in attachments)
            body = "\n".join(part for part in (text, *named) if part)
            return Entry("user", "user", body, {}, (text, *texts))
        case AgentResponse(text=text):
            return Entry("assistant", "agent", text, {}, (text,))
        case ToolCall(tool_name=tool, arguments=arguments):
            body = value_text(arguments)
            return Entry("assistant", "call", body, {"tool": tool}, (tool, arguments))
        case ToolResult():
            return _late(event)
        case Planner(plan=plan, iteration=iteration):
            body = value_text(plan) if plan else ""
            return Entry("assistant", "plan", body, {"iteration": iteration}, (plan,))
        case Reflection():
            return _reflection(event)
        case Aggregate(results=results):
            verdicts = tuple(
                verdict.model_dump(mode="json", exclude_none=True)
                for verdict in results
            )
            body = "\n".join(map(value_text, verdicts))
            return Entry("assistant", "aggregate", body, {}, verdicts)
        case Final(text=text, outcome=outcome):
            return Entry("assistant", "final", text, {"outcome": outcome}, (text,))
        case AgentError():
            return _error(event)
        case HumanReview():
            return _review(event, asked)
        case _:
            return None


def questions(events: Iterable[Envelope]) -> dict[int, str]:
    """What was asked in the reviews among ``events``, by their seq."""
    reviews = ((event.seq, event.payload) for event in events)
    return {
        seq: review.question
        for seq, review in reviews
        if isinstance(review, HumanReview) and review.question
    }


def attachment_text(attachment: Attachment) -> str:
    """An attachment as text: its own, or what it is and that it is not here."""
    known = {
        "kind": attachment.kind,
        "name": attachment.name,
        "type": attachment.media_type,
        "url": attachment.url,
        "sha256": attachment.sha256,
    }
    if attachment.text and attachment.text.strip():
        return tagged("attachment", attachment.text, **known)
    return tagged("attachment", "", **known, shown=False)


def result_text(content: Any) -> str:
    """The content of a result as text; what is not text in it is named."""
    if isinstance(content, list) and content and all(map(_is_block, content)):
        return "\n".join(
            part["text"] if part["type"] == "text" else "[image]" for part in content
        )
    return value_text(content) if content not in (None, [], {}) else ""


def _is_block(part: Any) -> bool:
    if not isinstance(part, dict):
        return False
    text = part.get("type") == "text" and isinstance(part.get("text"), str)
    return text or (
        part.get("type") == "image" and isinstance(part.get("source"), dict)
    )


def _late(event: ToolResult) -> Entry:
    tool = event.tool_name or ""
    about = {"tool": event.tool_name, "call": event.call_id, "status": event.status}
    body, content = result_text(event.content), (tool, event.content)
    return Entry("user", "late_result", body, about, content)


def _reflection(event: Reflection) -> Entry:
    issues = [f"- {value_text(issue)}" for issue in event.issues]
    body = "\n".join((*issues, *([event.suggestion] if event.suggestion else ())))
    about = {"pass": event.pass_, "confidence": event.confidence}
    content = (*event.issues, event.suggestion)
    return Entry("assistant", "reflection", body, about, content)


def _error(event: AgentError) -> Entry:
    context = [value_text(event.context)] if event.context else []
    body = "\n".join(part for part in (event.message, *context) if part)
    about = {"code": event.code, "where": event.where}
    return Entry(
        "user", "error", body, about, (event.code, event.message, event.context)
    )


def _review(event: HumanReview, asked: Mapping[int, str]) -> Entry | None:
    if event.decision is None:
        return None
    question = event.question
    if not question and event.refers_to is not None:
        question = asked.get(event.refers_to, "")
    about = {"trigger": event.trigger, "by": event.decided_by}
    asked_for = [tagged("question", question)] if question else []
    body = "\n".join((*asked_for, tagged("decision", event.decision)))
    return Entry("user", "human_review", body, about, (question, event.decision))
