"""Decisions of people and plans of agents, which clients record in calls and results.

Clients have no separate entries for them: a refusal is the result of a call, a plan the
arguments of one.  The events made here repeat both in a typed form, so no context shows
them.  Each depends on one entry alone, so that a capture, which reads single lines,
records the same events as an import.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from refold.adapters.importers import base, messages
from refold.domain.canonical import canonical
from refold.domain.events import JsonObject

TOOL: Final = "tool_approval"
PLAN: Final = "plan_approval"
QUESTION: Final = "question"
APPROVED: Final = "approved"
REJECTED: Final = "rejected"
_USER: Final = "user"
_SETTINGS: Final = "settings"
PLAN_MODE: Final = {"mode": "plan"}

# The first words of Claude Code's result of a call that the user refused.
_CLAUDE_PLAN_REFUSAL: Final = "The agent proposed a plan that was rejected by the user."
_CLAUDE_REFUSALS: Final = (
    "The user doesn't want to proceed with this tool use.",
    "The user doesn't want to take this action right now.",
    "Permission for this tool use was denied.",
    _CLAUDE_PLAN_REFUSAL,
)
_CLAUDE_REASON: Final = "he user said:\n"
# The first words of the result of a call that a rule of the settings refused.
_CLAUDE_RULE: Final = "Permission to use "
_CLAUDE_DENIED: Final = "has been denied"
# The kind of the user's refusals, and kinds that are no refusals.
_CLAUDE_USER: Final = "user-rejected"
_CLAUDE_INTERRUPTIONS: Final = frozenset({"interrupted", "cancelled"})
# Tools of Claude Code that write the list of tasks, one task for each call.
_CLAUDE_TASKS: Final = frozenset({"TaskCreate", "TaskUpdate"})

# The whole result that Codex writes for a call that the user refused.
_CODEX_REFUSALS: Final = frozenset(
    {
        "rejected by user",
        "exec command rejected by user",
        "patch rejected by user",
        "user rejected MCP tool call",
        "user cancelled MCP tool call",
    }
)


def decision(
    trigger: str,
    answer: str,
    *,
    call_id: Any,
    question: str = "",
    by: str = _USER,
    reason: str = "",
) -> base.Piece:
    """Return the decision of a person on a call.

    trigger: the kind of the decision: ``TOOL``, ``PLAN``, or ``QUESTION``.
    answer:  the decision itself.
    by:      the person or the settings that decided.
    reason:  the words of the person about it.
    """
    bundle: JsonObject = {}
    if call_id:
        bundle["call_id"] = call_id
    if reason:
        bundle["reason"] = reason
    fields = {
        "trigger": trigger,
        "question": question,
        "decision": answer,
        "decided_by": by,
        "bundle": bundle,
    }
    return base.Piece("hitl", fields, in_context=False)


def plan(content: Any) -> base.Piece:
    """Return a plan, or the next version of one."""
    return base.Piece("planner", {"plan": content}, in_context=False)


def in_claude_code(
    pieces: Iterable[base.PieceOrSkipped], entry: dict[str, Any]
) -> Iterator[base.PieceOrSkipped]:
    """Yield the pieces of an entry of Claude Code, then its decisions and plans."""
    events: list[base.Piece] = []
    for piece in pieces:
        yield piece
        if isinstance(piece, base.Piece):
            events.append(piece)
    details: dict[str, Any] = {}
    refusal = None
    results = [event for event in events if event.type == "tool_result"]
    if len(results) == 1:  # these fields do not name the result that they are about
        details = base.mapping(entry, "toolUseResult")
        refusal = base.text(entry, "toolDenialKind")
    for event in events:
        if event.type == "tool_result":
            yield from _claude_decisions(event, details, refusal)
        elif event.type == "tool_call":
            yield from _claude_plans(event)
        elif event.type == "user_input" and entry.get("permissionMode") == "plan":
            yield plan(PLAN_MODE)


def _claude_decisions(
    result: base.Piece, details: dict[str, Any], refusal: str | None
) -> Iterator[base.Piece]:
    """Yield the decision that a result contains, if any.

    details: fields of the result that were not sent to the model.
    refusal: the kind of refusal, which newer versions record.
    """
    call_id = result.fields["call_id"]
    text = _text(result)
    if result.fields["status"] == "error":
        if refusal not in _CLAUDE_INTERRUPTIONS:
            yield from _claude_refusal(call_id, text, refusal)
    elif isinstance(details.get("answers"), dict) and "questions" in details:
        yield _claude_answers(call_id, details)
    elif "plan" in details and text.startswith("User has approved"):
        yield decision(PLAN, APPROVED, call_id=call_id)


def _claude_refusal(call_id: str, text: str, kind: str | None) -> Iterator[base.Piece]:
    """Yield the refusal of a call, if its result is one.

    text: of the result.
    kind: of refusal, which newer versions record.
    """
    by = None
    if text.startswith(_CLAUDE_REFUSALS):
        by = _USER
    elif text.startswith(_CLAUDE_RULE) and _CLAUDE_DENIED in text:
        by = _SETTINGS
    if by is None and kind is not None:
        by = _USER if kind == _CLAUDE_USER else kind
    if by is None:
        return
    trigger = PLAN if text.startswith(_CLAUDE_PLAN_REFUSAL) else TOOL
    _, _, reason = text.partition(_CLAUDE_REASON)
    yield decision(trigger, REJECTED, call_id=call_id, by=by, reason=reason)


def in_attachment(entry: dict[str, Any]) -> Iterator[base.Piece]:
    """Yield the answer of a hook to a request for permission, if an entry has one."""
    attachment = base.mapping(entry, "attachment")
    if attachment.get("type") != "hook_permission_decision":
        return
    is_allowed = attachment.get("decision") == "allow"
    yield decision(
        TOOL,
        APPROVED if is_allowed else REJECTED,
        call_id=base.text(attachment, "toolUseID"),
        by="hook",
    )


def _claude_answers(call_id: str, details: dict[str, Any]) -> base.Piece:
    """Return the user's answers, in the order of the questions.

    A capture reads entries whose names are sorted, so the order of the answers is not
    that of the questions.
    """
    questions: list[str] = []
    for item in base.each(details, "questions"):
        question = base.text(item, "question")
        if question:
            questions.append(question)
    answers = details["answers"]
    others = sorted(answers.keys() - questions)
    lines: list[str] = []
    for question in (*questions, *others):
        if question not in answers:
            continue
        answer = answers[question]
        words = answer if isinstance(answer, str) else canonical(answer).decode()
        if len(answers) > 1:
            words = f"{question}: {words}"
        lines.append(words)
    return decision(
        QUESTION,
        "\n".join(lines),
        call_id=call_id,
        question="\n".join(questions),
    )


def _claude_plans(call: base.Piece) -> Iterator[base.Piece]:
    """Yield the plan that a call makes or changes, if any."""
    name = call.fields["tool_name"]
    arguments = base.mapping(call.fields["arguments"])
    if name == "TodoWrite":
        yield plan(arguments.get("todos", arguments))
    elif name in _CLAUDE_TASKS:
        yield plan({"task": arguments})
    elif name == "EnterPlanMode":
        yield plan(PLAN_MODE)
    elif name == "ExitPlanMode":
        # Newer versions keep the plan in a file.
        yield plan(base.text(arguments, "plan") or {**PLAN_MODE, "submitted": True})


def in_codex(pieces: Iterable[base.PieceOrSkipped]) -> Iterator[base.PieceOrSkipped]:
    """Yield the pieces of an item of Codex, then its decisions and plans."""
    decided: list[base.Piece] = []
    for piece in pieces:
        yield piece
        if not isinstance(piece, base.Piece):
            continue
        if piece.type == "tool_result":
            decided += _codex_decisions(piece)
        elif piece.type == "tool_call" and piece.fields["tool_name"] == "update_plan":
            decided.append(plan(piece.fields["arguments"]))
    yield from decided


def refused_in_codex(content: Any) -> bool:
    """Whether a result says that the user refused the call."""
    return _codex_output(content) in _CODEX_REFUSALS


def _codex_output(content: Any) -> str:
    """Return the text of a result, or the field ``output`` if the text is JSON."""
    text = messages.joined_text(content).strip()
    if not text.startswith("{"):
        return text
    value, _ = base.parsed(text)
    return (base.text(value, "output") or text).strip()


def _codex_decisions(result: base.Piece) -> Iterator[base.Piece]:
    """Yield the decision in a result, if any: a refusal, a grant, or answers."""
    call_id = result.fields["call_id"]
    content = result.fields["content"]
    if refused_in_codex(content):
        yield decision(TOOL, REJECTED, call_id=call_id)
        return
    value, _ = base.parsed(messages.joined_text(content))
    if not isinstance(value, dict):
        return
    if value.keys() == {"permissions", "scope"}:
        granted = APPROVED if value["permissions"] else REJECTED
        yield decision(TOOL, granted, call_id=call_id)
    elif value.keys() == {"answers"} and _are_codex_answers(value["answers"]):
        lines: list[str] = []
        for _, answer in sorted(value["answers"].items()):
            lines += [str(words) for words in answer["answers"]]
        yield decision(QUESTION, "\n".join(lines), call_id=call_id)


def _are_codex_answers(value: Any) -> bool:
    """Whether a value has a list of answers for each question."""
    if not isinstance(value, dict) or not value:
        return False
    return all(isinstance(base.at(item, "answers"), list) for item in value.values())


def _text(result: base.Piece) -> str:
    """Return the text of a result."""
    return messages.joined_text(result.fields["content"])
