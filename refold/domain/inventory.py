"""The inventory of erasure: every place where Refold may store data of a user.

``erase`` walks this list.  A feature that stores data in a new place registers the
place here; ``tests/erasure/test_inventory.py`` fails until then.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

from refold.domain.events import JsonObject

Kind = Literal["table", "key table", "file", "cache file", "outside"]

# How an erasure finds the data of a user in a place.
FoundBy = Literal[
    "user_id",  # the column of that name, and ``session_id`` for single sessions
    "user_ref",  # the key store's keyed hash of the user
    "user_hash",  # keyed hashes that only the user's own key makes
    "seals",  # the rows of the user in ``seals`` name them
    "user id in the name",  # the names of files contain a digest of the user's id
    "records",  # rows of ``exports`` and of the ``_user`` session name them
    "people",  # only people know whose data it is
    "nothing",  # it contains no data of a user
]

# The action of an erasure in a place.
Removal = Literal[
    "delete rows",  # bounded transactions, in the order of this list
    "take names out",  # the rows stay, and name nobody any more
    "mark leaves",  # the hashes stay, and name the certificate
    "end with the erasure",  # deleted in the transaction that stores the certificate
    "destroy keys",  # before the first row is deleted
    "remove files",  # after the last row is deleted
    "leave",  # nobody can read it as the user's; ``remark`` gives the reason
    "out of reach",  # Refold cannot remove it; ``remark`` is the advice for people
]


class Place(NamedTuple):
    """A place, and the action of an erasure there.

    name:     of a table, or of files; for ``outside``, a name for people.
    holds:    the data of a user that it may contain.
    found_by: how an erasure finds that data.
    removal:  the action of an erasure.
    remark:   why it leaves data; for ``outside``, the advice for people.
    pattern:  for ``file``, the names below ``REFOLD_HOME``; for ``cache file``, those
              in the folder ``REFOLD_CACHE``; for tables of another application, their
              names.
    """

    kind: Kind
    name: str
    holds: str
    found_by: FoundBy
    removal: Removal
    remark: str = ""
    pattern: str = ""

    def to_json(self) -> JsonObject:
        """Return a place beyond reach as JSON: its data, and the advice for people."""
        return {"place": self.name, "holds": self.holds, "advice": self.remark}


_HASHES_OF_ERASED_IDS: Final = "keyed hashes of ids that were erased"
_PREVENT_REUSE: Final = "the hashes keep an erased id from being used again"

# Tables are in the order of an erasure.  ``heads`` is the last one with rows of a user:
# as long as a row exists, its head is marked as erased.
PLACES: Final[tuple[Place, ...]] = (
    Place(
        "table",
        "audit",
        "keyed hashes of the user, the sessions, and the requests",
        "user_hash",
        "take names out",
    ),
    Place(
        "table",
        "leaves",
        "hashes of the ends of streams",
        "seals",
        "mark leaves",
        "the tree stays provable; a hash names nobody",
    ),
    Place("table", "accesses", "ids, times of reading", "user_id", "delete rows"),
    Place(
        "table",
        "blobs",
        "ids, encrypted texts, the encrypted search index",
        "user_id",
        "delete rows",
    ),
    Place("table", "events", "ids, encrypted events", "user_id", "delete rows"),
    Place(
        "table",
        "exports",
        "ids, encrypted locations of exports",
        "user_id",
        "delete rows",
        "the report of the erasure has named them before",
    ),
    Place("table", "labels", "ids, keyed hashes of labels", "user_id", "delete rows"),
    Place("table", "leases", "ids, work in progress", "user_id", "delete rows"),
    Place(
        "table",
        "receipts",
        "ids, keyed hashes of idempotency keys",
        "user_id",
        "delete rows",
    ),
    Place("table", "seals", "ids, digests of positions", "user_id", "delete rows"),
    Place(
        "table",
        "views",
        "ids, encrypted views, encrypted served shares",
        "user_id",
        "delete rows",
    ),
    Place(
        "table",
        "heads",
        "ids, encrypted states with digests of secrets",
        "user_id",
        "delete rows",
    ),
    Place(
        "table",
        "erasures",
        "the user's id, names of sessions, locations of exports, while it lasts",
        "user_ref",
        "end with the erasure",
    ),
    Place(
        "table",
        "holds",
        "redacted reasons of legal holds and freezes",
        "user_ref",
        "end with the erasure",
    ),
    Place(
        "table", "subjects", _HASHES_OF_ERASED_IDS, "user_ref", "leave", _PREVENT_REUSE
    ),
    Place(
        "table",
        "certificates",
        "signed statements under a keyed hash, words under the user's key",
        "user_ref",
        "leave",
        "a statement names nobody, and the key to its words is destroyed",
    ),
    Place(
        "table",
        "tree_heads",
        "hashes over the whole store",
        "nothing",
        "leave",
        "they contain no data of a user",
    ),
    Place(
        "table",
        "settings",
        "facts about the store",
        "nothing",
        "leave",
        "they contain no data of a user",
    ),
    Place(
        "key table", "user_keys", "the user's wrapped key", "user_ref", "destroy keys"
    ),
    Place(
        "key table",
        "session_keys",
        "wrapped keys of sessions",
        "user_ref",
        "destroy keys",
    ),
    Place(
        "key table",
        "rotated_session_keys",
        "later wrapped keys of sessions",
        "user_ref",
        "destroy keys",
    ),
    Place(
        "key table",
        "held_keys",
        "wrapped keys that are set aside for a grace period",
        "user_ref",
        "destroy keys",
    ),
    Place(
        "key table",
        "erased_sessions",
        _HASHES_OF_ERASED_IDS,
        "user_ref",
        "leave",
        _PREVENT_REUSE,
    ),
    Place(
        "key table",
        "settings",
        "keyed hashes of erased users by certificate",
        "user_ref",
        "leave",
        "they show that a certificate was removed; a hash names nobody",
    ),
    Place(
        "file",
        "master key",
        "the key that wraps others",
        "nothing",
        "leave",
        "it contains no data of a user",
        "master.key",
    ),
    Place(
        "file",
        "key store",
        "the key tables",
        "user_ref",
        "destroy keys",
        pattern="keys/*",
    ),
    Place(
        "file",
        "anchors",
        "signed tree heads",
        "nothing",
        "leave",
        "they contain no data of a user",
        "anchors/*",
    ),
    Place(
        "file",
        "secret of the proxy",
        "the secret part of the address of `refold proxy`",
        "nothing",
        "leave",
        "it contains no data of a user",
        "proxy.secret",
    ),
    Place(
        "file",
        "lock of the proxy",
        "nothing: the file is empty",
        "nothing",
        "leave",
        "it contains no data of a user",
        "proxy.lock",
    ),
    Place(
        "file",
        "capture state",
        "user id, paths of transcripts, digests of their last bytes",
        "user id in the name",
        "remove files",
        pattern="capture/*",
    ),
    Place(
        "cache file",
        "compiled rules",
        "the rules of redaction, and those of a policy",
        "nothing",
        "leave",
        "they contain no text that was redacted, and no registered value",
        "*",
    ),
    Place(
        "outside",
        "exports",
        "copies in files, folders, and downloads",
        "records",
        "out of reach",
        "delete those that the report names, and copies of them",
    ),
    Place(
        "outside",
        "pages that a link showed",
        "copies that readers of a served share saved",
        "people",
        "out of reach",
        "the links show nothing any more; ask those who got one to delete copies",
    ),
    Place(
        "outside",
        "transcripts of clients",
        "the conversations",
        "people",
        "out of reach",
        "delete them",
    ),
    Place(
        "outside",
        "hooks in settings of clients",
        "the user's id in a command",
        "people",
        "out of reach",
        "remove them with `refold capture CLIENT --uninstall`",
    ),
    Place(
        "outside",
        "lines of the access log",
        "keyed hashes in files and log streams",
        "user_hash",
        "out of reach",
        "the key that made the hashes is destroyed; let the lines expire",
    ),
    Place(
        "outside",
        "providers of models",
        "requests and answers",
        "people",
        "out of reach",
        "ask them to delete the data, or let it expire",
    ),
    Place(
        "outside",
        "the old database of a moved store",
        "old rows, and old keys if `refold move --keys-to` copied them",
        "people",
        "out of reach",
        "delete it, and the old key store if the keys were copied to another",
    ),
    Place(
        "outside",
        "other databases with the same key store",
        "rows whose keys are destroyed, and ids",
        "people",
        "out of reach",
        "erase the user in each of them",
    ),
    Place(
        "outside",
        "backups",
        "old rows and keys",
        "people",
        "out of reach",
        "let them expire",
    ),
    Place(
        "outside",
        "replicas and pg_wal of PostgreSQL",
        "ids and wrapped keys, of the database and of the key store",
        "people",
        "out of reach",
        "replicas follow; the server reuses the files of pg_wal",
    ),
    Place(
        "outside",
        "applications with tables of their own (es_…)",
        "their data, encrypted under their own key",
        "people",
        "out of reach",
        "Refold does not know which user an aggregate belongs to: erase it there",
        "es_*",
    ),
)


def places(kind: Kind, removal: Removal | None = None) -> list[Place]:
    """Return the places of a kind, or those where an erasure does this, in order."""
    return [
        place
        for place in PLACES
        if place.kind == kind and removal in (None, place.removal)
    ]


def outside() -> list[Place]:
    """Return the places with copies that an erasure cannot reach."""
    return places("outside")


def place_of_file(path: str) -> Place | None:
    """Return the place of a file by its path below ``REFOLD_HOME``."""
    for place in places("file"):
        if fnmatchcase(path, place.pattern):
            return place
    return None
