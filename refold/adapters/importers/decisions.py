"""Decisions of people and plans of agents, which clients record in calls and results.

Clients have no entries of their own for them: a refusal is the result of the call, a
plan the arguments of one.  The events made here say the same in a typed form, so no
context shows them.  Each depends on one entry alone, so that a capture, which reads
each line by itself, records the same as an import.
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

# How Claude Code begins the result of a call that the user refused.
_CLAUDE_PLAN_REFUSAL: Final = "The agent proposed a plan that was rejected by the user."
_CLAUDE_REFUSALS: Final = (
    "The user doesn't want to proceed with this tool use.",
    "The user doesn't want to take this action right now.",
    "Permission for this tool use was denied.",
    _CLAUDE_PLAN_REFUSAL,
)
_CLAUDE_REASON: Final = "he user said:\n"
# How it begins the result of a call that a rule of the settings refused.
_CLAUDE_RULE: Final = "Permission to use "
_CLAUDE_DENIED: Final = "has been denied"
# Kinds of refusals: the user's, and those that are none.
_CLAUDE_USER: Final = "user-rejected"
_CLAUDE_INTERRUPTIONS: Final = frozenset({"interrupted", "cancelled"})
# Tools of Claude Code that write the list of tasks, one task a call.
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
    """The decision of a person on a call.

    reason: what the person said about it.
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
    """A plan, or the next version of one."""
    return base.Piece("planner", {"plan": content}, in_context=False)


def in_claude_code(
    found: Iterable[base.PieceOrSkipped], entry: dict[str, Any]
) -> Iterator[base.PieceOrSkipped]:
    """What was found in an entry of Claude Code, then its decisions and plans."""
    result_count = 0
    restated: list[base.Piece] = []
    pieces: list[base.Piece] = []
    for item in found:
        yield item
        if isinstance(item, base.Piece):
            pieces.append(item)
            result_count += item.type == "tool_result"
    details: dict[str, Any] = {}
    refusal = None
    if result_count == 1:  # these fields do not say of which result they are
        details = base.mapping(entry, "toolUseResult")
        refusal = base.text(entry, "toolDenialKind")
    for piece in pieces:
        if piece.type == "tool_result":
            restated += _claude_decisions(piece, details, refusal)
        elif piece.type == "tool_call":
            restated += _claude_plans(piece)
        elif piece.type == "user_input" and entry.get("permissionMode") == "plan":
            restated.append(plan(PLAN_MODE))
    yield from restated


def _claude_decisions(
    result: base.Piece, details: dict[str, Any], refusal: str | None
) -> Iterator[base.Piece]:
    """The decision that a result contains.

    details: fields of the result that were not sent to the model.
    refusal: the kind of refusal, which newer versions write down.
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
    """The answer of a hook to a request for permission, which Claude Code attaches."""
    attachment = base.mapping(entry, "attachment")
    if attachment.get("type") != "hook_permission_decision":
        return
    allowed = attachment.get("decision") == "allow"
    yield decision(
        TOOL,
        APPROVED if allowed else REJECTED,
        call_id=base.text(attachment, "toolUseID"),
        by="hook",
    )


def _claude_answers(call_id: str, details: dict[str, Any]) -> base.Piece:
    """The user's answers, in the order of the questions.

    A capture reads an entry whose names are sorted, so their order says nothing.
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
    """The plan that a call makes or changes."""
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


def in_codex(found: Iterable[base.PieceOrSkipped]) -> Iterator[base.PieceOrSkipped]:
    """What was found in an item of Codex, then its decisions and plans."""
    restated: list[base.Piece] = []
    for item in found:
        yield item
        if not isinstance(item, base.Piece):
            continue
        if item.type == "tool_result":
            restated += _codex_decisions(item)
        elif item.type == "tool_call" and item.fields["tool_name"] == "update_plan":
            restated.append(plan(item.fields["arguments"]))
    yield from restated


def refused_in_codex(content: Any) -> bool:
    """Whether a result says that the user refused the call."""
    return _codex_words(content) in _CODEX_REFUSALS


def _codex_words(content: Any) -> str:
    """The words of a result; some stand in JSON with other fields."""
    text = messages.joined_text(content)
    inner = base.text(base.parsed(text)[0], "output")
    return (inner or text).strip()


def _codex_decisions(result: base.Piece) -> Iterator[base.Piece]:
    call_id = result.fields["call_id"]
    content = result.fields["content"]
    if refused_in_codex(content):
        yield decision(TOOL, REJECTED, call_id=call_id)
        return
    value = base.parsed(messages.joined_text(content))[0]
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
    if not isinstance(value, dict) or not value:
        return False
    return all(isinstance(base.at(item, "answers"), list) for item in value.values())


def _text(result: base.Piece) -> str:
    return messages.joined_text(result.fields["content"])
