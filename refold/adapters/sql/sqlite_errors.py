"""What SQLite said, as an error of ours: what happened, and the way out."""

from __future__ import annotations

from refold.domain.errors import IncompatibleStore, RefoldError, StoreUnavailable


def translated(path: str, said: str) -> RefoldError:
    """The error for what SQLite said of the file at ``path``."""
    known = {
        "locked": ("is busy with another writer", "try again when it is done"),
        "readonly": (
            "cannot be written",
            "check the rights on the file and its folder",
        ),
        "full": ("cannot grow: the disk is full", "free space and try again"),
        "unable to open": ("cannot be opened", "check that its folder exists"),
        "disk i/o": ("cannot be written: disk I/O error", "check the disk"),
    }
    lowered = said.lower()
    for sign, (what, remedy) in known.items():
        if sign in lowered:
            return StoreUnavailable(f"{path} {what}", remedy=remedy)
    if "not a database" in lowered or "malformed" in lowered:
        return IncompatibleStore(
            f"{path} is not a SQLite database, or is damaged: give another file, or "
            "restore it"
        )
    return StoreUnavailable(f"{path}: {said}", remedy="see the message of SQLite")
