"""Where the master key comes from: the environment, or a private file that is made.

While it is replaced there are two, the newest first: in the file a line each, in the
variable parted by commas.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from refold import config
from refold.adapters.master import SIZE, LocalMasterKey
from refold.domain.errors import InvalidConfiguration, KeyUnavailable

VARIABLE: Final = "REFOLD_MASTER_KEY"
log = logging.getLogger("refold")


def from_environment(given: str) -> LocalMasterKey:
    """The master key that the variable holds.  Raises InvalidConfiguration."""
    keys = decoded(given)
    if not keys:
        raise InvalidConfiguration(f"{VARIABLE} must be 32 bytes, in base64 or hex")
    return LocalMasterKey(*keys, origin=VARIABLE)


class MasterKeyFile:
    """A private file with the master key, and the one before while it is replaced."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or config.home() / "master.key"

    def create(self) -> None:
        """Make it, unless it is there; says so, for without it nothing can be read."""
        # Here, for SQLAlchemy comes with it.
        from refold.adapters.sql.keystore import create_private

        if create_private(self.path, _written([os.urandom(SIZE)])):
            log.warning(
                "made a new master key at %s (mode 0600): back it up apart from the "
                "database, without it nothing can be read",
                self.path,
            )

    def open(self) -> LocalMasterKey:
        """The master key in it.  Raises KeyUnavailable."""
        return LocalMasterKey(*self.read(), origin=str(self.path), reload=self.read)

    def read(self) -> Sequence[bytes]:
        """All keys in it, the newest first.  Raises KeyUnavailable."""
        try:
            keys = decoded(self.path.read_text())
        except OSError as error:
            raise KeyUnavailable(
                f"the master key {self.path} cannot be read ({error.strerror})",
                remedy="restore it, or set REFOLD_MASTER_KEY or REFOLD_HOME",
            ) from None
        if not keys:
            raise KeyUnavailable(
                f"the master key {self.path} is no key",
                remedy="restore it: a line of 32 bytes in base64 or hex",
            )
        return keys

    def add(self) -> bool:
        """Put a new key before the one there is; False if there are two already."""
        keys = self.read()
        if len(keys) > 1:
            return False
        self._replace([os.urandom(SIZE), *keys])
        return True

    def drop_older(self) -> None:
        """Keep the newest key alone."""
        self._replace(self.read()[:1])

    def _replace(self, keys: Sequence[bytes]) -> None:
        """Put another file in its place, whole or not at all."""
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(_written(keys))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def decoded(text: str) -> list[bytes]:
    """The keys of 32 bytes in a text, in base64 or hex; none if one of them is not."""
    keys = [_decoded(part) for part in re.split(r"[\s,]+", text.strip())]
    return keys if all(len(key) == SIZE for key in keys) else []


def _decoded(text: str) -> bytes:
    try:
        if len(text) == 2 * SIZE:
            return bytes.fromhex(text)
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return b""


def _written(keys: Sequence[bytes]) -> bytes:
    return b"".join(base64.b64encode(key) + b"\n" for key in keys)
