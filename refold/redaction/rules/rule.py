"""What a rule is: data that an engine compiles, and examples that prove it."""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from refold.domain.canonical import shipped
from refold.redaction.checks import (
    Extents,
    Validator,
    extents,
    numbers,
    people,
    secrets,
)

# A text with each «value» marked, or a key and the text under it.
Example: TypeAlias = str | tuple[str, str]


_VALUE: Final = "(?P<value>"


@dataclass(frozen=True, slots=True)
class Rule:
    """How values of one ``type`` look, and what a text must hold for that.

    gate:      literals in lower case, one of which a text must hold in any case: the
               pattern is tried at each of them.
    digits:    how many digits a value has at least: then the pattern is tried around
               each long run of digits instead.
    leaf:      the pattern is tried on a whole text whose key gives the context.
    before:    a pattern that must match right before the literal, at most ``reach``
               characters long; the finding starts where it does.
    pattern:   bounded in every repeat, so that no text takes long; what is redacted is
               its group ``value``, if it has one, or that of ``before``.
    parts:     says where the values are in a text that the pattern matches, if a group
               cannot: they may go on over lines.
    validator: a function that may refuse what the pattern matched, or change its score.
    score:     how likely the pattern and the validator alone make a value, from 0 to 1.
    context:   a pattern of words, one of which stands shortly before the value or ends
               its key.
    boost:     what such a word adds to the score.
    of_list:   what it matches may be strings of an array, each an argument.
    in_keys:   whether a key can be the context of what stands under it.
    certain:   good enough for a bare number without context.
    priority:  of findings that overlap, the highest names the type.

    What reaches a policy's least score is found: a rule whose score is under it needs
    its context.

    lead, then, shape: what a text must hold for the pattern to match, for engines that
    find it faster than the pattern; they never change what is found. ``lead``: a class
    of the byte before a gate literal; ``then``: what follows a gate literal;
    ``shape``: how the value looks, of a ``digits`` rule without a gate.  All three are
    patterns over UTF-8 in any case that look neither ahead nor behind, without spaces
    or quotes that JSON would escape.

    examples and counter_examples are checked when a policy loads.
    """

    id: str
    type: str
    pattern: str
    gate: tuple[str, ...] = ()
    digits: int = 0
    leaf: bool = False
    before: str = ""
    reach: int = 0
    parts: Extents | None = None
    validator: Validator | None = None
    score: float = 0.9
    context: str = ""
    boost: float = 0.45
    of_list: bool = False
    in_keys: bool = True
    lead: str = ""
    then: str = ""
    shape: str = ""
    certain: bool = False
    priority: int = 0
    examples: tuple[Example, ...] = ()
    counter_examples: tuple[Example, ...] = ()
    # Where the pattern is tried, and the group of it that is redacted.
    at: Literal["gate", "digits", "leaf"] = field(init=False)
    group: int | str = field(init=False)

    def __post_init__(self) -> None:
        at = "leaf" if self.leaf else "digits" if self.digits else "gate"
        object.__setattr__(self, "at", at)
        object.__setattr__(self, "group", "value" if _VALUE in self.pattern else 0)
        if self.at == "gate" and not self.gate:
            raise ValueError(f"rule {self.id}: a gate is where its pattern is tried")
        if any(literal != literal.lower() for literal in self.gate):
            raise ValueError(f"rule {self.id}: its gate must be in lower case")

    def canonical(self) -> list[str | bool | float | list[str]]:
        """All that decides what the rule finds, as JSON."""
        check = self.validator.__qualname__ if self.validator else ""
        check += f" of {self.parts.__qualname__}" if self.parts else ""
        return [
            self.id, self.type, self.pattern, self.at, str(self.digits),
            list(self.gate), self.before, str(self.reach), str(self.group), check,
            self.score, self.context, self.boost, self.in_keys, self.certain,
            str(self.priority),
        ]  # fmt: skip


_NAME: Final = re.compile(r"\{([A-Z_][A-Z0-9_]*)\}")
_LISTS: Final = frozenset(("gate", "examples", "counter_examples"))


def load(
    file: str, group: str, names: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Rule, ...]:
    """The rules of a group in a file of ``packs``.

    In a pattern, which may stand in pieces, ``{NAME}`` is one of ``names``, of the
    file's own ``patterns``, or of those of relations; ``validator`` and ``parts`` name
    functions of the checks.  Gates may be one text of several words.
    """
    known = parts_of(file, names)
    return tuple(
        Rule(id=name, **{key: _field(key, value, known) for key, value in said.items()})
        for name, said in _file(file)[group].items()
    )


def parts_of(
    file: str, names: Mapping[str, Any] = MappingProxyType({})
) -> Mapping[str, Any]:
    """What the patterns of a file may be made of, and judged by."""
    known: ChainMap[str, Any] = ChainMap({**names})
    known.maps += [_Patterns(file, known), _Patterns("relations", known)]
    known.maps += map(vars, (extents, numbers, people, secrets))
    return known


class _Patterns(dict[str, Any]):
    """The ``patterns`` of a file, each filled in when it is asked for."""

    def __init__(self, file: str, known: Mapping[str, Any]) -> None:
        super().__init__()
        self._told, self._known = _file(file).get("patterns", {}), known

    def __missing__(self, name: str) -> Any:
        self[name] = _field("", self._told[name], self._known)
        return self[name]


@cache
def _file(name: str) -> Mapping[str, Any]:
    return shipped("refold.redaction.rules", "packs", f"{name}.toml")


def _field(key: str, value: Any, known: Mapping[str, Any]) -> Any:
    if key in ("validator", "parts"):
        return known[value]
    if isinstance(value, str) and (name := _NAME.fullmatch(value)):
        value = known[name[1]]
    if key in _LISTS:
        some = value.split() if isinstance(value, str) else value
        return tuple(tuple(one) if isinstance(one, list) else one for one in some)
    text = "".join(value) if isinstance(value, list) else value
    if not isinstance(text, str):
        return text
    return _NAME.sub(lambda found: str(known[found[1]]), text)
