"""A policy: settings of redaction, read from a TOML file and checked before use."""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial, reduce
from operator import getitem
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    Self,
    TypeAlias,
    get_args,
)

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError
from pydantic_core import ErrorDetails

from refold.domain import plugins
from refold.domain.errors import InvalidConfiguration
from refold.domain.plugins import Plugin
from refold.redaction.checks import Check
from refold.redaction.checks.names import LEXICON
from refold.redaction.engines import EngineName
from refold.redaction.engines.patterns import (
    LONGEST_MATCH,
    BadPattern,
    LiteralAnchor,
    Pattern,
)
from refold.redaction.guard import Limits
from refold.redaction.plan import WORK_PER_KB, Action, Plan
from refold.redaction.recognizers import Guard, Recognizer
from refold.redaction.redactor import Redactor
from refold.redaction.rules import DEFAULT_PACKS, PACKS
from refold.redaction.rules.rule import Example, Rule
from refold.redaction.types import LABEL, LOCALES, TYPES, canonical, labels, well_formed
from refold.redaction.values import Path

Place: TypeAlias = tuple[str | int, ...]
Score: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Count: TypeAlias = Annotated[int, Field(ge=0)]


class PolicyError(ValueError):
    """A policy cannot be used.

    where:  the name of its source.
    line:   the line of the mistake.
    reason: the mistake.
    """

    def __init__(self, where: str, line: int, reason: str) -> None:
        super().__init__(f"{where} line {line}: {reason}")
        self.where = where
        self.line = line
        self.reason = reason


class Wrong(ValueError):
    """A mistake in a policy, and its place there."""

    def __init__(self, place: Place, reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


class Part(BaseModel):
    """A table of the file; keys that are not fields of it are refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, strict=True, hide_input_in_errors=True
    )

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Self:
        # In strict mode only JSON lets an array be a tuple, and nothing else converts.
        try:
            return cls.model_validate_json(json.dumps(data, default=str))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise Wrong(tuple(first["loc"]), _reason(cls, first)) from None


class Scan(Part):
    """``[scan]``: the parts of a value that are scanned, and limits."""

    keys: bool = True
    numbers: Literal["contextual", "never", "always"] = "contextual"
    nested_json: bool = True
    max_leaf_bytes: Annotated[int, Field(ge=1024)] = 16_777_216
    budget_ms: Count = 0
    work_per_kb: Count = WORK_PER_KB
    over_budget: Literal["refuse", "stub"] = "refuse"
    files: Literal["clean", "refuse"] = "clean"


class SkipPart(Part):
    """``[skip]``: parts that are not scanned, by JSON pointer or by key."""

    pointers: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


class Allow(Part):
    """``[allow]``: values that are never findings."""

    values: tuple[str, ...] = ()
    regex: tuple[str, ...] = ()


class TypePart(Part):
    """``[types.X]``: the action for findings of a type."""

    action: Action = "redact"


class LimitsPart(Part):
    """``[limits]``: limits of the size guard, in bytes."""

    leaf_bytes: int = 65_536
    event_bytes: int = 1_048_576


class VaultPart(Part):
    """``[vault]``: types whose values are kept, encrypted, and the number of days."""

    types: tuple[str, ...] = ()
    days: Annotated[int, Field(ge=0, le=36_500)] = 0


class RecognizerPart(Part):
    """``[recognizer]``: limits for the recognizer that the program passes."""

    budget_ms: Annotated[int, Field(ge=1, le=600_000)] = 200
    max_bytes: Annotated[int, Field(ge=1)] = 65_536
    on_failure: Literal["closed", "open"] = "closed"
    language: str = "auto"


class OwnRule(Part):
    """``[[rules]]``: an own rule."""

    id: str
    type: str
    pattern: Annotated[str, Field(min_length=1, max_length=1000)]
    trigger: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    context_required: bool = False
    window: Annotated[int, Field(ge=1, le=64)] = 24
    score: Score = 0.9
    context_boost: Score = 0.45
    validator: str = ""
    examples: Annotated[tuple[str, ...], Field(min_length=1)]
    counter_examples: tuple[str, ...] = ()


_AS_IN_PLAN: Final = {
    "name",
    "engine",
    "min_score",
    "audit",
    "on_error",
    "pseudonyms",
    "numbered",
}


class Policy(Part):
    """The tables of a policy file.

    ``Policy.parse`` reads and checks a file's text.  ``plan`` returns the settings that
    a redactor needs.
    """

    version: Literal[1] = 1
    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.\-]{0,39}$")] = "default"
    packs: tuple[str, ...] = DEFAULT_PACKS
    engine: EngineName = "auto"
    min_score: Annotated[float, Field(gt=0, le=1)] = 0.6
    pseudonyms: bool = False
    numbered: bool = False
    on_error: Literal["block", "drop_leaf"] = "block"
    audit: Literal["silent", "counts", "paths"] = "counts"
    scan: Scan = Scan()
    skip: SkipPart = SkipPart()
    allow: Allow = Allow()
    types: dict[str, TypePart] = Field(default_factory=dict)
    labels: dict[str, str] = Field(default_factory=dict)
    limits_: LimitsPart = Field(default=LimitsPart(), alias="limits")
    recognizer: RecognizerPart = RecognizerPart()
    vault: VaultPart = VaultPart()
    rules: tuple[OwnRule, ...] = ()

    _plan: Plan | None = PrivateAttr(default=None)

    @classmethod
    def parse(cls, text: str, *, where: str = "policy.toml") -> Self:
        """The policy in ``text``; ``where`` is its name in errors.

        Raises PolicyError for the first line with a mistake: in TOML, in a key or a
        value, or in a rule whose examples fail.
        """
        text = text.removeprefix("\ufeff")
        with _at_line(where, text):
            policy = cls._of(_loaded(where, text))
            policy._plan = policy._checked_plan()
            policy._checked_limits()
        return policy

    @classmethod
    def of_packs(cls, packs: Sequence[str]) -> Self:
        """The default policy with these packs.  Raises PolicyError for unknown ones."""
        return cls().with_packs(packs)

    def with_packs(self, packs: Sequence[str]) -> Self:
        """This policy with other packs.  Raises PolicyError for an unknown one."""
        return self._with(packs=tuple(packs))

    def with_engine(self, engine: EngineName) -> Self:
        """This policy with another engine."""
        return self._with(engine=engine)

    def _with(self, **changed: Any) -> Self:
        policy = self.model_copy(update=changed)
        policy._plan = None
        policy.plan()
        return policy

    def plan(self) -> Plan:
        """The settings for a redactor.  Raises PolicyError as ``parse`` does."""
        if self._plan is None:
            with _at_line("policy"):
                self._plan = self._checked_plan()
        return self._plan

    def limits(self) -> Limits:
        """The limits of the size guard.  Raises PolicyError as ``parse`` does."""
        with _at_line("policy"):
            return self._checked_limits()

    def _checked_limits(self) -> Limits:
        try:
            return Limits(self.limits_.leaf_bytes, self.limits_.event_bytes)
        except ValueError as error:
            raise Wrong(("limits",), str(error)) from None

    def guard(self, recognizer: Recognizer | None) -> Guard | None:
        """``recognizer`` with this policy's limits; None without a recognizer."""
        if recognizer is None:
            return None
        limits = self.recognizer.model_dump()
        return Guard(recognizer, min_score=self.min_score, **limits)

    def _checked_plan(self) -> Plan:
        packs = self._packs()
        pack_rules: list[Rule] = []
        for rules_of_pack in packs.values():
            pack_rules += rules_of_pack
        rules = (*pack_rules, *self._own_rules(pack_rules))
        kinds = {*TYPES, *(rule.type for rule in rules)}
        plan = Plan(
            rules=rules,
            actions=_by_type(self.types, kinds),
            allow_values=frozenset(self.allow.values),
            allow_patterns=tuple(_allowed(self.allow.regex)),
            skip=frozenset(_skips(self.skip.pointers)),
            skip_keys=frozenset(self.skip.keys),
            labels=_labels(self.labels, kinds),
            kept=frozenset(self.vault.types),
            kept_sec=self.vault.days * 86_400,
            **self.scan.model_dump(),
            **self.model_dump(include=_AS_IN_PLAN),
        )
        if plan.numbered and (plan.pseudonyms or plan.labels):
            raise Wrong(("numbered",), "it excludes pseudonyms and labels of your own")
        if plan.kept and not plan.numbered:
            raise Wrong(("vault",), "it needs numbered placeholders: numbered = true")
        unknown = sorted(plan.kept - kinds)
        if unknown:
            raise Wrong(("vault", "types"), f"there is no type {unknown[0]}")
        for name, pack in packs.items():
            if name in PACKS:
                proved(pack)
            else:
                _prove_stable_pack(name, pack, plan)
        if self.rules:
            prove_stable(plan.rules[-len(self.rules) :], plan)
        return plan

    def _packs(self) -> dict[str, tuple[Rule, ...]]:
        """Return the rules of each pack, in the order of the policy."""
        packs: dict[str, tuple[Rule, ...]] = {}
        taken = _ids_of_packs()
        for index, name in enumerate(self.packs):
            if name in packs:
                continue
            if name in PACKS:
                packs[name] = PACKS[name]
                continue
            place: Place = ("packs", index)
            plugin = _added_pack(name, place)
            try:
                rules = _rules_of(plugin, min_score=self.min_score)
            except InvalidConfiguration as error:
                raise Wrong(place, str(error)) from error
            for rule in rules:
                if rule.id in taken:
                    problem = plugin.failed(f"has another rule {rule.id}")
                    raise Wrong(place, str(problem))
                taken.add(rule.id)
            packs[name] = rules
        return packs

    def _own_rules(self, pack_rules: Iterable[Rule]) -> Iterator[Rule]:
        """Yield the policy's own rules.

        Raises Wrong for a rule with the id of another, and for an invalid rule.
        """
        taken = _ids_of_packs()
        taken |= {rule.id for rule in pack_rules}
        for index, own in enumerate(self.rules):
            place: Place = ("rules", index)
            if own.id in taken:
                raise Wrong((*place, "id"), f"there is another rule {own.id}")
            taken.add(own.id)
            yield _proved_rule(own, place, self.min_score)


def _ids_of_packs() -> set[str]:
    """Return the ids of all rules that Refold ships."""
    ids: set[str] = set()
    for pack in PACKS.values():
        ids.update(rule.id for rule in pack)
    return ids


@contextmanager
def _at_line(where: str, text: str = "") -> Iterator[None]:
    """Turn a mistake at a place of a policy into a PolicyError with its line."""
    try:
        yield
    except Wrong as wrong:
        line = line_of(text, wrong.place)
        path = ".".join(step for step in wrong.place if isinstance(step, str))
        reason = f"{path}: {wrong.reason}" if path else wrong.reason
        raise PolicyError(where, line, reason) from None


def _toml(where: str, text: str) -> dict[str, Any]:
    """Return the tables of a text.  Raises PolicyError if it is not TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line, reason = line_of_syntax(error, text)
        raise PolicyError(where, line, f"this is not TOML: {reason}") from None
    except RecursionError:
        raise PolicyError(where, 1, "arrays are nested too deep") from None


def _loaded(where: str, text: str) -> dict[str, Any]:
    data = _toml(where, text)
    if "version" not in data:
        raise Wrong((), "version = 1 is missing")
    return data


def _reason(model: type[Part], error: ErrorDetails) -> str:
    """Return the problem that pydantic reports about a key, often in clearer words."""
    *table, key = error["loc"] or ("",)
    if error["type"] == "missing":
        return "it is missing"
    if error["type"] == "extra_forbidden":
        keys = ", ".join(_keys(model, table))
        return f"there is no key {key!r} here, only {keys}"
    message = error["msg"].removeprefix("Input ")
    return f"it {message}" if message != error["msg"] else message


def _keys(model: type[Part], table: Sequence[int | str]) -> list[str]:
    """Return the keys that the table at a place may have."""
    fields = {info.alias or name: info for name, info in model.model_fields.items()}
    if not table:
        return [*fields]
    annotation = fields[str(table[0])].annotation
    # The part itself, or that in a tuple or dict of parts.
    for kind in (annotation, *get_args(annotation)):
        if kind in Part.__subclasses__():
            return _keys(kind, ())
    return []


class PackPart(Part):
    """A pack of a plugin: the rules in its TOML text, and nothing else."""

    rules: Annotated[tuple[OwnRule, ...], Field(min_length=1)]


def _added_pack(name: str, place: Place) -> Plugin:
    """The plugin that adds this pack.  Raises Wrong if none does."""
    try:
        plugin = plugins.find(plugins.PACKS, name, PACKS)
    except InvalidConfiguration as error:
        raise Wrong(place, str(error)) from None
    if plugin is None:
        added = plugins.installed(plugins.PACKS, PACKS)
        names = ", ".join([*PACKS, *added.usable])
        reason = f"there is no pack of that name: {names}{added.remarks()}"
        raise Wrong(place, reason)
    return plugin


def _rules_of(plugin: Plugin, *, min_score: float) -> tuple[Rule, ...]:
    """The rules of a plugin's pack, each proved by its examples.

    They are written and checked as those of a policy file.

    Raises InvalidConfiguration, which names the package and the line of its text.
    """
    text = plugin.load()
    if not isinstance(text, str):
        raise plugin.failed(f"is not a text in TOML: {plugin.place}")
    rules: list[Rule] = []
    try:
        with _at_line(plugin.place, text):
            pack = PackPart._of(_toml(plugin.place, text))
            for index, own in enumerate(pack.rules):
                rules.append(_proved_rule(own, ("rules", index), min_score))
    except PolicyError as error:
        raise plugin.failed(f"is wrong ({error})") from None
    return tuple(rules)


def _proved_rule(own: OwnRule, place: Place, min_score: float) -> Rule:
    """The rule that ``own`` describes at ``place``, which keeps its examples.

    Raises Wrong.
    """
    try:
        rule = rule_of(own, min_score=min_score)
        prove(rule, min_score=min_score)
    except Wrong as wrong:
        raise Wrong((*place, *wrong.place), wrong.reason) from None
    return rule


def _type_named(name: str, kinds: Iterable[str], place: Place) -> str:
    """Our name of a type; ``kinds`` are the types of all rules.  Raises Wrong."""
    kind = canonical(name)
    if kind not in kinds:
        hint = "the types are in the reference of policies, and those of your rules"
        shape = "" if well_formed(kind) else "no type can be called so; "
        raise Wrong(place, f"there is no type {name}: {shape}{hint}")
    return kind


def _by_type(types: Mapping[str, TypePart], kinds: Iterable[str]) -> dict[str, Action]:
    """The actions by our names of types."""
    actions: dict[str, Action] = {}
    for name, part in types.items():
        place: Place = ("types", name)
        kind = _type_named(name, kinds, place)
        if kind in actions:
            raise Wrong(place, f"{kind} is here already, by another of its names")
        actions[kind] = part.action
    return actions


def _allowed(patterns: Sequence[str]) -> Iterator[str]:
    """The patterns of allowed values, checked."""
    for index, source in enumerate(patterns):
        try:
            pattern = Pattern(source, bounded=False)
            pattern.check_ways()
        except BadPattern as error:
            raise Wrong(("allow", "regex", index), str(error)) from None
        yield pattern.scoped()


def _skips(pointers: Sequence[str]) -> Iterator[Path]:
    """JSON pointers (RFC 6901) as paths; ``*`` stands for any step."""
    for index, pointer in enumerate(pointers):
        place: Place = ("skip", "pointers", index)
        if not pointer.startswith("/"):
            raise Wrong(place, "a JSON pointer begins with /, like /meta/signature")
        steps = pointer[1:].split("/")
        if set(steps) == {"*"}:
            raise Wrong(place, "it leaves everything alone: name at least one key")
        yield tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)


def _labels(written: dict[str, str], kinds: Iterable[str]) -> dict[str, str]:
    """Return the labels of the locale, replaced by those of single types."""
    locale = written.get("locale", "en")
    if locale not in LOCALES:
        locales = ", ".join(LOCALES)
        raise Wrong(("labels", "locale"), f"there are no labels for it: {locales}")
    by_type = labels(locale, kinds)
    for name, label in written.items():
        if name == "locale":
            continue
        kind = _type_named(name, kinds, ("labels", name))
        if label == f"REDACTED:{kind}":
            by_type.pop(kind, None)
            continue
        if not LABEL.fullmatch(label):
            raise Wrong(
                ("labels", name),
                "a label has 2 to 40 letters, digits, _ or -, and begins with a letter",
            )
        by_type[kind] = label
    return by_type


# Higher than in the packs, so that an organisation's own rule names the type.
_PRIORITY: Final = 100
_LEAST_DIGITS: Final = 6
# The most characters around a run of digits; fewer than those an engine looks at.
_MOST_BEFORE: Final = 12
_MOST_AFTER: Final = 20
_SHAPE: Final = r"[0-9](?:[ .()\-/]{0,3}[0-9]){%d}"
_ID = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*")


def rule_of(own: OwnRule, *, min_score: float) -> Rule:
    """The rule that ``own`` describes, in a policy with this least score.

    Raises Wrong; its place starts within the rule.
    """
    _check_names(own)
    pattern = _pattern(own)
    score, boost = _scores(own, min_score)
    rule = partial(
        Rule,
        id=own.id,
        type=canonical(own.type),
        validator=VALIDATORS[own.validator] if own.validator else None,
        score=score,
        context=_context(own),
        boost=boost,
        priority=_PRIORITY,
        examples=own.examples,
        counter_examples=own.counter_examples,
    )
    anchor = _anchor(own, pattern)
    if anchor is not None:
        return rule(
            gate=anchor.literals,
            before=pattern.scoped(anchor.before) if anchor.before else "",
            reach=anchor.reach if anchor.before else 0,
            pattern=pattern.scoped(anchor.rest),
        )
    digits = _digits_of(pattern)
    # A rule that needs its context is tried only near words of it.
    words = own.context if score < min_score else ()
    return rule(
        digits=digits,
        gate=tuple(dict.fromkeys(word.split()[0].lower() for word in words)),
        shape="" if words else _SHAPE % (digits - 1),
        pattern=pattern.scoped(),
    )


def _check_names(own: OwnRule) -> None:
    if not _ID.fullmatch(own.id):
        raise Wrong(("id",), "an id is made of a-z, 0-9, _ and dots, like org.badge")
    if not well_formed(canonical(own.type)):
        raise Wrong(("type",), "a type is 2 to 40 of A-Z, 0-9 and _, a letter first")
    if own.validator and own.validator not in VALIDATORS:
        validators = ", ".join(VALIDATORS)
        raise Wrong(("validator",), f"there is no validator of that name: {validators}")


def _pattern(own: OwnRule) -> Pattern:
    place = ("pattern",)
    try:
        pattern = Pattern(own.pattern)
        pattern.check_ways()
    except BadPattern as error:
        raise Wrong(place, str(error)) from None
    if not pattern.shortest:
        raise Wrong(place, "it matches the empty text")
    if pattern.longest > LONGEST_MATCH:
        raise Wrong(
            place,
            f"a match may have {pattern.longest} characters, at most {LONGEST_MATCH} "
            "are allowed: bound its repeats",
        )
    return pattern


def _scores(own: OwnRule, min_score: float) -> tuple[float, float]:
    """Score and boost.  The score is 0 if context is required.  Raises Wrong."""
    best = min(1.0, own.score + (own.context_boost if own.context else 0))
    if own.context_required and not own.context:
        raise Wrong(("context_required",), "it needs words in context")
    if best < min_score:
        raise Wrong(
            ("score",),
            f"it finds nothing: its best score is {best:g}, the policy's min_score "
            f"is {min_score:g}",
        )
    if own.context_required:
        return 0.0, best
    return own.score, own.context_boost


def _anchor(own: OwnRule, pattern: Pattern) -> LiteralAnchor | None:
    """The most telling literals that each match has; None without any."""
    anchors = list(_anchors(own, pattern))
    if own.trigger and not anchors:
        raise Wrong(
            ("trigger",),
            "no text of the trigger stands in every match, before or at the start of "
            "the group `value` if there is one",
        )
    return max(
        anchors, key=lambda anchor: min(map(_weight, anchor.literals)), default=None
    )


def _anchors(own: OwnRule, pattern: Pattern) -> Iterator[LiteralAnchor]:
    chosen = tuple(dict.fromkeys(text.lower() for text in own.trigger))
    for anchor in pattern.anchors():
        literals = anchor.literals
        if chosen:
            if not all(literal.startswith(chosen) for literal in literals):
                continue
            literals = chosen
        if min(map(_weight, literals)) >= 3:
            yield anchor._replace(literals=literals)


def _weight(literal: str) -> int:
    """The weight of a literal: 1 for each character in ASCII, 2 for each other."""
    weight = 0
    for character in "".join(literal.split()):
        weight += 1 if character.isascii() else 2
    return weight


def _digits_of(pattern: Pattern) -> int:
    """The least digits in a row of a match.  Raises Wrong if they are too few."""
    run = pattern.digit_run()
    if run is None or run.digits < _LEAST_DIGITS:
        raise Wrong(
            ("pattern",),
            "it can be tried nowhere: every match must hold the same 3 characters or "
            f"more in a row (see trigger), or {_LEAST_DIGITS} digits",
        )
    if run.before > _MOST_BEFORE or run.after > _MOST_AFTER:
        raise Wrong(
            ("pattern",),
            f"it reaches too far from its digits: at most {_MOST_BEFORE} characters "
            f"before and {_MOST_AFTER} after",
        )
    return run.digits


def _context(own: OwnRule) -> str:
    """A pattern of the words, the last at most ``window`` characters before a value."""
    if not own.context:
        return ""
    if not all(word.strip() for word in own.context):
        raise Wrong(("context",), "a word is empty")
    words = "|".join(_word(word) for word in own.context)
    return rf"(?:{words})(?=[^\[\]]{{0,{own.window}}}\Z)[^\[\]]{{0,{own.window}}}"


def _word(word: str) -> str:
    """The word in any case, not within another; spaces may be _ or - in a key."""
    parts = r"[\s_\-]?".join(map(re.escape, word.split()))
    first = word[:1]
    starts = r"(?<![A-Za-z])" if first.isascii() and first.isalpha() else ""
    return f"{starts}(?i:{parts})"


VALIDATORS: Final[Mapping[str, Check]] = {
    name: Check.named(path) for name, path in LEXICON["validators"].items()
}


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
    """Redact the examples of ``rules`` twice with ``plan`` and all its rules.

    Raises Wrong; its place begins with the index of the rule.
    """
    redactor = Redactor(replace(plan, engine="stdlib"))
    for number, rule in enumerate(rules):
        for index, example in enumerate(rule.examples):
            key, text = _key_and_text(example)
            once, _ = redactor.text(_without_marks(text), key=key)
            if redactor.text(once, key=key)[0] != once:
                place = ("rules", number, "examples", index)
                raise Wrong(place, "redacting it twice changes it again")


def _prove_stable_pack(name: str, rules: tuple[Rule, ...], plan: Plan) -> None:
    """Redact the examples of a plugin's pack twice.  Raises Wrong for the pack."""
    try:
        prove_stable(rules, plan)
    except Wrong as wrong:
        place = " ".join(str(step) for step in wrong.place)
        reason = f"the pack {name} is wrong at {place}: {wrong.reason}"
        raise Wrong(("packs",), reason) from None


@cache
def proved(rules: tuple[Rule, ...]) -> bool:
    """Prove a built-in pack as a whole.  Raises Wrong with the name of a rule."""
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
        key, marked = _key_and_text(example)
        place = ("examples", index)
        text = _without_marks(marked)
        clean, _ = redactor.text(text, key=key)
        if clean == text:
            raise Wrong(place, "the rule finds nothing in it")
        expected = _MARKED.sub(f"[REDACTED:{rule.type}]", marked)
        if text != marked and clean != expected:
            reason = "the rule finds something else than what is «marked» in it"
            raise Wrong(place, reason)
        if redactor.text(clean, key=key)[0] != clean:
            raise Wrong(place, "redacting it twice changes it again")
    for index, example in enumerate(rule.counter_examples):
        key, text = _key_and_text(example)
        _, tally = redactor.text(text, key=key)
        if tally.rules.get(rule.id):
            raise Wrong(("counter_examples", index), "the rule finds a value in it")


def _key_and_text(example: Example) -> tuple[str | None, str]:
    return example if isinstance(example, tuple) else (None, example)


def _without_marks(marked: str) -> str:
    return _MARKED.sub(lambda match: match[0][1:-1], marked)


_AT_LINE = re.compile(r"\(at line ([0-9]+), column [0-9]+\)")
_AT_END = re.compile(r"\(at end of document\)")


def line_of(text: str, place: Place) -> int:
    """The line of ``place`` in a TOML text, or of the closest place around it."""
    whole = tomllib.loads(text)
    while place and _at(whole, place) is None:
        place = place[:-1]
    if not place:
        return 1
    statements = list(_statements(text))
    sources = [statement.source for statement in statements]

    def has_place(count: int) -> bool:
        """Whether the first ``count`` statements have the place."""
        return _at(tomllib.loads("\n".join(sources[:count])), place) is not None

    index = bisect_left(range(1, len(statements)), True, key=has_place)
    statement = statements[index]
    # A text in an array may stand on a later line of its statement.
    item = _at(whole, place)
    start = 0
    if isinstance(place[-1], int) and isinstance(item, str):
        start = max(0, statement.source.find(item))
    return statement.line + statement.source.count("\n", 0, start)


def _at(value: Any, place: Place) -> Any:
    """The value at ``place``; None if there is none."""
    try:
        return reduce(getitem, place, value)
    except (KeyError, IndexError, TypeError):
        return None


def line_of_syntax(error: tomllib.TOMLDecodeError, text: str) -> tuple[int, str]:
    """The line of a syntax error in TOML, and a description."""
    message = str(error)
    at_line = _AT_LINE.search(message)
    line = int(at_line[1]) if at_line else max(1, len(text.splitlines()))
    reason = _AT_END.sub("", _AT_LINE.sub("", message)).strip()
    return line, f"{reason[:1].lower()}{reason[1:]}"


class _Statement(NamedTuple):
    """A header or an assignment of a TOML text, and its first line."""

    line: int
    source: str


def _statements(text: str) -> Iterator[_Statement]:
    """The headers and assignments of a valid TOML text, in order."""
    lines: list[str] = []
    start = 1
    for number, line in enumerate(text.split("\n"), start=1):
        if not lines:
            start = number
        lines.append(line)
        source = "\n".join(lines)
        try:
            value = tomllib.loads(source)
        except tomllib.TOMLDecodeError:
            continue  # the statement goes on in the next line
        lines = []
        if value:
            yield _Statement(start, source)
