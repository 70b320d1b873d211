"""A rule: data that an engine compiles, with examples that prove it."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from refold.domain.canonical import load_packaged_toml
from refold.redaction.checks import Check, Extents, Validator

# A text with each «value» marked, or a key and the text under it.
Example: TypeAlias = str | tuple[str, str]


_VALUE_GROUP: Final = "(?P<value>"


@dataclass(frozen=True, slots=True)
class Rule:
    """The form of values of one ``type``, and the conditions for a finding.

    gate:      literals in lower case, one of which a text must hold in any case; the
               pattern is tried at each of them.
    digits:    the least number of digits of a value; the pattern is tried around each
               long run of digits instead.
    leaf:      the pattern is tried on a whole text whose key gives the context.
    before:    a pattern that must match right before the literal, at most ``reach``
               characters long; the finding starts where it does.
    pattern:   bounded in every repeat, so that no text takes long.  Its group ``value``
               is redacted, or that of ``before``; the whole match if there is none.
    parts:     returns the values in a text that the pattern matches, if no group can
               mark them, for example because they continue over lines.
    validator: a function that may refuse a match or change its score.
    score:     the probability of a value by pattern and validator alone, from 0 to 1.
    context:   a pattern of words, one of which stands shortly before the value or ends
               its key.
    boost:     added to the score if such a word is there.
    of_list:   a match may be divided into strings of an array, each an argument.
    of_object: a match may be divided into keys and strings of an object.
    in_keys:   whether a key can be the context of the text under it.
    certain:   whether a bare number without context is a finding.
    priority:  the finding with the highest priority names the type of an overlap.

    lead:      a class of the byte before a gate literal.
    then:      the text after a gate literal, as far as engines look for it.
    shape:     the form of the value, in a ``digits`` rule without a gate.
    examples, counter_examples: texts that prove the rule when a policy loads.

    A match with at least the policy's least score is a finding.  A rule with a lower
    score needs its context.

    Engines find ``lead``, ``then`` and ``shape`` faster than the pattern.  They only
    say where the pattern cannot match, so they never change the findings.  They are
    patterns over UTF-8 in any case that look neither ahead nor behind, without spaces
    or quotes that JSON would escape.

    These fields follow from the others:

    at:      the places where the pattern is tried: ``gate``, ``digits`` or ``leaf``.
    group:   the group of the pattern that is redacted; 0 for the whole match.
    check:   ``validator``, whose module is loaded when it is first called.
    divider: ``parts``, in the same form.
    """

    id: str
    type: str
    pattern: str
    gate: tuple[str, ...] = ()
    digits: int = 0
    leaf: bool = False
    before: str = ""
    reach: int = 0
    parts: Extents | Check | None = None
    validator: Validator | Check | None = None
    score: float = 0.9
    context: str = ""
    boost: float = 0.45
    of_list: bool = False
    of_object: bool = False
    in_keys: bool = True
    lead: str = ""
    then: str = ""
    shape: str = ""
    certain: bool = False
    priority: int = 0
    examples: tuple[Example, ...] = ()
    counter_examples: tuple[Example, ...] = ()
    at: Literal["gate", "digits", "leaf"] = field(init=False)
    group: int | str = field(init=False)
    check: Check | None = field(init=False, compare=False)
    divider: Check | None = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if self.leaf:
            at = "leaf"
        elif self.digits:
            at = "digits"
        else:
            at = "gate"
        group = "value" if _VALUE_GROUP in self.pattern else 0
        # The object is frozen, so its fields cannot be assigned.
        object.__setattr__(self, "at", at)
        object.__setattr__(self, "group", group)
        object.__setattr__(self, "check", _as_check(self.validator))
        object.__setattr__(self, "divider", _as_check(self.parts))
        if at == "gate" and not self.gate:
            raise ValueError(f"rule {self.id}: a gate is where its pattern is tried")
        if any(literal != literal.lower() for literal in self.gate):
            raise ValueError(f"rule {self.id}: its gate must be in lower case")

    def canonical(self) -> list[str | bool | float | list[str]]:
        """Return everything that decides what the rule finds, as JSON.

        A fingerprint of a plan is a digest of it.  Hints for engines and examples
        decide nothing, so they are left out.
        """
        functions = self.check.name if self.check else ""
        if self.divider:
            functions += f" of {self.divider.name}"
        return [
            self.id,
            self.type,
            self.pattern,
            self.at,
            str(self.digits),
            list(self.gate),
            self.before,
            str(self.reach),
            str(self.group),
            functions,
            self.score,
            self.context,
            self.boost,
            self.in_keys,
            self.certain,
            str(self.priority),
            self.of_list,
            self.of_object,
        ]


def _as_check(function: Callable[..., Any] | Check | None) -> Check | None:
    """The function of a rule as a check: a program may also pass its own function."""
    if function is None or isinstance(function, Check):
        return function
    return Check(function.__qualname__, own=function)


# The name of a part, as patterns refer to it.
_REFERENCE: Final = re.compile(r"\{([A-Z_][A-Z0-9_]*)\}")
_LISTS: Final = frozenset(("gate", "examples", "counter_examples"))
_FUNCTIONS: Final = frozenset(("validator", "parts"))


def load(
    file: str, group: str, names: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Rule, ...]:
    """Load the rules of a group from a file of ``packs``.

    A file writes the fields of a rule so:

    - A pattern is one text, or several that are joined.  ``{NAME}`` in it refers to a
      named part: one of ``names``, of the file's own ``patterns``, or of those in
      ``relations.toml``.
    - ``validator`` and ``parts`` name functions of the checks as ``module.name``.
    - A gate is a list of literals, or one text of several words.
    """
    parts = parts_of(file, names)
    rules: list[Rule] = []
    for rule_id, written in _file(file)[group].items():
        fields = {name: _field(name, value, parts) for name, value in written.items()}
        rules.append(Rule(id=rule_id, **fields))
    return tuple(rules)


def parts_of(
    file: str, names: Mapping[str, Any] = MappingProxyType({})
) -> Mapping[str, Any]:
    """Return the named parts to which the patterns of a file may refer.

    The first of these that has a name wins: ``names``, the file, ``relations.toml``.
    """
    parts: ChainMap[str, Any] = ChainMap({**names})
    # Parts may refer to parts, so both files look names up in all three.
    parts.maps.append(_Patterns(file, parts))
    parts.maps.append(_Patterns("relations", parts))
    return parts


class _Patterns(dict[str, Any]):
    """The ``patterns`` of a file; each is expanded when it is first looked up.

    parts: all named parts, to which a pattern may refer.
    """

    def __init__(self, file: str, parts: Mapping[str, Any]) -> None:
        super().__init__()
        self._written = _file(file).get("patterns", {})
        self._parts = parts

    def __missing__(self, name: str) -> Any:
        expanded = _expanded(self._written[name], self._parts)
        self[name] = expanded
        return expanded


@cache
def _file(name: str) -> Mapping[str, Any]:
    return load_packaged_toml("refold.redaction.rules", "packs", f"{name}.toml")


def _field(name: str, written: Any, parts: Mapping[str, Any]) -> Any:
    """Return the value of a rule's field from its form in a file."""
    if name in _FUNCTIONS:
        return Check.named(written)
    if name in _LISTS:
        items = written
        if isinstance(written, str):
            reference = _REFERENCE.fullmatch(written)
            items = parts[reference[1]] if reference else written
        if isinstance(items, str):
            items = items.split()
        return tuple(tuple(item) if isinstance(item, list) else item for item in items)
    return _expanded(written, parts)


def _expanded(written: Any, parts: Mapping[str, Any]) -> Any:
    """Return a text with named parts in place of the references to them.

    Several texts are joined.  A text that is only one reference becomes the part
    itself, which may be no text.  A value that is no text is returned unchanged.
    """
    if isinstance(written, str):
        reference = _REFERENCE.fullmatch(written)
        if reference:
            written = parts[reference[1]]
    text = "".join(written) if isinstance(written, list) else written
    if not isinstance(text, str):
        return text
    return _REFERENCE.sub(lambda reference: str(parts[reference[1]]), text)
