"""All places where Refold keeps something of a user, for ``erase`` to walk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from refold.adapters import capture_state
from refold.domain.inventory import Place

_BY_USER: Final = "its rows of the user are deleted"
_KEYED: Final = "keeps only keyed hashes"
_DESTROYED: Final = "the keys are destroyed"
_NOTHING: Final = "nothing of a user"

PLACES: Final = (
    Place("table", "events", "encrypted events, ids", _BY_USER),
    Place("table", "heads", "encrypted states, ids", _BY_USER),
    Place("table", "blobs", "encrypted texts, search index, ids", _BY_USER),
    Place("table", "receipts", "idempotency keys as keyed hashes, ids", _BY_USER),
    Place("table", "views", "encrypted views, ids", _BY_USER),
    Place("table", "leases", "ids", _BY_USER),
    Place("table", "seals", "encrypted positions, ids", _BY_USER),
    Place("table", "accesses", "ids and times", _BY_USER),
    Place("table", "labels", "labels as keyed hashes, ids", _BY_USER),
    Place("table", "audit", "keyed hashes of ids", "the hashes are taken out"),
    Place("table", "erasures", "ids while an erasure lasts", "its row is deleted"),
    Place("table", "subjects", "keyed hashes of erased ids", _KEYED),
    Place("table", "certificates", "signed statements", _KEYED),
    Place("table", "holds", "encrypted or redacted reasons", "its rows are deleted"),
    Place("table", "leaves", "hashes of ends of streams", "are marked, without a name"),
    Place("table", "tree_heads", _NOTHING, _NOTHING),
    Place("table", "settings", _NOTHING, _NOTHING),
    Place("key table", "user_keys", "wrapped keys", _DESTROYED),
    Place("key table", "session_keys", "wrapped keys", _DESTROYED),
    Place("key table", "rotated_session_keys", "wrapped keys", _DESTROYED),
    Place("key table", "held_keys", "wrapped keys in a grace", _DESTROYED),
    Place("key table", "erased_sessions", "keyed hashes of erased ids", _KEYED),
    Place("key table", "settings", "keyed hashes of erased ids", _KEYED),
    Place("file", "master key", _NOTHING, _NOTHING, "master.key"),
    Place("file", "key store", "the key tables", _DESTROYED, "keys/*"),
    Place("file", "anchors", "signed tree heads", "they name nobody", "anchors/*"),
    Place(
        "file",
        "capture state",
        "user id, paths of transcripts, digests of their last bytes",
        "its files are removed",
        "capture/*",
    ),
    Place("outside", "exports", "copies in files", "delete those of the user"),
    Place("outside", "transcripts of clients", "the conversations", "delete them"),
    Place("outside", "backups", "old rows and keys", "let them expire"),
    Place(
        "outside",
        "replicas and pg_wal of PostgreSQL",
        "ids and wrapped keys, of the database and of the key store",
        "replicas follow; the server reuses the files of pg_wal",
    ),
)

# How an erasure removes the files of a user, by the name of their place.
_FORGET: Final[Mapping[str, Callable[[str], list[Path]]]] = {
    "capture state": capture_state.forget_user,
}


def outside() -> list[Place]:
    """Return the places with copies that an erasure cannot reach."""
    return [place for place in PLACES if place.kind == "outside"]


def forget_files(user_id: str) -> dict[str, list[str]]:
    """Remove the files of a user on this machine; gives them by their place."""
    removed = {}
    for name, forget in _FORGET.items():
        removed[name] = [str(path) for path in forget(user_id)]
    return removed
