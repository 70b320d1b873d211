"""Secrets that a session has shown, as keyed digests that find them again."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from html import unescape
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote, unquote

from refold.domain.canonical import encodable

# The types whose values are learned: none of them is personal data.
SECRET_TYPES: Final = frozenset(
    {"SECRET", "API_KEY", "AUTH_TOKEN", "JWT", "URL_CREDENTIAL", "PASSWORD_HASH"}
)
# The fewest characters of a value that is looked for everywhere.
SHORTEST: Final = 8
_WORD = "(?:[a-z]+|[A-Z]+|[A-Z][a-z]+)"
# Values that are no secrets: words, numbers, paths, addresses, references.
_PLAIN = re.compile(
    rf"{_WORD}(?:[-_. ,:]{_WORD})*|[0-9.,:+\-]*|(?:\.{{0,2}}|~|[A-Za-z]:|file:)[/\\].*"
    r"|[a-z][a-z0-9+.\-]*://[^@]*|\$.*",
    re.DOTALL,
)
# The most characters of a learned value, and the most values of a session.  Each append
# of a session that has any stores the table of their digests.
LONGEST: Final = 256
MOST_LEARNED: Final = 64
# Most values have six spellings.
_MOST_ENTRIES: Final = 6 * MOST_LEARNED
# Values that a session may hold many times without any of them being a secret: a word
# with its number, names in the cases of code, digests that name a request.
_IDENTIFIER: Final = re.compile(
    r"[A-Za-z]{1,15}|[a-z]+[0-9]{1,4}|[a-z]+(?:[_.\-][a-z0-9]+)+"
    r"|[A-Z]+(?:_[A-Z0-9]+)+|[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)+"
    r"|[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
)
_REFERENCE: Final = re.compile(r"[\[\]{}<>$\s]")
# A search compares whole runs of letters and digits first: the anchor of a value is its
# longest one.
_RUN: Final = re.compile(r"[A-Za-z0-9]{4,}")
_ANCHOR_BYTES: Final = 5
_WHOLE_BYTES: Final = 10


class Finds(Protocol):
    """Another source of findings: registered values."""

    def find(self, text: str) -> Sequence[tuple[int, int, str]]:
        """(start, end, type) of each value in ``text``."""


class _Entry(NamedTuple):
    """One spelling of a value.

    before: how many characters stand before its anchor.
    length: how many characters it has.
    digest: the keyed digest of all of it.
    """

    type: str
    before: int
    length: int
    digest: bytes


class _Index(NamedTuple):
    """The spellings of all values of a session.

    runs:       finds runs of letters and digits that are long enough for an anchor.
    lengths:    of the anchors.
    has_digit:  every anchor has a digit, so that words need no comparison.
    by_anchor:  by the keyed digest of their anchor.
    """

    runs: re.Pattern[str]
    lengths: frozenset[int]
    has_digit: bool
    by_anchor: Mapping[bytes, list[_Entry]]


class Learned:
    """The secrets of a session, for the events of one append.

    It finds them in texts, in all spellings that were learned, and learns new ones.

    entries: by the written form of a spelling, the seq of the event that showed it.
    """

    __slots__ = ("_key", "_read_key", "entries")

    def __init__(
        self, read_key: Callable[[], bytes], entries: Mapping[str, int]
    ) -> None:
        self._read_key = read_key
        self._key = b""
        self.entries = entries

    def __bool__(self) -> bool:
        return bool(self.entries)

    def __repr__(self) -> str:
        return f"Learned({len(self.entries)} spellings)"

    def before(self, seq: int) -> Learned:
        """Return the secrets that the session had learned before ``seq``."""
        entries = {entry: at for entry, at in self.entries.items() if at < seq}
        return Learned(self._read_key, entries)

    def learn(self, secrets: Iterable[tuple[str, str]], seq: int) -> None:
        """Look for these secrets from now on.  Ordinary words are left out.

        secrets: (type, value) of each; the event at ``seq`` showed them.
        """
        for kind, value in secrets:
            if not learnable(kind, value):
                continue
            new = [self._written(kind, text) for text in _spellings(value, kind)]
            if new[0] in self.entries:
                continue
            if len(self.entries) + len(new) > _MOST_ENTRIES:
                return
            self.entries = {**self.entries, **dict.fromkeys(new, seq)}

    def clean(self, texts: Iterable[str]) -> bool:
        """Whether none of ``texts`` holds a secret: faster than to search each."""
        index = _index(tuple(self.entries))
        lengths = index.lengths
        runs = index.runs.findall("\n".join(texts))
        for run in {run for run in runs if len(run) in lengths}:
            if index.has_digit and run.isalpha():
                continue
            if self._digest(run, _ANCHOR_BYTES) in index.by_anchor:
                return False
        return True

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """(start, end, type) of each secret in ``text``, in order and disjoint."""
        index = _index(tuple(self.entries))
        extents: list[tuple[int, int, str]] = []
        end = 0
        for match in index.runs.finditer(text):
            run = match[0]
            if len(run) not in index.lengths or (index.has_digit and run.isalpha()):
                continue
            entries = index.by_anchor.get(self._digest(run, _ANCHOR_BYTES), ())
            for entry in entries:
                start = match.start() - entry.before
                stop = start + entry.length
                if start < end or stop > len(text):
                    continue
                if self._digest(text[start:stop], _WHOLE_BYTES) == entry.digest:
                    extents.append((start, stop, entry.type))
                    end = stop
                    break
        return extents

    def _written(self, kind: str, text: str) -> str:
        """The entry of one spelling, as text."""
        anchor = _anchor(text)
        digests = self._digest(anchor[0], _ANCHOR_BYTES)
        digests += self._digest(text, _WHOLE_BYTES)
        code = base64.b64encode(digests).decode()
        entry = f"{kind}:{anchor.start()}:{len(anchor[0])}:{len(text)}:{code}"
        if anchor[0].isalpha():
            entry += ":a"
        return entry

    def _digest(self, text: str, size: int) -> bytes:
        if not self._key:
            self._key = hmac.digest(self._read_key(), b"learned", "sha256")
        data = text.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(data, digest_size=size, key=self._key).digest()


class RegisteredAndLearned:
    """Registered values and the secrets of a session, as one source of findings."""

    __slots__ = ("_learned", "_registered")

    def __init__(self, registered: Finds, learned: Learned) -> None:
        self._registered = registered
        self._learned = learned

    def __bool__(self) -> bool:
        return bool(self._registered) or bool(self._learned)

    def clean(self, texts: Iterable[str]) -> bool:
        """Whether none of ``texts`` holds a value of either."""
        texts = list(texts)
        registered_clean = getattr(self._registered, "clean", None)
        if registered_clean is None or not registered_clean(texts):
            return False
        return self._learned.clean(texts)

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """The values of both in ``text``."""
        return [*self._registered.find(text), *self._learned.find(text)]


def is_plain(value: str) -> bool:
    """Whether a value is words, a number, a path, an address or a reference."""
    return _PLAIN.fullmatch(value) is not None


def learnable(kind: str, value: str) -> bool:
    """Whether a value is long and unusual enough to be looked for everywhere."""
    if kind not in SECRET_TYPES or not SHORTEST <= len(value) <= LONGEST:
        return False
    if not encodable(value) or is_plain(value) or _IDENTIFIER.fullmatch(value):
        return False
    return not _REFERENCE.search(value) and _RUN.search(value) is not None


def _spellings(value: str, kind: str) -> list[str]:
    """The value as it is, decoded, quoted, URL-encoded, and in base64."""
    plain = decoded(value, is_secret=True)
    if not learnable(kind, plain):
        plain = value
    data = plain.encode()
    spellings = dict.fromkeys(
        (
            value,
            plain,
            json.dumps(plain, ensure_ascii=False)[1:-1],
            quote(plain, safe=""),
            base64.b64encode(data).decode(),
            # ``echo`` ends its output with a line break.
            base64.b64encode(data + b"\n").decode(),
            base64.urlsafe_b64encode(data).decode(),
        )
    )
    return [text for text in spellings if _RUN.search(text)]


# How often a value may be encoded, each time in another encoding.
_MOST_ENCODINGS: Final = 3
_NO_ESCAPE: Final = re.compile("%(?![0-9A-Fa-f]{2})")
_ENTITY: Final = re.compile(r"&(?:#[0-9]{1,7}|#x[0-9a-fA-F]{1,6}|[a-z]{2,8});")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_\-]{8,344}={0,2}")


def decoded(value: str, *, is_secret: bool) -> str:
    """A value without the encodings in which it is written.

    These are percent-encoding, escapes of JSON and entities of XML, and base64 of text
    for secrets.  A value that is not encoded is returned unchanged.
    """
    for _ in range(_MOST_ENCODINGS):
        plain = _decoded_once(value, is_secret=is_secret)
        if plain is None or plain == value or not encodable(plain):
            break
        value = plain
    return value


def _decoded_once(value: str, *, is_secret: bool) -> str | None:
    """The value without its outermost encoding; None if it has none."""
    try:
        if "%" in value and not _NO_ESCAPE.search(value):
            return unquote(value, errors="strict")
        if "\\" in value:
            text: str = json.loads(f'"{value}"')
            return text
        if "&" in value and _ENTITY.search(value):
            return unescape(value)
        if is_secret and _BASE64.fullmatch(value):
            bare = value.rstrip("=")
            padded = bare + "=" * (-len(bare) % 4)
            is_url_safe = "+" not in value and "/" not in value
            data = base64.b64decode(padded, altchars=b"-_" if is_url_safe else None)
            text = data.decode().removesuffix("\n")
            return text if text.isprintable() else None
    except ValueError:
        return None
    return None


def _anchor(text: str) -> re.Match[str]:
    """The longest run of letters and digits, one with a digit if there is any."""
    runs = _RUN.finditer(text)
    return max(runs, key=lambda run: (not run[0].isalpha(), len(run[0])))


@lru_cache(maxsize=256)
def _index(entries: tuple[str, ...]) -> _Index:
    """The index of entries, each as ``Learned`` writes it."""
    lengths: set[int] = set()
    has_digit = True
    by_anchor: dict[bytes, list[_Entry]] = {}
    for written in entries:
        kind, before, anchor, length, code, *letters = written.split(":")
        digests = base64.b64decode(code)
        entry = _Entry(kind, int(before), int(length), digests[_ANCHOR_BYTES:])
        by_anchor.setdefault(digests[:_ANCHOR_BYTES], []).append(entry)
        lengths.add(int(anchor))
        has_digit = has_digit and not letters
    runs = re.compile(rf"[A-Za-z0-9]{{{min(lengths, default=4)},}}")
    return _Index(runs, frozenset(lengths), has_digit, by_anchor)
