"""The regular expressions of the package, and texts on which each may take long.

An expression is described by how the package calls it: a rule is tried at each literal
of its gate, other expressions are matched at one place or searched for in a text.
"""

from __future__ import annotations

import ast
import gc
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from time import process_time
from types import FrameType
from typing import Any, Final, NamedTuple, TypeAlias

import refold
from refold.domain.errors import InvalidConfiguration
from refold.projections.context import constraints
from refold.redaction.checks import extents, names
from refold.redaction.engines import syntax
from refold.redaction.engines.syntax import Item, Op
from refold.redaction.rules import PACKS
from refold.redaction.rules.rule import Rule
from refold.redaction.scanner import CONTEXT, Compiled

ROOT: Final = Path(refold.__file__).parent
# Applies an expression to a text as the package does.
Use: TypeAlias = Callable[[str], object]


class Maker(NamedTuple):
    """Creates texts that repeat one part behind another."""

    before: str
    repeated: str

    def __call__(self, length: int) -> str:
        """Return a text of about that many characters."""
        times = length // len(self.repeated) + 1
        return (self.before + self.repeated * times)[:length] + _BREAKS


class Expression(NamedTuple):
    """One expression of the package.

    name:    its module and variable.
    source:  its source.
    use:     how the package applies it to a text.
    longest: the most characters of a text to which the package applies it; 0 for any.
    """

    name: str
    source: str
    use: Use
    longest: int = 0


@cache
def expressions() -> Sequence[Expression]:
    """Every expression of rules, of judges, and of code, once each."""
    unique: dict[tuple[str, str], Expression] = {}
    for expression in (
        *_of_rules(),
        *_of_judges(),
        *_of_code(),
        *_of_functions(),
        *_of_marked_patterns(),
    ):
        kind, _, _ = expression.name.partition(" ")
        is_of_code = kind not in ("rule", "before", "context")
        unique.setdefault(
            ("" if is_of_code else expression.name, expression.source), expression
        )
    return [*unique.values()]


def _of_rules() -> Iterator[Expression]:
    for rules in PACKS.values():
        for rule in rules:
            compiled = Compiled(0, rule)
            yield Expression(f"rule {rule.id}", rule.pattern, _tried(rule))
            if compiled.before:
                yield Expression(
                    f"before of {rule.id}",
                    rule.before,
                    compiled.before.search,
                    rule.reach,
                )
            if compiled.context:
                yield Expression(
                    f"context of {rule.id}",
                    rule.context,
                    compiled.context.search,
                    CONTEXT,
                )


def _tried(rule: Rule) -> Use:
    """Tries the pattern of a rule where the scanner does."""
    pattern = re.compile(rule.pattern)
    if rule.at == "leaf":
        return pattern.fullmatch
    if rule.at == "digits":
        return lambda text: list(pattern.finditer(text))
    places = re.compile("|".join(map(re.escape, rule.gate)), re.IGNORECASE)

    def at_gates(text: str) -> object:
        for place in places.finditer(text):
            pattern.match(text, place.start())
        return None

    return at_gates


def _of_judges() -> Iterator[Expression]:
    """The expressions of ``judges.toml``, with the methods that the code calls."""
    for group, written in names._JUDGES.items():
        methods = _methods_of_judges(group)
        for name, parts in written.items():
            source = "".join(parts)
            yield Expression(
                f"{group}.{name} in judges.toml",
                source,
                _used(re.compile(source), methods.get(name, frozenset())),
            )


def _of_code() -> Iterator[Expression]:
    """The expressions in calls of ``re``, and those that modules have compiled."""
    for path, tree in _trees():
        shown = _module(path)
        for call in _calls_of_re(tree):
            written = call.args[0]
            source = _constant(written)
            if isinstance(written, ast.Name):
                source = _text_of_module(tree, written.id)
            if source is None:
                continue
            assert isinstance(call.func, ast.Attribute)
            used = {call.func.attr}
            flags = _flags(call)
            pattern = re.compile(source, flags)
            place = written.id if isinstance(written, ast.Name) else str(call.lineno)
            if call.func.attr == "compile" and (target := _target(tree, call)):
                used = set(_methods_of(tree, target))
                place = target
            yield Expression(
                f"{shown}:{place}", source, _used(pattern, frozenset(used))
            )
    for module, tree in _modules_with_built().items():
        for name, value in _imported(module).items():
            methods = _methods_of(tree, name)
            for number, pattern in enumerate(_patterns_in(value)):
                place = f"{module}:{name}"
                if not isinstance(value, re.Pattern):
                    place = f"{place}[{number}]"
                yield Expression(place, pattern.pattern, _used(pattern, methods))


def _of_functions() -> Iterator[Expression]:
    """The expressions that functions compile when they need them."""
    for function in (extents._cell, extents._open_row, extents._opened_cell):
        for delimiter in extents._DELIMITERS_OF_CSV:
            pattern = function(delimiter)
            name = f"refold.redaction.checks.extents:{function.__name__}({delimiter!r})"
            yield Expression(name, pattern.pattern, _used(pattern, frozenset()))


def _of_marked_patterns() -> Iterator[Expression]:
    """The patterns of constraints, which are searched for, or matched at one place."""
    for name, pattern in constraints._ANYWHERE.items():
        place = f"refold.projections.context.constraints:{name}"
        yield Expression(place, pattern.source, _used(pattern.expression, frozenset()))
    for name, pattern in constraints._BEGINNINGS.items():
        place = f"refold.projections.context.constraints:{name}"
        yield Expression(place, pattern.source, pattern.match)


def _patterns_in(value: object) -> Iterator[re.Pattern[str]]:
    """The expressions of texts in a value of a module: itself, or what it contains."""
    if isinstance(value, re.Pattern):
        if isinstance(value.pattern, str):
            yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _patterns_in(key)
            yield from _patterns_in(item)
    elif isinstance(value, (tuple, list, set, frozenset)):
        for item in value:
            yield from _patterns_in(item)


def _used(pattern: re.Pattern[str], methods: frozenset[str]) -> Use:
    """Applies a pattern by the slowest of the methods that the code calls."""
    if methods and methods <= {"match", "fullmatch"}:
        return pattern.match if "match" in methods else pattern.fullmatch
    return lambda text: list(pattern.finditer(text))


@cache
def _trees() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text())) for path in sorted(ROOT.rglob("*.py"))]


def _module(path: Path) -> str:
    place = path.relative_to(ROOT.parent).with_suffix("")
    return ".".join(place.parts).removesuffix(".__init__")


_OF_RE: Final = {
    "compile",
    "search",
    "match",
    "fullmatch",
    "findall",
    "finditer",
    "split",
    "sub",
    "subn",
}


def _calls_of_re(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            is_re = isinstance(owner, ast.Name) and owner.id == "re"
            if is_re and node.func.attr in _OF_RE and node.args:
                yield node


def _constant(node: ast.expr) -> str | None:
    """The text of an argument that is a constant; None for others, and for bytes."""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return None
    return value if isinstance(value, str) else None


def _text_of_module(tree: ast.Module, name: str) -> str | None:
    """The text that a module assigns to a name; None if it is no constant."""
    for statement in tree.body:
        if isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets: Sequence[ast.expr] = [statement.target]
        elif isinstance(statement, ast.Assign):
            targets = statement.targets
        else:
            continue
        is_assigned = any(
            isinstance(target, ast.Name) and target.id == name for target in targets
        )
        if is_assigned and statement.value is not None:
            return _constant(statement.value)
    return None


def _flags(call: ast.Call) -> int:
    """The flags of a call, which are written as ``re.X | re.Y``."""
    flags = 0
    for argument in (*call.args[1:], *[keyword.value for keyword in call.keywords]):
        for node in ast.walk(argument):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in re.RegexFlag.__members__
            ):
                flags |= re.RegexFlag[node.attr]
    return int(flags)


def _target(tree: ast.Module, call: ast.Call) -> str:
    """The name to which a module assigns a compiled expression."""
    for statement in tree.body:
        targets: Sequence[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        if targets and any(node is call for node in ast.walk(statement)):
            return ast.unparse(targets[0])
    return ""


@cache
def _methods_of_judges(group: str) -> dict[str, frozenset[str]]:
    """By name in a group of ``judges.toml``: the methods that modules call on it."""
    methods: dict[str, set[str]] = {}
    for path, tree in _trees():
        if f'patterns("{group}")' not in path.read_text():
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(
                node.value, ast.Attribute
            ):
                methods.setdefault(node.value.attr, set()).add(node.attr)
    return {name: frozenset(used & _OF_RE) for name, used in methods.items()}


def _methods_of(tree: ast.Module, name: str) -> frozenset[str]:
    """The methods that a module calls on an expression that it has compiled.

    None are known if other modules may use it, too.
    """
    if not name.startswith("_"):
        return frozenset()
    return _methods_by_name(tree).get(name, frozenset())


@cache
def _methods_by_name(tree: ast.Module) -> dict[str, frozenset[str]]:
    """By each name in a module: the methods of expressions that are called on it."""
    methods: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            methods.setdefault(node.value.id, set()).add(node.attr)
    return {name: frozenset(used & _OF_RE) for name, used in methods.items()}


def _modules_with_built() -> dict[str, ast.Module]:
    """The modules that compile an expression which is no constant."""
    modules: dict[str, ast.Module] = {}
    for path, tree in _trees():
        for statement in tree.body:
            for call in _calls_of_re(statement):
                if _constant(call.args[0]) is None:
                    modules[_module(path)] = tree
    return modules


def _imported(module: str) -> Mapping[str, object]:
    """The names in a module; none if it needs an extra that is not installed."""
    try:
        return vars(import_module(module))
    except InvalidConfiguration:
        return {}


# The characters of which texts are made.
_ALPHABET: Final = (
    "aA0 -_.\"'\\/:=\n\t,;|(<[{@+%&#*]})>`~^$!?eExXnupPsSkK1９é密是号年月，：\r\x1b"
)
# A repeat with fewer repetitions cannot take long by itself.
_MANY: Final = 8
# The most texts that repeat one character.
_MOST_TEXTS: Final = 5
_BREAKS: Final = "\x00"


class _Sampler:
    """Makes texts that items match, of characters that many classes share.

    leaves_out: whether its texts lack the parts that may be missing.
    """

    def __init__(self, items: Sequence[Item], *, leaves_out: bool = False) -> None:
        self._leaves_out = leaves_out
        self._members: dict[str, str] = {}
        self._shared: dict[str, int] = dict.fromkeys(_ALPHABET, 0)
        self._count(items)

    def _count(self, items: Sequence[Item]) -> None:
        for item in items:
            if item[0] in (Op.IN, Op.NOT_LITERAL, Op.ANY):
                for character in self._characters(item):
                    self._shared[character] += 1
            for part in syntax.parts(item):
                self._count(part)

    def _characters(self, item: Item) -> str:
        source = syntax.source_of([item])
        if source not in self._members:
            pattern = re.compile(source)
            matching = [
                character for character in _ALPHABET if pattern.fullmatch(character)
            ]
            self._members[source] = "".join(matching)
        return self._members[source]

    def text(self, items: Sequence[Item]) -> str:
        """Return a short text that the items match, ignoring lookarounds."""
        return "".join(map(self._of_item, items))

    def _of_item(self, item: Item) -> str:
        op, argument = item
        if op is Op.LITERAL:
            return chr(argument)
        if op in (Op.IN, Op.NOT_LITERAL, Op.ANY):
            matching = self._characters(item)
            if not matching:
                return _member_of(item)
            return max(matching, key=self._shared.__getitem__)
        if op in syntax.REPEATS:
            least, most, body = argument
            if not self._leaves_out:
                least = max(least, 1)
            return self.text(body) * int(min(least, most))
        if op is Op.BRANCH:
            return max((self.text(way) for way in argument), key=len)
        return "".join(self.text(part) for part in syntax.parts(item))


def _member_of(item: Item) -> str:
    """A character that a class lists, or the first of a range; empty without one."""
    op, argument = item
    if op is not Op.IN:
        return ""
    for kind, value in argument:
        if kind is Op.LITERAL:
            return chr(value)
        if kind is Op.RANGE:
            return chr(value[0])
    return ""


def texts_for(source: str) -> list[Maker]:
    """Makers of texts, of a given length, on which an expression may take long.

    They repeat what its repeats repeat, behind what stands before them, and end with a
    character at which a match fails.
    """
    items = syntax.parse(source).items
    sampler = _Sampler(items)
    units: dict[tuple[str, str], None] = {}
    for before, repeated in _pumped(items, "", sampler):
        units[before, repeated] = None
        units["", repeated] = None
        units["", before + repeated] = None
    units["", sampler.text(items)] = None
    shorter = _Sampler(items, leaves_out=True)
    for before, repeated in _pumped(items, "", shorter):
        if before and repeated:
            units["", before + repeated] = None
    ordered = sorted(units, key=lambda unit: (len(unit[1]), len(unit[0])))
    characters = [unit for unit in ordered if len(unit[1]) == 1]
    # A repeat of a group may be exponential, and no two of them are alike.
    groups = [unit for unit in ordered if len(unit[1]) > 1]
    return [Maker(*unit) for unit in characters[:_MOST_TEXTS] + groups]


def _pumped(
    items: Sequence[Item], before: str, sampler: _Sampler
) -> Iterator[tuple[str, str]]:
    """Yield the text before each long repeat, and the repeated text."""
    for item in items:
        op, argument = item
        if op in syntax.REPEATS and argument[1] > _MANY:
            repeated = sampler.text(argument[2])
            if repeated:
                yield before, repeated
        if op in syntax.LOOKS:
            yield from _pumped(argument[1], before, sampler)
        for part in syntax.parts(item):
            yield from _pumped(part, before, sampler)
        before += sampler.text([item])


# The length of texts.  Quadratic work on one takes more than a suspect; nearly all
# expressions take a millisecond.
_LENGTH: Final = 8_192
# A part of more characters than the first number is repeated in a text that is longer
# by the second: in a short text it would not stand often enough.
_LONG_PART: Final = 4
_LONGER: Final = 2
_SUSPECT: Final = 0.016
_LONGEST: Final = 0.8
# An expression of bounded texts may take this long for the longest.
_SOON: Final = 0.1
_TRIES: Final = 2
# A text four times as long takes four times as long, and with quadratic work sixteen
# times.
_TIMES: Final = 4
_GROWS: Final = 8.0


class TooSlow(Exception):
    """An expression did not end in its time."""


def _stop(_signal: int, _frame: FrameType | None) -> None:
    raise TooSlow


def seconds(use: Use, text: str) -> float:
    """The CPU time of one use; ``_LONGEST`` if it would take longer.

    ``re`` looks for signals while it matches.
    """
    previous: Any = signal.signal(signal.SIGVTALRM, _stop)
    # An error that is raised in a callback of the garbage collector is lost.
    gc.disable()
    signal.setitimer(signal.ITIMER_VIRTUAL, _LONGEST)
    began = process_time()
    try:
        use(text)
    except TooSlow:
        return _LONGEST
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)
        gc.enable()
    return process_time() - began


def growth(expression: Expression) -> str:
    """Return why work grows faster than a text; empty if it does not.

    An expression of bounded texts only has to end soon on the longest.
    """
    for make in texts_for(expression.source):
        length = expression.longest or _LENGTH
        if not expression.longest and len(make.repeated) > _LONG_PART:
            length *= _LONGER
        taken = seconds(expression.use, make(length))
        if taken < (_SOON if expression.longest else _SUSPECT):
            continue
        if not _is_confirmed(expression, make, length, taken):
            continue
        return f"{taken:.3f} s for {length} characters such as {make(24)!r}"
    return ""


def _is_confirmed(
    expression: Expression, make: Maker, length: int, taken: float
) -> bool:
    """Whether the least times of several show the same: a busy machine slows some.

    taken: the time of the first use, which has shown it.
    """
    # One that was stopped took hundreds of times as long as others; that takes no
    # third use.
    tries = 1 if taken >= _LONGEST else _TRIES
    taken = min(seconds(expression.use, make(length)) for _ in range(tries))
    if expression.longest:
        return taken >= _SOON
    if taken < _SUSPECT or taken >= _LONGEST:
        return taken >= _LONGEST
    for _ in range(_TRIES):
        longer = seconds(expression.use, make(_TIMES * length))
        if longer < min(_GROWS * taken, _LONGEST):
            return False
    return True
