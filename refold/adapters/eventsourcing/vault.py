"""The key of an application: seals its events on the way in, opens them on the way out.

It stands wrapped by the master key beside the events, for it is no means to erase
them; what is under it is encrypted, and not redacted.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from eventsourcing.persistence import DataError, StoredEvent
from sqlalchemy import Connection, Select, Table, insert, select

from refold.adapters.eventsourcing.database import Database
from refold.adapters.keys import seal, unseal
from refold.adapters.sealing import pack, unpack
from refold.bootstrap import master_key
from refold.domain.errors import KeyUnavailable

_CONTEXT: Final = b"refold application key"
_FORMAT: Final = b"\x01"


class Vault:
    """Seals the states of one table's events under its application's key."""

    def __init__(
        self, database: Database, keys: Table, application: str, purpose: str
    ) -> None:
        self._database, self._keys = database, keys
        self._application, self._purpose = application, purpose

    def seal(self, event: StoredEvent) -> bytes:
        """The event's state, compressed and encrypted, bound to its place and topic.

        Raises OperationalError if there is no key.
        """
        return _FORMAT + seal(self._cipher, pack(event.state), self._context(event))

    def open(self, originator_id: Any, version: int, topic: str, state: bytes) -> bytes:
        """The state as it was before it was sealed.

        Raises DataError if it was sealed for another row or under another key.
        """
        row = StoredEvent(originator_id, version, topic, state)
        try:
            if state[:1] != _FORMAT:
                raise InvalidTag
            return unpack(unseal(self._cipher, state[1:], self._context(row)))
        except InvalidTag:
            raise DataError(
                f"version {version} of {originator_id} does not open with the key of "
                f"its application: the row in {self._purpose} was changed, or is of "
                "another database"
            ) from None

    def _context(self, event: StoredEvent) -> bytes:
        """What the state is bound to; the lengths keep its parts apart."""
        id_, topic = str(event.originator_id).encode(), event.topic.encode()
        place = (event.originator_version, len(id_), len(topic))
        return b"%d %d %d " % place + id_ + topic + self._purpose.encode()

    def exists(self, connection: Connection) -> bool:
        """Whether the application has a key."""
        return connection.execute(self._query()).first() is not None

    def make(self, connection: Connection, events: Table) -> None:
        """Make the key if there is none, while no other process does.

        Raises KeyUnavailable if there are ``events``, for they were written with one.
        """
        if self.exists(connection):
            return
        if connection.execute(select(events.c.topic).limit(1)).first() is not None:
            raise self._lost()
        others = connection.execute(select(self._keys.c.name).limit(1)).first()
        master = master_key(self._database.url, create=others is None)
        wrapped = master.wrap(os.urandom(32), _CONTEXT)
        values = {"name": self._application, "wrapped": wrapped}
        connection.execute(insert(self._keys).values(values))

    @cached_property
    def _cipher(self) -> AESGCM:
        with self._database.errors():
            found = self._database.read(self._query())
            if not found:
                raise self._lost()
            master = master_key(self._database.url, create=False)
            return AESGCM(master.unwrap(bytes(found[0].wrapped), _CONTEXT))

    def _query(self) -> Select[Any]:
        keys = self._keys.c
        return select(keys.wrapped).where(keys.name == self._application)

    def _lost(self) -> KeyUnavailable:
        return KeyUnavailable(
            f"the key of application {self._application!r} is not in es_keys",
            remedy="restore that table from the backup of its events",
        )
