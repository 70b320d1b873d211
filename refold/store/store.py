"""The store: sessions of users over one log."""

from __future__ import annotations

import hmac
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from datetime import UTC, timedelta
from functools import partial
from itertools import chain, count, groupby, islice
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, NoReturn, Self

from refold.domain import errors, ids, ports
from refold.domain.access_log import AccessTrail
from refold.domain.canonical import encodable
from refold.domain.clocks import GivenTime, StoreTime
from refold.domain.errors import InvalidConfiguration
from refold.domain.model import quiet
from refold.domain.seals import Ending, Seals, SealsVerified, TreeHead
from refold.domain.session import labelling
from refold.projections.context.abridged import Abridged
from refold.projections.context.compaction import Summarizer
from refold.projections.context.strategy import Strategy, summarizer_for
from refold.projections.models import Spending, answers
from refold.redaction.guard import Limits
from refold.redaction.redactor import Redactor
from refold.store import erasure
from refold.store.appends import Heads, Writer, uncounted
from refold.store.contexts import Settings, bring_all_up
from refold.store.erasure import Erasure, Erasures, Keys
from refold.store.exports import Exported, export_user
from refold.store.history import read_on
from refold.store.memory.consent import User
from refold.store.memory.memories import Memories
from refold.store.proofs import verification
from refold.store.proofs.access_log import AccessLog, Reads, RecordedWriter
from refold.store.proofs.verification import Rechecked, Verified, Verifier
from refold.store.recorded import recorded
from refold.store.reviews import Reviews
from refold.store.search import Found, search
from refold.store.session.imports import take_in
from refold.store.session.session import Session
from refold.store.upkeep import Upkeep
from refold.store.vault import Vault
from refold.store.work.jobs import spread
from refold.store.work.rebuilds import Rebuilt, rebuilt

_RANGE: Final = 50  # streams, of which an executor looks for the ends at once


def now() -> int:
    """The writer's clock: microseconds since 1970 in UTC."""
    return time.time_ns() // 1000


@quiet
class Imported(NamedTuple):
    """What became of a transcript: its session, and what was written and left out."""

    session_id: str
    format: str
    events: int
    duplicates: int
    redactions: Counter[str]
    skipped: tuple[ports.Skipped, ...] = ()


def _no_reader(path: Path, *_: object, **__: object) -> NoReturn:
    raise InvalidConfiguration(f"{path}: this store reads no transcripts")


class SessionStore:
    """Keeps everything that agents' sessions did.

    Safe to share between threads.  Use it as a context manager, or call ``close``.
    """

    def __init__(
        self,
        log: ports.EventLog,
        redactor: Redactor,
        limits: Limits,
        *,
        clock: Callable[[], int] = now,
        time: StoreTime | None = None,
        upkeep: Upkeep | None = None,
        settings: Settings | None = None,
        seals: Seals | None = None,
        audit: AccessTrail | None = None,
        count_uses: bool = False,
        shared_memory: bool = False,
        vault: Vault | None = None,
        transcripts: ports.ReadTranscripts = _no_reader,
        opens: Callable[[], Any] | None = None,
    ) -> None:
        self.log, self.clock = log, clock
        if time is None or clock is not now:
            time = GivenTime(clock)
        self.time = time
        self.opens = opens  # opens it in another process, which is sent this
        self.upkeep, self.settings = upkeep or Upkeep(), settings or Settings()
        self._seals, self._read_transcripts = seals, transcripts
        reads = None
        if count_uses:
            reads = Reads(log.retention, lambda: time.stamp(clock()))
        told = audit if audit is not None and audit.on else None
        kind = RecordedWriter if told else Writer
        used = reads.note if reads else uncounted
        vault = Vault() if vault is None else vault
        self.writer = kind(
            log=log,
            redactor=redactor,
            limits=limits,
            clock=clock,
            heads=Heads(),
            time=time,
            audit=told,
            used=used,
            vault=vault,
        )
        self.access_log = AccessLog(self.writer, audit, reads)
        self.erasures = Erasures(self.writer, self.access_log)
        self.keys = Keys(self.writer)
        self.memory = Memories(self.writer, shares=shared_memory)
        self.reviews = Reviews(self.writer)

    def session(self, *, user_id: str, session_id: str) -> Session:
        """The session of that name; it begins with its first append.

        Raises InvalidEvent for ids that cannot be stored.
        """
        ids.check_id("user_id", user_id)
        ids.check_session_id(session_id)
        stream = ids.StreamId(user_id, session_id, ids.MAIN)
        return Session(stream, self.writer, self.upkeep, self.settings)

    def named(
        self, name: str, *, user_id: str, labels: Mapping[str, str] = ports.NO_LABELS
    ) -> Session:
        """The session that something else calls so: a thread, a path, a key of it.

        The name may say anything: a keyed hash of it names the session, and it is kept
        as its label ``name``, redacted.  One that was deleted begins again, as another
        session.

        labels: what it is found by besides, once it began.

        Raises InvalidEvent, and Erased for a user who was.
        """
        ids.check_id("user_id", user_id)
        if not encodable(name):
            raise errors.InvalidEvent("a name must be a text without half of a pair")
        labelling({**labels, "name": name})
        key = self.log.pseudonym_key(user_id, now=self.clock())
        said = hmac.digest(key, b"session name\0" + name.encode(), "sha256").hex()[:32]
        for generation in count(1):
            session_id = f"n-{said}" + (f"~{generation}" if generation > 1 else "")
            session = self.session(user_id=user_id, session_id=session_id)
            try:
                self.log.head(session.stream)
            except errors.Erased:
                self.log.erasures.refuse_erased(user_id)
                continue
            return replace(session, begins={**labels, "name": name})
        raise AssertionError  # it counts on

    @recorded("session_list", "sessions")
    def sessions(
        self,
        user_id: str | None = None,
        *,
        label: Mapping[str, str] | None = None,
        after: ports.SessionInfo | str | None = None,
        limit: int | None = None,
        internal: bool = False,
    ) -> list[ports.SessionInfo]:
        """The sessions of a user, or of all users, by user and name.

        label: only those with all these labels, such as ``{"project": "refold"}``.
        after: only those behind this one; a name is that of a session of the user.
        limit: at most so many: with the last of them as ``after``, the next page.
        internal: also ``_user``, in which Refold records what a user allows.  What
                  memory keeps of sessions that are gone is never listed.

        Raises InvalidConfiguration for a label or a name without its user, InvalidEvent
        for a name that no session can have.
        """
        user_id, labels = ports.scope(user_id).user_id, {} if label is None else label
        held = [*labels, *labels.values()] if isinstance(labels, Mapping) else [None]
        if not all(isinstance(text, str) for text in held):
            raise InvalidConfiguration('label: texts by name, {"project": "refold"}')
        if user_id is None and (labels or isinstance(after, str)):
            raise InvalidConfiguration("name the user whose sessions they are, too")
        if isinstance(after, str) and after:
            ids.check_id("session_id", after)
        place = (user_id or "", after) if isinstance(after, str) else None
        if isinstance(after, ports.SessionInfo):
            place = after.user_id, after.session_id
        most = None if limit is None else ids.bounded("limit", limit)
        found: list[ports.SessionInfo] = []
        while most is None or len(found) < most:
            left = None if most is None else most - len(found)
            page = self.log.sessions(user_id, labels=labels, after=place, limit=left)
            for info in page:
                if info.status == "erased" or info.session_id.startswith(ids.KEPT):
                    continue
                if internal or not info.is_internal:
                    found.append(info)
            if left is None or len(page) < left:
                break
            place = page[-1].user_id, page[-1].session_id
        return found

    def import_transcript(
        self,
        path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        user_id: str,
        session_id: str | None = None,
        format: str = "auto",  # noqa: A002  # as the command line's option is named
        strict: bool = False,
        progress: Callable[[str, int, int], None] | None = None,
        executor: Executor | None = None,
    ) -> list[Imported]:
        """Append the transcripts of a file, or an export's folder, each as a session.

        Everything is redacted and recorded anew.  Import a file that has grown, or an
        import that was cut off, again: only what is new is added.

        session_id: what a single transcript is called; several are numbered.  None: as
                    the file says, else by the file's name.
        format:     one of ``refold import --format``; ``auto`` recognises them.
        strict:     a damaged line refuses the file; else the rest is imported, and the
                    line is among the ``skipped``.
        progress:   is told session, events done, and how many it has.
        path:       or several, whose sessions are called as they say, or by the file;
                    ``executor`` is as in ``rebuild``, a file at a time.

        Raises ImportFailed, where nothing was written of that transcript, and what an
        append raises.
        """
        ids.check_id("user_id", user_id)
        if session_id is not None:
            ids.check_session_id(session_id)
        found, names = list[Imported](), dict[str, str]()
        if not isinstance(path, (str, os.PathLike)):
            work = partial(_imported, user_id=user_id, format=format, strict=strict)
            for some in spread(self, work, path, executor):
                found += some
            return found
        transcripts = self._read_transcripts(
            Path(path), format, session_id, strict=strict
        )
        for name, one in transcripts:
            if not one.drafts and one.forked_from is None:
                nothing = Imported(name, one.format, 0, 0, Counter(), one.skipped)
                found += [nothing] if one.skipped else []
                continue

            def told(count: int, name: str = name, of: int = len(one.drafts)) -> None:
                if progress is not None:
                    progress(name, count, of)

            session = self.session(user_id=user_id, session_id=name)
            done = take_in(session, one, where=str(path), progress=told, names=names)
            names[one.session_id] = name
            skipped = (*one.skipped, *done.skipped)
            found.append(Imported(name, one.format, *done[:3], skipped))
        return found

    @recorded("search")
    def search(
        self, user_id: str, text: str, *, session_id: str | None = None, limit: int = 20
    ) -> list[Found]:
        """The events of a user that have all words of ``text``, newest session first.

        Words are whole ones, in any case; of Chinese, Japanese and Korean any two
        characters are. The first search of a session makes its index, which has keyed
        hashes of words, is encrypted under the session's key, and goes with it.

        Raises InvalidEvent for a text without words, SessionNotFound, Erased.
        """
        ids.check_id("user_id", user_id)
        self.log.erasures.refuse_erased(user_id)
        named_internal = session_id is not None and ids.is_internal(session_id)
        every = self.sessions(user_id, internal=named_internal)
        infos = [info for info in every if session_id in (None, info.session_id)]
        if session_id is not None and not infos:
            raise errors.SessionNotFound(user_id, session_id)
        return [*islice(search(self.log, infos, text), ids.bounded("limit", limit))]

    def user(self, user_id: str) -> User:
        """The user as a whole: what they allow.  Raises InvalidEvent for no name."""
        return User(self.writer, ids.check_id("user_id", user_id))

    @recorded("export")
    def export_user(
        self,
        user_id: str,
        out: str | os.PathLike[str],
        *,
        executor: Executor | None = None,
    ) -> Exported:
        """Write all that is kept of a user to a new directory, in plain, readable.

        Sessions, derived streams, whole texts, views, consent, holds and certificates,
        and a manifest with the digest of each file.  ``out`` appears at the end, whole;
        until then it is a hidden directory beside, which is removed if this fails.
        ``executor`` is as in ``rebuild``: all its processes write to that directory.

        Raises Erased if the user, or one of the sessions, is erased meanwhile,
        SessionNotFound for a user who has none, ExportFailed if something is there.
        """
        user_id = ids.check_id("user_id", user_id)
        return export_user(self, user_id, Path(out), executor)

    @recorded("erasure", named=False)
    def erase(
        self,
        user_id: str,
        reason: str,
        *,
        session_id: str | None = None,
        operator: str = "",
        grace: timedelta | None = None,
        key_backups: timedelta | None = None,
        vacuum: bool = False,
        absent_ok: bool = False,
        salt: bytes | None = None,
        progress: erasure.Progress | None = None,
    ) -> Erasure:
        """Forget a user for good: keys destroyed, rows deleted, a certificate signed.

        As soon as the heads are marked, nothing of the user can be read or written;
        calls that run meanwhile raise Erased. If it is interrupted, the next call
        completes it. If it is done, a call does nothing more.

        session_id:  forget only this session, and what was forked from it.
        reason, operator: for the certificate; redacted, and the user's name taken out.
        grace:       unreadable at once, but destroyed only after this time, and until
                     then ``restore`` undoes it.
        key_backups: how long backups of the key store survive: until then somebody who
                     has both backups can read what was erased.
        vacuum:      have the engine write its tables anew, so that no deleted byte is
                     left in its files; others wait meanwhile.
        absent_ok:   sign a certificate also if there is nothing of the user, and let
                     none of that name begin: it is refused otherwise.
        salt:        32 random bytes of your own for the certificate, so that it is not
                     lost where the answer is; None makes them.
        progress:    is told table, rows deleted of it, and how many there are.

        Raises OnHold, UserNotFound, SessionNotFound, StoreUnavailable, and
        InvalidConfiguration for a time under nothing or over 999999 days.
        """
        ask = erasure.Ask(
            whose=erasure.whose_of(user_id, session_id),
            reason=reason,
            operator=operator,
            grace=grace,
            key_backups=key_backups,
            vacuum=vacuum,
            absent_ok=absent_ok,
            salt=salt,
        )
        return erasure.Eraser(self.writer, progress).erase(ask)

    def verify(
        self,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        chain_only: bool = False,
        executor: Executor | None = None,
    ) -> Iterator[tuple[ports.SessionInfo, Verified]]:
        """Prove session after session; yields each with what was proved of it.

        ``chain_only`` is as in ``Session.verify``, ``executor`` as in ``rebuild``.
        Events whose session is no longer listed come last, as a problem; so does an
        erasure that was interrupted.
        """
        lost: dict[tuple[str, str], list[ports.Problem]] = {}
        for problem in self.log.orphans(ports.scope(user_id, session_id)):
            lost.setdefault((problem.user_id, problem.session_id), []).append(problem)
        work = partial(_verified, chain_only=chain_only)
        found = self._readable(user_id, session_id)
        for info, verified in spread(self, work, found, executor):
            orphans = lost.pop((info.user_id, info.session_id), [])
            yield info, verified._replace(problems=[*verified.problems, *orphans])
        for (owner, name), orphans in lost.items():
            if user_id in (None, owner) and session_id in (None, name):
                info = ports.SessionInfo(owner, name, 0, "open", 0)
                yield info, Verified(0, 0, 0, orphans)
        yield from self.erasures.unfinished(user_id)

    @recorded("verify_seals", "sessions")
    def verify_since_seal(self) -> Iterator[tuple[ids.StreamId, Verified]]:
        """Prove the chains of what came after the newest seals, and nothing before.

        Yields the main stream of each session that has such events.  Nothing is
        decrypted but what says which events were replaced.  ``seals.verify`` with
        ``newest`` proves the seals that this goes on from.
        """
        for main, mine in groupby(self.seals.unsealed(), lambda one: one.main):
            yield main, Verifier(self.log, main, chain_only=True).run_since_seal(mine)

    @recorded("verify_seals")
    def verify_seals(self) -> SealsVerified | None:
        """Prove the tree over the ends of all streams, against the anchor too.

        ``verify`` proves each stream against the tree. This proves that the tree was
        signed and anchored, and that no stream of it is gone. None for a store in
        memory, which is not sealed.
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

    @recorded("seal")
    def seal(
        self,
        *,
        sweep: bool = False,
        accept_loss: bool = False,
        executor: Executor | None = None,
        progress: Callable[[int], object] = bool,
    ) -> TreeHead | None:
        """Seal what is new: sign the ends of all streams, and anchor what was signed.

        Returns the newest tree head, None if nothing was ever written. If it is
        interrupted, the next call completes it. ``sweep`` looks at every stream, not
        only at those that the log says are new. ``accept_loss`` takes the database as
        it is after a backup was restored: the key store forgets what is lost.
        ``executor`` is as in ``rebuild``: ranges of streams are looked through by it,
        and what was found is signed here. ``progress`` is told how many streams were.

        Raises SealBroken if the database is not the one that was sealed before.
        """

        def endings(streams: list[ids.StreamId]) -> list[Ending]:
            starts = range(0, len(streams), _RANGE)
            parts = [streams[start : start + _RANGE] for start in starts]
            told = lambda part, _: progress(len(part))  # noqa: E731  # short
            found = spread(self, _endings, parts, executor, told)
            return list(chain.from_iterable(found))

        how: Any = {"sweep": sweep, "accept_loss": accept_loss, "endings": endings}
        return self.seals.seal(now=self.clock(), **how)

    @recorded("repair", "streams")
    def repair(
        self,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        apply: bool = False,
    ) -> Iterator[tuple[ids.StreamId, list[ports.Damage]]]:
        """Say what is damaged, and with ``apply`` make anew what events can tell.

        Yields each session's main stream with what was found: head rows that are gone
        or not what was written, stored views, blobs that no event names, keys that a
        redaction left.  Events are never changed: their damage is only reported.

        Raises InvalidConfiguration for a store in memory.
        """
        scope = ports.scope(user_id, session_id)
        return verification.repair(self.log, scope, apply=apply)

    @recorded("recheck", "sessions")
    def recheck(
        self,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        executor: Executor | None = None,
    ) -> Iterator[Rechecked]:
        """Run the present rules over what is stored, session after session.

        Yields each with what they would take out now: where and how often which
        type, never the value.  Nothing is changed.  ``executor`` is as in ``rebuild``.
        """
        found = self._readable(user_id, session_id)
        return spread(self, verification.recheck, found, executor)

    @recorded("reredact", "sessions")
    def reredact(
        self,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        executor: Executor | None = None,
    ) -> Iterator[Rechecked]:
        """Do the same, and replace what is found, for good.

        If something is found in a session, the session is encrypted under a new key and
        its old key destroyed; ``redaction_applied`` events bind what was replaced to
        the chain. Contexts and summaries are then made of what is left. If it is
        interrupted, run it again.
        """
        found = self._writable(user_id, session_id)
        return spread(self, verification.reredact, found, executor)

    def _readable(
        self, user_id: str | None, session_id: str | None
    ) -> Iterator[ports.SessionInfo]:
        found = ports.listed(self.log.sessions, ports.scope(user_id, session_id))
        return (info for info in found if info.status != "erased")

    def _writable(
        self, user_id: str | None, session_id: str | None
    ) -> Iterator[ports.SessionInfo]:
        """Of all users, but those that are frozen; of one by name, whatever it is."""
        found = self._readable(user_id, session_id)
        return (info for info in found if info.is_live or user_id is not None)

    @recorded("rebuild", "sessions")
    def rebuild(
        self,
        strategy: str | Strategy,
        *,
        user_id: str | None = None,
        session_id: str | None = None,
        summarizer: Summarizer | None = None,
        strict: bool = False,
        dry_run: bool = False,
        executor: Executor | None = None,
        progress: Callable[[ports.SessionInfo, int], None] | None = None,
    ) -> Iterator[Rebuilt]:
        """Make the summaries there would be, had this strategy always run.

        Yields each session with what was done; ``Rebuilder`` says what strict and
        dry_run are.  Views of other strategies do not change. If it is interrupted, the
        next run continues where it stopped.

        summarizer: what writes the summaries; None is the store's.  A dry run asks
                    none.
        executor:   what has ``submit``, such as a pool of processes or Dask's, whose
                    processes open the store, with what the environment says there.
        progress:   is told how many events of a session are walked; with an executor,
                    when it is done.

        Raises UnknownStrategy, InvalidConfiguration, SummarizerFailed if strict.
        """
        taken = self.settings.strategy(strategy)
        writes = summarizer or self.upkeep.summarizer or Abridged()
        fits = Abridged() if dry_run else summarizer_for(taken, writes)
        how: Any = {"strict": strict, "dry_run": dry_run}
        work = partial(rebuilt, strategy=taken, summarizer=fits, **how)
        found = self._writable(user_id, session_id)
        wanted = (info for info in found if not info.is_internal)
        return spread(self, work, wanted, executor, progress)

    @recorded("catch_up", "views")
    def catch_up(self, user_id: str | None = None) -> int:
        """Bring every stored view up to its session's head; returns how many moved."""
        return bring_all_up(self.log, ports.scope(user_id))

    @recorded("stats", "figures")
    def costs(
        self,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        by: Literal["session", "user", "day"] = "session",
    ) -> list[Spending]:
        """What answers used and cost, at the prices in Refold's table of models.

        For each session, each user, or each day in UTC, in their order.  What wrote
        summaries is counted too.  Every answer is read.

        Raises CorruptEvent, KeyUnavailable, InvalidConfiguration for another ``by``.
        """
        if by not in ("session", "user", "day"):
            raise InvalidConfiguration("costs are summed by session, user or day")
        found, session = dict[tuple[str, ...], Spending](), by == "session" or None
        for info in self._readable(user_id, session_id):
            names = self.log.streams(info.user_id, info.session_id)
            for name in names:
                stream = ids.StreamId(info.user_id, info.session_id, name)
                for answer in answers(read_on(self.log, stream)):
                    place = Spending(info.user_id, session and info.session_id)
                    if by == "day":
                        day = answer.first.ts.astimezone(UTC)
                        place = Spending(day=f"{day:%Y-%m-%d}")
                    key = tuple(filter(None, place[:3]))
                    found[key] = found.get(key, place).with_(answer)
        return [found[key] for key in sorted(found)]

    @recorded("stats", "figures")
    def stats(self, user_id: str | None = None) -> dict[str, Any]:
        """Sizes and rates of all there is, or of a user; every row is counted.

        ``lag`` says for each strategy how far its stored views are behind.
        ``retired_keys`` should be 0: ``reredact`` destroys them, unless it was cut off.
        """
        return self.log.stats(ports.scope(user_id), now=self.clock())

    def close(self) -> None:
        """Release the database and the keys, after work in the background has ended."""
        self.upkeep.background.close()
        self.access_log.close()
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


# What is done with one of many, in this process or in another.
def _endings(store: SessionStore, streams: list[ids.StreamId], told: Any) -> Any:
    found = store.seals.endings(streams)
    told(len(streams))
    return found


def _verified(
    store: SessionStore, info: ports.SessionInfo, _: object, *, chain_only: bool
) -> tuple[ports.SessionInfo, Verified]:
    session = store.session(user_id=info.user_id, session_id=info.session_id)
    return info, session.verify(chain_only=chain_only)


def _imported(store: SessionStore, path: Any, _: object, **how: Any) -> list[Imported]:
    return store.import_transcript(path, **how)
