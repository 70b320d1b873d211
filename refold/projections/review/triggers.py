"""What makes a rule fire, and what settles what it fired for: counts of one session."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from pydantic import JsonValue

from refold.domain.events import (
    AgentError,
    Aggregate,
    Final as Ending,
    JsonObject,
    Planner,
    Reflection,
    SessionEvent,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.projections.memory.reasons import reason_of
from refold.projections.review.rules import (
    MOST,
    ConfidenceRule,
    ErrorRule,
    IssueRule,
    ReflectionRule,
    Rule,
    ToolRule,
)

_LONGEST: Final = 64
_NAMED: Final = 10  # issues that a question names
NAMELESS: Final = "?"


class Found(NamedTuple):
    """What a rule found at an event.

    subject: what it is about, so that it is not told twice: a tool, a code.
    figures: what the rule counted, and its limit.
    seqs:    the events that show it.
    """

    subject: str
    figures: JsonObject
    seqs: tuple[int, ...]


class Failed(NamedTuple):
    """A call and its result that says it failed; ``call`` is 0 if it is not here."""

    call: int
    result: int


@dataclass(slots=True)
class Counts:
    """What the rules count, up to the newest event.

    tool:     the tool of the newest result; None if the newest event is none.
    failures: by tool, the calls that failed since it last did not, the newest ``MOST``.
    lengths:  by tool, how many they are in all.
    rejected: the reflections of the turn that did not pass since one did.
    calls:    those that wait for a result, with their seq and tool.
    """

    tool: str | None = None
    failures: dict[str, list[Failed]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    rejected: list[int] = field(default_factory=list)
    calls: dict[str, tuple[int, str]] = field(default_factory=dict)

    def take(self, seq: int, event: SessionEvent) -> None:
        """Count the next event."""
        self.tool = None
        match event:
            case UserInput():
                self.rejected = []
            case ToolCall(call_id=call_id, tool_name=tool):
                self.calls[call_id] = (seq, tool)
            case ToolResult():
                self._result(seq, event)
            case Reflection(pass_=True):
                self.rejected = []
            case Reflection(pass_=False):
                self.rejected = [*self.rejected, seq][-MOST:]

    def forgive(self, tool: str) -> None:
        """Count the failures of a tool anew."""
        self.failures.pop(tool, None)
        self.lengths.pop(tool, None)

    def _result(self, seq: int, result: ToolResult) -> None:
        named = result.tool_name or NAMELESS
        call, tool = self.calls.pop(result.call_id, (0, named))
        self.tool = tool = tool[:_LONGEST]
        if reason_of(result) is None:
            self.forgive(tool)
            return
        self.failures[tool] = [*self.failures.get(tool, []), Failed(call, seq)][-MOST:]
        self.lengths[tool] = self.lengths.get(tool, 0) + 1


def found_by(rule: Rule, counts: Counts, seq: int, event: SessionEvent) -> Found | None:
    """What the rule finds at this event, which was counted; None if nothing."""
    match rule, event:
        case ErrorRule(), AgentError(code=code):
            return _error(rule, code, seq)
        case ReflectionRule(reflections=limit), Reflection(pass_=False):
            rejected = counts.rejected
            if len(rejected) < limit:
                return None
            figures: JsonObject = {"reflections": len(rejected), "limit": limit}
            return Found("", figures, tuple(rejected[-limit:]))
        case ConfidenceRule(below=below), Reflection(confidence=float(sure)):
            figures = {"confidence": sure, "below": below}
            return Found("", figures, (seq,)) if sure < below else None
        case IssueRule(issues=risky), Reflection(issues=issues):
            named = risks(issues, risky)
            figures = {"issues": list[JsonValue](named[:_NAMED])}
            return Found("+".join(named), figures, (seq,)) if named else None
        case ToolRule(), ToolResult():
            return _tool(rule, counts)
    return None


def settles(rule: Rule, subject: str, counts: Counts, event: SessionEvent) -> bool:
    """Whether this event shows that what the rule found is over, and went well."""
    match rule, event:
        case ErrorRule() | ToolRule(), Ending(outcome="success"):
            return True
        case ErrorRule(), Reflection() | Aggregate() | Planner():
            # What could not be parsed was this: now it could.
            return subject.startswith(_MADE_BY[type(event)])
        case ReflectionRule(), Reflection(pass_=True):
            return True
        case ConfidenceRule(below=below), Reflection(confidence=float(sure)):
            return sure >= below
        case IssueRule(issues=risky), Reflection(issues=issues):
            return not risks(issues, risky)
        case ToolRule(), ToolResult():
            return counts.tool == subject and subject not in counts.failures
    return False


def risks(issues: Iterable[JsonValue], risky: Iterable[str]) -> list[str]:
    """Which of ``risky`` are among the issues, in the order of their names."""
    named = {_code(issue) for issue in issues}
    return sorted(code for code in {_plain(code) for code in risky} if code in named)


def told(figures: JsonObject) -> str:
    """What a rule found, as a sentence."""
    match figures:
        case {"code": code}:
            return f"An error of the code {code} was recorded."
        case {"reflections": count, "limit": limit}:
            return f"{count} reflections in a row did not pass; the limit is {limit}."
        case {"confidence": sure, "below": below}:
            return f"A reflection has a confidence of {sure}, below {below}."
        case {"issues": list(issues)}:
            return f"A reflection names {', '.join(map(str, issues))}."
        case {"tool": tool, "failures": count, "limit": limit}:
            return f"{tool} failed {count} times in a row; the limit is {limit}."
    return "A rule fired."


_MADE_BY: Final = {
    Reflection: ("reflector", "reflection"),
    Aggregate: ("aggregator", "aggregate"),
    Planner: ("planner", "plan"),
}


def _error(rule: ErrorRule, code: str, seq: int) -> Found | None:
    if not any(fnmatchcase(code, _only_stars(one)) for one in rule.codes):
        return None
    return Found(code[:_LONGEST], {"code": code[:_LONGEST]}, (seq,))


def _only_stars(pattern: str) -> str:
    """The pattern with all that is no ``*`` standing for itself."""
    return pattern.replace("[", "[[]").replace("?", "[?]")


def _tool(rule: ToolRule, counts: Counts) -> Found | None:
    tool = counts.tool
    if tool is None or counts.lengths.get(tool, 0) < rule.failures:
        return None
    figures: JsonObject = {
        "tool": tool,
        "failures": counts.lengths[tool],
        "limit": rule.failures,
    }
    shown = counts.failures[tool][-rule.failures :]
    seqs = {seq for one in shown for seq in one if seq}
    return Found(tool, figures, tuple(sorted(seqs)))


def _code(issue: JsonValue) -> str:
    if isinstance(issue, dict):
        issue = issue.get("code")
    return _plain(issue) if isinstance(issue, str) else ""


def _plain(code: str) -> str:
    return code.strip().lower().replace("-", "_").replace(" ", "_")
