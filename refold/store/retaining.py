"""Retention: sessions that nobody uses are erased, one user after the other.

Each erasure is one as any other, with its certificate; here it only begins in another
way: in one transaction that looks once more whether the sessions are unused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from refold.domain.erasure import Whose
from refold.domain.errors import CorruptEvent, Erased, KeyUnavailable, OnHold
from refold.domain.ids import MAIN, StreamId
from refold.domain.keeping import FREEZE, OldBlobs, Unused
from refold.domain.ports import SessionInfo
from refold.domain.retention import RetentionPolicy
from refold.store.erasing import Ask, Eraser, Erasure
from refold.store.writing import Writer

REASON: Final = "retention"
_AT_ONCE: Final = 500  # sessions of one erasure
_TRIES: Final = 3
Progress: TypeAlias = Callable[[str, str], None]


class Retained(NamedTuple):
    """What a retention did, or with ``dry_run`` would do.

    sessions:  user and session of those that expired.
    kept:      how many did and are there still, by what keeps them: ``hold``,
               ``freeze``, ``fork`` (a living one needs it), ``in_use`` (by now), or
               ``unreadable``: users of whom something does not open.
    completed: erasures of before that were cut off, and are done now.
    erasures:  with their certificates.
    blobs, audit: how many of these expired; None where that was not asked.
    """

    dry_run: bool
    sessions: list[tuple[str, str]]
    kept: dict[str, int]
    completed: int
    erasures: list[Erasure]
    blobs: int | None = None
    audit: int | None = None


class _Due(NamedTuple):
    """Which sessions of a user expired, and which of those a living fork needs."""

    names: list[str]
    forked: list[str]


class How(NamedTuple):
    """How a policy is applied; ``progress`` is told each user and session that goes."""

    dry_run: bool = False
    operator: str = ""
    key_backups: timedelta | None = None
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class _Eraser(Eraser):
    """Erases; deleted bytes are overwritten once, when all erasures are done."""

    def _with_forks(self, whose: Whose) -> Whose:
        """No fork can be left: it began, and marked, only if none was there."""
        return whose

    def _searched(
        self,
        whose: Whose,
        erasure: Erasure,
        names: list[str],  # noqa: ARG002  # the caller's
        vacuum: bool,  # noqa: ARG002  # the caller's
    ) -> Erasure:
        return erasure._replace(left=self.erasures.left(whose))


@dataclass(slots=True)
class Retainer:
    """Applies a policy to the sessions of a store."""

    writer: Writer
    policy: RetentionPolicy
    how: How
    _kept: dict[str, int] = field(default_factory=dict)
    _sessions: list[tuple[str, str]] = field(default_factory=list)
    _erasures: list[Erasure] = field(default_factory=list)

    def run(self) -> Retained:
        """Complete what was cut off, then erase what is unused."""
        eraser = _Eraser(self.writer)
        completed = [] if self.how.dry_run else list(self._completed(eraser))
        for user_id, infos in self._users():
            try:
                self._of_user(eraser, user_id, infos)
            except (CorruptEvent, KeyUnavailable):
                # What it was forked from cannot be told, so nothing of the user goes.
                self._keep("unreadable", 1)
        blobs, erasures = self._blobs(), self._erasures
        if not self.how.dry_run and (completed or erasures or blobs):
            cleaned = eraser.erasures.clean(vacuum=False)
            erasures = [one._replace(cleaned=cleaned) for one in erasures]
        done = self.how.dry_run, self._sessions, self._kept, len(completed), erasures
        return Retained(*done, blobs)

    def _blobs(self) -> int | None:
        """How many whole texts expired; what is behind a fork stays for the fork."""
        if self.policy.blobs is None:
            return None
        keeping, done = self.writer.log.keeping, 0
        before = self.writer.clock() - self.policy.blobs // timedelta(microseconds=1)
        whose, kept, forked = "", False, set[str]()
        expire = _counted if self.how.dry_run else keeping.expire_blobs
        for blobs in keeping.old_blobs(before):
            try:
                if blobs.user_id != whose:
                    whose, kept = blobs.user_id, True
                    forked = self._forked(whose)
                    kept = bool(self.writer.log.erasures.holds(whose))
                if not kept and blobs.session_id not in forked:
                    done += expire(blobs)
            except (CorruptEvent, KeyUnavailable):
                self._keep("unreadable", 1)
        return done

    def _forked(self, user_id: str) -> set[str]:
        """The sessions of a user that others go on from."""
        infos = self.writer.log.sessions(user_id)
        names = [info.session_id for info in infos if not _is_apart(info)]
        origins: dict[str, str | None] = {}
        found = {self._origin(user_id, name, origins) for name in names}
        return {name for name in found if name is not None}

    def _completed(self, eraser: Eraser) -> Iterator[Erasure]:
        for job in eraser.erasures.jobs():
            if job.facts.get("reason") == REASON and job.due_at is None:
                yield eraser.run(job)

    def _users(self) -> Iterator[tuple[str, list[SessionInfo]]]:
        if self.policy.sessions is None:
            return
        found = self.writer.log.sessions()
        for user_id, infos in groupby(found, lambda info: info.user_id):
            yield user_id, list(infos)

    def _of_user(self, eraser: Eraser, user_id: str, infos: list[SessionInfo]) -> None:
        origins: dict[str, str | None] = {}
        lost = 0
        while True:
            due = self._due(user_id, infos, origins)
            if not due.names or self._is_held(user_id, due):
                break
            some = due.names if self.how.dry_run else due.names[:_AT_ONCE]
            done = self._erased(eraser, Whose(user_id, tuple(some)), infos)
            if done is not None:
                self._sessions += [(user_id, name) for name in some]
                lost = 0
            elif (lost := lost + 1) == _TRIES:
                self._keep("in_use", len(due.names))
                break
            if self.how.dry_run:
                break
            self._erasures += [done] if done else []
            infos = self.writer.log.sessions(user_id)
        self._keep("fork", len(due.forked))

    def _due(
        self, user_id: str, infos: list[SessionInfo], origins: dict[str, str | None]
    ) -> _Due:
        """Which are unused; ``origins`` remembers what was forked from what."""
        mine = [info for info in infos if not _is_apart(info)]
        last = self._reads(user_id)
        old = {
            info.session_id
            for info in mine
            if max(info.updated_at, last.get(info.session_id, 0)) <= self._since
        }
        if not old:
            return _Due([], [])
        waiting = [info.session_id for info in mine if info.session_id not in old]
        needed: set[str] = set()
        while waiting:
            origin = self._origin(user_id, waiting.pop(), origins)
            if origin is not None and origin not in needed:
                needed.add(origin)
                waiting.append(origin)
        return _Due(sorted(old - needed), sorted(old & needed))

    def _reads(self, user_id: str) -> Mapping[str, int]:
        """When each session was read last, if that is what uses one."""
        if self.policy.since == "append":
            return {}
        found = self.writer.log.keeping.accesses(user_id)
        return {one.session_id: one.last_at for one in found}

    def _origin(
        self, user_id: str, name: str, known: dict[str, str | None]
    ) -> str | None:
        """What a session was forked from; nothing ever changes that."""
        if name not in known:
            try:
                state = self.writer.log.head(StreamId(user_id, name, MAIN)).state
            except Erased:
                return None
            known[name] = state.forked_from[0] if state.forked_from else None
        return known[name]

    @property
    def _since(self) -> int:
        """What was used later is in use; microseconds since 1970."""
        age = self.policy.sessions or timedelta(0)
        return self.writer.clock() - age // timedelta(microseconds=1)

    def _is_held(self, user_id: str, due: _Due) -> bool:
        """Whether something forbids to erase anything of the user's."""
        holds = self.writer.log.erasures.holds(user_id)
        frozen = any(hold.name == FREEZE for hold in holds)
        if holds:
            self._keep("freeze" if frozen else "hold", len(due.names))
        return bool(holds)

    def _erased(
        self, eraser: Eraser, whose: Whose, infos: list[SessionInfo]
    ) -> Erasure | None:
        """Erase them, unless one was used, or another session began, meanwhile."""
        if self.how.dry_run:
            return Erasure()
        job = eraser.asked(
            Ask(whose, REASON, self.how.operator, None, self.how.key_backups), whose
        )
        known = frozenset(info.session_id for info in infos)
        unused = Unused(self._since, self.policy.since == "access", known)
        try:
            begun = self.writer.log.keeping.begin_unused(job, unused)
        except (OnHold, Erased):
            return None
        if begun is None:
            return None
        for name in whose.sessions or ():
            if self.how.progress is not None:
                self.how.progress(whose.user_id, name)
        return eraser.run(begun)

    def _keep(self, why: str, number: int) -> None:
        if number:
            self._kept[why] = self._kept.get(why, 0) + number


def _counted(blobs: OldBlobs) -> int:
    return len(blobs.addresses)


def _is_apart(info: SessionInfo) -> bool:
    """Erased already, or no session of an agent: what a user allows expires never."""
    return info.status == "erased" or info.session_id.startswith("_")
