"""The standard library as an engine: literals by searching bytes, digits by a table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from refold.redaction.engines import AFTER, BEFORE, Hit, Trigger, holds_value, names
from refold.redaction.engines.fold import find_telling_ends, may_have_ascii_forms
from refold.redaction.engines.patterns import REMEMBERED

_RUN = re.compile(rb"[0-9](?:[ .()\-/]{0,3}[0-9]){5,}+")
_BETWEEN = b" .()-/"
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
# The text after a literal, as a class of characters with the number of its repetitions.
_THEN = re.compile(r"\[((?:\\.|[^\]\\])+)\]\{(\d+)\}")
# Tokens are long runs of these characters.  Few texts have them, and a search for them
# is fast.
_OF_TOKENS = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.=+/%~"
)
_LEAST = 14
# Maps characters of tokens to x, all others to a space.
_TABLE = bytes(120 if code in _OF_TOKENS else 32 for code in range(256))
_TOKENS = re.compile(rb"x{14,}+")
# The number of a trigger, and the pattern that must follow its literal.
_Near: TypeAlias = tuple[int, bytes | None]
# This many literals that share a part are looked for only in texts with that part.
_FEW = 4
# Signs that few texts have, the rarest first.
_RARE = b"$%+~=/:_-"
# How far from its digits a shape may reach.
_NEAR = 48


class _Root(NamedTuple):
    """A text that several literals hold, and these with their triggers."""

    literal: bytes
    holding: list[tuple[bytes, list[_Near]]]


class _Digits(NamedTuple):
    """A trigger for digits: its number, their least number, and a pattern of them."""

    number: int
    least: int
    shape: bytes


class _Cluster(NamedTuple):
    """A part of the text around runs of digits, and the most digits of one run."""

    start: int
    end: int
    most: int


class Triggers:
    """Searches for each literal by itself, and for digits near long runs of them."""

    name = "stdlib"
    gates = False

    def __init__(self, triggers: Sequence[Trigger]) -> None:
        self._keys = [trigger.shape.encode() for trigger in triggers if trigger.key]
        literals: dict[bytes, list[_Near]] = {}
        prefixes: dict[bytes, list[_Near]] = {}
        self._shapes: list[_Digits] = []
        self._words: dict[bytes, list[int]] = {}
        for number, trigger in enumerate(triggers):
            if trigger.word:
                self._words.setdefault(trigger.word.encode(), []).append(number)
            elif trigger.run and not trigger.key:
                shape = trigger.shape.encode()
                self._shapes.append(_Digits(number, trigger.run, shape))
            elif trigger.literal:
                near = (number, _near(trigger))
                kind = prefixes if _of_token(trigger) else literals
                kind.setdefault(trigger.literal.encode(), []).append(near)

        # Literals and words that are not ASCII, by their first such character.
        self._wide: dict[str, list[bytes]] = {}
        self._literals = literals
        for word in dict.fromkeys([*literals, *self._words]):
            if not word.isascii():
                first = next(letter for letter in word.decode() if not letter.isascii())
                self._wide.setdefault(first, []).append(word)
        members = "".join(map(re.escape, self._wide)) or r"^\s\S"
        self._wide_characters = re.compile(f"[{members}]")
        self._plain_words = [word for word in self._words if word.isascii()]
        self._roots = _nested(
            {word: near for word, near in literals.items() if word.isascii()}
        )
        # Most texts in Latin letters have none of the bytes with which those begin.
        first_bytes = {character.encode()[0] for character in self._wide}
        self._not_wide = bytes(set(range(256)) - first_bytes)
        self._prefix_roots = _nested(prefixes)

    def in_json(self, data: bytes) -> list[Hit] | None:
        has_value = holds_value(data)
        for key in self._keys:
            for match in _compiled(key).finditer(data):
                if names(data, match.end(), has_value=has_value):
                    return None
        return self.scan(data)

    def scan(self, data: bytes) -> list[Hit]:
        lower = data.lower()
        hits: list[Hit] = []
        is_wide = not data.isascii()
        _look(self._roots, lower, lower, hits)
        wide_words = self._wide_words_in(lower) if is_wide else []
        for word in wide_words:
            hits += _near_places(lower, word, self._literals.get(word, ()))
        tokens = _tokens(lower)
        if tokens:
            _look(self._prefix_roots, tokens, lower, hits)
        if is_wide or may_have_ascii_forms(data):
            hits += self._telling(data)
        if b"000000" in data.translate(_ZEROS, _BETWEEN):
            runs = [match.span() for match in _RUN.finditer(data)]
            hits += self._words_near(lower, runs, wide_words)
            for cluster in _clusters(data, runs):
                hits += _shaped(self._shapes, data, cluster)
        return hits

    def _wide_words_in(self, lower: bytes) -> list[bytes]:
        """Return the literals and words that are not ASCII and may be in the text."""
        if not lower.translate(None, self._not_wide):
            return []
        words: list[bytes] = []
        for character in dict.fromkeys(self._wide_characters.findall(lower.decode())):
            words += self._wide[character]
        return words

    def _words_near(
        self, lower: bytes, runs: Sequence[Hit], wide_words: Sequence[bytes]
    ) -> Iterator[Hit]:
        """Yield the words near these runs of digits."""
        near = [lower[max(0, start - BEFORE) : end + AFTER] for start, end in runs]
        around = b"\n".join(near)
        if len(around) >= len(lower):
            around = lower
        words = [word for word in self._plain_words if word in around]
        words += [word for word in wide_words if word in self._words and word in around]
        for (_, end), text in zip(runs, near, strict=True):
            for word in words:
                if word in text:
                    for number in self._words[word]:
                        yield number, end

    def _telling(self, data: bytes) -> Iterator[Hit]:
        """Yield the telling forms, for which a text must be folded."""
        text = data.decode()
        before = 0
        byte = 0
        for end in sorted(set(find_telling_ends(text))):
            byte += len(text[before:end].encode())
            before = end
            yield 0, byte


def _clusters(data: bytes, runs: Sequence[tuple[int, int]]) -> Iterator[_Cluster]:
    """Yield the parts of ``data`` around runs; parts that touch are one."""
    first = 0
    last = 0
    most = 0
    for start, end in runs:
        digits = len(data[start:end].translate(None, _BETWEEN))
        if start - _NEAR > last:
            if most:
                yield _Cluster(first, last, most)
            first = max(0, start - _NEAR)
            most = 0
        last = min(len(data), end + _NEAR)
        most = max(most, digits)
    if most:
        yield _Cluster(first, last, most)


def _shaped(shapes: Sequence[_Digits], data: bytes, cluster: _Cluster) -> Iterator[Hit]:
    """Yield the shapes of digits in a cluster."""
    part = data[cluster.start : cluster.end]
    for number, least, pattern in shapes:
        if cluster.most < least:
            continue
        shape = _compiled(pattern)
        # Each end counts, because matches that overlap may have other digits.
        match = shape.search(part)
        while match:
            yield number, cluster.start + match.end()
            match = shape.search(part, max(match.end() - 1, match.start() + 1))


def _of_token(trigger: Trigger) -> bool:
    """Whether the literal and the text after it are a token."""
    then = _THEN.fullmatch(trigger.then)
    if then is None or not _OF_TOKENS.issuperset(trigger.literal.encode()):
        return False
    characters, repeat = then.groups()
    if characters.startswith("^"):
        return False
    members = re.sub(r".-.", "", characters.replace("\\", ""))
    if not _OF_TOKENS.issuperset(members.encode()):
        return False
    return len(trigger.literal) + int(repeat) >= _LEAST


def _tokens(lower: bytes) -> bytes:
    """Return all parts that may be tokens, with spaces between them."""
    tokens = _TOKENS.finditer(lower.translate(_TABLE))
    return b" ".join([lower[match.start() : match.end()] for match in tokens])


def _nested(literals: Mapping[bytes, list[_Near]]) -> list[_Root]:
    """Group the literals under a part that several share, or a shorter literal."""
    counts = Counter(part for literal in literals for part in _rare_part(literal))
    roots = [_Root(part, []) for part, count in counts.items() if count >= _FEW]
    for literal in sorted(literals, key=len):
        entry = (literal, literals[literal])
        for root in roots:
            if root.literal in literal:
                root.holding.append(entry)
                break
        else:
            roots.append(_Root(literal, [entry]))
    return roots


def _rare_part(literal: bytes) -> Iterator[bytes]:
    """Yield a part that other literals may share and few texts have, if any."""
    rare = [byte for byte in _RARE if byte in literal]
    if rare:
        yield bytes(rare[:1])
    elif len(literal) > 2 and literal[:2].isalpha():
        yield literal[:2]


def _look(roots: Sequence[_Root], within: bytes, lower: bytes, hits: list[Hit]) -> None:
    """Add the places in ``lower`` of all literals that are also in ``within``."""
    for root, holding in roots:
        if root in within:
            for literal, triggers in holding:
                if literal in within:
                    hits += _near_places(lower, literal, triggers)


def _near_places(
    lower: bytes, literal: bytes, triggers: Sequence[_Near]
) -> Iterator[Hit]:
    """Yield the places of a literal, for each trigger whose next text is there, too."""
    place = lower.find(literal)
    while place >= 0:
        end = place + len(literal)
        for number, near in triggers:
            if near is None or _compiled(near).match(lower, end):
                yield number, end
        place = lower.find(literal, place + 1)


def _near(trigger: Trigger) -> bytes | None:
    """Return the pattern after the literal; None for one of characters, not bytes."""
    if not trigger.then or not trigger.then.isascii() or "[^" in trigger.then:
        return None
    return trigger.then.encode()


@lru_cache(maxsize=REMEMBERED)
def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    """Compile a pattern for any case, at its first use.  Most texts need few."""
    return re.compile(pattern, re.IGNORECASE)


def literals(texts: Sequence[str]) -> Callable[[str], tuple[list[str], bool]]:
    """Return a search for each literal by itself."""

    def search(text: str) -> tuple[list[str], bool]:
        return [literal for literal in texts if literal in text], bool(
            find_telling_ends(text)
        )

    return search
