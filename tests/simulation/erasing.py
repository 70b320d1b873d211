"""Forgetting a user, step by step: a model of what database and key store do for it.

All heads of the user are marked in one step, with a record that the user is being
erased; then the keys are destroyed, the rows deleted, a few at a time and the heads
last, and a certificate is kept.  Who begins it again goes on where it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from refold.adapters.keys.master import MasterKey
from refold.adapters.keys.ring import KeyRing
from refold.adapters.memory import MemoryKeyStore, MemoryRecorder
from tests.simulation.stepping import Stepping

if TYPE_CHECKING:
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World

_MOST: Final = 4  # rows that are deleted in one step


class Erasures:
    """Who is erased, or about to be; each method is one step."""

    def __init__(
        self, recorder: MemoryRecorder, keys: MemoryKeyStore, master: MasterKey
    ) -> None:
        self.recorder, self.keys, self._master = recorder, keys, master
        self.begun: set[str] = set()
        self.certificates: dict[str, int] = {}

    def begin(self, user_id: str) -> bool:
        """Mark the user and all their heads; whether there is anything left to do."""
        self.begun.add(user_id)
        for stream in self.marked(user_id):
            head = self.recorder._heads[stream]
            self.recorder._heads[stream] = head._replace(status="erased")
        return user_id not in self.certificates

    def marked(self, user_id: str) -> list[Any]:
        """The streams whose heads are to be marked."""
        return [one for one in self.recorder._heads if one.user_id == user_id]

    def refuses(self, user_id: str) -> bool:
        """Whether the user is marked as erased."""
        return user_id in self.begun

    def refuses_new(self, user_id: str) -> bool:
        """The same for a stream that has no head yet, and so none that is marked."""
        return self.refuses(user_id)

    def destroy_keys(self, user_id: str) -> None:
        """Destroy the keys of the user and of all their sessions."""
        self.keys.destroy(self._ref(user_id), None, now=0)

    def delete_rows(self, user_id: str) -> int:
        """Delete some rows, the heads when nothing else is left; how many."""
        rows = self.recorder
        mine = [one for one in rows._order if one.header.stream.user_id == user_id]
        for row in mine[:_MOST]:
            rows._order.remove(row)
            rows._events[row.header.stream].remove(row)
        if mine:
            return len(mine[:_MOST])
        return sum(self._emptied(table, user_id) for table in self._tables())

    def _tables(self) -> tuple[dict[Any, Any], ...]:
        rows = self.recorder
        beside = (rows._events, rows._blobs, rows._receipts, rows._views, rows._leases)
        return (*beside, rows._heads)

    @staticmethod
    def _emptied(table: dict[Any, Any], user_id: str) -> int:
        gone = [key for key in table if _user(key) == user_id]
        for key in gone:
            del table[key]
        return len(gone)

    def left(self, user_id: str) -> int:
        """How many rows and keys of the user there are."""
        rows = sum(_user(key) == user_id for table in self._tables() for key in table)
        rows += sum(
            one.header.stream.user_id == user_id for one in self.recorder._order
        )
        ref = self._ref(user_id)
        entry = self.keys.get_user(ref)
        alive = entry is not None and entry.wrapped is not None
        return rows + alive + len(self.keys.keys_of(ref))

    def certify(self, user_id: str, rows: int) -> None:
        """Keep the certificate, once."""
        self.certificates.setdefault(user_id, rows)

    def _ref(self, user_id: str) -> str:
        return KeyRing(self.keys, self._master).user_ref(user_id)


@dataclass(slots=True)
class Erasing:
    """Forgets a user once so many requests are done; killed, it begins again."""

    name: str
    user_id: str
    after: int
    rows: int = 0
    done: bool = False

    def run(self, world: World, process: Process) -> None:
        world.scheduler.pause(lambda: world.progress() >= self.after)
        steps = Stepping(world, process, world.erasures)
        while not self.done:
            self.done = world.tried(lambda: self._erase(steps))

    def _erase(self, steps: Any) -> None:
        if not steps.begin(self.user_id):
            return
        steps.destroy_keys(self.user_id)
        while deleted := steps.delete_rows(self.user_id):
            self.rows += deleted
        steps.certify(self.user_id, self.rows)


def _user(key: Any) -> str:
    """Whose row it is: keys of tables begin with a stream, or with the user."""
    first = key[0]
    return first if isinstance(first, str) else first.user_id
