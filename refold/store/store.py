"""The store: sessions of users over one log."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from refold.domain.access_log import Audit, AuditRecord
from refold.domain.envelope import microseconds
from refold.domain.errors import InvalidConfiguration
from refold.domain.ids import MAIN, USER_SESSION, StreamId, check_id, check_session_id
from refold.domain.ports import (
    Damage,
    EventLog,
    Problem,
    SessionInfo,
    scope,
)
from refold.domain.seals import Seals, SealsVerified, TreeHead
from refold.projections.context.abridged import Abridged
from refold.projections.context.compaction import Summarizer
from refold.projections.context.strategy import Strategy, fitting
from refold.redaction.guard import Limits
from refold.redaction.redactor import Redactor
from refold.store.access_log import STORE, audits
from refold.store.appends import Heads, Uses, Writer
from refold.store.compactions import Upkeep
from refold.store.contexts import Settings, bring_up, lagging
from refold.store.erasure import Erasures, Keys
from refold.store.exports import Exported, export_user
from refold.store.memory import Remembers, User
from refold.store.rebuilds import Rebuilder, Rebuilt, rebuild_all
from refold.store.reviews import ListsReviews
from refold.store.sessions import Session
from refold.store.verification import (
    Rechecked,
    Verified,
    forks_of,
    recheck,
    repair,
    reredact,
)


class KeepsAudit:
    """The part of a store that shows its audit log."""

    _writer: Writer
    _trail: Audit | None

    def audit_records(
        self,
        user_id: str | None = None,
        session_id: str | None = None,
        *,
        since: datetime | None = None,
    ) -> Iterator[AuditRecord]:
        """What was done with the store, the oldest first: by a user, or by all.

        Whose a record is can be found by name only, and only while the user has a key.
        Without a user, records are given with the keyed hashes that they hold.

        Raises Erased, InvalidConfiguration for a session without its user, and for
        ``since`` without a time zone.
        """
        if user_id is not None:
            check_id("user_id", user_id)
        if session_id is not None:
            check_session_id(session_id)
            if user_id is None:
                raise InvalidConfiguration("a session is asked for with its user")
        if since is not None and since.tzinfo is None:
            raise InvalidConfiguration("since needs a time zone")
        at = None if since is None else microseconds(since)
        return self._kept.find(user_id, session_id, since=at)

    def purge_audit(self, older_than: timedelta) -> int:
        """Delete audit records that are older, for good; returns how many.

        Raises InvalidConfiguration for an age below zero.
        """
        if older_than < timedelta(0):
            raise InvalidConfiguration("records cannot be older than a time to come")
        age = older_than // timedelta(microseconds=1)
        return self._kept.purge(self._writer.clock() - age)

    @property
    def audit_is_on(self) -> bool:
        """Whether uses of the store are recorded anywhere."""
        return self._trail is not None and self._trail.on

    def flush_audit(self) -> None:
        """Return when what was done up to now is in the audit log, if it can be."""
        if self._trail is not None:
            self._trail.flush()

    @property
    def _kept(self) -> Audit:
        if self._trail is None:
            raise InvalidConfiguration("this store keeps no audit log")
        return self._trail


class Controls(Erasures, KeepsAudit):
    """The part of a store that hands out a user's data, keeps it, and lets it go."""

    def user(self, user_id: str) -> User:
        """The user as a whole: what they allow.  Raises InvalidEvent for no name."""
        return User(self._writer, check_id("user_id", user_id))

    def export_user(self, user_id: str, out: str | os.PathLike[str]) -> Exported:
        """Write all that is kept of a user to a new directory, in plain, readable.

        Sessions, derived streams, whole texts, views, consent, holds and certificates,
        and a manifest with the digest of each file.  ``out`` appears at the end, whole;
        until then it is a hidden directory beside, which is removed if this fails.

        Raises Erased if the user, or one of the sessions, is erased meanwhile,
        SessionNotFound for a user who has none, ExportFailed if something is there.
        """
        return export_user(self._writer, check_id("user_id", user_id), Path(out))


def now() -> int:
    """The writer's clock: microseconds since 1970 in UTC."""
    return time.time_ns() // 1000


@audits(STORE, "_writer")
class SessionStore(Controls, Keys, Remembers, ListsReviews):
    """Keeps everything that agents' sessions did.

    Safe to share between threads.  Use it as a context manager, or call ``close``.
    """

    def __init__(
        self,
        log: EventLog,
        redactor: Redactor,
        limits: Limits,
        *,
        clock: Callable[[], int] = now,
        upkeep: Upkeep | None = None,
        settings: Settings | None = None,
        seals: Seals | None = None,
        audit: Audit | None = None,
        count_uses: bool = False,
        shared_memory: bool = False,
    ) -> None:
        self.log = log
        self._seals, self._trail = seals, audit
        self.clock = clock
        self._shares_memory = shared_memory
        self.upkeep = upkeep or Upkeep()
        self.settings = settings or Settings()
        told = audit if audit and audit.on else None
        self._uses = Uses(log.retention, clock) if count_uses else None
        self._writer = Writer(log, redactor, limits, clock, Heads(), told, self._uses)

    def session(self, user_id: str, session_id: str) -> Session:
        """The session of that name; it begins with its first append.

        Raises InvalidEvent for ids that cannot be stored.
        """
        check_id("user_id", user_id)
        check_session_id(session_id)
        stream = StreamId(user_id, session_id, MAIN)
        return Session(stream, self._writer, self.upkeep, self.settings)

    def sessions(self, user_id: str | None = None) -> list[SessionInfo]:
        """The sessions of a user, or of all users, by user and name."""
        return list(self._readable(user_id, None))

    def verify(
        self,
        user_id: str | None = None,
        session_id: str | None = None,
        *,
        chain_only: bool = False,
    ) -> Iterator[tuple[SessionInfo, Verified]]:
        """Prove session after session; yields each with what was proved of it.

        ``chain_only`` is as in ``Session.verify``.  Events whose session is not listed
        any more come last, as a problem; an erasure that was cut off is one too.
        """
        lost: dict[tuple[str, str], list[Problem]] = {}
        for problem in self.log.orphans(scope(user_id, session_id)):
            lost.setdefault((problem.user_id, problem.session_id), []).append(problem)
        for info in self._readable(user_id, session_id):
            orphans = lost.pop((info.user_id, info.session_id), [])
            session = self.session(info.user_id, info.session_id)
            verified = session.verify(chain_only=chain_only)
            yield info, verified._replace(problems=[*verified.problems, *orphans])
        for (owner, name), orphans in lost.items():
            if user_id in (None, owner) and session_id in (None, name):
                info = SessionInfo(owner, name, 0, "open", 0, 0, 0)
                yield info, Verified(0, 0, 0, orphans)
        yield from self._unfinished(user_id)

    def verify_seals(self) -> SealsVerified | None:
        """Prove the tree over the ends of all streams, against the anchor too.

        ``verify`` proves each stream against the tree; this, that the tree is the one
        that was signed and anchored, and that no stream of it is gone.  None for a
        store in memory, which is not sealed.
        """
        return None if self._seals is None else self._seals.verify()

    @property
    def seals(self) -> Seals:
        """The tree over the ends of all streams: its heads, proofs and checks.

        Raises InvalidConfiguration for a store in memory.
        """
        if self._seals is None:
            raise InvalidConfiguration("memory:// keeps nothing that could be sealed")
        return self._seals

    def seal(self, *, sweep: bool = False) -> TreeHead | None:
        """Seal what is new: sign the ends of all streams, and anchor what was signed.

        Returns the newest tree head, None if nothing was ever written.  Cut off, it is
        completed by the next call.  ``sweep`` looks at every stream, not only at those
        that the log says are new.

        Raises SealBroken if the database is not the one that was sealed before.
        """
        return self.seals.seal(now=self.clock(), sweep=sweep)

    def repair(
        self,
        user_id: str | None = None,
        session_id: str | None = None,
        *,
        apply: bool = False,
    ) -> Iterator[tuple[StreamId, list[Damage]]]:
        """Say what is damaged, and with ``apply`` make anew what events can tell.

        Yields each session's main stream with what was found: head rows that are gone
        or not what was written, stored views, blobs that no event names, keys that a
        redaction left.  Events are never touched: what is wrong with them is told.

        Raises InvalidConfiguration for a store in memory.
        """
        return repair(self.log, scope(user_id, session_id), apply=apply)

    def recheck(
        self, user_id: str | None = None, session_id: str | None = None
    ) -> Iterator[Rechecked]:
        """Run the present rules over what is stored, session after session.

        Yields each with what they would take out now: where and how often which
        type, never the value.  Nothing is changed.
        """
        for info in self._readable(user_id, session_id):
            yield recheck(self._writer, info)

    def reredact(
        self, user_id: str | None = None, session_id: str | None = None
    ) -> Iterator[Rechecked]:
        """Do the same, and replace what is found, for good.

        A session in which something is found is sealed under a new key and its old
        key destroyed; ``redaction_applied`` events bind what was replaced to the
        chain.  Contexts and summaries are then made of what is left.  Cut off, it is
        completed by running it again.
        """
        for info in self._writable(user_id, session_id):
            done = reredact(self._writer, info)
            if done.applied is not None:
                self._drop_views_of_forks(info)
            yield done

    def _readable(
        self, user_id: str | None, session_id: str | None
    ) -> Iterator[SessionInfo]:
        user_id, session_id = scope(user_id, session_id)
        found = self.log.sessions(user_id, session_id=session_id)
        return (info for info in found if info.status != "erased")

    def _writable(
        self, user_id: str | None, session_id: str | None
    ) -> Iterator[SessionInfo]:
        """Of all users, but those that are frozen; of one by name, whatever it is."""
        found = self._readable(user_id, session_id)
        return (info for info in found if info.is_live or user_id is not None)

    def _drop_views_of_forks(self, info: SessionInfo) -> None:
        stream = StreamId(info.user_id, info.session_id, MAIN)
        others = self._readable(info.user_id, None)
        for session_id in (USER_SESSION, *forks_of(self._writer, others, stream)):
            self.log.drop_views(info.user_id, session_id)

    def rebuild(
        self,
        strategy: str | Strategy,
        user_id: str | None = None,
        session_id: str | None = None,
        *,
        summarizer: Summarizer | None = None,
        strict: bool = False,
        dry_run: bool = False,
        jobs: int = 1,
        progress: Callable[[SessionInfo, int], None] | None = None,
    ) -> Iterator[Rebuilt]:
        """Make the summaries there would be, had this strategy always run.

        Yields each session with what was done, up to ``jobs`` of them at a time;
        ``Rebuilder`` says what strict and dry_run are.  Nothing that other strategies
        show changes.  Cut off, it goes on where it stopped when it is run again.

        summarizer: what writes the summaries; None is the store's.  A dry run asks
                    none.
        progress:   is told how many events of a session are walked.

        Raises UnknownStrategy, InvalidConfiguration, SummarizerFailed if strict.
        """
        taken = self.settings.strategy(strategy)
        writes = summarizer or self.upkeep.summarizer or Abridged()
        rebuilder = Rebuilder(
            self._writer,
            taken,
            Abridged() if dry_run else fitting(taken, writes),
            strict=strict,
            dry_run=dry_run,
        )
        found = list(self._writable(user_id, session_id))
        self.flush_audit()  # no thread of it stands in the way of forking
        return rebuild_all(rebuilder, found, jobs=jobs, progress=progress)

    def catch_up(self, user_id: str | None = None) -> int:
        """Bring every stored view up to its session's head; returns how many moved."""
        behind = lagging(self.log, scope(user_id))
        return sum(bring_up(self.log, view.place) for view in behind)

    def stats(self, user_id: str | None = None) -> dict[str, Any]:
        """Sizes and rates of all there is, or of a user; every row is counted.

        ``lag`` says for each strategy how far its stored views are behind.
        ``retired_keys`` should be 0: ``reredact`` destroys them, unless it was cut off.
        """
        return self.log.stats(scope(user_id), now=self.clock())

    def close(self) -> None:
        """Let go of the database and of the keys, once the background is done."""
        self.upkeep.background.close()
        if self._uses is not None:
            self._uses.close()
        if self._trail is not None:
            self._trail.close()
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
