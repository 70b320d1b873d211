"""The binding of a key store to its databases, and the check that it is not older."""

from __future__ import annotations

from typing import Final

from refold.adapters.sql.keystore import SqlKeyStore
from refold.adapters.sql.recorder import Subjects
from refold.domain.errors import KeyUnavailable

_BOUND: Final = "bound"
_YES: Final = b"1"


def check_belongs(
    keys: SqlKeyStore, subjects: Subjects, *, store_id: str, filled: bool
) -> None:
    """Refuse a key store of another database, or one that is older than this database.

    A key store may serve several databases, and names each of them.  A key store that
    was made before it did so is accepted.

    filled: whether the database has sessions; only then can it have another key store.

    Raises KeyUnavailable.
    """
    setting = f"store {store_id}"
    if keys.get_setting(setting) is None:
        if filled and keys.get_setting(_BOUND) is not None:
            raise KeyUnavailable(
                "the key store belongs to another database",
                remedy="point REFOLD_KEYS or REFOLD_HOME at the one it was made with",
            )
        if not keys.readonly:
            keys.add_setting(_BOUND, _YES)
            keys.add_setting(setting, _YES)
    seen = subjects.key_generation()
    generation = keys.generation()
    if generation < seen:
        raise KeyUnavailable(
            f"the key store is older than the database (generation {generation}, the "
            f"database has seen {seen}): keys that were destroyed are back in it",
            remedy="restore its newest backup, or have `refold keys reconcile` destroy "
            "them again",
        )


def reconcile(keys: SqlKeyStore, subjects: Subjects, *, now: int) -> int:
    """Destroy again the keys that an older key store brought back; returns how many.

    The database has keyed hashes of the erased users.  If a user was readmitted after
    the backup, the new key is lost, and the user is erased again.
    """
    destroyed = 0
    for subject in subjects.changed():
        entry = keys.get_user(subject.user_ref)
        if subject.ref != subject.user_ref:
            destroyed += keys.destroy(subject.user_ref, [subject.ref], now)
        elif (
            subject.status in ("erasing", "erased")
            or entry is None
            or entry.epoch < subject.epoch
        ):
            destroyed += keys.destroy(subject.ref, None, now)
    keys.reach(subjects.key_generation())
    return destroyed
