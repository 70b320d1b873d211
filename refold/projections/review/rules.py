"""When a human is asked: rules as data, those that are shipped and one's own."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

import orjson
from pydantic import Field, TypeAdapter, ValidationError, field_validator

from refold.domain.canonical import digest
from refold.domain.errors import InvalidConfiguration
from refold.domain.events import JsonObject
from refold.domain.model import Model
from refold.projections.review.questions import Severity

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
            raise ValueError("what is to be done with less comes before trying again")
        return steps


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
_any_rule: Final[TypeAdapter[Rule]] = TypeAdapter(Rule)


@dataclass(frozen=True, slots=True)
class ReviewRules:
    """When a human is asked to look at what an agent did."""

    rules: tuple[Rule, ...]

    @classmethod
    def default(cls) -> ReviewRules:
        """The rules that are shipped."""
        return _shipped()

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """The rules that TOML says, a table for each.

        Raises InvalidConfiguration for what is no TOML, and for a wrong rule.
        """
        try:
            found = tomllib.loads(text if isinstance(text, str) else text.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
            raise InvalidConfiguration(
                "review rules are TOML with a table for each, such as [tool_failing]"
            ) from None
        return cls.of(found)

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        """The rules of these tables, by name.  Raises InvalidConfiguration."""
        if not found:
            raise InvalidConfiguration("there is no rule: nothing would be asked")
        return cls(tuple(_rule(name, table) for name, table in found.items()))

    def digest(self) -> str:
        """The SHA-256 of what they say."""
        return digest([rule.model_dump(mode="json") for rule in self.rules])


def rule_of(table: Mapping[str, Any]) -> Rule:
    """The rule of this table, its ``name`` in it.  Raises InvalidConfiguration."""
    rest = {key: value for key, value in table.items() if key != "name"}
    return _rule(table.get("name"), rest)


def said_by(rule: Rule) -> JsonObject:
    """What a rule says, as JSON."""
    return rule.model_dump(mode="json")


@cache
def _shipped() -> ReviewRules:
    return ReviewRules.read((files("refold") / "data" / "review.toml").read_bytes())


def _rule(name: object, table: object) -> Rule:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidConfiguration(
            "a review rule is named by up to 48 lower-case letters and _"
        )
    if not isinstance(table, Mapping) or "name" in table:
        raise InvalidConfiguration(f"review rule {name!r}: it must be a table of keys")
    try:
        # As JSON, where nothing is taken for what it is not: no text is a number.
        data = orjson.dumps({**table, "name": name}, default=str)
        return _any_rule.validate_json(data, strict=True)
    except (ValidationError, orjson.JSONEncodeError) as error:
        reason = _reason(error)
        raise InvalidConfiguration(f"review rule {name!r}: {reason}") from None


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return "a value that it cannot hold"
    reasons = []
    for detail in error.errors(include_input=False, include_url=False):
        if detail["type"].startswith("union_tag"):
            return (
                "when is one of error, reflection_failed, low_confidence, issue, "
                "tool_fails"
            )
        if detail["type"] == "extra_forbidden":
            reasons.append("a key that a rule of its kind does not have")
            continue
        place = ".".join(map(str, detail["loc"][1:]))  # behind the kind of rule
        reasons.append(f"{place}: {detail['msg']}")
    return "; ".join(dict.fromkeys(reasons))
