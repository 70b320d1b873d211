"""The live vault: what numbered placeholders stand for, in this process's memory."""

from __future__ import annotations

import hmac
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from refold.domain.canonical import canonical
from refold.domain.envelope import NUMBERED
from refold.domain.ids import StreamId
from refold.domain.locks import forkable_lock
from refold.projections.context.text import Message
from refold.projections.context.view import View
from refold.redaction.plan import Plan, tag
from refold.redaction.rules import PACKS
from refold.redaction.types import TYPES, UNSCANNED
from refold.redaction.values import JsonValue, RedactionError

_SECRET: Final = {
    rule.type
    for name, rules in PACKS.items()
    for rule in rules
    if name.startswith("secrets")
}
# What a vault keeps unless it is told otherwise; secrets must be named.
PERSONAL: Final = frozenset(TYPES) - _SECRET - {UNSCANNED}
_SIGNED: Final = frozenset({"thinking", "redacted_thinking"})
ANY_TOOL: Final = "*"


def foreign(text: str) -> str:
    """``text`` of another session: its numbered placeholders stand for nothing here."""
    if "[" not in text:
        return text
    return NUMBERED.sub(lambda m: f"[~{m[0][1:]}" if m[1] in TYPES else m[0], text)


def unnumbered(text: str) -> str:
    """``text`` without its placeholders' numbers, and tags for which they are put."""
    return _TAGGED.sub("[]", NUMBERED.sub("[]", text.replace("[~", "[")))


# So many values have numbers in a session: the table is stored with each append.
MOST_NUMBERED: Final = 1000
_TAGGED = re.compile(r"\[[^\[\]#]{1,60}#([a-z2-7]{8})\]")
_KEPT: Final = ("thinking", "redacted_thinking", "compaction")


def inherited(known: Mapping[str, int]) -> dict[str, int]:
    """The table that a fork begins with: it numbers on, and knows no value."""
    last: dict[str, int] = {}
    for entry, number in known.items():
        kind = entry.partition(":")[0] + ":"
        last[kind] = max(number, last.get(kind, 0))
    return last


def told_numbers(known: Mapping[str, int], text: str) -> dict[str, int]:
    """The table without values that ``known`` becomes by what stands in ``text``."""
    found = dict(known)
    for match in NUMBERED.finditer(text):
        number = int(match[0][len(match[1]) + 2 : -1])
        found[f"{match[1]}:"] = max(number, found.get(f"{match[1]}:", 0))
    return found


class Numbering:
    """Numbers the values of a session, for the events of one append.

    It is the tagger while these are redacted; ``told`` then puts numbers for tags.

    known:  by type and tag, the number that a value has; under the type alone the
            last one of the session that this is a fork of.
    values: by type and tag, what was found.
    """

    __slots__ = ("_given", "_key", "_kinds", "_session", "_user_key", "known", "values")

    def __init__(
        self,
        user_key: Callable[[], bytes],
        session_id: str,
        known: Mapping[str, int],
        kinds: frozenset[str],
    ) -> None:
        self._user_key, self._session, self._kinds = user_key, session_id, kinds
        self._key = b""
        self._given: dict[str, str] = {}
        self.known, self.values = dict(known), dict[str, str]()

    def __call__(self, kind: str, value: str) -> str:
        if kind == "ID":
            return tag(self._user_key(), kind, value)
        if not self._key:
            name = b"numbers\0" + self._session.encode("utf-8", "surrogatepass")
            self._key = hmac.digest(self._user_key(), name, "sha256")
        mark = tag(self._key, kind, value)
        entry, room = f"{kind}:{mark}", len(self.known) < MOST_NUMBERED
        if entry not in self.known and kind in self._kinds and room:
            self.known[entry] = self._last(kind) + 1
        if entry in self.known:
            self._given[mark] = f"[{kind}_{self.known[entry]}]"
            self.values.setdefault(entry, value)
        return mark

    def _last(self, kind: str) -> int:
        found = [n for entry, n in self.known.items() if entry.startswith(f"{kind}:")]
        return max(found, default=0)

    def told(self, value: JsonValue, *, ours: bool) -> JsonValue:
        """``value``, redacted with this, with numbers for tags.

        What only looks like a placeholder is escaped; what the model wrote (``ours``)
        may name one that was given.  What a provider signed stays as it is.
        """
        if isinstance(value, str):
            if "[" not in value:
                return value
            # First what others wrote: what is put in is not to be escaped.
            kept = NUMBERED.sub(lambda found: self._escaped(found, ours), value)
            return _TAGGED.sub(lambda m: self._given.get(m[1], m[0]), kept)
        if isinstance(value, list):
            items = [self.told(item, ours=ours) for item in value]
            same = all(new is old for new, old in zip(items, value, strict=True))
            return value if same else items
        if isinstance(value, dict) and not (ours and value.get("type") in _KEPT):
            return self._pairs(value, ours)
        return value

    def _pairs(self, value: dict[str, JsonValue], ours: bool) -> JsonValue:
        pairs = {
            str(self.told(key, ours=ours)): self.told(item, ours=ours)
            for key, item in value.items()
        }
        if len(pairs) < len(value):
            raise RedactionError("two keys look like one placeholder")
        same = all(pairs.get(key) is item for key, item in value.items())
        return value if same else pairs

    def _escaped(self, found: re.Match[str], ours: bool) -> str:
        kind, text = found[1], found[0]
        given = ours and int(text[len(kind) + 2 : -1]) <= self._last(kind)
        return text if kind not in self._kinds or given else f"[~{text[1:]}"


class Renumbering(Numbering):
    """Numbers what is found in stored events, which may name what was given."""

    __slots__ = ()

    def told(self, value: JsonValue, *, ours: bool) -> JsonValue:  # noqa: ARG002  # all
        """As ``Numbering.told``; a look-alike was escaped, or stands for nothing."""
        return super().told(value, ours=True)


# So many values, and bytes of them, are kept of a session: they are stored with each
# append, under its key.
_MOST_KEPT: Final = 500
_MOST_KEPT_BYTES: Final = 32_768


def kept_values(
    before: Mapping[str, tuple[str, int]],
    values: Mapping[str, str],
    plan: Plan,
    now: int,
) -> dict[str, tuple[str, int]]:
    """What is kept of a session when these values come; the old and too many go."""
    kept = {**before}
    for name, value in values.items():
        if name.partition(":")[0] in plan.kept:
            kept.pop(name, None)
            kept[name] = (value, now)
    kept = unexpired(kept, plan, now)
    size = sum(_size(value) for value, _ in kept.values())
    while len(kept) > _MOST_KEPT or size > _MOST_KEPT_BYTES:
        size -= _size(kept.pop(next(iter(kept)))[0])
    return kept


def unexpired(
    kept: Mapping[str, tuple[str, int]], plan: Plan, now: int
) -> dict[str, tuple[str, int]]:
    """Those that may be kept still: of types that are kept, and not too old."""
    since = now - plan.kept_sec * 1_000_000 if plan.kept_sec else 0
    # A time to come is that of a wrong clock: the value ages from now on.
    return {
        name: (value, min(at, now))
        for name, (value, at) in kept.items()
        if at >= since and name.partition(":")[0] in plan.kept
    }


class Revealed(NamedTuple):
    """A value with what its placeholders stand for, and how many of which type."""

    value: Any
    types: Mapping[str, int]

    def __repr__(self) -> str:
        return f"Revealed({dict(self.types)})"


NOTHING_KEPT: Final[Mapping[str, tuple[str, int]]] = MappingProxyType({})


class Vault:
    """Keeps values in memory, and puts them where their placeholders stand.

    Nothing of it is written, and another process has none of it.  Threads may share it.

    types:      those that are kept; of secrets only what is named here.
    arguments:  by the name of a tool, or ``*`` for any, which types are put into the
                arguments of its calls; none unless it is said.
    most:       so many values are kept, and so many bytes of them: what was not used
                for longest goes.
    """

    def __init__(
        self,
        *,
        types: Collection[str] = PERSONAL,
        arguments: Mapping[str, Collection[str]] | None = None,
        most: int = 10_000,
        most_bytes: int = 8_388_608,
    ) -> None:
        if min(most, most_bytes) < 1:
            raise ValueError(f"a vault keeps at least 1, not {most} or {most_bytes}")
        self._types, self._arguments = frozenset(types), dict(arguments or {})
        self._most, self._most_bytes = most, most_bytes
        self._values: OrderedDict[tuple[StreamId, str], str] = OrderedDict()
        self._bytes = 0
        self._lock = forkable_lock()

    def __repr__(self) -> str:
        return f"Vault({len(self._values)} values)"

    def __len__(self) -> int:
        return len(self._values)

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError("a vault is not written")

    def put(self, stream: StreamId, values: Mapping[str, str]) -> None:
        """Keep these values of a session, by type and keyed hash, as far as it may."""
        for name, value in values.items():
            if name.partition(":")[0] not in self._types:
                continue
            with self._lock:
                known = self._values.pop((stream, name), "")
                self._bytes += _size(value) - _size(known)
                self._values[stream, name] = value
                while len(self._values) > self._most or self._bytes > self._most_bytes:
                    self._bytes -= _size(self._values.popitem(last=False)[1])

    def get(self, stream: StreamId, name: str) -> str | None:
        """The value of this type and keyed hash; None if it is not here."""
        with self._lock:
            if (value := self._values.get((stream, name))) is not None:
                self._values.move_to_end((stream, name))
            return value

    def forget(self, user_id: str, session_id: str | None = None) -> None:
        """Drop what is known of a session, or of all of a user's."""
        with self._lock:
            for key in [*self._values]:
                owner, name, _ = key[0]
                if owner == user_id and session_id in (None, name):
                    self._bytes -= _size(self._values.pop(key))

    def allowed(self, tool: str) -> frozenset[str]:
        """The types that may be put into the arguments of calls of this tool."""
        named = self._arguments.get(tool, self._arguments.get(ANY_TOOL, ()))
        return frozenset(named)

    def reveal(
        self,
        stream: StreamId,
        numbers: Mapping[str, int],
        value: Any,
        *,
        types: Collection[str] | None = None,
        kept: Mapping[str, tuple[str, int]] = NOTHING_KEPT,
    ) -> Revealed:
        """``value`` with values of these types, or all, where placeholders stand.

        numbers: the session's table.  What is not known here, or what another session
                 gave, stays; so does what a provider signed.
        kept:    what is kept of the session besides.
        """
        names = {
            f"[{name.partition(':')[0]}_{number}]": name
            for name, number in numbers.items()
            if not name.endswith(":")
        }
        found = Counter[str]()

        def one(match: re.Match[str]) -> str:
            kind, placeholder = match[1], match[0]
            name = names.get(placeholder)
            if name is None or (types is not None and kind not in types):
                return placeholder
            known = self.get(stream, name) or kept.get(name, (None,))[0]
            found[kind] += known is not None
            return placeholder if known is None else known

        told = _mapped(value, partial(NUMBERED.sub, one))
        return Revealed(told, {kind: n for kind, n in sorted(found.items()) if n})


def mac_of(key: bytes, value: Any) -> str:
    """What proves that this was sent to whoever has the key, and tells nothing else."""
    return hmac.digest(key, canonical(value), "sha256").hex()


def in_own_blocks(
    view: View, put: Callable[[Any], Revealed]
) -> tuple[list[Message], dict[str, int]]:
    """The messages with values put into the blocks that are of the session's events."""
    found, messages = Counter[str](), list[Message]()
    for message, origins in zip(view.messages, view.origins, strict=True):
        blocks = []
        for block, origin in zip(message["content"], origins, strict=True):
            if origin.span is not None and origin.span.first is not None:
                block, types = put(block)
                found.update(types)
            blocks.append(block)
        messages.append({**message, "content": blocks})
    return messages, dict(found)


def _mapped(value: Any, put: Any) -> Any:
    if isinstance(value, str):
        return put(value) if "[" in value else value
    if isinstance(value, list):
        return [_mapped(item, put) for item in value]
    if isinstance(value, dict):
        if value.get("type") in _SIGNED:
            return value
        return {put(key): _mapped(item, put) for key, item in value.items()}
    return value


def _size(value: str) -> int:
    return len(value.encode("utf-8", "surrogatepass"))
