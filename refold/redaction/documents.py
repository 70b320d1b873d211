"""Redaction of JSON: every string, key and telling number, JSON in strings included."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite
from typing import Any, Final, NamedTuple

from refold.domain.canonical import encodable
from refold.redaction.checks.names import words
from refold.redaction.engines.fold import Folded
from refold.redaction.plan import Tagger
from refold.redaction.rules.secrets import PROGRAMS
from refold.redaction.scanner import Concern, Prepared
from refold.redaction.settler import Settler, Text
from refold.redaction.types import Placeholders, renamed
from refold.redaction.values import (
    MAX_DEPTH,
    MAX_NESTED,
    NO_SKIP,
    JsonObject,
    JsonValue,
    OverBudget,
    RedactionError,
    Skip,
    Tally,
    TooDeep,
    below,
)


class Around(NamedTuple):
    """What is around a value: keys, and how many strings of JSON it is inside of."""

    skip: Skip
    parent: str = ""
    key: str = ""
    depth: int = 0
    nested: int = 0
    # Context for everything in the value, such as ``untrusted``.
    context: str = ""


class Work(NamedTuple):
    """What does the redacting, and what it needs for one value."""

    settler: Settler
    tag: Tagger | None = None
    until: float = 0.0


def redacted(value: JsonValue, work: Work, around: Around) -> tuple[JsonValue, Tally]:
    """``value`` without what is found in it, and what that was.

    The same object is returned if nothing was found.  Raises TooDeep, and
    RedactionError for what is not JSON.
    """
    if isinstance(value, dict | list):
        return _Walk(value, work, around).walked()
    # A leaf by itself, as the only item of an array.
    clean, tally = _Walk([value], work, around).walked()
    return clean[0], tally  # type: ignore[index]  # it is that array


class _Walk:
    """One pass over an object or an array."""

    def __init__(
        self, value: dict[str, JsonValue] | list[JsonValue], work: Work, around: Around
    ) -> None:
        plan = work.settler.plan
        self._work, self._around, self._plan = work, around, plan
        self._nests = around.nested < MAX_NESTED and plan.nested_json
        self._scanner = work.settler.scanner
        self._placeholders = work.settler.placeholders
        self._flat = Flat(value, around, plan.skip_keys)
        self._tally, self._more = Tally(), False
        # Keys of which it is not known yet that they hold nothing and say nothing.
        self._new: list[str] = []
        # The texts that may be JSON: their places among all.
        self._documents: frozenset[int] = frozenset()
        self._names: dict[str, str] = {}
        self._named: dict[int, str] = {}

    def walked(self) -> tuple[JsonValue, Tally]:
        flat, texts = self._flat, self._flat.texts
        limit = self._plan.max_leaf_bytes
        if texts and 4 * max(map(len, texts)) > limit:
            for index, text in enumerate(texts):
                if stub := self._work.settler.stub(text):
                    self._write(index, *stub)
                    texts[index] = ""
        if flat.documents and self._nests:
            self._documents = frozenset(
                i for i in flat.documents if _MAY_BE_JSON.match(texts[i])
            )
        settler = self._work.settler
        if settler.finds_more:
            keys = flat.keys if self._plan.keys else ()
            self._more = settler.finds_more_in([*keys, *texts])
        if self._more:
            self._new = [*flat.keys]
        elif not flat.keys.keys() <= settler.quiet:
            self._new = [key for key in flat.keys if key not in settler.quiet]
        if self._new or self._documents:
            prepared = self._surveyed()
        else:
            prepared = self._scanner.survey(texts)
        indexes: Sequence[int]
        if self._new or self._documents or self._more or self._hints:
            prepared = dict(prepared)
            indexes = self._told(prepared)
        else:
            indexes = sorted(i for i, one in prepared.items() if one.found != ())
        if indexes:
            self._redact_texts(indexes, prepared)
        tally = self._tally
        return self._rebuilt() if tally.types else flat.nodes[0].value, tally

    @property
    def _hints(self) -> object:
        """What besides keys of its objects may say what a text is."""
        flat, around = self._flat, self._around
        named = flat.named or flat.pairs or flat.flags or flat.tables or flat.commands
        return named or around.key or around.parent or around.context

    def _told(self, prepared: dict[int, Prepared]) -> Sequence[int]:
        """The texts in which something may be found, by what they or keys hold."""
        flat = self._flat
        if flat.named:
            self._name_values()
        if flat.pairs:
            self._name_seconds()
        if flat.tables:
            self._name_columns()
        if flat.commands:
            self._judge_arguments(prepared)
        if self._more:
            return range(len(flat.texts))
        told = {*prepared, *self._documents}
        if self._new or self._hints:
            told.update(self._spoken_to())
        return sorted(told)

    def _surveyed(self) -> dict[int, Prepared]:
        """Texts that may hold something, without what may be JSON; redact keys."""
        texts = self._flat.texts
        keys = self._new if self._plan.keys else []
        if self._documents:
            texts = texts.copy()
            for index in self._documents:
                texts[index] = ""
        prepared = self._scanner.survey([*keys, *texts] if keys else texts)
        if not keys:
            return prepared
        least = len(keys)
        hot = range(least) if self._more else [i for i in prepared if i < least]
        if hot:
            given = [Text(keys[i], prepared.get(i), whole=False) for i in hot]
            for one, (clean, tally) in zip(given, self._settled(given), strict=True):
                if clean != one.text:
                    self._names[one.text] = clean
                    self._count(tally, None, "")
        found = {i - least: one for i, one in prepared.items() if i >= least}
        self._hush(key for i, key in enumerate(keys) if i not in prepared)
        return found

    def _hush(self, keys: Iterable[str]) -> None:
        """Remember which of ``keys``, that hold nothing, say nothing either."""
        speaks, quiet = self._scanner.concern, self._work.settler.quiet
        for key in keys:
            if (
                len(quiet) < _QUIET
                and len(key) < 100
                and not speaks(key).rules
                and not self._placeholders.within(key)
            ):
                quiet.add(key)

    def _name_values(self) -> None:
        """Find what siblings call the items ``value`` of objects, if that is clean."""
        for node in self._flat.named:
            value: dict[str, JsonValue] = node.value  # type: ignore[assignment]  # one
            for key, name in value.items():
                if (
                    isinstance(name, str)
                    and key.lower() in NAMES
                    and self._scanner.concern(name).rules
                ):
                    self._named[id(node)] = name if self._is_clean(name, key) else ""
                    break

    def _name_seconds(self) -> None:
        """Let the first of two strings be the key of the second, if that is clean.

        What has another context, or holds a placeholder, keeps what it has: a second
        pass sees no more than the first.
        """
        speaks = self._scanner.concern
        for node, name, second in self._flat.pairs:
            if (
                speaks(name).rules
                and not speaks(second).rules
                and not self._placeholders.within(second)
                and not self._concern(node, 0).rules
                and self._is_clean(name, "")
            ):
                self._flat.flags[id(node), 1] = name

    def _name_columns(self) -> None:
        """Let the names of a table's columns be the keys of what is in its rows."""
        nodes = {id(node.value): node for node in self._flat.nodes}
        for table in self._flat.tables:
            value: dict[str, JsonValue] = table.value  # type: ignore[assignment]  # one
            for key, some in value.items():
                if key.lower() in _COLUMNS and isinstance(some, list):
                    names = [_column(one) for one in some]
                    wanted = [
                        index
                        for index, name in enumerate(names)
                        if self._scanner.concern(name).rules
                        and self._is_clean(name, "")
                    ]
                    for row in _rows(value, len(names)) if wanted else ():
                        for index in wanted:
                            self._flat.flags[id(nodes[id(row)]), index] = names[index]

    def _judge_arguments(self, prepared: dict[int, Prepared]) -> None:
        """Find in arrays that are command lines what the line as a whole would have."""
        flat = self._flat
        indexes = {(id(node), name): i for i, (node, name) in enumerate(flat.places)}
        for node in flat.commands:
            line = " ".join(map(str, node.value))
            whole = self._scanner.look(line)
            found = whole.found if whole else None
            place = 0
            for name, item in enumerate(node.value):
                text = str(item)
                inside = [
                    one._replace(start=one.start - place, end=one.end - place)
                    for one in found or ()
                    if place <= one.start and one.end <= place + len(text)
                ]
                index = indexes.get((id(node), name))
                if inside and index is not None:
                    prepared[index] = Prepared(text, Folded(text), (), inside)
                place += len(text) + 1

    def _is_clean(self, name: str, key: str) -> bool:
        if len(name) > 256 or self._placeholders.within(name):
            return False
        prepared = self._scanner.survey([name]).get(0)
        concern = self._scanner.concern(key)
        if prepared is None and not concern.rules and not self._more:
            return True
        given = Text(name, prepared, concern)
        return self._settled([given])[0][0] == name

    def _settled(self, texts: list[Text]) -> list[tuple[str, Tally]]:
        return self._work.settler.settle(texts, self._work.tag, self._work.until)

    def _spoken_to(self) -> list[int]:
        """The texts to which a key may give context."""
        flat, around, speaks = self._flat, self._around, self._scanner.concern
        plain = self._placeholders.context_of
        loud = {
            key for key in self._new if speaks(plain(self._names.get(key, key))).rules
        }
        if any(self._named.values()):
            loud.update(key for key in flat.keys if key.lower() in VALUES)
        first = flat.nodes[0]
        if around.key or around.parent or around.context:
            first.spoken = bool(
                speaks(f"{around.parent} {around.key}", around.context).rules
                or speaks(around.key).rules
            )
        flags = {at for at, flag in flat.flags.items() if speaks(flag).rules}
        if not (loud or first.spoken or flags):
            return []
        for node in flat.nodes[1:]:
            above = node.parent
            node.spoken = node.name in loud or (above is not None and above.spoken)
        return [
            index
            for index, (node, name) in enumerate(flat.places)
            if name in loud or node.spoken or (flags and (id(node), name) in flags)
        ]

    def _redact_texts(
        self, indexes: Iterable[int], prepared: Mapping[int, Prepared]
    ) -> None:
        flat, more, numbers = self._flat, self._more, self._plan.numbers
        # In JSON that is text, a number is judged like any text.
        nested = self._around.nested > 0 and numbers != "never"
        like_text = nested or numbers == "always"
        jobs: list[tuple[int, Text]] = []
        for index in indexes:
            text, (node, name) = flat.texts[index], flat.places[index]
            ready = prepared.get(index)
            concern = self._concern(node, name)
            if index in self._documents:
                if not (more or concern.rules) and self._scanner.clean(text):
                    continue
                if self._redacted_documents(text, node, name):
                    continue
                ready = self._scanner.look(text)
            if ready is None and not concern.rules and not more:
                continue
            # A number stays unless its key or a checksum says what it is.
            number = index in flat.numbers and not like_text
            if number and (numbers == "never" or text[0] == "-"):
                continue
            jobs.append((index, Text(text, ready, concern, number=number)))
        if not jobs:
            return
        try:
            done = self._settled([given for _, given in jobs])
        except OverBudget as error:
            node, name = flat.places[jobs[error.index][0]]
            raise OverBudget(self._pointer(node, name)) from None
        for (index, given), (clean, tally) in zip(jobs, done, strict=True):
            if clean != given.text:
                self._write(index, clean, tally)

    def _write(self, index: int, clean: str, tally: Tally) -> None:
        node, name = self._flat.places[index]
        self._count(tally, node, name)
        if self._nests and index in self._flat.documents:
            # It was no JSON, but without what is redacted it may become JSON.
            again, more = redacted(clean, self._work, self._inside(node, name, 0))
            self._count(more, node, name)
            clean = again if isinstance(again, str) else clean
        node.writes[name] = clean

    def _inside(self, node: Node, name: str | int, nested: int) -> Around:
        """What is around what a text holds, ``nested`` levels of JSON further in."""
        parent, key = self._keys_of(node, name)
        nested += self._around.nested
        return Around(
            NO_SKIP, parent, key, node.depth + 1, nested, self._around.context
        )

    def _redacted_documents(self, text: str, node: Node, name: str | int) -> bool:
        """Redact ``text`` as one JSON document or one a line; False: it is neither."""
        documents = parsed(text)
        if documents is None:
            return False
        inside = self._inside(node, name, 1)
        tally, clean = Tally(), []
        try:
            for source, value in documents:
                new, found = redacted(value, self._work, inside)
                clean.append(
                    source
                    if new is value
                    else patched(source, value, new, self._placeholders)
                )
                tally.update(found)
        except TooDeep:
            return False
        except OverBudget as error:
            raise OverBudget(f"{self._pointer(node, name)}{error.at}") from None
        registered = self._work.settler.registered
        if registered and registered.find("\n".join(clean)):
            return False
        if tally:
            self._count(tally, node, name)
            node.writes[name] = "\n".join(clean)
        return True

    def _concern(self, node: Node, name: str | int) -> Concern:
        parent, key = self._keys_of(node, name)
        whole = f"{parent} {key}" if parent else key
        return self._scanner.concern(whole, self._around.context)

    def _keys_of(self, node: Node, name: str | int) -> tuple[str, str]:
        """The key of an item's object, and its own; an array has those of itself."""
        if node.keys is None:
            above, around = node.parent, self._around
            node.keys = (
                self._keys_of(above, node.name)
                if above
                else (around.parent, around.key)
            )
        if isinstance(name, int):
            flag = self._flat.flags.get((id(node), name))
            return (node.keys[1], flag) if flag else node.keys
        if len(name) == 1 and name.isascii() and name.isalpha():
            # It says nothing of its own: {"student_ids": {"a": …, "b": …}}.
            return node.keys
        named = self._named.get(id(node), "")
        named = named if named and name.lower() in VALUES else ""
        key = named or self._names.get(name, name)
        return node.keys[1], named or self._placeholders.context_of(key)

    def _count(self, tally: Tally, node: Node | None, name: str | int) -> None:
        if self._plan.audit == "paths" and node is not None and tally:
            tally.paths[:] = [self._pointer(node, name)]
        self._tally.update(tally)

    def _pointer(self, node: Node, name: str | int) -> str:
        steps = []
        here: Node | None = node
        while here is not None:
            step = self._names.get(name, name) if isinstance(name, str) else str(name)
            steps.append(step.replace("~", "~0").replace("/", "~1"))
            name, here = here.name, here.parent
        return "/" + "/".join(reversed(steps))

    def _rebuilt(self) -> JsonValue:
        """The value with all that was written; what did not change is shared."""
        names = self._names
        for node in reversed(self._flat.nodes):
            value, writes = node.value, node.writes
            keyed = isinstance(value, dict) and not names.keys().isdisjoint(value)
            if not (writes or keyed):
                continue
            new: JsonValue = (
                self._object(node, value)
                if isinstance(value, dict)
                else [writes.get(index, item) for index, item in enumerate(value)]
            )
            if node.parent is None:
                return new
            node.parent.writes[node.name] = new
        return self._flat.nodes[0].value

    def _object(self, node: Node, value: dict[str, JsonValue]) -> JsonValue:
        taken = {name for name in value if name not in self._names}
        clean: dict[str, JsonValue] = {}
        copies: dict[str, int] = {}
        for name, item in value.items():
            new = self._names.get(name, name)
            if new != name:
                new = renamed(new, taken, copies)
                taken.add(new)
            clean[new] = node.writes.get(name, item)
        return clean


def _column(item: JsonValue) -> str:
    """The name of a column: a string, or an object that has one."""
    if isinstance(item, dict):
        item = item.get("name", item.get("Name"))
    return item if isinstance(item, str) else ""


def _rows(table: dict[str, JsonValue], width: int) -> Iterator[list[JsonValue]]:
    """The arrays of so many items in the arrays of ``table``."""
    for some in table.values():
        for row in some if isinstance(some, list) else ():
            if isinstance(row, list) and len(row) == width:
                yield row


def parsed(text: str) -> list[tuple[str, JsonValue]] | None:
    """The JSON documents in ``text``, each with its source; empty lines have none."""
    try:
        return [(text, _JSON.decode(text))]
    except (ValueError, RecursionError):
        lines = text.split("\n")
    if len(lines) == 1 or not all(
        _OPENS.match(line) or not line.strip() for line in lines
    ):
        return None
    try:
        return [(line, _JSON.decode(line) if line.strip() else None) for line in lines]
    except (ValueError, RecursionError):
        return None


def _unique(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    """Refuse an object that has a key twice: the first value would not be seen."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key stands twice")
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} is not JSON, or is too large")
    return number


_JSON: Final = json.JSONDecoder(
    strict=False,
    object_pairs_hook=_unique,
    parse_constant=_finite,
    parse_float=_finite,
)

# The strings, numbers and words of a JSON text, in order.
_TOKENS: Final = re.compile(
    r'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+\-]*|true|false|null', re.DOTALL
)
# The characters of a string as they stand: each escape, with the pair it is half of.
_CHARACTERS: Final = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|.",
    re.DOTALL,
)


def patched(
    source: str, old: JsonValue, new: JsonValue, placeholders: Placeholders
) -> str:
    """``source``, the JSON text of ``old``, with what is other in ``new`` in its place.

    All else keeps its bytes: white space, spellings of numbers, escapes.
    """
    tokens = _TOKENS.finditer(source)
    out, end = [], 0
    pending: list[tuple[JsonValue, JsonValue]] = [(old, new)]
    while pending:
        before, after = pending.pop()
        if isinstance(before, dict) and isinstance(after, dict):
            items = zip(before.items(), after.items(), strict=True)
            pending += [
                pair
                for (key, value), (name, clean) in reversed([*items])
                for pair in ((value, clean), (key, name))
            ]
        elif isinstance(before, list) and isinstance(after, list):
            pending += reversed([*zip(before, after, strict=True)])
        else:
            token = next(tokens)
            if before is not after and before != after:
                out += [
                    source[end : token.start()],
                    _respelt(token[0], before, after, placeholders),
                ]
                end = token.end()
    return "".join((*out, source[end:]))


def _respelt(
    token: str, old: JsonValue, new: JsonValue, placeholders: Placeholders
) -> str:
    """A token of JSON for ``new``: of a string, what both share keeps its spelling."""
    if not (isinstance(old, str) and isinstance(new, str)):
        return compact_json(new)
    spelt = _CHARACTERS.findall(token, 1, len(token) - 1)
    if len(spelt) != len(old):
        return compact_json(new)  # half of a pair somewhere
    out, place = ['"'], 0
    # What is between placeholders stood in the old text, in this order.
    pieces = placeholders.pieces(new)
    for index, (piece, kept) in enumerate(pieces):
        at = -1 if kept else old.find(piece, place)
        if at >= 0 and index and index == len(pieces) - 1:
            at = max(at, len(old) - len(piece))
        if at < 0:
            out.append(compact_json(piece)[1:-1])
        else:
            place = at + len(piece)
            out += spelt[at:place]
    return "".join((*out, '"'))


def compact_json(value: JsonValue) -> str:
    """``value`` as compact JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # Half of a surrogate pair can only be written as its escape.
    return text if encodable(text) else json.dumps(value, separators=(",", ":"))


# {"name": "DB_PASSWORD", "value": "…"}: the name is the key of the value.
_BEGINS, _OPENS = "{[ \t\r\n", re.compile(r"\s*[\[{]")
_MAY_BE_JSON = re.compile(r"\s*(?:\{\s*[\"}]|\[\s*[\[\]{\"0-9\-tfn])")
# So many keys are remembered that hold nothing and say nothing.
_QUIET: Final = 1000
VALUES, NAMES = frozenset(words("of_values")), frozenset(words("of_names"))
# {"columns": ["user", "password"], "rows": [["ada", "…"]]}: the names of columns.
_COLUMNS = frozenset(words("of_columns"))
# ["X-Api-Key", "…"]: the first is the key of the second, if that is no name itself.
_LONGEST_NAME = 48
_SECOND = re.compile(r"(?=[^0-9]{0,64}[0-9])(?:\S{4,}|[^A-Za-z]{4,64}\Z)")


@dataclass(slots=True, eq=False)
class Node:
    """An object or an array of a value, and what is to be written into it.

    keys:   the key of the object around it and its own, when that is known.
    spoken: a key around it may give context to what it holds.
    """

    value: dict[str, JsonValue] | list[JsonValue]
    parent: Node | None
    name: str | int
    depth: int
    skip: Skip
    keys: tuple[str, str] | None = None
    spoken: bool = False
    writes: dict[str | int, JsonValue] = field(default_factory=dict)


class Flat:
    """The leaves of a value that may hold something, and where each stands.

    texts:   strings, and numbers without a fraction as text.
    places:  the node and the name of each text.
    numbers: which of them are numbers.
    documents: which of them may be JSON.
    keys:    every key, once.
    named:   objects with a ``value`` that a sibling names.
    flags:   by array and index, the flag that a string follows, as in a command line.
    pairs:   arrays of two strings, and these; the first may name the second.
    commands: arrays that begin with a program that takes secrets as arguments.
    tables:  objects that may hold the names of columns, and rows.
    """

    def __init__(
        self,
        value: dict[str, JsonValue] | list[JsonValue],
        around: Around,
        skip_keys: frozenset[str],
    ) -> None:
        self.texts: list[str] = []
        self.places: list[tuple[Node, str | int]] = []
        self.numbers: set[int] = set()
        self.keys: dict[str, None] = {}
        self.named: list[Node] = []
        self.flags: dict[tuple[int, int], str] = {}
        self.pairs: list[tuple[Node, str, str]] = []
        self.tables: list[Node] = []
        self.commands: list[Node] = []
        self._skip_keys = skip_keys
        # The objects' keys, and whether one of them is a ``value``, or names columns.
        self._shapes: dict[tuple[str, ...], tuple[bool, bool]] = {}
        if around.depth >= MAX_DEPTH:
            raise TooDeep
        self.nodes = [Node(value, None, "", around.depth, around.skip)]
        for node in self.nodes:
            if isinstance(node.value, dict):
                self._object(node, node.value)
            else:
                self._array(node, node.value)
        self.documents = [
            index
            for index, text in enumerate(self.texts)
            if text[:1] in _BEGINS and _OPENS.match(text)
        ]

    def _object(self, node: Node, value: dict[str, JsonValue]) -> None:
        shape = tuple(value)
        named = self._shapes.get(shape)
        if named is None:
            lower = {key.lower() for key in shape}
            named = self._shapes[shape] = (
                not VALUES.isdisjoint(lower),
                not _COLUMNS.isdisjoint(lower),
            )
            self.keys.update(dict.fromkeys(shape))
        if named[0]:
            self.named.append(node)
        if named[1]:
            self.tables.append(node)
        first = _first_steps(node.skip) if node.skip else _NONE
        items: Iterable[tuple[str, JsonValue]] = value.items()
        if self._skip_keys:
            items = [pair for pair in items if pair[0] not in self._skip_keys]
        self._items(node, items, first)

    def _array(self, node: Node, value: list[JsonValue]) -> None:
        kinds = set(map(type, value))
        if kinds == {float} and max(value) < 10**6:  # type: ignore[type-var, operator]  # floats
            return
        self._items(node, enumerate(value), None if node.skip else _NONE)
        if len(value) == 2:
            name, second = value
            if (
                isinstance(name, str)
                and isinstance(second, str)
                and len(name) <= _LONGEST_NAME
                and _SECOND.fullmatch(second)
            ):
                self.pairs.append((node, name, second))
        if str not in kinds:
            return
        first = value[0]
        if type(first) is str and _program(first) in PROGRAMS:
            self.commands.append(node)
        for index, item in enumerate(value[:-1]):
            if type(item) is not str or type(value[index + 1]) is not str:
                continue
            if item == "-u" or (item[:2] == "--" and item[2:3].isalpha()):
                self.flags[id(node), index + 1] = item

    def _items(
        self,
        node: Node,
        items: Iterable[tuple[str | int, JsonValue]],
        first: frozenset[str] | None,
    ) -> None:
        """Take the items; ``first``: names that a path to skip enters; None: any."""
        texts, places, deep = self.texts, self.places, node.depth + 1 == MAX_DEPTH
        for name, item in items:
            kind = type(item)
            if (
                kind is bool
                or item is None
                or ((kind is int or kind is float) and not long(item))  # type: ignore[arg-type]  # a number
            ):
                continue
            skip = NO_SKIP
            if first is None or name in first:
                skip = below(node.skip, str(name))
                if () in skip:
                    continue
            nests = kind is dict or kind is list
            if nests or (kind is not str and isinstance(item, (dict, list, tuple))):
                if deep:
                    raise TooDeep
                if item:
                    value: Any = [*item] if isinstance(item, tuple) else item
                    self.nodes.append(Node(value, node, name, node.depth + 1, skip))
                continue
            if kind is str or isinstance(item, str):
                texts.append(item)  # type: ignore[arg-type]  # a str, by its type
            elif not isinstance(item, (int, float)):
                raise RedactionError(f"a {kind.__name__} is not JSON")
            elif long(item):
                self.numbers.add(len(texts))
                texts.append(str(int(item)))
            else:
                continue
            places.append((node, name))


_NONE: Final[frozenset[str]] = frozenset()


@lru_cache(maxsize=256)
def _first_steps(skip: Skip) -> frozenset[str] | None:
    """The first keys of paths; None if any key may be one."""
    steps = frozenset(path[0] for path in skip if path)
    return None if "*" in steps else steps


def _program(command: str) -> str:
    """The name of the program that a command starts, without its folder."""
    if "\n" in command:
        return command
    return command.rpartition("/")[2].removesuffix(".exe")


def long(number: float) -> bool:
    """Whether it is an integer, or a float that is one, of 7 to 19 digits."""
    # Fewer say nothing, more are no card; tables are often read as floats.
    return 10**6 <= abs(number) < 10**19 and number == int(number)
