"""The HMACs of bodies, which prove the bytes of a request to an owner of the store."""

from __future__ import annotations

import hmac
from collections import OrderedDict
from typing import Final, NamedTuple

from refold.domain.ids import StreamId
from refold.store.session.session import Session

_DOMAIN: Final = b"wire\0"
# Two bodies are compared in blocks of this size.
_BLOCK_BYTES: Final = 4_096
# The most bytes of bodies that are remembered.
_MOST_BYTES: Final = 32 << 20


def body_mac(session: Session, body: bytes) -> str:
    """Return a code that proves the bytes of a request to an owner of the store.

    It hides them, and nobody can check it once the session is erased.
    """
    return hmac.digest(_key(session), _DOMAIN + body, "sha256").hex()


def _key(session: Session) -> bytes:
    """Return the key of a session.  Raises Erased, KeyUnavailable."""
    return session.writer.log.session_proof_key(session.stream)


class _Last(NamedTuple):
    """The last body of a session.

    shared: the number of bytes that the body before it has, too.
    state:  of the HMAC behind these bytes.
    """

    key: bytes
    body: bytes
    shared: int
    state: hmac.HMAC


class BodyMacs:
    """Makes the codes of bodies; hashes only what the last body of the session lacks.

    The last bodies stay in memory, and are written nowhere.
    """

    def __init__(self) -> None:
        self._last: OrderedDict[StreamId, _Last] = OrderedDict()
        self._bytes = 0

    def of(self, session: Session, body: bytes) -> str:
        """Return the same code as ``body_mac``.  Raises Erased, KeyUnavailable."""
        last = self._pop(session.stream)
        key = _key(session)
        shared = 0
        state = hmac.new(key, _DOMAIN, "sha256")
        if last is not None and last.key == key:
            if body.startswith(last.body[: last.shared]):
                shared = last.shared
                state = last.state
            end = _shared_blocks(last.body, body, shared)
            state.update(body[shared:end])
            shared = end
        whole = state.copy()
        whole.update(body[shared:])
        self._put(session.stream, _Last(key, body, shared, state))
        return whole.hexdigest()

    def forget_all(self) -> None:
        """Drop all bodies and keys."""
        self._last.clear()
        self._bytes = 0

    def _pop(self, stream: StreamId) -> _Last | None:
        last = self._last.pop(stream, None)
        if last is not None:
            self._bytes -= len(last.body)
        return last

    def _put(self, stream: StreamId, last: _Last) -> None:
        self._last[stream] = last
        self._bytes += len(last.body)
        while self._bytes > _MOST_BYTES:
            _, oldest = self._last.popitem(last=False)
            self._bytes -= len(oldest.body)


def _shared_blocks(one: bytes, other: bytes, start: int) -> int:
    """Return the end of the blocks that both bodies begin with.

    start: the bytes up to here are the same.
    """
    end = start
    limit = min(len(one), len(other)) - _BLOCK_BYTES
    while end <= limit:
        block = end + _BLOCK_BYTES
        if one[end:block] != other[end:block]:
            break
        end = block
    return end
