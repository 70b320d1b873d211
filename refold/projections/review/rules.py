"""When a human is asked: rules as data, those that are shipped and one's own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeAlias

import orjson
from pydantic import Field, JsonValue, TypeAdapter, ValidationError, field_validator

from refold.domain import events
from refold.domain.canonical import digest, parsed, shipped
from refold.domain.errors import InvalidConfiguration
from refold.domain.events import JsonObject, SessionEvent
from refold.domain.model import Model
from refold.projections.memory.sessions import reason_of

Severity: TypeAlias = Literal["low", "medium", "high", "critical"]
SEVERITIES: Final[tuple[Severity, ...]] = ("critical", "high", "medium", "low")
# What an agent can do by itself before a human is asked.
Step: TypeAlias = Literal["degrade", "retry"]
MOST: Final = 50  # that a rule may count to: a bundle shows them all
# It is the trigger of an event, so it must be nothing that redaction would change.
_NAME: Final = re.compile(r"[a-z][a-z_]{0,47}")
_Code = Annotated[str, Field(min_length=1, max_length=100)]
_Codes = Annotated[tuple[_Code, ...], Field(min_length=1, max_length=200)]


class _Rule(Model):
    """What all rules have: a name, how grave it is, and what is tried before.

    steps:    what the agent does in turn before a human is asked; none: at once.
    question: what the human is asked, behind a sentence that says what happened.
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

    def says(self) -> JsonObject:
        """All of it, as JSON."""
        return self.model_dump(mode="json")


class ErrorRule(_Rule):
    """An ``error`` event of one of these codes; ``*`` stands for any characters."""

    when: Literal["error"] = "error"
    codes: _Codes


class ReflectionRule(_Rule):
    """So many reflections of a turn, one after another, did not pass."""

    when: Literal["reflection_failed"] = "reflection_failed"
    reflections: int = Field(ge=1, le=MOST)


class ConfidenceRule(_Rule):
    """A reflection is less sure than this, from 0 to 1."""

    when: Literal["low_confidence"] = "low_confidence"
    below: float = Field(gt=0, le=1)


class IssueRule(_Rule):
    """A reflection names one of these issues, as a text or in the key ``code``."""

    when: Literal["issue"] = "issue"
    issues: _Codes


class ToolRule(_Rule):
    """One tool failed so many times, with no success of it in between."""

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
    """When a human is asked to look at what an agent did."""

    rules: tuple[Rule, ...]

    @classmethod
    @cache
    def default(cls) -> ReviewRules:
        """The rules that are shipped."""
        return cls.of(shipped("refold.projections", "data", "review.toml"))

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """The rules that TOML says, a table for each.

        Raises InvalidConfiguration for what is not TOML, and for a wrong rule.
        """
        how = "review rules are TOML with a table for each, such as [tool_failing]"
        return cls.of(parsed(text, otherwise=how))

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        """The rules of these tables, by name.  Raises InvalidConfiguration."""
        if not found:
            raise InvalidConfiguration("the file has no rule: nothing would be asked")
        return cls(tuple(_rule(name, table) for name, table in found.items()))

    def digest(self) -> str:
        """The SHA-256 of what they say."""
        return digest([rule.says() for rule in self.rules])


def rule_of(table: Mapping[str, Any]) -> Rule:
    """The rule of this table, its ``name`` in it.  Raises InvalidConfiguration."""
    rest = {key: value for key, value in table.items() if key != "name"}
    return _rule(table.get("name"), rest)


def _rule(name: object, table: object) -> Rule:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        how = "a review rule is named by up to 48 lower-case letters and _"
        raise InvalidConfiguration(how)
    if not isinstance(table, Mapping) or "name" in table:
        raise InvalidConfiguration(f"review rule {name!r}: it must be a table of keys")
    try:
        # As JSON, where nothing is taken for what it is not: no text is a number.
        data = orjson.dumps({**table, "name": name}, default=str)
        return _any_rule.validate_json(data, strict=True)
    except orjson.JSONEncodeError:
        reason = "a value that it cannot hold"
    except ValidationError as error:
        reason = _reason(error)
    raise InvalidConfiguration(f"review rule {name!r}: {reason}")


def _reason(error: ValidationError) -> str:
    reasons = []
    for detail in error.errors(include_input=False, include_url=False):
        if detail["type"].startswith("union_tag"):
            return f"when is one of {', '.join(_KINDS)}"
        place = ".".join(map(str, detail["loc"][1:]))  # behind the kind of rule
        extra = detail["type"] == "extra_forbidden"
        none = "a key that a rule of its kind does not have"
        reasons.append(none if extra else f"{place}: {detail['msg']}")
    return "; ".join(dict.fromkeys(reasons))


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
            case events.UserInput():
                self.rejected = []
            case events.ToolCall(call_id=call_id, tool_name=tool):
                self.calls[call_id] = (seq, tool)
            case events.ToolResult():
                self._result(seq, event)
            case events.Reflection(pass_=True):
                self.rejected = []
            case events.Reflection(pass_=False):
                self.rejected = [*self.rejected, seq][-MOST:]

    def forgive(self, tool: str) -> None:
        """Count the failures of a tool anew."""
        self.failures.pop(tool, None)
        self.lengths.pop(tool, None)

    def _result(self, seq: int, result: events.ToolResult) -> None:
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
        case ErrorRule(codes=codes), events.AgentError(code=code):
            # All that is no ``*`` stands for itself.
            plain = (one.replace("[", "[[]").replace("?", "[?]") for one in codes)
            if any(fnmatchcase(code, one) for one in plain):
                return Found(code[:_LONGEST], {"code": code[:_LONGEST]}, (seq,))
        case ReflectionRule(reflections=limit), events.Reflection(pass_=False):
            rejected = counts.rejected
            figures: JsonObject = {"reflections": len(rejected), "limit": limit}
            enough = len(rejected) >= limit
            return Found("", figures, tuple(rejected[-limit:])) if enough else None
        case ConfidenceRule(below=below), events.Reflection(confidence=float(sure)):
            figures = {"confidence": sure, "below": below}
            return Found("", figures, (seq,)) if sure < below else None
        case IssueRule(issues=risky), events.Reflection(issues=issues):
            named = risks(issues, risky)
            figures = {"issues": list[JsonValue](named[:_NAMED])}
            return Found("+".join(named), figures, (seq,)) if named else None
        case ToolRule(), events.ToolResult():
            tool, limit = counts.tool, rule.failures
            if tool is None or counts.lengths.get(tool, 0) < limit:
                return None
            failed = counts.failures[tool][-limit:]
            seqs = tuple(sorted({seq for one in failed for seq in one if seq}))
            figures = {"tool": tool, "failures": counts.lengths[tool], "limit": limit}
            return Found(tool, figures, seqs)
    return None


def settles(rule: Rule, subject: str, counts: Counts, event: SessionEvent) -> bool:
    """Whether this event shows that what the rule found is over, and went well."""
    match rule, event:
        case ErrorRule() | ToolRule(), events.Final(outcome="success"):
            return True
        case ErrorRule(), events.Reflection() | events.Aggregate() | events.Planner():
            # What could not be parsed was this: now it could.
            return subject.startswith(_MADE_BY[type(event)])
        case ReflectionRule(), events.Reflection(pass_=True):
            return True
        case ConfidenceRule(below=below), events.Reflection(confidence=float(sure)):
            return sure >= below
        case IssueRule(issues=risky), events.Reflection(issues=issues):
            return not risks(issues, risky)
        case ToolRule(), events.ToolResult():
            return counts.tool == subject and subject not in counts.failures
    return False


def risks(issues: Iterable[JsonValue], risky: Iterable[str]) -> list[str]:
    """Which of ``risky`` are among the issues, in the order of their names."""
    codes = (one.get("code") if isinstance(one, dict) else one for one in issues)
    named = {_plain(code) for code in codes if isinstance(code, str)}
    return sorted(named.intersection(map(_plain, risky)))


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
    events.Reflection: ("reflector", "reflection"),
    events.Aggregate: ("aggregator", "aggregate"),
    events.Planner: ("planner", "plan"),
}


def _plain(code: str) -> str:
    return code.strip().lower().replace("-", "_").replace(" ", "_")
