"""The contract is strict: each of its tests fails on a log that does nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from refold.domain.envelope import Envelope
from refold.domain.erasure import LegalHold
from refold.domain.events import Span
from refold.domain.ids import StreamId
from refold.domain.ports import (
    EVERYTHING,
    NO_LABELS,
    Append,
    Appended,
    Clock,
    Duplicate,
    EventLog,
    Head,
    HeadColumns,
    Holding,
    Lagging,
    Leases,
    ListedSession,
    NamedView,
    Outcome,
    Place,
    Problem,
    Rewriting,
    Rewritten,
    Scope,
    SessionInfo,
    SessionSnapshot,
    StoredView,
)
from refold.domain.session import SessionState
from refold.testing import EventLogContract

PROMISES = [name for name in dir(EventLogContract) if name.startswith("test_")]


class NoopLeases:
    """Gives every lease to every caller."""

    def take_lease(
        self, stream: StreamId, owner: str, *, clock: Clock, period: int
    ) -> bool:
        return True

    def renew_lease(
        self, stream: StreamId, owner: str, *, clock: Clock, period: int
    ) -> bool:
        return True

    def mark_done(
        self, stream: StreamId, owner: str, *, clock: Clock, period: int
    ) -> bool:
        return True

    def holding(self, stream: StreamId, *, clock: Clock) -> Holding:
        return Holding(0, done=False)

    def fenced(self, stream: StreamId, owner: str) -> AbstractContextManager[None]:
        return nullcontext()

    def release_lease(self, stream: StreamId, owner: str) -> bool:
        return False


class NoopRetention:
    """Reports every freeze as done."""

    def freeze(self, user_id: str, freeze: LegalHold) -> bool:
        return True


class NoopLog:
    """Reports success for everything and stores nothing."""

    def head(self, stream: StreamId) -> Head:
        return Head(SessionState(stream))

    def append(self, request: Append) -> Outcome:
        return Appended(request.base)

    def append_soon(
        self, request: Append, done: Callable[[Outcome | Exception], None]
    ) -> bool:
        return False

    def append_exclusive(
        self, stream: StreamId, build: Callable[[Head], Append]
    ) -> Outcome:
        return Appended(build(self.head(stream)).base)

    def receipt(self, stream: StreamId, idempotency_key: str) -> Duplicate | None:
        return None

    def known(self, stream: StreamId, keys: Sequence[str]) -> dict[str, Duplicate]:
        return {}

    def read(
        self,
        stream: StreamId,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int | None = None,
        types: Sequence[str] = (),
        newest: bool = False,
        spans: Sequence[Span] = (),
    ) -> list[Envelope]:
        return []

    def orphans(self, scope: Scope = EVERYTHING) -> list[Problem]:
        return []

    def audit(self, stream: StreamId) -> Iterator[Envelope | Problem]:
        return iter(())

    @property
    def shared(self) -> bool:
        return True

    def audit_chain(
        self, stream: StreamId, *, since_seal: bool = False
    ) -> Iterator[int | Problem]:
        return iter(())

    def sessions(
        self,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        labels: Mapping[str, str] = NO_LABELS,
        after: tuple[str, str] | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[SessionInfo]:
        return []

    def label(self, stream: StreamId, labels: Mapping[str, str | None]) -> None:
        pass

    def label_like(self, stream: StreamId, other: StreamId) -> None:
        pass

    def has_exactly_labels(self, stream: StreamId, labels: Mapping[str, str]) -> bool:
        return False

    def streams(self, user_id: str, session_id: str) -> list[str]:
        return []

    def blob(self, stream: StreamId, sha256: str) -> bytes | None:
        return None

    def blobs(self, stream: StreamId, digests: Iterable[str]) -> dict[str, bytes]:
        return {}

    def load_view(self, stream: StreamId, name: str) -> StoredView | None:
        return None

    def listed_sessions(self, user_id: str, **_: Any) -> list[ListedSession]:
        return []

    def listed_heads(
        self, user_id: str | None, *, labels: Mapping[str, str] = NO_LABELS
    ) -> list[HeadColumns]:
        return []

    def count_listed(
        self, user_id: str, *, labels: Mapping[str, str] = NO_LABELS
    ) -> int:
        return 0

    def listed_names(self, user_id: str, names: Sequence[str]) -> set[str]:
        return set()

    def views_named(
        self, user_id: str, name: str, session_ids: Sequence[str] | None = None
    ) -> Iterator[NamedView]:
        return iter(())

    def derived_seqs(
        self, user_id: str, session_ids: Sequence[str] | None = None
    ) -> dict[str, int]:
        return {}

    def snapshot(
        self, stream: StreamId, name: str, *, shown: bool = False
    ) -> SessionSnapshot:
        return SessionSnapshot(self.head(stream))

    def save_view(
        self, stream: StreamId, name: str, view: StoredView, *, replaces: int
    ) -> bool:
        return True

    def view_names(self, user_id: str, session_id: str) -> list[str]:
        return []

    def pseudonym_key(self, user_id: str, *, now: int) -> bytes:
        return b""

    def encrypt_link(self, names: bytes) -> bytes:
        return names

    def decrypt_link(self, ciphertext: bytes) -> bytes | None:
        return ciphertext

    def share_places(self, user_id: str) -> list[Place]:
        return []

    def drop_view(self, stream: StreamId, name: str) -> None:
        pass

    def drop_views(self, user_id: str, session_id: str) -> None:
        pass

    def rewrite(self, stream: StreamId, rewriting: Rewriting, *, now: int) -> Rewritten:
        return Rewritten(1, 1, 2)

    def destroy_old_keys(self, stream: StreamId) -> int:
        return 0

    def count_old_keys(self, stream: StreamId) -> int:
        return 0

    @property
    def erasures(self) -> Any:
        return None

    @property
    def retention(self) -> Any:
        return NoopRetention()

    @property
    def repairs(self) -> Any:
        return None

    def session_proof_key(self, stream: StreamId) -> bytes:
        return b""

    @property
    def leases(self) -> Leases:
        return NoopLeases()

    def lagging(
        self, scope: Scope, *, by: int, limit: int, after: Place | None = None
    ) -> list[Lagging]:
        return []

    def stats(self, scope: Scope, *, now: int) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


@pytest.mark.parametrize("promise", PROMISES)
def test_each_contract_test_fails_on_a_log_that_does_nothing(promise: str) -> None:
    log: EventLog = NoopLog()

    with pytest.raises(
        (AssertionError, ValueError, LookupError, pytest.fail.Exception)
    ):
        getattr(EventLogContract(), promise)(log)


def test_the_contract_has_tests() -> None:
    assert len(PROMISES) > 20
