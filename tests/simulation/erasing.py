"""A model of an erasure: the steps of database and key store.

All heads of the user are marked in one step, with a record of the erasure; then the
keys are destroyed, the rows deleted, a few at a time and the heads last, and a
certificate is stored.  A repeated erasure continues where the first one stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from refold.adapters.keys.master import MasterKey
from refold.adapters.keys.ring import KeyRing
from tests.simulation.rows import Keys, Rows
from tests.simulation.stepping import Stepping

if TYPE_CHECKING:
    from tests.simulation.scheduler import Process
    from tests.simulation.world import World

_MOST: Final = 4  # rows that are deleted in one step
_TABLES: Final = ("events", "blobs", "receipts", "views", "leases", "heads")


class Erasures:
    """Users who are erased or under erasure; each method is one step.

    ``marked`` names the marked heads, ``tables`` the deleted tables, in this order.
    """

    marked = "true"
    tables: tuple[str, ...] = _TABLES

    def __init__(self, recorder: Rows, keys: Keys, master: MasterKey) -> None:
        self.recorder = recorder
        self.keys = keys
        self._master = master
        self.begun: set[str] = set()
        self.certificates: dict[str, int] = {}

    def begin(self, user_id: str) -> bool:
        """Mark the user and all their heads; return whether anything is left to do."""
        self.begun.add(user_id)
        self.mark(user_id)
        return user_id not in self.certificates

    def mark(self, user_id: str) -> None:
        """Mark the heads of the user as erased."""
        self.recorder.execute(
            f"UPDATE heads SET status='erased' WHERE user_id=:user AND {self.marked}",
            user=user_id,
        )

    def refuses(self, user_id: str) -> bool:
        """Whether the user is marked as erased."""
        return user_id in self.begun

    def refuses_new(self, user_id: str) -> bool:
        """Whether a stream without a head, which cannot be marked, is refused."""
        return self.refuses(user_id)

    def destroy_keys(self, user_id: str) -> None:
        """Destroy the keys of the user and of all their sessions."""
        self.keys.destroy(self._ref(user_id), None, now=0)

    def delete_rows(self, user_id: str) -> int:
        """Delete some rows, the heads last; return how many."""
        events = "SELECT rowid FROM events WHERE user_id=:user LIMIT :most"
        delete_some = f"DELETE FROM events WHERE rowid IN ({events})"
        if deleted := self.recorder.execute(delete_some, user=user_id, most=_MOST):
            return len(deleted)
        return sum(
            len(
                self.recorder.execute(
                    f"DELETE FROM {table} WHERE user_id=:u", u=user_id
                )
            )
            for table in self.tables
        )

    def left(self, user_id: str) -> int:
        """Return the number of rows and keys of the user."""
        rows = sum(
            len(
                self.recorder.execute(
                    f"SELECT 1 FROM {table} WHERE user_id=:u", u=user_id
                )
            )
            for table in _TABLES
        )
        ref = self._ref(user_id)
        entry = self.keys.get_user(ref)
        alive = entry is not None and entry.wrapped is not None
        return rows + alive + len(self.keys.keys_of(ref))

    def certify(self, user_id: str, rows: int) -> None:
        """Store the certificate, once."""
        self.certificates.setdefault(user_id, rows)

    def _ref(self, user_id: str) -> str:
        return KeyRing(self.keys, self._master).user_ref(user_id)


@dataclass(slots=True)
class Erasing:
    """Erases a user after some requests; a killed erasure begins again."""

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
