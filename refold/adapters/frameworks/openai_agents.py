"""Sessions of the OpenAI Agents SDK, compacted by a strategy if one is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from refold.adapters.frameworks import as_stored, erased, needed, settled, unstored
from refold.adapters.importers import base, openai
from refold.domain.envelope import Draft, Format, Native
from refold.domain.errors import StaleSession
from refold.projections.context.compaction import Summarizer
from refold.projections.context.strategy import Strategy
from refold.projections.items import NativeItem
from refold.store.session.session import Session
from refold.store.store import SessionStore

_settings = needed("agents.memory.session_settings", "openai-agents")
_NO_ID: Final = needed("agents.models.fake_id", "openai-agents").FAKE_RESPONSES_ID
_NAME: Final = "openai-agents"
_Live = list[list[Any]]  # first and last seq, and id, of each item
T = TypeVar("T")


def _view(kind: str, item: Any, calls: Mapping[str, Any]) -> Iterator[Draft]:
    waited = "output" not in item or item.get("call_id") in calls
    if kind == "item" and waited:
        yield from base.typed(openai.response_item(item), base.Origin(""))


FORMAT = Format("openai-agents", _view, lambda _: "item")


def _step(live: _Live, item: NativeItem) -> _Live:
    if item.format != _NAME:
        return live
    if item.kind == "drop":
        return [one for one in live if one[0] < item.value["from"]]
    return [*live, [item.seq, item.events[-1].seq, _id_of(item.value)]]


def _id_of(item: Any) -> str | None:
    name = item.get("id") if isinstance(item, dict) else None
    return None if name == _NO_ID else name


class RefoldSession:
    """One conversation of a user: ``Runner.run(…, session=…)`` takes it.

    What is popped or cleared is not shown again, and stays in the log.

    strategy:       compacts after a turn, where it is due; none: nothing is compacted.
    erase_on_clear: ``clear_session`` erases for good.
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
        self.session_id, self._user_id = session_id, user_id
        given = session_settings or _settings.SessionSettings()
        self.session_settings = _settings.coerce_session_settings(given)
        self._store, self._erase, self._closed = store, erase_on_clear, False
        self._strategy, self._summarizer = strategy, summarizer

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """The items there are now, or the newest; summaries for what was compacted."""
        most = _settings.resolve_session_limit(limit, self.session_settings)
        return await self._done(lambda session: self._items(session, most))

    async def add_items(self, items: Sequence[Any]) -> None:
        """Append items; one with the id of an item that is there is not repeated."""

        def made(session: Session, live: _Live) -> list[Any]:
            new = _new(session, live, items)
            return [Native(FORMAT, "item", None, one) for one in new]

        await self._done(lambda session: _written(session, made))

    async def pop_item(self) -> Any | None:
        """The newest item, which is taken back."""

        def popped(session: Session) -> Any | None:
            live = _written(session, lambda _, live: _drop(live[-1:]))
            return _values(session, live[-1:])[0] if live else None

        return await self._done(popped)

    async def clear_session(self) -> None:
        """Take all items back, or erase them."""

        def cleared(session: Session) -> None:
            if not self._erase:
                _written(session, lambda _, live: _drop(live[:1]))
            else:
                erased(session, "the OpenAI Agents SDK")

        await self._done(cleared)

    async def run_compaction(self, args: Any = None) -> None:  # noqa: ARG002  # the SDK's
        """Compact if the strategy says so: what the SDK asks for after a turn."""
        if self._strategy is not None:
            await self._done(
                lambda session: session.compact(
                    self._strategy, summarizer=self._summarizer
                )
            )

    async def call_model_input_filter(self, data: Any) -> Any:
        """For ``RunConfig``: the model is sent what the log may keep."""
        sent = data.model_data

        def told(session: Session) -> Any:
            known = partial(self._items, session, None)
            items = as_stored(session, FORMAT, sent.input, known=known)
            said = unstored(session, FORMAT, sent.instructions)
            return type(sent)(input=items, instructions=said)

        return await self._done(told)

    def close(self) -> None:
        """Take no more calls."""
        self._closed = True

    async def _done(self, work: Callable[[Session], T]) -> T:
        if self._closed:
            raise RuntimeError(f"session {self.session_id!r} is closed")
        name = f"{_NAME}\0{self.session_id}"
        labels = {"framework": _NAME, "openai_session": self.session_id}

        def done() -> T:
            named = self._store.named(name, user_id=self._user_id, labels=labels)
            return work(named)

        return await settled(done)

    def _items(self, session: Session, most: int | None) -> list[Any]:
        live: _Live = session.native.fold(_NAME, step=_step, start=[])
        told = self._summaries(session)
        said = [{"role": "user", "content": text} for text in told.values()]
        live = [one for one in live if not any(a <= one[0] <= z for a, z in told)]
        shown: list[Any] = [*said, *live]
        if most is not None and most >= 0:
            shown = shown[max(0, len(shown) - most) :]
        said = [one for one in shown if isinstance(one, dict)]
        return [*said, *_values(session, shown[len(said) :])]

    def _summaries(self, session: Session) -> dict[tuple[int, int], str]:
        """What stands for which seqs, as the strategy shows it now."""
        if self._strategy is None or not self._store.log.head(session.stream).seq:
            return {}
        view, told = session.context(self._strategy), dict[tuple[int, int], str]()
        for message, origins in zip(view.messages, view.origins, strict=True):
            for block, (span, _) in zip(message["content"], origins, strict=True):
                if span and span.kind == "summary" and span.first and span.last:
                    place, text = (span.first, span.last), block.get("text")
                    text = block.get("content", "") if text is None else text
                    told[place] = f"{told.get(place, '')}{text}"
        return told


def _values(session: Session, live: _Live) -> list[Any]:
    spans = [(first, last) for first, last, _ in live]
    return [one.value for one in session.native.read(spans=spans)] if spans else []


def _new(session: Session, live: _Live, items: Sequence[Any]) -> list[Any]:
    """Those of the items that are not there as they would be stored."""
    there = {name: [first, last, name] for first, last, name in live if name}
    found = []
    for item in items:
        known = there.get(_id_of(item))
        stored = _values(session, [known]) if known else []
        if [item] != stored != session.native.would_store(FORMAT, [item]):
            found.append(item)
    return found


def _drop(live: _Live) -> list[Native]:
    """What takes these back, and all behind them."""
    return [Native(FORMAT, "drop", None, {"from": one[0]}) for one in live[:1]]


def _written(session: Session, made: Callable[[Session, _Live], list[Native]]) -> _Live:
    """The items there were when what ``made`` gives of them was appended."""
    while True:
        seq = session.writer.log.head(session.stream).seq
        live: _Live = session.native.fold(_NAME, step=_step, start=[])
        try:
            if new := made(session, live):
                session.native.append(FORMAT, new, expected_seq=seq, unscanned="stub")
            return live
        except StaleSession:
            continue  # another wrote: decide anew
