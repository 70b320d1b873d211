"""Review rules: the conditions under which a session asks a human for a decision."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeAlias

import orjson
from pydantic import Field, JsonValue, TypeAdapter, ValidationError, field_validator

from refold.domain import events
from refold.domain.canonical import digest, load_packaged_toml, parse_toml
from refold.domain.errors import InvalidConfiguration
from refold.domain.events import JsonObject, SessionEvent
from refold.domain.model import Model
from refold.projections.memory.sessions import reason_of

Severity: TypeAlias = Literal["low", "medium", "high", "critical"]
SEVERITIES: Final[tuple[Severity, ...]] = ("critical", "high", "medium", "low")
# An attempt at recovery that an agent makes before a human is asked.
Step: TypeAlias = Literal["degrade", "retry"]
MOST: Final = 50  # the highest limit of a rule: a bundle shows every event counted
# The name becomes the trigger of an event, so redaction must not change it.
_NAME: Final = re.compile(r"[a-z][a-z_]{0,47}")
_Code = Annotated[str, Field(min_length=1, max_length=100)]
_Codes = Annotated[tuple[_Code, ...], Field(min_length=1, max_length=200)]


class _Rule(Model):
    """The fields that all rules share.

    steps:    the recovery steps that the agent tries, in this order, before a human
              is asked.  Without steps, a human is asked immediately.
    question: the question to the human.  A sentence that describes the finding
              precedes it.
    """

    name: str
    severity: Severity = "medium"
    steps: tuple[Step, ...] = Field(default=("degrade", "retry"), max_length=5)
    question: str = Field(default="", max_length=500)

    @field_validator("steps")
    @classmethod
    def _in_order(cls, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        if list(steps) != sorted(steps):
            raise ValueError("degrade must come before retry")
        return steps

    def to_json(self) -> JsonObject:
        """Return the rule as JSON."""
        return self.model_dump(mode="json")


class ErrorRule(_Rule):
    """Fires at an ``error`` event with one of these codes; ``*`` matches any text."""

    when: Literal["error"] = "error"
    codes: _Codes


class ReflectionRule(_Rule):
    """Fires when this many reflections of one turn in a row did not pass."""

    when: Literal["reflection_failed"] = "reflection_failed"
    reflections: int = Field(ge=1, le=MOST)


class ConfidenceRule(_Rule):
    """Fires at a reflection whose confidence (0 to 1) is below the limit."""

    when: Literal["low_confidence"] = "low_confidence"
    below: float = Field(gt=0, le=1)


class IssueRule(_Rule):
    """Fires at a reflection that names one of these issues."""

    when: Literal["issue"] = "issue"
    issues: _Codes


class ToolRule(_Rule):
    """Fires when one tool failed this many times in a row."""

    when: Literal["tool_fails"] = "tool_fails"
    failures: int = Field(ge=1, le=MOST)


Rule: TypeAlias = Annotated[
    ErrorRule | ReflectionRule | ConfidenceRule | IssueRule | ToolRule,
    Field(discriminator="when"),
]
_KINDS: Final = ("error", "reflection_failed", "low_confidence", "issue", "tool_fails")
_any_rule: Final[TypeAdapter[Rule]] = TypeAdapter(Rule)


@dataclass(frozen=True, slots=True)
class ReviewRules:
    """The rules that decide when a human reviews a session."""

    rules: tuple[Rule, ...]

    @classmethod
    @cache
    def default(cls) -> ReviewRules:
        """Return the rules that Refold ships."""
        return cls.of(load_packaged_toml("refold.projections", "data", "review.toml"))

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """Read rules from TOML with one table per rule.

        Raises InvalidConfiguration if the text is not TOML or a rule is not valid.
        """
        advice = "review rules are TOML with a table for each, such as [tool_failing]"
        return cls.of(parse_toml(text, otherwise=advice))

    @classmethod
    def of(cls, tables: Mapping[str, Any]) -> Self:
        """Build rules from tables by rule name.  Raises InvalidConfiguration."""
        if not tables:
            raise InvalidConfiguration("the file has no rule: nothing would be asked")
        return cls(tuple(_rule(name, table) for name, table in tables.items()))

    def digest(self) -> str:
        """Return the SHA-256 of the rules as JSON."""
        return digest([rule.to_json() for rule in self.rules])


def rule_of(table: Mapping[str, Any]) -> Rule:
    """Build one rule from a table with a ``name``.  Raises InvalidConfiguration."""
    settings = {key: value for key, value in table.items() if key != "name"}
    return _rule(table.get("name"), settings)


def _rule(name: object, table: object) -> Rule:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidConfiguration(
            "a review rule is named by up to 48 lower-case letters and _"
        )
    if not isinstance(table, Mapping) or "name" in table:
        raise InvalidConfiguration(f"review rule {name!r}: it must be a table of keys")
    try:
        # Strict validation of JSON converts nothing: a text is never read as a number.
        data = orjson.dumps({**table, "name": name}, default=str)
        return _any_rule.validate_json(data, strict=True)
    except orjson.JSONEncodeError:
        reason = "a value that it cannot hold"
    except ValidationError as error:
        reason = _reason(error)
    raise InvalidConfiguration(f"review rule {name!r}: {reason}")


def _reason(error: ValidationError) -> str:
    """Describe a validation error without repeating the input."""
    reasons: list[str] = []
    for detail in error.errors(include_input=False, include_url=False):
        if detail["type"].startswith("union_tag"):
            return f"when is one of {', '.join(_KINDS)}"
        if detail["type"] == "extra_forbidden":
            reasons.append("a key that a rule of its kind does not have")
        else:
            # The first part of the location is the kind of the rule.
            place = ".".join(map(str, detail["loc"][1:]))
            reasons.append(f"{place}: {detail['msg']}")
    return "; ".join(dict.fromkeys(reasons))


_LONGEST: Final = 64  # characters of a tool's name or an error's code
_MOST_ISSUES: Final = 10  # issues that a question names
UNNAMED_TOOL: Final = "?"


class Finding(NamedTuple):
    """The result of a rule that fired at an event.

    subject: the tool, code, or issues that the rule fired for; a rule has one open
             incident per subject.
    figures: the count or value that the rule compared, and its limit.
    seqs:    the events that show it.
    """

    subject: str
    figures: JsonObject
    seqs: tuple[int, ...]


class FailedCall(NamedTuple):
    """The seqs of a failed tool result and of its call; ``call`` is 0 if unknown."""

    call: int
    result: int


@dataclass(slots=True)
class Counts:
    """The counters that the rules read, up to the newest event.

    tool:     the tool of the newest event, if that event is a tool result.
    failures: by tool, the newest ``MOST`` failed calls since its last success.
    lengths:  by tool, the number of failed calls since its last success.
    rejected: seqs of the turn's reflections that did not pass, since the last that did.
    calls:    by call id, the seq and tool of each call without a result.
    """

    tool: str | None = None
    failures: dict[str, list[FailedCall]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    rejected: list[int] = field(default_factory=list)
    calls: dict[str, tuple[int, str]] = field(default_factory=dict)

    def take(self, seq: int, event: SessionEvent) -> None:
        """Count the next event."""
        self.tool = None
        match event:
            case events.UserInput():
                self.rejected = []
            case events.ToolCall(call_id=call_id, tool_name=tool):
                self.calls[call_id] = (seq, tool)
            case events.ToolResult():
                self._take_result(seq, event)
            case events.Reflection(pass_=True):
                self.rejected = []
            case events.Reflection(pass_=False):
                self.rejected = [*self.rejected, seq][-MOST:]

    def forgive(self, tool: str) -> None:
        """Reset the failures of a tool."""
        self.failures.pop(tool, None)
        self.lengths.pop(tool, None)

    def _take_result(self, seq: int, result: events.ToolResult) -> None:
        unknown_call = (0, result.tool_name or UNNAMED_TOOL)
        call_seq, tool = self.calls.pop(result.call_id, unknown_call)
        tool = tool[:_LONGEST]
        self.tool = tool
        if reason_of(result) is None:
            self.forgive(tool)
            return
        failures = [*self.failures.get(tool, []), FailedCall(call_seq, seq)]
        self.failures[tool] = failures[-MOST:]
        self.lengths[tool] = self.lengths.get(tool, 0) + 1


def evaluate(
    rule: Rule, counts: Counts, seq: int, event: SessionEvent
) -> Finding | None:
    """Return the rule's finding at this event, or None if the rule does not fire.

    counts: the counters, with this event already counted.
    """
    match rule, event:
        case ErrorRule(codes=codes), events.AgentError(code=code):
            return _matching_code(codes, code, seq)
        case ReflectionRule(reflections=limit), events.Reflection(pass_=False):
            return _rejected_reflections(counts.rejected, limit)
        case ConfidenceRule(below=below), events.Reflection(confidence=float(value)):
            if value >= below:
                return None
            return Finding("", {"confidence": value, "below": below}, (seq,))
        case IssueRule(issues=risky), events.Reflection(issues=issues):
            names = risks(issues, risky)
            if not names:
                return None
            shown = list[JsonValue](names[:_MOST_ISSUES])
            return Finding("+".join(names), {"issues": shown}, (seq,))
        case ToolRule(failures=limit), events.ToolResult():
            return _failing_tool(counts, limit)
    return None


def _matching_code(codes: Iterable[str], code: str, seq: int) -> Finding | None:
    for pattern in codes:
        # Only ``*`` is a wildcard; fnmatch would also expand brackets and ``?``.
        literal = pattern.replace("[", "[[]").replace("?", "[?]")
        if fnmatchcase(code, literal):
            short = code[:_LONGEST]
            return Finding(short, {"code": short}, (seq,))
    return None


def _rejected_reflections(rejected: Sequence[int], limit: int) -> Finding | None:
    if len(rejected) < limit:
        return None
    figures: JsonObject = {"reflections": len(rejected), "limit": limit}
    return Finding("", figures, tuple(rejected[-limit:]))


def _failing_tool(counts: Counts, limit: int) -> Finding | None:
    tool = counts.tool
    if tool is None or counts.lengths.get(tool, 0) < limit:
        return None
    seqs: set[int] = set()
    for failed_call in counts.failures[tool][-limit:]:
        seqs.add(failed_call.result)
        if failed_call.call:
            seqs.add(failed_call.call)
    figures: JsonObject = {
        "tool": tool,
        "failures": counts.lengths[tool],
        "limit": limit,
    }
    return Finding(tool, figures, tuple(sorted(seqs)))


def settles(rule: Rule, subject: str, counts: Counts, event: SessionEvent) -> bool:
    """Whether this event ends, successfully, what the rule fired for."""
    match rule, event:
        case ErrorRule() | ToolRule(), events.Final(outcome="success"):
            return True
        case ErrorRule(), events.Reflection() | events.Aggregate() | events.Planner():
            # The component whose output could not be parsed has now produced an event.
            return subject.startswith(_PRODUCERS[type(event)])
        case ReflectionRule(), events.Reflection(pass_=True):
            return True
        case ConfidenceRule(below=below), events.Reflection(confidence=float(value)):
            return value >= below
        case IssueRule(issues=risky), events.Reflection(issues=issues):
            return not risks(issues, risky)
        case ToolRule(), events.ToolResult():
            return counts.tool == subject and subject not in counts.failures
    return False


_PRODUCERS: Final = {
    events.Reflection: ("reflector", "reflection"),
    events.Aggregate: ("aggregator", "aggregate"),
    events.Planner: ("planner", "plan"),
}
"""By event type, the prefixes of error codes that its producer raises."""


def risks(issues: Iterable[JsonValue], risky: Iterable[str]) -> list[str]:
    """Return the names in ``risky`` that occur among the issues, sorted.

    An issue is a text, or an object with the text in ``code``.  Case, hyphens, and
    spaces do not matter.
    """
    names: set[str] = set()
    for issue in issues:
        code = issue.get("code") if isinstance(issue, dict) else issue
        if isinstance(code, str):
            names.add(_normalized(code))
    return sorted(names.intersection(map(_normalized, risky)))


def _normalized(code: str) -> str:
    return code.strip().lower().replace("-", "_").replace(" ", "_")


def describe(figures: JsonObject) -> str:
    """Describe a finding's figures in one sentence."""
    match figures:
        case {"code": code}:
            return f"An error of the code {code} was recorded."
        case {"reflections": count, "limit": limit}:
            return f"{count} reflections in a row did not pass; the limit is {limit}."
        case {"confidence": value, "below": below}:
            return f"A reflection has a confidence of {value}, below {below}."
        case {"issues": list(issues)}:
            return f"A reflection names {', '.join(map(str, issues))}."
        case {"tool": tool, "failures": count, "limit": limit}:
            return f"{tool} failed {count} times in a row; the limit is {limit}."
    return "A rule fired."
