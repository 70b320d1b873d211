"""A store of LangGraph: the long-term memory of agents, as items of one session.

LangGraph's ``BaseStore`` keeps values under a namespace and a key.  Each change is an
event in a session of the user, so that an erasure of the user removes all of them, and
a search uses the encrypted index of that session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from refold.adapters.frameworks import import_extra, in_thread
from refold.domain.canonical import canonical
from refold.domain.envelope import Format, Native
from refold.domain.errors import InvalidConfiguration, SessionNotFound
from refold.projections.items import NativeItem
from refold.projections.search.query import MOST_TERMS
from refold.projections.search.terms import terms
from refold.store.session.session import Session
from refold.store.store import SessionStore

if TYPE_CHECKING:
    import langgraph.store.base as lg
else:
    lg = import_extra("langgraph.store.base", "langgraph")

Namespace: TypeAlias = tuple[str, ...]
Digests: TypeAlias = tuple[str, ...]

SESSION: Final = "langgraph-store"
_FORMAT: Final = Format("langgraph-store")
_PUT: Final = "put"
_DELETE: Final = "delete"
_VERSION: Final = 1  # of the folded state
# Redaction takes no word of letters for a number.
_LETTERS: Final = str.maketrans("0123456789abcdef", "abcdefghijklmnop")
_MOST_HITS: Final = 1_000
_QUERY_SIGNS: Final = re.compile(r'[":]')


class _Stored(NamedTuple):
    """A value that is in the store.

    namespace, key: as the log has them, which may be redacted.
    digests:        of the labels of the namespace.
    seq:            of the event that wrote the value.
    indexed:        whether a search finds it.
    """

    namespace: Namespace
    key: str
    digests: Digests
    value: dict[str, Any]
    created_at: datetime
    updated_at: datetime
    seq: int
    indexed: bool


@dataclass(slots=True)
class _Values:
    """The values of a user.

    by_id: in the order in which they were first written.
    seq:   the newest event that was read.
    """

    by_id: dict[str, _Stored] = field(default_factory=dict)
    seq: int = 0

    @classmethod
    def of(cls, session: Session) -> _Values:
        """Return the values of a session, from its stored state and newer changes."""
        state = session.native.fold(SESSION, step=_fold, version=_VERSION)
        values = cls()
        if state is not None:
            values.seq = state["seq"]
            for value_id, fields in state["values"].items():
                values.by_id[value_id] = _stored(fields)
        return values

    def take(self, item: NativeItem) -> None:
        """Follow a change of the log."""
        self.seq = item.events[-1].seq
        value_id = item.value["id"]
        if item.kind == _DELETE:
            self.by_id.pop(value_id, None)
            return
        stored = _stored(_fields_of(item))
        former = self.by_id.get(value_id)
        if former is not None:
            stored = stored._replace(created_at=former.created_at)
        self.by_id[value_id] = stored


class RefoldStore(lg.BaseStore):
    """The long-term memory of LangGraph agents, for one user.

    user_id: the user whose erasure removes the values.

    Values, keys and labels of namespaces are redacted.  ``get`` returns a value in its
    redacted form.  A value is found under its own namespace and key even if redaction
    changes them, because a keyed digest of them identifies it.

    ``search`` with a query ranks the values that have a word of it by BM25, without a
    vector search: ``index`` of ``put`` may be False, and paths in it count as True.
    There is no time to live.  A deleted or changed value is no longer shown, and stays
    in the log until the session ``langgraph-store`` or the user is erased.
    """

    supports_ttl = False

    def __init__(self, store: SessionStore, *, user_id: str) -> None:
        self._store = store
        self._user_id = user_id
        self._lock = RLock()
        self._values = _Values()
        self._key: bytes | None = None

    def batch(self, ops: Iterable[lg.Op]) -> list[lg.Result]:
        """Return the results of operations; reads see the store before the writes.

        Of several writes to the same key, the last one counts.

        Raises InvalidConfiguration for a time to live, InvalidEvent for a value that is
        not JSON, and the errors of an append.
        """
        ops = list(ops)
        with self._lock:
            if any(not isinstance(op, lg.PutOp) for op in ops):
                self._read()
            results: list[lg.Result] = []
            writes: dict[str, lg.PutOp] = {}
            for op in ops:
                match op:
                    case lg.GetOp():
                        results.append(self._get(op))
                    case lg.SearchOp():
                        results.append(self._search(op))
                    case lg.ListNamespacesOp():
                        results.append(self._list_namespaces(op))
                    case lg.PutOp():
                        value_id = self._id(op.namespace, op.key)
                        writes.pop(value_id, None)
                        writes[value_id] = op
                        results.append(None)
                    case _:
                        raise ValueError(f"unknown operation: {type(op).__name__}")
            self._write(writes)
            return results

    async def abatch(self, ops: Iterable[lg.Op]) -> list[lg.Result]:
        """``batch`` for asyncio: it runs in a thread."""
        ops = list(ops)
        return await in_thread(lambda: self.batch(ops))

    # Reads.

    def _read(self) -> None:
        """Read the changes since the last read, also those of other processes."""
        session = self._session()
        try:
            if not self._values.seq:
                self._values = _Values.of(session)
            for item in session.native.read(after=self._values.seq):
                if item.format == _FORMAT.name:
                    self._values.take(item)
        except SessionNotFound:
            self._values = _Values()

    def _get(self, op: lg.GetOp) -> lg.Item | None:
        stored = self._values.by_id.get(self._id(op.namespace, op.key))
        if stored is None:
            return None
        return lg.Item(
            value=stored.value,
            key=op.key,
            namespace=op.namespace,
            created_at=stored.created_at,
            updated_at=stored.updated_at,
        )

    def _search(self, op: lg.SearchOp) -> list[lg.SearchItem]:
        prefix = self._digests(op.namespace_prefix)
        length = len(prefix)
        matches = [
            stored
            for stored in self._values.by_id.values()
            if stored.digests[:length] == prefix and _has(stored.value, op.filter)
        ]
        scores: Mapping[int, float | None] = {}
        if op.query and op.query.strip():
            scores = self._scores(op.query)
            matches = [
                stored for stored in matches if stored.indexed and stored.seq in scores
            ]
            matches.sort(key=lambda stored: scores[stored.seq] or 0.0, reverse=True)
        page = matches[op.offset : op.offset + op.limit]
        return [
            lg.SearchItem(
                namespace=(*op.namespace_prefix, *stored.namespace[length:]),
                key=stored.key,
                value=stored.value,
                created_at=stored.created_at,
                updated_at=stored.updated_at,
                score=scores.get(stored.seq),
            )
            for stored in page
        ]

    def _scores(self, query: str) -> dict[int, float | None]:
        """Return the scores of the values that match a query, by seq."""
        words = _searchable(query)
        if not words or not self._values.by_id:
            return {}
        hits = self._store.search(
            self._user_id, words, session_id=SESSION, limit=_MOST_HITS
        )
        return {hit.seq: hit.score for hit in hits}

    def _list_namespaces(self, op: lg.ListNamespacesOp) -> list[Namespace]:
        conditions = [
            (condition.match_type, self._pattern(condition.path))
            for condition in op.match_conditions or ()
        ]
        namespaces: dict[Digests, Namespace] = {}
        for stored in self._values.by_id.values():
            if all(_matches(stored.digests, *condition) for condition in conditions):
                digests = stored.digests[: op.max_depth]
                namespaces.setdefault(digests, stored.namespace[: op.max_depth])
        in_order = sorted(namespaces.values())
        return in_order[op.offset : op.offset + op.limit]

    # Writes.

    def _write(self, writes: Mapping[str, lg.PutOp]) -> None:
        """Append the changes, all of them or none."""
        natives: list[Native] = []
        for value_id, op in writes.items():
            if op.ttl is not None:
                raise InvalidConfiguration(
                    "RefoldStore keeps values until they are deleted: omit ttl"
                )
            change: dict[str, Any] = {
                "id": value_id,
                "namespace": list(op.namespace),
                "key": op.key,
            }
            if op.value is None:
                natives.append(Native(_FORMAT, _DELETE, None, change))
                continue
            change["labels"] = list(self._digests(op.namespace))
            change["value"] = dict(op.value)
            if op.index is False:
                change["indexed"] = False
            natives.append(Native(_FORMAT, _PUT, None, change))
        if natives:
            self._session().native.append(_FORMAT, natives)

    def _session(self) -> Session:
        return self._store.session(user_id=self._user_id, session_id=SESSION)

    # Identities.

    def _id(self, namespace: Namespace, key: str) -> str:
        """Return the keyed digest of a namespace and a key."""
        return self._digest([*namespace, key])

    def _digests(self, labels: Sequence[str]) -> Digests:
        """Return the keyed digests of labels."""
        return tuple(self._digest(label) for label in labels)

    def _pattern(self, path: Sequence[str]) -> tuple[str | None, ...]:
        """Return the digests of a path; None for a wildcard."""
        return tuple(None if label == "*" else self._digest(label) for label in path)

    def _digest(self, value: Any) -> str:
        if self._key is None:
            writer = self._store.writer
            self._key = writer.log.pseudonym_key(self._user_id, now=writer.clock())
        keyed = blake2b(canonical(value), key=self._key[:64], digest_size=16)
        return keyed.hexdigest().translate(_LETTERS)


def _fold(state: Any, item: NativeItem) -> Any:
    """Return the state, as JSON, after a change."""
    state = state or {"seq": 0, "values": {}}
    state["seq"] = item.events[-1].seq
    if item.format != _FORMAT.name:
        return state
    values = state["values"]
    value_id = item.value["id"]
    if item.kind == _DELETE:
        values.pop(value_id, None)
        return state
    fields = _fields_of(item)
    former = values.get(value_id)
    if former is not None:
        fields["created_at"] = former["created_at"]
    values[value_id] = fields
    return state


def _fields_of(item: NativeItem) -> dict[str, Any]:
    """Return the fields of the value that a change wrote, as JSON."""
    change = item.value
    at = item.events[0].ts.isoformat()
    return {
        "namespace": change["namespace"],
        "key": change["key"],
        "digests": change["labels"],
        "value": change["value"],
        "created_at": at,
        "updated_at": at,
        "seq": item.seq,
        "indexed": change.get("indexed", True),
    }


def _stored(fields: Mapping[str, Any]) -> _Stored:
    """Return the value of these fields."""
    return _Stored(
        namespace=tuple(fields["namespace"]),
        key=fields["key"],
        digests=tuple(fields["digests"]),
        value=fields["value"],
        created_at=datetime.fromisoformat(fields["created_at"]),
        updated_at=datetime.fromisoformat(fields["updated_at"]),
        seq=fields["seq"],
        indexed=fields["indexed"],
    )


def _searchable(query: str) -> str:
    """Return the words of a natural query, as far as one search takes them.

    Quotes and colons lose their meaning for searches.
    """
    words: list[str] = []
    all_terms: set[str] = set()
    for word in _QUERY_SIGNS.sub(" ", query).split():
        word = word[:MOST_TERMS]
        new_terms = terms(word)
        if new_terms and len(all_terms | new_terms.keys()) <= MOST_TERMS:
            words.append(word)
            all_terms |= new_terms.keys()
    return " ".join(words)


def _matches(digests: Digests, match_type: str, pattern: Sequence[str | None]) -> bool:
    """Whether a namespace begins, or ends, with a pattern."""
    if len(digests) < len(pattern):
        return False
    part = digests[: len(pattern)]
    if match_type == "suffix":
        part = digests[len(digests) - len(pattern) :]
    return all(
        wanted in (None, label) for label, wanted in zip(part, pattern, strict=True)
    )


def _has(value: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Whether a value has the fields of a filter."""
    return all(
        _is_equal(value.get(name), field_filter)
        for name, field_filter in (wanted or {}).items()
    )


def _is_equal(value: Any, wanted: Any) -> bool:
    """Whether a field has a value, or what an operator such as ``$gt`` asks for."""
    if isinstance(wanted, dict):
        if any(name.startswith("$") for name in wanted):
            return all(_holds(value, *comparison) for comparison in wanted.items())
        return isinstance(value, dict) and _has(value, wanted)
    if isinstance(wanted, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(wanted):
            return False
        pairs = zip(value, wanted, strict=True)
        return all(_is_equal(item, wanted_item) for item, wanted_item in pairs)
    return bool(value == wanted)


_COMPARISONS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "$gt": lambda value, bound: value > bound,
    "$gte": lambda value, bound: value >= bound,
    "$lt": lambda value, bound: value < bound,
    "$lte": lambda value, bound: value <= bound,
}


def _holds(value: Any, operator: str, bound: Any) -> bool:
    """Whether a comparison of a filter holds; one with a missing field does not."""
    if operator == "$eq":
        return bool(value == bound)
    if operator == "$ne":
        return bool(value != bound)
    if operator not in _COMPARISONS:
        raise ValueError(f"unsupported operator: {operator}")
    if value is None:
        return False
    return _COMPARISONS[operator](float(value), float(bound))
