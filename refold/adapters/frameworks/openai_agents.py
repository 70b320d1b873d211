"""Sessions for the OpenAI Agents SDK, compacted if a strategy is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from refold.adapters.frameworks import (
    as_stored,
    erase_session,
    import_extra,
    in_thread,
    redact_unstored,
)
from refold.adapters.importers import base, openai
from refold.domain.envelope import Draft, Format, Native
from refold.domain.errors import StaleSession
from refold.domain.events import ProviderEdit
from refold.projections.context.compaction import Summarizer
from refold.projections.context.strategy import Strategy
from refold.projections.items import NativeItem
from refold.store.session.session import Session
from refold.store.store import SessionStore

_settings = import_extra("agents.memory.session_settings", "openai-agents")
_NO_ID: Final = import_extra("agents.models.fake_id", "openai-agents").FAKE_RESPONSES_ID
_NAME: Final = "openai-agents"
_StoredPlaces = list[list[Any]]  # first seq, last seq and id of each live item
T = TypeVar("T")


class _Place(NamedTuple):
    """Where a live item is: an item that was neither popped nor cleared."""

    first: int
    last: int
    item_id: str | None


def _events_of(kind: str, item: Any, calls: Mapping[str, Any]) -> Iterator[Draft]:
    """Yield the events of an item; an output without a known call has none."""
    is_unknown_output = "output" in item and item.get("call_id") not in calls
    if kind == "item" and not is_unknown_output:
        yield from base.drafts_of(openai.response_item(item), base.Origin(""))


FORMAT = Format(_NAME, view=_events_of, kind=lambda _: "item")


def _step(places: _StoredPlaces, item: NativeItem) -> _StoredPlaces:
    """Fold an item into the list of live items."""
    if item.format != _NAME:
        return places
    if item.kind == "drop":
        return [place for place in places if place[0] < item.value["from"]]
    return [*places, [item.seq, item.events[-1].seq, _id_of(item.value)]]


def _id_of(item: Any) -> str | None:
    item_id = item.get("id") if isinstance(item, dict) else None
    return None if item_id == _NO_ID else item_id


class RefoldSession:
    """One conversation of a user; pass it to ``Runner.run(…, session=…)``.

    Items that were popped or cleared stay in the log.  They are not returned again, and
    contexts leave them out.

    strategy:       decides after each turn whether to compact; None never compacts.
    erase_on_clear: ``clear_session`` erases the items from the log.
    """

    def __init__(
        self,
        store: SessionStore,
        session_id: str,
        *,
        user_id: str,
        strategy: str | Strategy | None = None,
        summarizer: Summarizer | None = None,
        erase_on_clear: bool = False,
        session_settings: Any = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings = _settings.coerce_session_settings(
            session_settings or _settings.SessionSettings()
        )
        self._store = store
        self._user_id = user_id
        self._strategy = strategy
        self._summarizer = summarizer
        self._erase_on_clear = erase_on_clear
        self._closed = False

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """The live items, or the newest ``limit`` of them.

        Summaries stand in place of items that were compacted.
        """
        most = _settings.resolve_session_limit(limit, self.session_settings)
        return await self._run(lambda session: self._items(session, most))

    async def add_items(self, items: Sequence[Any]) -> None:
        """Append items; an item that is stored under its id is not repeated."""

        def new_natives(session: Session, places: list[_Place]) -> list[Any]:
            new_items = _new_items(session, places, items)
            return [Native(FORMAT, "item", None, item) for item in new_items]

        await self._run(lambda session: _append(session, new_natives))

    async def pop_item(self) -> Any | None:
        """Take back the newest item and return it; None if there is none."""

        def pop(session: Session) -> Any | None:
            places = _append(session, lambda _, places: _drop_from(places[-1:]))
            if not places:
                return None
            return _values(session, places[-1:])[0]

        return await self._run(pop)

    async def clear_session(self) -> None:
        """Take back all items, or erase them."""

        def clear(session: Session) -> None:
            if self._erase_on_clear:
                erase_session(session, "the OpenAI Agents SDK")
            else:
                _append(session, lambda _, places: _drop_from(places))

        await self._run(clear)

    async def run_compaction(self, args: Any = None) -> None:  # noqa: ARG002  # the SDK's
        """Compact if the strategy decides so; the SDK calls this after a turn."""
        if self._strategy is not None:
            await self._run(
                lambda session: session.compact(
                    self._strategy, summarizer=self._summarizer
                )
            )

    async def call_model_input_filter(self, data: Any) -> Any:
        """A filter for ``RunConfig`` that redacts what the model is sent."""
        request = data.model_data

        def redact(session: Session) -> Any:
            items = as_stored(
                session,
                FORMAT,
                request.input,
                read_stored=partial(self._items, session, None),
            )
            instructions = redact_unstored(session, FORMAT, request.instructions)
            return type(request)(input=items, instructions=instructions)

        return await self._run(redact)

    def close(self) -> None:
        """Refuse all later calls."""
        self._closed = True

    async def _run(self, work: Callable[[Session], T]) -> T:
        """Run ``work`` on the Refold session, in a thread."""
        if self._closed:
            raise RuntimeError(f"session {self.session_id!r} is closed")
        name = f"{_NAME}\0{self.session_id}"
        labels = {"framework": _NAME, "openai_session": self.session_id}

        def run() -> T:
            session = self._store.named(name, user_id=self._user_id, labels=labels)
            return work(session)

        return await in_thread(run)

    def _items(self, session: Session, most: int | None) -> list[Any]:
        live_places = _live_places(session)
        summaries = self._summaries(session)
        messages = [{"role": "user", "content": text} for text in summaries.values()]
        places = []
        for place in live_places:
            is_compacted = any(
                first <= place.first <= last for first, last in summaries
            )
            if not is_compacted:
                places.append(place)

        if most is not None and most >= 0:
            left_out = max(0, len(messages) + len(places) - most)
            places = places[max(0, left_out - len(messages)) :]
            messages = messages[left_out:]
        return [*messages, *_values(session, places)]

    def _summaries(self, session: Session) -> dict[tuple[int, int], str]:
        """The summaries in the strategy's context, by the span they stand for."""
        if self._strategy is None or not self._store.log.head(session.stream).seq:
            return {}
        view = session.context(self._strategy)
        summaries: dict[tuple[int, int], str] = {}
        for message, origins in zip(view.messages, view.origins, strict=True):
            for block, (span, _) in zip(message["content"], origins, strict=True):
                if span and span.kind == "summary" and span.first and span.last:
                    text = block.get("text")
                    if text is None:
                        text = block.get("content", "")
                    place = (span.first, span.last)
                    summaries[place] = f"{summaries.get(place, '')}{text}"
        return summaries


def _live_places(session: Session) -> list[_Place]:
    places: _StoredPlaces = session.native.fold(_NAME, step=_step, start=[])
    return [_Place(first, last, item_id) for first, last, item_id in places]


def _values(session: Session, places: Sequence[_Place]) -> list[Any]:
    """The items at these places."""
    if not places:
        return []
    spans = [(place.first, place.last) for place in places]
    return [item.value for item in session.native.read(spans=spans)]


def _new_items(
    session: Session, places: Sequence[_Place], items: Sequence[Any]
) -> list[Any]:
    """The items that are not stored in the form they would be stored in."""
    places_by_id: dict[str | None, _Place] = {}
    for place in places:
        if place.item_id:
            places_by_id[place.item_id] = place
    new_items = []
    for item in items:
        known_place = places_by_id.get(_id_of(item))
        if known_place is None:
            new_items.append(item)
            continue
        stored = _values(session, [known_place])
        is_stored = stored == [item] or stored == session.native.would_store(
            FORMAT, [item]
        )
        if not is_stored:
            new_items.append(item)
    return new_items


def _drop_from(places: Sequence[_Place]) -> list[Native | Draft]:
    """The item that takes back these places, and the edit for contexts.

    places: the first that is taken back, and everything after it.
    """
    if not places:
        return []
    drop = Native(FORMAT, "drop", None, {"from": places[0].first})
    spans = tuple((place.first, place.last) for place in places)
    return [drop, Draft(ProviderEdit(reason="removal", left_out=spans))]


def _append(
    session: Session,
    new_natives: Callable[[Session, list[_Place]], Sequence[Native | Draft]],
) -> list[_Place]:
    """Append what ``new_natives`` makes of the live items; return those live before.

    If another writer was first, it is called again with the items that are live then.
    """
    while True:
        seq = session.writer.log.head(session.stream).seq
        places = _live_places(session)
        natives = new_natives(session, places)
        if not natives:
            return places
        try:
            session.native.append(FORMAT, natives, expected_seq=seq, unscanned="stub")
        except StaleSession:
            continue
        return places
