"""Whether a key store is the one of this database: lost, mixed up, or put back."""

from __future__ import annotations

from typing import Final

from refold.adapters.erasing_rows import ErasingRows
from refold.adapters.keystore import KeyStore
from refold.domain.errors import KeyUnavailable

_BOUND: Final = "bound"
_YES: Final = b"1"
_GONE: Final = ("erasing", "erased")


def check_belongs(
    keys: KeyStore, rows: ErasingRows, *, store_id: str, filled: bool
) -> None:
    """Refuse a key store of another database, or one that is older than this database.

    A key store may serve several databases; a database that is ``filled`` knows which
    it was.  Key stores of before this was written down are taken as they are.

    Raises KeyUnavailable.
    """
    mine = f"store {store_id}"
    if keys.get_setting(mine) is None:
        if filled and keys.get_setting(_BOUND) is not None:
            raise KeyUnavailable(
                "the key store belongs to another database",
                remedy="point REFOLD_KEYS or REFOLD_HOME at the one it was made with",
            )
        keys.add_setting(_BOUND, _YES)
        keys.add_setting(mine, _YES)
    seen, generation = rows.key_generation(), keys.generation()
    if generation < seen:
        raise KeyUnavailable(
            f"the key store is older than the database (generation {generation}, the "
            f"database has seen {seen}): keys that were destroyed are back in it",
            remedy="restore its newest backup, or have `refold keys reconcile` destroy "
            "them again",
        )


def reconcile(keys: KeyStore, rows: ErasingRows, *, now: int) -> int:
    """Destroy again what an older key store brought back; returns how many keys.

    The database remembers, by keyed hashes, who was erased.  A user who was readmitted
    since has lost the new key with the key store, and is erased again.
    """
    gone = 0
    for subject in rows.subjects():
        entry = keys.get_user(subject.user_ref)
        if subject.ref != subject.user_ref:
            gone += keys.destroy(subject.user_ref, [subject.ref], now)
        elif subject.status in _GONE or entry is None or entry.epoch < subject.epoch:
            gone += keys.destroy(subject.ref, None, now)
    keys.reach(rows.key_generation())
    return gone
