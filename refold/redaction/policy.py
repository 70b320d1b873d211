"""A policy: what is redacted, read from a TOML file and checked before it is used."""

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
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError
from pydantic_core import ErrorDetails

from refold.domain import plugins
from refold.domain.errors import InvalidConfiguration
from refold.domain.plugins import Plugin
from refold.redaction.checks import Check
from refold.redaction.checks.names import LEXICON
from refold.redaction.engines import EngineName
from refold.redaction.engines.patterns import LONGEST_MATCH, Anchor, BadPattern, Pattern
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
    """A policy cannot be used: where it was read, the line, and what is wrong there."""

    def __init__(self, where: str, line: int, reason: str) -> None:
        super().__init__(f"{where} line {line}: {reason}")
        self.where, self.line, self.reason = where, line, reason


class Wrong(ValueError):
    """What is wrong with a policy, and the place in it where that stands."""

    def __init__(self, place: Place, reason: str) -> None:
        super().__init__(reason)
        self.place, self.reason = place, reason


class Part(BaseModel):
    """A table of the file: it has the keys that are listed here, and no other."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, strict=True, hide_input_in_errors=True
    )

    @classmethod
    def _of(cls, data: dict[str, Any]) -> Self:
        # As JSON, strictly: an array is a tuple there, and nothing else is bent.
        try:
            return cls.model_validate_json(json.dumps(data, default=str))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise Wrong(tuple(first["loc"]), _reason(cls, first)) from None


class Scan(Part):
    """``[scan]``: what is looked at, and how long."""

    keys: bool = True
    numbers: Literal["contextual", "never", "always"] = "contextual"
    nested_json: bool = True
    max_leaf_bytes: Annotated[int, Field(ge=1024)] = 16_777_216
    budget_ms: Count = 0
    work_per_kb: Count = WORK_PER_KB
    over_budget: Literal["refuse", "stub"] = "refuse"


class SkipPart(Part):
    """``[skip]``: what is left alone, by JSON pointer or by key."""

    pointers: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


class Allow(Part):
    """``[allow]``: values that are no finding, whatever a rule says."""

    values: tuple[str, ...] = ()
    regex: tuple[str, ...] = ()


class TypePart(Part):
    """``[types.X]``: what is done with findings of a type."""

    action: Action = "redact"


class LimitsPart(Part):
    """``[limits]``: of the size guard, in bytes."""

    leaf_bytes: int = 65_536
    event_bytes: int = 1_048_576


class VaultPart(Part):
    """``[vault]``: types whose values are kept, encrypted, and for how many days."""

    types: tuple[str, ...] = ()
    days: Annotated[int, Field(ge=0, le=36_500)] = 0


class RecognizerPart(Part):
    """``[recognizer]``: how far a recognizer that the program gives is trusted."""

    budget_ms: Annotated[int, Field(ge=1, le=600_000)] = 200
    max_bytes: Annotated[int, Field(ge=1)] = 65_536
    on_failure: Literal["closed", "open"] = "closed"
    language: str = "auto"


class OwnRule(Part):
    """``[[rules]]``: a rule of one's own."""

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
    """What is redacted and how, as the tables of a policy file say it.

    ``Policy.parse`` reads and checks a file's text; ``plan`` is what a redactor takes.
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
        """As by default, with these packs.  Raises PolicyError for an unknown one."""
        return cls().with_packs(packs)

    def with_packs(self, packs: Sequence[str]) -> Self:
        """The same policy with other packs.  Raises PolicyError for an unknown one."""
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
        """All that a redactor is to do.  Raises PolicyError as ``parse`` does."""
        if self._plan is None:
            with _told("policy"):
                self._plan = self._made()
        return self._plan

    def limits(self) -> Limits:
        """The limits of the size guard.  Raises PolicyError as ``parse`` does."""
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
        limits = self.recognizer.model_dump()
        return Guard(recognizer, min_score=self.min_score, **limits)

    def _made(self) -> Plan:
        packs = self._packs()
        pack_rules = tuple(rule for rules in packs.values() for rule in rules)
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
            raise Wrong(
                ("numbered",), "it goes with neither pseudonyms nor labels of one's own"
            )
        if plan.kept and not plan.numbered:
            raise Wrong(("vault",), "it needs numbered placeholders: numbered = true")
        if unknown := sorted(plan.kept - kinds):
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
        """The rules of each pack, in the order of the policy."""
        packs: dict[str, tuple[Rule, ...]] = {}
        taken = {rule.id for pack in PACKS.values() for rule in pack}
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
        taken = {rule.id for pack in PACKS.values() for rule in pack}
        taken |= {rule.id for rule in pack_rules}
        for index, own in enumerate(self.rules):
            place: Place = ("rules", index)
            if own.id in taken:
                raise Wrong((*place, "id"), f"there is another rule {own.id}")
            taken.add(own.id)
            yield _proved_rule(own, place, self.min_score)


@contextmanager
def _told(where: str, text: str = "") -> Iterator[None]:
    """Turn what is wrong at a place of a policy into what is wrong at its line."""
    try:
        yield
    except Wrong as wrong:
        line = line_of(text, wrong.place)
        # With the key it is about in front.
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
    """What pydantic says of a key, in our words where ours say more."""
    *table, key = error["loc"] or ("",)
    if error["type"] == "missing":
        return "it is missing"
    if error["type"] == "extra_forbidden":
        known = ", ".join(_keys(model, table))
        return f"there is no key {key!r} here, only {known}"
    message = error["msg"].removeprefix("Input ")
    return f"it {message}" if message != error["msg"] else message


def _keys(model: type[Part], table: Sequence[int | str]) -> list[str]:
    """The keys that the table at that place may have."""
    keys = {one.alias or name: one for name, one in model.model_fields.items()}
    if not table:
        return [*keys]
    kind = keys[str(table[0])].annotation
    parts = [one for one in (kind, *get_args(kind)) if one in Part.__subclasses__()]
    return _keys(parts[0], ())


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
        raise plugin.failed(f"is no text in TOML: {plugin.place}")
    rules: list[Rule] = []
    try:
        with _told(plugin.place, text):
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


# Above those of the packs: what an organisation calls its own is called so.
_PRIORITY: Final = 100
_LEAST_DIGITS: Final = 6
# Less than what an engine looks at around a run of digits.
_MOST_BEFORE, _MOST_AFTER = 12, 20
_SHAPE: Final = r"[0-9](?:[ .()\-/]{0,3}[0-9]){%d}"
_ID = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*")


def rule_of(own: OwnRule, *, min_score: float) -> Rule:
    """The rule that ``own`` describes, in a policy that finds from ``min_score`` on.

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
    digits = _run(pattern)
    # What is found only with its context is tried only near the words of it.
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
        known = ", ".join(VALIDATORS)
        raise Wrong(("validator",), f"there is no validator of that name: {known}")


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
    """Score and boost; where context is required, nothing is found without it."""
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


def _anchor(own: OwnRule, pattern: Pattern) -> Anchor | None:
    """The literals that each match has, the most telling there are."""
    found = list(_anchors(own, pattern))
    if own.trigger and not found:
        raise Wrong(
            ("trigger",),
            "no text of the trigger stands in every match, before or at the start of "
            "the group `value` if there is one",
        )
    return max(
        found, key=lambda anchor: min(map(_weight, anchor.literals)), default=None
    )


def _anchors(own: OwnRule, pattern: Pattern) -> Iterator[Anchor]:
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
    """How telling a literal is: its characters but spaces, outside of ASCII double."""
    shown = "".join(literal.split())
    return sum(1 if character.isascii() else 2 for character in shown)


def _run(pattern: Pattern) -> int:
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
    starts = r"(?<![A-Za-z])" if word[:1].isascii() and word[:1].isalpha() else ""
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
    """Redact the examples of ``rules`` twice, as ``plan`` says and in all its rules.

    Raises Wrong; its place starts from the place of the rule among ``rules``.
    """
    redactor = Redactor(replace(plan, engine="stdlib"))
    for number, rule in enumerate(rules):
        for index, example in enumerate(rule.examples):
            key, text = _parted(example)
            once, _ = redactor.text(_plain(text), key=key)
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
    """Prove a pack of ours, all of it together.  Raises Wrong, which names the rule."""
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
        key, marked = _parted(example)
        place, text = ("examples", index), _plain(marked)
        found, _ = redactor.text(text, key=key)
        if found == text:
            raise Wrong(place, "the rule finds nothing in it")
        if text != marked and found != _MARKED.sub(f"[REDACTED:{rule.type}]", marked):
            what = "the rule finds something else than what is «marked» in it"
            raise Wrong(place, what)
        if redactor.text(found, key=key)[0] != found:
            raise Wrong(place, "redacting it twice changes it again")
    for index, example in enumerate(rule.counter_examples):
        key, text = _parted(example)
        if redactor.text(text, key=key)[1].rules.get(rule.id):
            raise Wrong(("counter_examples", index), "the rule finds a value in it")


def _parted(example: Example) -> tuple[str | None, str]:
    return example if isinstance(example, tuple) else (None, example)


def _plain(marked: str) -> str:
    return _MARKED.sub(lambda match: match[0][1:-1], marked)


_AT_LINE = re.compile(r"\(at line ([0-9]+), column [0-9]+\)")
_AT_END = re.compile(r"\(at end of document\)")


def line_of(text: str, place: Place) -> int:
    """The line of ``place`` in a TOML text, or of the closest thing around it there."""
    whole = tomllib.loads(text)
    while place and _at(whole, place) is None:
        place = place[:-1]
    if not place:
        return 1
    starts, statements = zip(*_statements(text), strict=True)

    def has_come(count: int) -> bool:
        return _at(tomllib.loads("\n".join(statements[:count])), place) is not None

    index = bisect_left(range(1, len(starts)), True, key=has_come)
    # An element of an array stands so many lines into it, as far as a text tells.
    item, statement = _at(whole, place), statements[index]
    told = item if isinstance(place[-1], int) and isinstance(item, str) else ""
    offset: int = statement.count("\n", 0, max(0, statement.find(told)))
    return int(starts[index]) + offset


def _at(value: Any, place: Place) -> Any:
    """What stands at ``place``; None if nothing does."""
    try:
        return reduce(getitem, place, value)
    except (KeyError, IndexError, TypeError):
        return None


def line_of_syntax(error: tomllib.TOMLDecodeError, text: str) -> tuple[int, str]:
    """The line of a mistake in the writing of TOML, and what it is."""
    message = str(error)
    found = _AT_LINE.search(message)
    line = int(found[1]) if found else max(1, len(text.splitlines()))
    reason = _AT_END.sub("", _AT_LINE.sub("", message)).strip()
    return line, f"{reason[:1].lower()}{reason[1:]}"


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each header and assignment of a valid TOML text with its first line."""
    held: list[str] = []
    start = 1
    for number, line in enumerate(text.split("\n"), start=1):
        if not held:
            start = number
        held.append(line)
        statement = "\n".join(held)
        try:
            value = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        held = []
        if value:
            yield start, statement
