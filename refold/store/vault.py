"""The vault: the values of numbered placeholders, in the memory of this process."""

from __future__ import annotations

import hmac
import json
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from refold.domain.canonical import canonical
from refold.domain.ids import StreamId
from refold.domain.locks import computed_once, forkable_lock
from refold.domain.placeholders import NUMBERED
from refold.redaction.learned import SECRET_TYPES, decoded
from refold.redaction.plan import Plan, exact_tag, plain, tag
from refold.redaction.types import TYPES, UNSCANNED
from refold.redaction.values import JsonValue, RedactionError

if TYPE_CHECKING:
    from refold.projections.context.text import Message
    from refold.projections.context.view import View

# Blocks that a provider signed: a changed byte makes them invalid.
_SIGNED: Final = frozenset({"thinking", "redacted_thinking"})
ANY_TOOL: Final = "*"

# The most values of a session that get numbers: each append stores the table of them.
MOST_NUMBERED: Final = 1000
# A placeholder with the tag of its value, which a number replaces.
_TAGGED: Final = re.compile(r"\[[^\[\]#]{1,60}#([a-z2-7]{8})\]")
# Blocks of the model in which no number is put.
_UNNUMBERED_BLOCKS: Final = ("thinking", "redacted_thinking", "compaction")


def escape_placeholders(text: str) -> str:
    """Escape the numbered placeholders in a text of another session.

    Their numbers mean nothing in this session, or another value.
    """
    if "[" not in text:
        return text

    def escape(match: re.Match[str]) -> str:
        placeholder = match[0]
        kind = match[1]
        return f"[~{placeholder[1:]}" if kind in TYPES else placeholder

    return NUMBERED.sub(escape, text)


def unnumbered(text: str) -> str:
    """Empty each placeholder, which makes texts with tags and with numbers equal."""
    return _TAGGED.sub("[]", NUMBERED.sub("[]", text.replace("[~", "[")))


def numbers_for_fork(numbers: Mapping[str, int]) -> dict[str, int]:
    """Return a fork's first table: the last number of each type, without values."""
    last: dict[str, int] = {}
    for entry, number in numbers.items():
        kind = entry.partition(":")[0] + ":"
        last[kind] = max(number, last.get(kind, 0))
    return last


def numbers_after(numbers: Mapping[str, int], text: str) -> dict[str, int]:
    """Return the last number of each type after the placeholders in ``text``.

    numbers: the last numbers before the text, each under its type and a colon.
    """
    last = dict(numbers)
    for match in NUMBERED.finditer(text):
        kind = match[1]
        number = _number_in(match[0], kind)
        last[f"{kind}:"] = max(number, last.get(f"{kind}:", 0))
    return last


def _number_in(placeholder: str, kind: str) -> int:
    """Return the number in a placeholder: 12 for ``[EMAIL_12]`` or ``[EMAIL_12.2]``."""
    digits, _, _ = placeholder[len(f"[{kind}_") : -1].partition(".")
    return int(digits)


# An entry of the table of numbers: ``type:tag``, and what follows the tag.  ``.2`` to
# ``.9`` is another spelling of the value, ``#`` a number of JSON instead of a text, and
# ``=`` the decoded value of an encoded spelling, for which no text has a placeholder.
_ENTRY: Final = re.compile(r"([^:]+):[a-z2-7]{8}(\.[2-9])?(#?)")
_MOST_SPELLINGS: Final = 9
# A placeholder that stands for a number of JSON, with the quotes that it needs there.
_QUOTED: Final = re.compile(rf"(?P<quote>\\{{0,7}}[\"']){NUMBERED.pattern}(?P=quote)")


def _placeholder_of(entry: str, number: int) -> str | None:
    """Return the placeholder of an entry; None for one without a value."""
    match = _ENTRY.fullmatch(entry)
    if match is None:
        return None
    return f"[{match[1]}_{number}{match[2] or ''}]"


def _spelling(number: int) -> str:
    """Return the suffix of a spelling in a name or placeholder; empty for the first."""
    return "" if number == 1 else f".{number}"


class _Tagged(NamedTuple):
    """A spelling of a value for which a tag was made.

    kind:  its type.
    value: the characters.
    mark:  ``#`` if they are a number of JSON, else empty.
    """

    kind: str
    value: str
    mark: str

    @property
    def spelling(self) -> str:
        """The characters of which tags are made: numbers and texts have other tags."""
        return f"{self.value}\0" if self.mark else self.value


class NumberedValue(NamedTuple):
    """A value, and the placeholder that replaced it.

    is_number: whether the value is a number of JSON instead of a text.
    """

    placeholder: str
    value: str
    is_number: bool


class Numbering:
    """Numbers the values of a session, for the events of one append.

    It is the tagger while the events are redacted.  Afterwards, ``with_numbers``
    replaces the tags by numbers, and gives numbers to new values.

    known:  the number of each value, under ``type:tag``, and of each other spelling of
            it (see ``_ENTRY``).  The last number of a parent of a fork is under
            ``type:``.
    values: the spellings that ``with_numbers`` replaced, under the same names.
    """

    __slots__ = (
        "_key",
        "_kinds",
        "_last_numbers",
        "_placeholders",
        "_session",
        "_spellings",
        "_tagged",
        "_user_key",
        "known",
        "values",
    )

    def __init__(
        self,
        user_key: Callable[[], bytes],
        session_id: str,
        known: Mapping[str, int],
        kinds: frozenset[str],
    ) -> None:
        self._user_key = user_key
        self._session = session_id
        self._kinds = kinds
        self._key = b""
        self._tagged: dict[str, _Tagged] = {}
        # The numbered placeholder of each tag.
        self._placeholders: dict[str, str] = {}
        # Each is read from ``known`` when it is first needed.
        self._last_numbers: dict[str, int] | None = None
        self._spellings: dict[tuple[str, int], set[str]] | None = None
        self.known = dict(known)
        self.values: dict[str, str] = {}

    def __call__(self, kind: str, value: str) -> str:
        """Return the tag of a value, for which ``with_numbers`` puts a number.

        All encodings of a value have one number: plain, URL-encoded, escaped in JSON,
        for secrets base64, and for e-mail addresses either letter case.  A secret keeps
        the type under which it was first found.
        Each spelling has its own placeholder, so that every placeholder is revealed as
        the characters that it replaced.
        """
        if kind == "ID":
            return tag(self._user_key(), kind, value)
        return self._tag_of(_Tagged(kind, value, ""))

    def numbered_values(self) -> list[NumberedValue]:
        """Return the values that ``with_numbers`` replaced by placeholders."""
        numbered: list[NumberedValue] = []
        for entry, value in self.values.items():
            placeholder = _placeholder_of(entry, self.known[entry])
            if placeholder is not None:
                numbered.append(NumberedValue(placeholder, value, entry.endswith("#")))
        return numbered

    def value_of(self, tag: str) -> str | None:
        """Return the value that this tag stands for; None if it was not made here."""
        tagged = self._tagged.get(tag)
        return None if tagged is None else tagged.value

    def respelled(self, tag: str, written: str, *, is_number: bool = False) -> str:
        """Return the tag of the same value as it is written around its placeholder.

        written:   the characters that the placeholder replaces.
        is_number: they are a number of JSON, which the placeholder replaces by a text.
                   The result is the tag of a number, too.
        """
        tagged = self._tagged[tag]
        mark = "#" if is_number else tagged.mark
        return self._tag_of(_Tagged(tagged.kind, written, mark))

    def _tag_of(self, tagged: _Tagged) -> str:
        value_tag = self._exact_tag(tagged.kind, tagged.spelling)
        self._tagged[value_tag] = tagged
        return value_tag

    def _exact_tag(self, kind: str, spelling: str) -> str:
        if not self._key:
            name = b"numbers\0" + self._session.encode("utf-8", "surrogatepass")
            self._key = hmac.digest(self._user_key(), name, "sha256")
        return exact_tag(self._key, kind, spelling)

    def _numbered(self, match: re.Match[str]) -> str:
        """Return the numbered placeholder for a tag, or the tag if it has none."""
        value_tag = match[1]
        placeholder = self._placeholders.get(value_tag)
        if placeholder is not None:
            return placeholder
        tagged = self._tagged.get(value_tag)
        if tagged is None:
            return match[0]
        entry = self._entry_of(tagged)
        if entry is None and tagged.kind in self._kinds:
            entry = self._new_entry(tagged, f"{tagged.kind}:{value_tag}")
        if entry is None:
            return match[0]
        placeholder = _placeholder_of(entry, self.known[entry])
        if placeholder is None:
            return match[0]
        self._placeholders[value_tag] = placeholder
        self.values[entry] = tagged.value
        return placeholder

    def _types_of(self, kind: str) -> list[str]:
        """Return the types under which a value of this type may have its number.

        Types that have no number yet are left out.
        """
        types = [kind]
        if kind in SECRET_TYPES:
            types += sorted(SECRET_TYPES - {kind})
        last_numbers = self._last()
        return [type_ for type_ in types if type_ in last_numbers]

    def _entry_of(self, tagged: _Tagged) -> str | None:
        """Return the entry of exactly this spelling, if it has a placeholder."""
        for type_ in self._types_of(tagged.kind):
            name = f"{type_}:{self._exact_tag(type_, tagged.spelling)}"
            for number in range(1, _MOST_SPELLINGS + 1):
                entry = f"{name}{_spelling(number)}{tagged.mark}"
                if entry in self.known:
                    return entry
        return None

    def _new_entry(self, tagged: _Tagged, name: str) -> str | None:
        """Give a new spelling a number, that of its value if it has one already.

        name: ``type:tag`` of the spelling.

        Returns None if the session has no numbers left.
        """
        if len(self.known) >= MOST_NUMBERED:
            return None
        kind, value, mark = tagged
        plain_value = decoded(value, is_secret=kind in SECRET_TYPES)
        if kind == "EMAIL":
            plain_value = plain(kind, plain_value)  # in one letter case
        owner = self._owner(kind, plain_value)
        if owner is None:
            entry = f"{name}{mark}"
            number = self._add_with_next_number(kind, entry)
            if plain_value != value or mark:
                self.known[f"{kind}:{self._exact_tag(kind, plain_value)}="] = number
            return entry
        type_, number = owner
        spelling = self._next_spelling(type_, number)
        if spelling is None:
            entry = f"{name}{mark}"
            self._add_with_next_number(kind, entry)
            return entry
        tag_of_spelling = self._exact_tag(type_, tagged.spelling)
        entry = f"{type_}:{tag_of_spelling}{spelling}{mark}"
        self._add(type_, entry, number, spelling)
        return entry

    def _add_with_next_number(self, kind: str, entry: str) -> int:
        number = self._last().get(kind, 0) + 1
        self._add(kind, entry, number)
        return number

    def _add(self, kind: str, entry: str, number: int, spelling: str = "") -> None:
        """Add an entry to the table, and to the indexes of the table."""
        last_numbers = self._last()
        last_numbers[kind] = max(number, last_numbers.get(kind, 0))
        if self._spellings is not None:
            self._spellings.setdefault((kind, number), set()).add(spelling)
        self.known[entry] = number

    def _owner(self, kind: str, plain_value: str) -> tuple[str, int] | None:
        """Return the type and the number of a decoded value, if it has one."""
        for type_ in self._types_of(kind):
            name = f"{type_}:{self._exact_tag(type_, plain_value)}"
            for entry in (name, f"{name}="):
                if entry in self.known:
                    return type_, self.known[entry]
        return None

    def _next_spelling(self, kind: str, number: int) -> str | None:
        """Return the suffix of a value's next spelling; None if all are taken."""
        taken = self._spellings_by_number().get((kind, number), ())
        for spelling in map(_spelling, range(1, _MOST_SPELLINGS + 1)):
            if spelling not in taken:
                return spelling
        return None

    def _last(self) -> dict[str, int]:
        """Return the last number of each type that has one."""
        if self._last_numbers is None:
            self._last_numbers = {}
            for entry, number in self.known.items():
                kind = _type_of(entry)
                if number > self._last_numbers.get(kind, 0):
                    self._last_numbers[kind] = number
        return self._last_numbers

    def _spellings_by_number(self) -> dict[tuple[str, int], set[str]]:
        """Return the spellings that have a placeholder, by type and number."""
        if self._spellings is None:
            self._spellings = {}
            for entry, number in self.known.items():
                match = _ENTRY.fullmatch(entry)
                if match is not None:
                    key = (match[1], number)
                    self._spellings.setdefault(key, set()).add(match[2] or "")
        return self._spellings

    def with_numbers(self, value: JsonValue, *, ours: bool) -> JsonValue:
        """Return a redacted value with numbers in place of this tagger's tags.

        A text that only looks like a numbered placeholder is escaped.  Blocks that a
        provider signed stay as they are.

        ours: whether the model wrote the value.  Then numbered placeholders in it refer
              to placeholders that the model was sent.

        Raises RedactionError if two keys become equal.
        """
        if isinstance(value, str):
            if "[" not in value:
                return value
            # Escape look-alikes before numbers are put in, which must not be escaped.
            escaped = NUMBERED.sub(partial(self._escaped, ours=ours), value)
            return _TAGGED.sub(self._numbered, escaped)
        if isinstance(value, list):
            items = [self.with_numbers(item, ours=ours) for item in value]
            same = all(new is old for new, old in zip(items, value, strict=True))
            return value if same else items
        if isinstance(value, dict):
            if ours and value.get("type") in _UNNUMBERED_BLOCKS:
                return value
            return self._pairs(value, ours=ours)
        return value

    def _pairs(self, value: dict[str, JsonValue], *, ours: bool) -> JsonValue:
        """Return an object with numbers in its keys and values."""
        pairs: dict[str, JsonValue] = {}
        for key, item in value.items():
            new_key = str(self.with_numbers(key, ours=ours))
            pairs[new_key] = self.with_numbers(item, ours=ours)
        if len(pairs) < len(value):
            raise RedactionError("two keys look like one placeholder")
        same = all(pairs.get(key) is item for key, item in value.items())
        return value if same else pairs

    def _escaped(self, match: re.Match[str], *, ours: bool) -> str:
        """Return the text of a match, escaped unless it refers to a placeholder."""
        placeholder = match[0]
        kind = match[1]
        if kind not in self._kinds:
            return placeholder
        if ours and _number_in(placeholder, kind) <= self._last().get(kind, 0):
            return placeholder
        return f"[~{placeholder[1:]}"


class Renumbering(Numbering):
    """Numbers the values of stored events, which may refer to earlier placeholders."""

    __slots__ = ()

    def with_numbers(self, value: JsonValue, *, ours: bool) -> JsonValue:  # noqa: ARG002  # all
        """Like ``Numbering.with_numbers``, but every text may refer to a placeholder.

        The append has already escaped texts that only look like one.
        """
        return super().with_numbers(value, ours=True)


# The most values of a session that are stored, and the most bytes of them: each append
# stores them, encrypted with the session's key.
_MOST_KEPT: Final = 500
_MOST_KEPT_BYTES: Final = 32_768


def kept_values(
    before: Mapping[str, tuple[str, int]],
    values: Mapping[str, str],
    plan: Plan,
    now: int,
) -> dict[str, tuple[str, int]]:
    """Return the stored values of a session after new ones, each with its time.

    Values that are too old are dropped; if there are too many, the oldest are dropped.

    values: under ``type:tag``; only types that the policy keeps are added.
    now:    microseconds since 1970.
    """
    stored = {**before}
    for name, value in values.items():
        if _type_of(name) in plan.kept:
            stored.pop(name, None)  # so that the value is the newest
            stored[name] = (value, now)
    stored = unexpired(stored, plan, now)
    size = sum(_size(value) for value, _ in stored.values())
    while len(stored) > _MOST_KEPT or size > _MOST_KEPT_BYTES:
        oldest = next(iter(stored))
        value, _ = stored.pop(oldest)
        size -= _size(value)
    return stored


def unexpired(
    kept: Mapping[str, tuple[str, int]], plan: Plan, now: int
) -> dict[str, tuple[str, int]]:
    """Return the stored values that the policy still keeps, and that are not too old.

    kept: each value with the time at which it was last seen.
    """
    since = 0
    if plan.kept_sec:
        since = now - plan.kept_sec * 1_000_000
    values: dict[str, tuple[str, int]] = {}
    for name, (value, seen_at) in kept.items():
        if seen_at >= since and _type_of(name) in plan.kept:
            # A time in the future comes from a wrong clock: the value ages from now on.
            values[name] = (value, min(seen_at, now))
    return values


def _type_of(name: str) -> str:
    """Return the type in ``type:tag``."""
    kind, _, _ = name.partition(":")
    return kind


class Revealed(NamedTuple):
    """A value with its placeholders replaced by what they stand for.

    types: the number of replaced placeholders, by type.
    """

    value: Any
    types: Mapping[str, int]

    def __repr__(self) -> str:
        return f"Revealed({dict(self.types)})"


NOTHING_KEPT: Final[Mapping[str, tuple[str, int]]] = MappingProxyType({})


@cache
def personal_types() -> frozenset[str]:
    """The types of values that no rule of a pack for secrets finds."""
    from refold.redaction.rules import PACKS

    secret: set[str] = set()
    for name, rules in PACKS.items():
        if name.startswith("secrets"):
            secret.update(rule.type for rule in rules)
    return frozenset(TYPES) - secret - {UNSCANNED}


class Vault:
    """Keeps the values of placeholders in memory, and reveals them.

    Nothing is written to disk or shared with another process.  Threads may share it.

    types:      the types that it keeps; types of secrets must be named here.  Default:
                all types of personal data.
    arguments:  by the name of a tool, or ``*`` for any other: the types that are
                revealed in the arguments of its calls.  None by default.
    most:       the most values.  The value that was not used for the longest time is
                dropped first.
    most_bytes: the most bytes of values.

    Raises ValueError if one of these is below 1.
    """

    def __init__(
        self,
        *,
        types: Collection[str] | None = None,
        arguments: Mapping[str, Collection[str]] | None = None,
        most: int = 10_000,
        most_bytes: int = 8_388_608,
    ) -> None:
        if min(most, most_bytes) < 1:
            raise ValueError(f"a vault keeps at least 1, not {most} or {most_bytes}")
        self._named_types = None if types is None else frozenset(types)
        self._arguments = dict(arguments or {})
        self._most = most
        self._most_bytes = most_bytes
        self._values: OrderedDict[tuple[StreamId, str], str] = OrderedDict()
        self._bytes = 0
        self._lock = forkable_lock()

    @computed_once
    def _types(self) -> frozenset[str]:
        """The types that it keeps."""
        if self._named_types is None:
            return personal_types()
        return self._named_types

    def __repr__(self) -> str:
        return f"Vault({len(self._values)} values)"

    def __len__(self) -> int:
        return len(self._values)

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("a vault cannot be pickled or copied: it stays in memory")

    def put(self, stream: StreamId, values: Mapping[str, str]) -> None:
        """Keep these values of a session, if their types are kept.

        values: under ``type:tag``.
        """
        for name, value in values.items():
            if _type_of(name) not in self._types:
                continue
            with self._lock:
                before = self._values.pop((stream, name), "")
                self._bytes += _size(value) - _size(before)
                self._values[stream, name] = value
                while len(self._values) > self._most or self._bytes > self._most_bytes:
                    _, oldest = self._values.popitem(last=False)
                    self._bytes -= _size(oldest)

    def get(self, stream: StreamId, name: str) -> str | None:
        """Return the value under this ``type:tag``; None if the vault lacks it."""
        with self._lock:
            value = self._values.get((stream, name))
            if value is not None:
                self._values.move_to_end((stream, name))
            return value

    def forget(self, user_id: str, session_id: str | None = None) -> None:
        """Drop the values of a session, or of all sessions of a user."""
        with self._lock:
            for key in [*self._values]:
                stream, _ = key
                if stream.user_id != user_id:
                    continue
                if session_id is None or stream.session_id == session_id:
                    self._bytes -= _size(self._values.pop(key))

    def allowed(self, tool: str) -> frozenset[str]:
        """Return the types that are revealed in the arguments of this tool's calls."""
        types = self._arguments.get(tool, self._arguments.get(ANY_TOOL, ()))
        return frozenset(types)

    def reveal(
        self,
        stream: StreamId,
        numbers: Mapping[str, int],
        value: Any,
        *,
        types: Collection[str] | None = None,
        kept: Mapping[str, tuple[str, int]] = NOTHING_KEPT,
    ) -> Revealed:
        """Return ``value`` with values in place of the session's placeholders.

        A placeholder stays if no value is known for it, or if another session numbered
        it.  Blocks that a provider signed stay as they are.

        numbers: the session's table.
        types:   only values of these types; None is all.
        kept:    values that are stored with the session.
        """
        names: dict[str, str] = {}  # by placeholder
        has_numbers = False
        for name, number in numbers.items():
            known_placeholder = _placeholder_of(name, number)
            if known_placeholder is not None:
                names[known_placeholder] = name
                has_numbers = has_numbers or name.endswith("#")
        revealed: Counter[str] = Counter()

        def value_of(placeholder: str, kind: str) -> str | None:
            name = names.get(placeholder)
            if name is None or (types is not None and kind not in types):
                return None
            text = self.get(stream, name)
            if not text:
                text, _ = kept.get(name, (None, 0))
            if text is not None:
                revealed[kind] += 1
            return text

        def reveal(match: re.Match[str]) -> str:
            text = value_of(match[0], match[1])
            return match[0] if text is None else text

        def reveal_number(match: re.Match[str]) -> str:
            placeholder = match[0].strip("\\\"'")
            if not names.get(placeholder, "").endswith("#"):
                return match[0]
            text = value_of(placeholder, match[2])
            return match[0] if text is None else text

        def reveal_text(text: str) -> JsonValue:
            if has_numbers:
                if NUMBERED.fullmatch(text) and names.get(text, "").endswith("#"):
                    number = NUMBERED.sub(reveal, text)
                    return text if number == text else _number_or_text(number)
                text = _QUOTED.sub(reveal_number, text)
            return NUMBERED.sub(reveal, text)

        result = _mapped(value, reveal_text)
        return Revealed(result, dict(sorted(revealed.items())))


def _number_or_text(characters: str) -> JsonValue:
    """Return the number that is written so, or the text if JSON would write another.

    ``1.50`` would become ``1.5``, and ``007`` is no number of JSON.
    """
    from refold.redaction.json_text import compact_json

    try:
        number = cast(JsonValue, json.loads(characters))
    except ValueError:
        return characters
    return number if compact_json(number) == characters else characters


def mac_of(key: bytes, value: Any) -> str:
    """Return a code that hides a value, and that an owner of the key can check."""
    return hmac.digest(key, canonical(value), "sha256").hex()


def in_own_blocks(
    view: View, reveal: Callable[[Any], Revealed]
) -> tuple[list[Message], dict[str, int]]:
    """Reveal values in the blocks of a view that come from the session's own events.

    Returns the messages, and how many placeholders of each type were replaced.
    """
    revealed: Counter[str] = Counter()
    messages: list[Message] = []
    for message, origins in zip(view.messages, view.origins, strict=True):
        blocks = []
        for block, origin in zip(message["content"], origins, strict=True):
            if origin.span is not None and origin.span.first is not None:
                block, types = reveal(block)
                revealed.update(types)
            blocks.append(block)
        messages.append({**message, "content": blocks})
    return messages, dict(revealed)


def _mapped(value: Any, reveal: Callable[[str], JsonValue]) -> Any:
    """Apply ``reveal`` to each text in ``value``, except in signed blocks."""
    if isinstance(value, str):
        return reveal(value) if "[" in value else value
    if isinstance(value, list):
        return [_mapped(item, reveal) for item in value]
    if isinstance(value, dict):
        if value.get("type") in _SIGNED:
            return value
        return {str(reveal(key)): _mapped(item, reveal) for key, item in value.items()}
    return value


def _size(value: str) -> int:
    """Return the bytes of a value."""
    return len(value.encode("utf-8", "surrogatepass"))
