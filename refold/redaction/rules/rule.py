"""What a rule is: data that an engine compiles, and examples that prove it."""

from __future__ import annotations

import re
import tomllib
from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files
from types import ModuleType
from typing import Any, Final, Literal, TypeAlias

from refold.redaction.checks import Extents, Validator, extents, numbers, secrets

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


# A rule whose values are none without a word of its context.
InContext = partial(Rule, score=0.45)


def words(text: str) -> tuple[str, ...]:
    """The words of ``text``, which spaces divide: literals of a gate."""
    return tuple(text.split())


_NAME: Final = re.compile(r"\{([A-Z_][A-Z0-9_]*)\}")
_LISTS: Final = frozenset(("gate", "examples", "counter_examples"))


def load(
    module: Mapping[str, Any], group: str, *more: ModuleType | str
) -> tuple[Rule, ...]:
    """The rules of a group in the TOML file of a module, whose globals are given.

    In a pattern, which may stand in pieces, ``{NAME}`` is the module's, or one of the
    file's own ``patterns``; ``validator`` and ``parts`` name functions of the module.
    What it does not have is of ``more`` modules or files, of this module, or of the
    checks.  Gates may be one text of several words.
    """
    found = told(module, group, *more).items()
    return tuple(Rule(id=name, **given) for name, given in found)


def told(
    module: Mapping[str, Any], group: str, *more: ModuleType | str
) -> dict[str, dict[str, Any]]:
    """What such a file says of rules, by their names."""
    known = _known(module, *more)
    return {
        name: {key: _field(key, value, known) for key, value in given.items()}
        for name, given in _file(module["__name__"])[group].items()
    }


def pattern(module: str, name: str) -> re.Pattern[str]:
    """One of the ``patterns`` in the TOML file of a module, compiled."""
    return re.compile(_known({"__name__": module})[name])


class _Patterns(dict[str, Any]):
    """The ``patterns`` of a file, each filled in when it is asked for."""

    def __init__(self, file: str, known: Mapping[str, Any]) -> None:
        super().__init__()
        self._told, self._known = _file(file).get("patterns", {}), known

    def __missing__(self, name: str) -> Any:
        self[name] = _field("", self._told[name], self._known)
        return self[name]


def _known(module: Mapping[str, Any], *more: ModuleType | str) -> Mapping[str, Any]:
    known: ChainMap[str, Any] = ChainMap({**module})
    known.maps.append(_Patterns(module["__name__"], known))
    for one in more:
        known.maps.append(_Patterns(one, known) if isinstance(one, str) else vars(one))
    known.maps += [*map(vars, (extents, numbers, secrets)), globals()]
    return known


@cache
def _file(module: str) -> Mapping[str, Any]:
    file = (
        files("refold.redaction.rules") / "packs" / f"{module.rpartition('.')[2]}.toml"
    )
    return tomllib.loads(file.read_text("utf-8"))


def _field(key: str, value: Any, module: Mapping[str, Any]) -> Any:
    if key in ("validator", "parts"):
        return module[value]
    if isinstance(value, str) and (known := _NAME.fullmatch(value)):
        return module[known[1]]
    if key in _LISTS:
        some = value.split() if isinstance(value, str) else value
        return tuple(tuple(one) if isinstance(one, list) else one for one in some)
    if isinstance(value, list):
        value = "".join(value)
    if isinstance(value, str):
        return _NAME.sub(lambda found: str(module[found[1]]), value)
    return value


# A word may start after an escape of JSON, as in ``\neyJ``, or of a URL, as in ``%3D``.
WORD = (
    r"(?:(?<![A-Za-z0-9_\-])|(?<=\\[nrtbf])"
    r"|(?<=%[0-37][0267ACDFacdf])|(?<=%25[0-37][0267ACDFacdf]))"
)
# Not inside a word or a number.
START = r"(?:(?<![0-9A-Za-z])|(?<=\\[nrtbf]))"
END = "(?![0-9A-Za-z])"
# Not inside a longer number, a word, a fraction or a chain of numbers; a table that was
# read as floats writes ``.0`` behind an integer.
FROM = r"(?:(?<![0-9A-Za-z])|(?<=\\[nrtbf]))(?<![0-9][.\-])"
TO = r"(?![0-9A-Za-z])(?!-[0-9]|\.(?!00?(?![0-9A-Za-z.]))[0-9])"
# The same, for a shape: a character that is part of it; texts have one at each end.
EDGE = r"(?:[^0-9a-z]|\\[nrtbf])"
STOP = "[^0-9a-z]"
# The byte before a word, in any case; letters that may end an escape are allowed.
LEAD = r"[^13-589eg-mo-qsu-z_\-]"

QUOTE = r"\\{0,7}[\"'`]"
