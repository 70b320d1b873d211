"""Shared objects as each process sees them: every call is a step.

Others run before it; it may fail before it takes effect, or after (the answer is lost),
and the process may die on either side of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from refold.adapters.rows import Batch, HeadRow, Rewrite, ViewRow, WriteOutcome
from refold.adapters.sql.database import Result
from refold.adapters.sql.recorder import Recorder
from refold.domain.errors import Erased, RefoldError, StoreUnavailable
from refold.domain.ids import StreamId
from refold.domain.ports import Clock
from tests.simulation.rows import Rows
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.world import Fate, World

_READS: Final = ("head_row", "receipt", "select_events", "snapshot", "view_row")


class Stepping:
    """A shared object, each call of which is a step."""

    def __init__(
        self,
        world: World,
        process: Process,
        inner: object,
        error: Callable[..., RefoldError] = StoreUnavailable,
    ) -> None:
        self._world = world
        self._process = process
        self._inner = inner
        self._error = error

    def __getattr__(self, name: str) -> Any:
        call: Any = getattr(self._inner, name)
        if not callable(call):
            return call
        return lambda *arguments, **options: self._do(name, call, *arguments, **options)

    def _do(self, name: str, call: Any, *arguments: Any, **options: Any) -> Any:
        world = self._world
        world.scheduler.pause()
        fate = world.fate()
        if fate in ("refused", "dies before"):
            self._fail(name, fate)
        result = call(*arguments, **options)
        world.say(name, _shown(arguments), fate, _shown((result,)))
        if fate:
            self._fail(name, fate)
        return result

    def _fail(self, name: str, fate: Fate) -> None:
        self._world.say(name, fate)
        if fate.startswith("dies"):
            self._world.die(self._process)
        self._world.hurt()
        raise self._error("the simulation broke the connection", remedy="try again")


class SteppingRecorder(Stepping):
    """A recorder; what changes a session waits for who has locked it."""

    _inner: Rows

    def __init__(self, world: World, process: Process, inner: Rows) -> None:
        super().__init__(world, process, inner)
        self._commits = world.committing(world, process, inner, self._do)
        self._group = self._commits.group

    def insert_events(self, stored_events: Any, **kwargs: Any) -> Any:
        """Insert events as the recorder does, as one step."""
        return Recorder.insert_events(self, stored_events, **kwargs)  # type: ignore[arg-type]  # it has the parts

    def write(self, batch: Batch) -> WriteOutcome:
        self._world.asks(batch)
        if self._inner.leases_held():
            return self._write_fenced(batch)
        try:
            return self._group.write(batch)
        except StoreUnavailable:
            self._world.hurt()
            raise

    def _write_fenced(self, batch: Batch) -> WriteOutcome:
        """Write as the owner of a lease, in a transaction that checks the lease."""

        def write() -> Result:
            with self._world.locked(batch.stream):
                self._check_fences()
                return self._world.wrote(batch, self._commits.written(batch))

        try:
            outcome: Result = self._do("write_fenced", write)
        except StoreUnavailable:
            self._world.hurt()
            raise
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _check_fences(self) -> None:
        """Refuse the write if another owner took a lease of this task."""
        self._inner.check_fences()
        for stream, owner in self._inner.leases_held():
            lease = self._inner.lease(stream)
            if lease is None or lease[0] != owner:
                self._world.violated("one wrote whose lease another has")

    def write_soon(
        self, batch: Batch, done: Callable[[WriteOutcome | Exception], None]
    ) -> bool:
        self._world.asks(batch)
        return self._group.submit(batch, done)

    def __getattr__(self, name: str) -> Any:
        """Return a call; a read reports an erased session in the same step."""
        call = super().__getattr__(name)
        return partial(self._read, call) if name in _READS else call

    def _read(
        self, call: Any, stream: StreamId, *arguments: Any, **options: Any
    ) -> Any:
        result = call(stream, *arguments, **options)
        self._refuse(stream)
        return result

    def _refuse(self, stream: StreamId) -> None:
        if self._world.erasures.refuses(stream.user_id):
            raise Erased(f"session {stream.session_id!r}")

    def write_exclusive(
        self, stream: StreamId, build: Callable[[HeadRow | None], Batch]
    ) -> WriteOutcome:
        def write() -> Result:
            with self._world.locked(stream):
                self._check_fences()
                batch = build(self._inner.head_row(stream))
                return self._world.wrote(batch, self._commits.written(batch))

        outcome: Result = self._do("write_exclusive", write)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def rewrite(
        self, stream: StreamId, build: Callable[[Mapping[str, HeadRow]], Rewrite | None]
    ) -> bool:
        """Rewrite; the recorder detects a lost answer by calling ``build`` again."""

        def rewrite() -> bool:
            with self._world.locked(stream):
                self._check_fences()
                self._refuse(stream)
                done = self._rewritten(stream, build)
                if done:
                    self._world.rewritten.append(self._heads(stream))
            return done and not (
                self._world.fate() and not self._rewritten(stream, build)
            )

        done: bool = self._do("rewrite", rewrite)
        return done

    def _rewritten(
        self, stream: StreamId, build: Callable[[Mapping[str, HeadRow]], Rewrite | None]
    ) -> bool:
        """Rewrite: building takes several steps, applying it is one transaction."""
        heads: dict[str, HeadRow] = {}
        self._inner.rewrite(stream, heads.update)
        rewriting = build(heads)
        return self._inner.rewrite(stream, lambda _: rewriting)

    def _heads(self, stream: StreamId) -> dict[StreamId, int]:
        names = self._inner.streams(stream.user_id, stream.session_id)
        places = [stream._replace(stream=name) for name in names]
        heads = {place: self._inner.head_row(place) for place in places}
        return {place: head.seq for place, head in heads.items() if head}

    def save_view_row(
        self, stream: StreamId, name: str, row: ViewRow, **how: Any
    ) -> bool:
        def save() -> bool:
            self._world.unlocked(stream)
            before = self._inner.view_row(stream, name)
            saved = self._inner.save_view_row(stream, name, row, **how)
            if saved and before and before.through_seq > row.through_seq:
                self._world.violated(f"a view went back to seq {row.through_seq}")
            head = self._inner.head_row(stream)
            if saved and head and head.key_check != how["key_check"]:
                self._world.violated("a view was kept under a key of before")
            return saved

        saved: bool = self._do("save_view_row", save)
        return saved

    def take_lease(
        self, stream: StreamId, owner: str, *, clock: Clock, period: int
    ) -> bool:
        def take() -> bool:
            self._world.unlocked(stream)
            lease = self._inner.lease(stream)
            taken = self._inner.take_lease(stream, owner, clock=clock, period=period)
            if taken:
                self._world.took(stream)
            if taken and lease and lease[0] != owner and lease[1] > clock():
                self._world.violated("a lease was taken that another holds")
            return taken

        taken: bool = self._do("take_lease", take)
        return taken

    def renew_lease(
        self, stream: StreamId, owner: str, *, clock: Clock, period: int
    ) -> bool:
        def renew() -> bool:
            lease = self._inner.lease(stream)
            renewed = self._inner.renew_lease(stream, owner, clock=clock, period=period)
            if renewed and (lease is None or lease[0] != owner):
                self._world.violated("a lease was renewed that another holds")
            return renewed

        renewed: bool = self._do("renew_lease", renew)
        return renewed

    def fenced(self, stream: StreamId, owner: str) -> AbstractContextManager[None]:
        """This is no step: it does not query the database."""
        fence: AbstractContextManager[None] = self._inner.fenced(stream, owner)
        return fence

    def release_lease(self, stream: StreamId, owner: str) -> bool:
        def release() -> bool:
            lease = self._inner.lease(stream)
            if lease is not None and lease[0] == owner:
                self._world.gave_back()
            return self._inner.release_lease(stream, owner)

        asked: bool = self._do("release_lease", release)
        return asked


def _shown(values: tuple[Any, ...]) -> str:
    """Format names, numbers and answers, without random values."""
    shown = []
    for value in values:
        if isinstance(value, StreamId):
            shown.append(f"{value.session_id}/{value.stream[:4]}")
        elif value is None or isinstance(value, bool | int):
            shown.append(str(value))
        elif isinstance(value, list):
            shown.append(f"{len(value)} of them")
        elif isinstance(value, HeadRow):
            shown.append(f"head {value.seq}")
        elif isinstance(value, tuple) and type(value) is not tuple:
            shown.append(type(value).__name__)
    return " ".join(shown)
