"""A policy: what is redacted, read from a TOML file and checked before it is used."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError
from pydantic_core import ErrorDetails

from refold.redaction.engines import EngineName
from refold.redaction.engines.patterns import BadPattern, Pattern
from refold.redaction.guard import Limits
from refold.redaction.plan import Guard, Plan, Recognizer
from refold.redaction.policy.own_rules import (
    Action,
    Allow,
    LimitsPart,
    Lines,
    OwnRule,
    Part,
    Place,
    RecognizerPart,
    Scan,
    SkipPart,
    TypePart,
    Wrong,
    line_of_syntax,
    rule_of,
)
from refold.redaction.redactor import Redactor
from refold.redaction.rules import DEFAULT_PACKS, PACKS
from refold.redaction.rules.rule import Example, Rule
from refold.redaction.types import LABEL, LOCALES, TYPES, canonical, labels, well_formed
from refold.redaction.values import Path, Skip

_MARKED = re.compile("«.*?»", re.DOTALL)


def prove(rule: Rule, *, min_score: float = 0.6) -> None:
    """Redact the rule's examples with it alone.

    An example with «marks» must be redacted there and nowhere else, one without must
    be redacted somewhere.

    Raises Wrong; its place starts within the rule.
    """
    plan = Plan(name="proof", rules=(rule,), engine="stdlib", min_score=min_score)
    _prove(Redactor(plan), rule)


def prove_stable(rules: Iterable[Rule], plan: Plan) -> None:
    """Redact the examples of ``rules`` twice, as ``plan`` says and in all its rules.

    Raises Wrong; its place begins with the place of the rule among ``rules``.
    """
    redactor = Redactor(replace(plan, engine="stdlib"))
    for number, rule in enumerate(rules):
        for index, example in enumerate(rule.examples):
            key, text = _parted(example)
            once, _ = redactor.text(_plain(text), key=key)
            if redactor.text(once, key=key)[0] != once:
                place = (number, "examples", index)
                raise Wrong(place, "redacting it twice changes it again")


@cache
def proved(rules: tuple[Rule, ...]) -> bool:
    """Prove a pack that comes with Refold, all of it together, once in a process.

    Raises Wrong, which names the rule.
    """
    redactor = Redactor(Plan(name="proof", rules=rules, engine="stdlib"))
    for rule in rules:
        try:
            _prove(redactor, rule)
        except Wrong as wrong:
            which = " ".join(str(step) for step in wrong.place)
            raise Wrong(
                ("packs",), f"rule {rule.id} fails its own {which}: {wrong.reason}"
            ) from None
    return True


def _prove(redactor: Redactor, rule: Rule) -> None:
    for index, example in enumerate(rule.examples):
        _prove_example(redactor, rule, example, index)
    for index, example in enumerate(rule.counter_examples):
        key, text = _parted(example)
        if redactor.text(text, key=key)[1].rules.get(rule.id):
            raise Wrong(("counter_examples", index), "the rule finds a value in it")


def _prove_example(
    redactor: Redactor, rule: Rule, example: Example, index: int
) -> None:
    key, marked = _parted(example)
    place = ("examples", index)
    text = _plain(marked)
    found, _ = redactor.text(text, key=key)
    if found == text:
        raise Wrong(place, "the rule finds nothing in it")
    if text != marked and found != _MARKED.sub(f"[REDACTED:{rule.type}]", marked):
        raise Wrong(place, "the rule finds something else than what is «marked» in it")
    if redactor.text(found, key=key)[0] != found:
        raise Wrong(place, "redacting it twice changes it again")


def _parted(example: Example) -> tuple[str | None, str]:
    return example if isinstance(example, tuple) else (None, example)


def _plain(marked: str) -> str:
    return _MARKED.sub(lambda match: match[0][1:-1], marked)


class PolicyError(ValueError):
    """A policy cannot be used: where it was read, the line, and what is wrong there."""

    def __init__(self, where: str, line: int, reason: str) -> None:
        super().__init__(f"{where} line {line}: {reason}")
        self.where, self.line, self.reason = where, line, reason


class Policy(Part):
    """What is redacted and how, as the tables of a policy file say it.

    ``Policy.parse`` reads and checks a file's text; ``plan`` is what a redactor takes.
    """

    version: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.\-]{0,39}$")] = "default"
    packs: tuple[str, ...] = DEFAULT_PACKS
    engine: EngineName = "auto"
    min_score: Annotated[float, Field(gt=0, le=1)] = 0.6
    pseudonyms: bool = False
    on_error: Literal["block", "drop_leaf"] = "block"
    audit: Literal["silent", "counts", "paths"] = "counts"
    scan: Scan = Scan()
    skip: SkipPart = SkipPart()
    allow: Allow = Allow()
    types: dict[str, TypePart] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    limits_: LimitsPart = Field(default=LimitsPart(), alias="limits")
    recognizer: RecognizerPart = RecognizerPart()
    rules: tuple[OwnRule, ...] = ()

    _plan: Plan | None = PrivateAttr(default=None)

    @classmethod
    def parse(cls, text: str, *, where: str = "policy.toml") -> Self:
        """The policy that ``text`` describes; ``where`` is what errors call it.

        Raises PolicyError for the first line that cannot be used: of TOML, of a key
        or a value, or of a rule that does not keep what its examples promise.
        """
        text = text.removeprefix("\ufeff")
        with _told(where, text):
            policy = cls._of(_loaded(where, text))
            policy._plan = policy._made()
            policy._limited()
        return policy

    @classmethod
    def of_packs(cls, packs: Sequence[str]) -> Self:
        """A policy of these packs, as by default otherwise.

        Raises PolicyError if there is no pack of such a name.
        """
        return cls()._with(packs=tuple(packs))

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Self:
        # As JSON, strictly: an array is a tuple there, and nothing else is bent.
        try:
            return cls.model_validate_json(json.dumps(data, default=str))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise Wrong(tuple(first["loc"]), _reason(cls, first)) from None

    def with_packs(self, packs: Sequence[str]) -> Self:
        """The same policy with other packs.

        Raises PolicyError if there is no pack of such a name.
        """
        return self._with(packs=tuple(packs))

    def with_engine(self, engine: EngineName) -> Self:
        """The same policy with another engine."""
        return self._with(engine=engine)

    def _with(self, **changed: Any) -> Self:
        policy = self.model_copy(update=changed)
        policy._plan = None
        policy.plan()
        return policy

    def plan(self) -> Plan:
        """All that a redactor is to do.

        Raises PolicyError for what ``parse`` would refuse.
        """
        if self._plan is None:
            with _told("policy"):
                self._plan = self._made()
        return self._plan

    def limits(self) -> Limits:
        """The limits of the size guard.

        Raises PolicyError for what ``parse`` would refuse.
        """
        with _told("policy"):
            return self._limited()

    def _limited(self) -> Limits:
        try:
            return Limits(self.limits_.leaf_bytes, self.limits_.event_bytes)
        except ValueError as error:
            raise Wrong(("limits",), str(error)) from None

    def guard(self, recognizer: Recognizer | None) -> Guard | None:
        """``recognizer`` behind this policy's limits; None where there is none."""
        if recognizer is None:
            return None
        part = self.recognizer
        return Guard(
            recognizer,
            budget_ms=part.budget_ms,
            on_failure=part.on_failure,
            max_bytes=part.max_bytes,
            language=part.language,
            min_score=self.min_score,
        )

    def _made(self) -> Plan:
        rules = (*_pack_rules(self.packs), *self._own_rules())
        kinds = {*TYPES, *(rule.type for rule in rules)}
        plan = Plan(
            name=self.name,
            rules=rules,
            engine=self.engine,
            min_score=self.min_score,
            actions=_by_type(self.types, kinds),
            allow_values=frozenset(self.allow.values),
            allow_patterns=tuple(_allowed(self.allow.regex)),
            skip=_skips(self.skip.pointers),
            skip_keys=frozenset(self.skip.keys),
            keys=self.scan.keys,
            numbers=self.scan.numbers,
            nested_json=self.scan.nested_json,
            labels=_labels(self.labels, kinds),
            audit=self.audit,
            on_error=self.on_error,
            max_leaf_bytes=self.scan.max_leaf_bytes,
            budget_ms=self.scan.budget_ms,
            pseudonyms=self.pseudonyms,
        )
        self._prove(plan)
        return plan

    def _own_rules(self) -> Iterator[Rule]:
        taken = {rule.id for pack in PACKS.values() for rule in pack}
        for index, own in enumerate(self.rules):
            place: Place = ("rules", index)
            if own.id in taken:
                raise Wrong((*place, "id"), f"there is another rule {own.id}")
            taken.add(own.id)
            try:
                rule = rule_of(own, min_score=self.min_score)
                prove(rule, min_score=self.min_score)
            except Wrong as wrong:
                raise Wrong((*place, *wrong.place), wrong.reason) from None
            yield rule

    def _prove(self, plan: Plan) -> None:
        for pack in self.packs:
            proved(PACKS[pack])
        if self.rules:
            try:
                prove_stable(plan.rules[-len(self.rules) :], plan)
            except Wrong as wrong:
                raise Wrong(("rules", *wrong.place), wrong.reason) from None


@contextmanager
def _told(where: str, text: str = "") -> Iterator[None]:
    """Turn what is wrong at a place of a policy into what is wrong at its line."""
    try:
        yield
    except Wrong as wrong:
        line = Lines(text).nearest(wrong.place)
        raise PolicyError(where, line, _said(wrong)) from None


def _loaded(where: str, text: str) -> dict[str, Any]:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line, reason = line_of_syntax(error, text)
        raise PolicyError(where, line, f"this is no TOML: {reason}") from None
    except RecursionError:
        raise PolicyError(where, 1, "arrays are nested too deep") from None
    if "version" not in data:
        raise Wrong((), "version = 1 is missing")
    return data


def _said(wrong: Wrong) -> str:
    """The reason, with the key it is about in front."""
    path = ".".join(str(step) for step in wrong.place if isinstance(step, str))
    return f"{path}: {wrong.reason}" if path else wrong.reason


def _reason(model: type[Part], error: ErrorDetails) -> str:
    """What pydantic says of a key, in our words where ours say more."""
    *table, key = error["loc"] or ("",)
    if error["type"] == "missing":
        return "it is missing"
    if error["type"] == "extra_forbidden":
        known = ", ".join(_keys(model, table))
        return f"there is no key {key!r} here, only {known}"
    message = error["msg"].removeprefix("Input ")
    return f"it {message}" if message != error["msg"] else message


def _keys(model: type[Part], table: Iterable[int | str]) -> list[str]:
    """The keys that the table at that place may have."""
    parts: dict[str, type[Part]] = {
        "scan": Scan, "skip": SkipPart, "allow": Allow, "types": TypePart,
        "limits": LimitsPart, "recognizer": RecognizerPart, "rules": OwnRule,
    }  # fmt: skip
    top = next(iter(table), None)
    fields = (parts[str(top)] if top else model).model_fields
    return [field.alias or name for name, field in fields.items()]


def _pack_rules(packs: Sequence[str]) -> tuple[Rule, ...]:
    for index, pack in enumerate(packs):
        if pack not in PACKS:
            known = ", ".join(PACKS)
            raise Wrong(("packs", index), f"there is no pack of that name: {known}")
    return tuple(rule for pack in dict.fromkeys(packs) for rule in PACKS[pack])


def _known(name: str, kinds: Iterable[str], place: Place) -> str:
    """Our name of a type that something may find."""
    kind = canonical(name)
    if kind not in kinds:
        hint = "the types are in the reference of policies, and those of your rules"
        shape = "" if well_formed(kind) else "no type can be called so; "
        raise Wrong(place, f"there is no type {name}: {shape}{hint}")
    return kind


def _by_type(types: Mapping[str, TypePart], kinds: Iterable[str]) -> dict[str, Action]:
    found: dict[str, Action] = {}
    for name, part in types.items():
        place: Place = ("types", name)
        kind = _known(name, kinds, place)
        if kind in found:
            raise Wrong(place, f"{kind} is here already, by another of its names")
        found[kind] = part.action
    return found


def _allowed(patterns: Sequence[str]) -> Iterator[str]:
    for index, source in enumerate(patterns):
        try:
            pattern = Pattern(source, bounded=False)
            pattern.check_ways()
        except BadPattern as error:
            raise Wrong(("allow", "regex", index), str(error)) from None
        yield pattern.scoped()


def _skips(pointers: Sequence[str]) -> Skip:
    return frozenset(
        _steps(pointer, ("skip", "pointers", index))
        for index, pointer in enumerate(pointers)
    )


def _steps(pointer: str, place: Place) -> Path:
    """A JSON pointer (RFC 6901) as a path; ``*`` stands for any step."""
    if not pointer.startswith("/"):
        raise Wrong(place, "a JSON pointer begins with /, like /meta/signature")
    steps = tuple(
        step.replace("~1", "/").replace("~0", "~") for step in pointer[1:].split("/")
    )
    if not any(step != "*" for step in steps):
        raise Wrong(place, "it leaves everything alone: name at least one key")
    return steps


def _labels(written: dict[str, str], kinds: Iterable[str]) -> dict[str, str]:
    """The labels of the locale, and over them those of single types."""
    locale = written.get("locale", "en")
    if locale not in LOCALES:
        known = ", ".join(LOCALES)
        raise Wrong(("labels", "locale"), f"there are no labels for it: {known}")
    found = labels(locale, kinds)
    for name, label in written.items():
        if name == "locale":
            continue
        kind = _known(name, kinds, ("labels", name))
        if label == f"REDACTED:{kind}":
            found.pop(kind, None)
            continue
        if not LABEL.fullmatch(label):
            raise Wrong(
                ("labels", name),
                "a label has 2 to 40 letters, digits, _ or -, and begins with a letter",
            )
        found[kind] = label
    return found
