"""The store: sessions of users over one log."""

from __future__ import annotations

import hmac
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, count, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, NoReturn, Self

from refold.domain import errors, ids, ports
from refold.domain.canonical import encodable
from refold.domain.clocks import GivenTime, StoreTime
from refold.domain.errors import InvalidConfiguration
from refold.domain.locks import computed_once
from refold.domain.model import repr_without_texts
from refold.domain.session import labelling
from refold.redaction.guard import Limits
from refold.redaction.redactor import Redactor
from refold.store.appends import Heads, Writer, uncounted
from refold.store.recorded import recorded
from refold.store.session.session import Session
from refold.store.settings import Settings
from refold.store.upkeep import Upkeep
from refold.store.vault import Vault

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from datetime import timedelta

    from refold.domain.access_log import AccessTrail
    from refold.domain.seals import Ending, Seals, SealsVerified, TreeHead
    from refold.projections.context.compaction import Summarizer
    from refold.projections.context.strategy import Strategy
    from refold.projections.models import Spending
    from refold.store import erasure
    from refold.store.erasure import ErasureResult, Erasures, Keys
    from refold.store.exports import Exported
    from refold.store.memory.consent import User
    from refold.store.memory.memories import Memories
    from refold.store.proofs.access_log import AccessLog
    from refold.store.proofs.verification import Rechecked, Verified
    from refold.store.reads import Reads
    from refold.store.reviews import Reviews
    from refold.store.search import Found
    from refold.store.work.rebuilds import Rebuilt

_STREAMS_AT_ONCE: Final = 50  # whose ends one task of an executor looks for


def now() -> int:
    """Return the time of this machine, in microseconds since 1970 in UTC."""
    return time.time_ns() // 1000


@repr_without_texts
class Imported(NamedTuple):
    """The result of an import: session, events written and present, lines skipped."""

    session_id: str
    format: str
    events: int
    duplicates: int
    redactions: Counter[str]
    skipped: tuple[ports.Skipped, ...] = ()


def _no_reader(path: Path, *_: object, **__: object) -> NoReturn:
    raise InvalidConfiguration(f"{path}: this store reads no transcripts")


def _saved_params(log: ports.EventLog, user_id: str) -> Mapping[str, int]:
    from refold.store.turn_settings import saved_turns

    return saved_turns(log, user_id).params()


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
        seals: Callable[[], Seals] | None = None,
        audit: AccessTrail | Callable[[], AccessTrail] | None = None,
        count_uses: bool = False,
        shared_memory: bool = False,
        vault: Vault | None = None,
        transcripts: ports.ReadTranscripts = _no_reader,
        open_again: Callable[[], Any] | None = None,
    ) -> None:
        self.log = log
        self.clock = clock
        if time is None or clock is not now:
            time = GivenTime(clock)
        self.time = time
        # Opens the same store in another process; None if that is not possible.
        self.open_again = open_again
        self.upkeep = upkeep or Upkeep()
        self.settings = settings or Settings()
        self._open_seals = seals
        self._shares_memory = shared_memory
        self._read_transcripts = transcripts
        self._reads = _reads(log, time, clock) if count_uses else None
        # A function opens a trail that records nothing, and that may hold old records.
        self._open_trail = audit if callable(audit) else None
        self._trail = None if callable(audit) else audit
        is_audited = self._trail is not None and self._trail.on
        self.writer = _writer_class(is_audited=is_audited)(
            log=log,
            redactor=redactor,
            limits=limits,
            clock=clock,
            heads=Heads(),
            time=time,
            audit=self._trail if is_audited else None,
            used=self._reads.note if self._reads else uncounted,
            vault=Vault() if vault is None else vault,
        )

    @computed_once
    def access_log(self) -> AccessLog:
        """The records of how the store was used, and how often sessions were read."""
        from refold.store.proofs.access_log import AccessLog

        if self._open_trail is not None:
            self._trail = self._open_trail()
        return AccessLog(self.writer, self._trail, self._reads)

    @computed_once
    def erasures(self) -> Erasures:
        """Erasures that are pending, legal holds, freezes, retention, certificates."""
        from refold.store.erasure import Erasures

        return Erasures(self.writer, self.access_log)

    @computed_once
    def keys(self) -> Keys:
        """The encryption keys: their status, and their rotation."""
        from refold.store.erasure import Keys

        return Keys(self.writer)

    @computed_once
    def memory(self) -> Memories:
        """The procedural memory of users."""
        from refold.store.memory.memories import Memories

        return Memories(self.writer, shares=self._shares_memory)

    @computed_once
    def reviews(self) -> Reviews:
        """The questions to humans in all sessions."""
        from refold.store.reviews import Reviews

        return Reviews(self.writer)

    def session(self, *, user_id: str, session_id: str) -> Session:
        """Return the session of that name; it begins with its first append.

        Raises InvalidEvent for ids that cannot be stored.
        """
        ids.check_id("user_id", user_id)
        ids.check_session_id(session_id)
        stream = ids.StreamId(user_id, session_id, ids.MAIN)
        return Session(stream, self.writer, self.upkeep, self._settings_of(user_id))

    def _settings_of(self, user_id: str) -> Settings:
        """The settings with the turns that the user saved, read when they are used."""
        saved = partial(_saved_params, self.writer.log, user_id)
        return self.settings.of_user(saved)

    def named(
        self, name: str, *, user_id: str, labels: Mapping[str, str] = ports.NO_LABELS
    ) -> Session:
        """Return the session of another system's name, such as a thread or a path.

        The name may be any text: a keyed hash of it becomes the session's name, and its
        label ``name`` holds the text, redacted.  After a deletion, the name belongs to
        a new session.

        labels: further labels that the session begins with.

        Raises InvalidEvent, and Erased for an erased user.
        """
        ids.check_id("user_id", user_id)
        if not encodable(name):
            raise errors.InvalidEvent("a name must be a text without half of a pair")
        labelling({**labels, "name": name})
        key = self.log.pseudonym_key(user_id, now=self.clock())
        digest = hmac.digest(key, b"session name\0" + name.encode(), "sha256")
        first_id = f"n-{digest.hex()[:32]}"
        for generation in count(1):
            session_id = first_id if generation == 1 else f"{first_id}~{generation}"
            session = self.session(user_id=user_id, session_id=session_id)
            try:
                self.log.head(session.stream)
            except errors.Erased:
                self.log.erasures.refuse_erased(user_id)
                continue
            return replace(session, begins={**labels, "name": name})
        raise AssertionError("unreachable: the count has no end")

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
        """List the sessions of a user, or of all users, sorted by user and name.

        label:    only sessions with all these labels: ``{"project": "refold"}``.
        after:    only sessions after this one in the order; a text is the name of a
                  session of the user.
        limit:    at most so many; the last of them is ``after`` of the next page.
        internal: include ``_user``, in which Refold records a user's choices.  Extracts
                  that memory keeps of deleted sessions are never listed.

        Raises InvalidConfiguration for a label or a name without its user, InvalidEvent
        for a name that no session can have.
        """
        user_id = ports.scope(user_id).user_id
        labels = {} if label is None else label
        if not _is_texts_by_name(labels):
            raise InvalidConfiguration('label: texts by name, {"project": "refold"}')
        if user_id is None and (labels or isinstance(after, str)):
            raise InvalidConfiguration("name the user whose sessions they are, too")
        place: tuple[str, str] | None = None
        if isinstance(after, ports.SessionInfo):
            place = after.user_id, after.session_id
        elif after is not None:
            if after:
                ids.check_id("session_id", after)
            place = user_id or "", after
        limit = None if limit is None else ids.bounded("limit", limit)
        infos: list[ports.SessionInfo] = []
        while limit is None or len(infos) < limit:
            missing = None if limit is None else limit - len(infos)
            page = self.log.sessions(user_id, labels=labels, after=place, limit=missing)
            for info in page:
                if info.status == "erased" or info.session_id.startswith(ids.KEPT):
                    continue
                if internal or not info.is_internal:
                    infos.append(info)
            if missing is None or len(page) < missing:
                break
            place = page[-1].user_id, page[-1].session_id
        return infos

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

        Everything is redacted.  A second import of a file that has grown, or of an
        import that was interrupted, appends only what the session lacks.

        path:       a file or folder, or several of them; sessions of several are named
                    by the transcript, else by the file.
        session_id: the name for a single transcript; several are numbered.  None is the
                    name in the transcript, else the file's name.
        format:     one of ``refold import --format``; ``auto`` recognises them.
        strict:     True refuses a file with a damaged line; False imports the rest, and
                    the line is among the ``skipped``.
        progress:   called with session, events done, and events in all.
        executor:   as in ``rebuild``; each task imports one of several paths.

        Raises ImportFailed, after which nothing of that transcript is written, and what
        an append raises.
        """
        ids.check_id("user_id", user_id)
        if session_id is not None:
            ids.check_session_id(session_id)
        if not isinstance(path, (str, os.PathLike)):
            return self._import_several(path, user_id, format, executor, strict=strict)
        from refold.store.session.imports import take_in

        imported: list[Imported] = []
        names: dict[str, str] = {}
        transcripts = self._read_transcripts(
            Path(path), format, session_id, strict=strict
        )
        for name, transcript in transcripts:
            skipped = transcript.skipped
            if not transcript.drafts and transcript.forked_from is None:
                if skipped:
                    nothing = Imported(
                        name, transcript.format, 0, 0, Counter(), skipped
                    )
                    imported.append(nothing)
                continue
            report: Callable[[int], object] = bool
            if progress is not None:
                report = partial(_report, progress, name, len(transcript.drafts))
            session = self.session(user_id=user_id, session_id=name)
            extended = take_in(
                session, transcript, where=str(path), progress=report, names=names
            )
            names[transcript.session_id] = name
            imported.append(
                Imported(
                    name,
                    transcript.format,
                    extended.events,
                    extended.duplicates,
                    extended.redactions,
                    (*skipped, *extended.skipped),
                )
            )
        return imported

    def _import_several(
        self,
        paths: Iterable[str | os.PathLike[str]],
        user_id: str,
        format: str,  # noqa: A002  # as in import_transcript
        executor: Executor | None,
        *,
        strict: bool,
    ) -> list[Imported]:
        from refold.store.work.jobs import spread

        work = partial(_imported, user_id=user_id, format=format, strict=strict)
        imported: list[Imported] = []
        for of_one_path in spread(self, work, paths, executor):
            imported += of_one_path
        return imported

    @recorded("search")
    def search(
        self, user_id: str, text: str, *, session_id: str | None = None, limit: int = 20
    ) -> list[Found]:
        """Return the events that contain all words of ``text``, newest session first.

        Words match whole and in any case; any two characters of Chinese, Japanese, or
        Korean are a word.  The first search of a session builds its index, which holds
        keyed hashes of words, is encrypted under the session's key, and is deleted with
        the session.

        Raises InvalidEvent for a text without words, SessionNotFound, Erased.
        """
        from refold.store.search import search

        ids.check_id("user_id", user_id)
        self.log.erasures.refuse_erased(user_id)
        named_internal = session_id is not None and ids.is_internal(session_id)
        infos = self.sessions(user_id, internal=named_internal)
        if session_id is not None:
            infos = [info for info in infos if info.session_id == session_id]
            if not infos:
                raise errors.SessionNotFound(user_id, session_id)
        events = search(self.log, infos, text)
        return list(islice(events, ids.bounded("limit", limit)))

    def user(self, user_id: str) -> User:
        """Return the user, with consent and preferences.

        Raises InvalidEvent for a text that cannot be a user's id.
        """
        from refold.store.memory.consent import User

        return User(self.writer, ids.check_id("user_id", user_id))

    @recorded("export")
    def export_user(
        self,
        user_id: str,
        out: str | os.PathLike[str],
        *,
        executor: Executor | None = None,
    ) -> Exported:
        """Write all data of a user to a new directory, decrypted and readable.

        It holds sessions, derived streams, whole texts, views, consent, holds, and
        certificates, and a manifest with the digest of each file.

        out:      appears complete at the end.  Until then, the files are in a hidden
                  directory next to it, which is removed if the export fails.
        executor: as in ``rebuild``; all its processes must reach that directory.

        Raises Erased if the user, or one of the sessions, is erased during the export,
        SessionNotFound for a user without sessions, ExportFailed if ``out`` exists.
        """
        from refold.store.exports import export_user

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
    ) -> ErasureResult:
        """Erase a user: destroy the keys, delete the rows, sign a certificate.

        Once the heads are marked, nothing of the user can be read or written; calls
        that run at that moment raise Erased.  After an interruption, the next call
        completes the erasure.  A call after that changes nothing.

        session_id:  erase only this session, and its forks.
        reason, operator: for the certificate; redacted, without the user's name.
        grace:       makes the data unreadable at once and destroys it after this time;
                     until then, ``restore`` undoes the erasure.
        key_backups: how long backups of the key store exist.  Until then, a backup of
                     the keys and one of the data together can be read.
        vacuum:      have the engine rewrite its tables, so that its files hold no
                     deleted byte; other writers wait for that.
        absent_ok:   also sign a certificate for a user without data, and let no such
                     user begin; without it, such a user is refused.
        salt:        32 random bytes of your own for the certificate, so that they are
                     not lost with the answer; None generates them.
        progress:    called with a table, its rows deleted, and its rows in all.

        Raises OnHold, UserNotFound, SessionNotFound, StoreUnavailable, and
        InvalidConfiguration for a negative time, or one over 999999 days.
        """
        from refold.store import erasure

        request = erasure.ErasureRequest(
            whose=erasure.whose_of(user_id, session_id),
            reason=reason,
            operator=operator,
            grace=grace,
            key_backups=key_backups,
            vacuum=vacuum,
            absent_ok=absent_ok,
            salt=salt,
        )
        return erasure.Eraser(self.writer, progress).erase(request)

    def verify(
        self,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        chain_only: bool = False,
        executor: Executor | None = None,
    ) -> Iterator[tuple[ports.SessionInfo, Verified]]:
        """Verify session after session; yields each with its result.

        Events whose session is no longer listed come last, as problems, and so does an
        erasure that was interrupted.

        chain_only: as in ``Session.verify``.
        executor:   as in ``rebuild``.
        """
        from refold.store.proofs.verification import Verified
        from refold.store.work.jobs import spread

        orphans: dict[tuple[str, str], list[ports.Problem]] = {}
        for problem in self.log.orphans(ports.scope(user_id, session_id)):
            place = problem.user_id, problem.session_id
            orphans.setdefault(place, []).append(problem)
        work = partial(_verified, chain_only=chain_only)
        infos = self._readable(user_id, session_id)
        for info, verified in spread(self, work, infos, executor):
            of_session = orphans.pop((info.user_id, info.session_id), [])
            yield info, verified._replace(problems=[*verified.problems, *of_session])
        for (owner, name), problems in orphans.items():
            if user_id in (None, owner) and session_id in (None, name):
                info = ports.SessionInfo(owner, name, 0, "open", 0)
                yield info, Verified(0, 0, 0, problems)
        yield from self.erasures.unfinished(user_id)

    @recorded("verify_seals", "sessions")
    def verify_since_seal(self) -> Iterator[tuple[ids.StreamId, Verified]]:
        """Prove the chains of the events after the newest seals, and nothing before.

        Yields the main stream of each session that has such events.  Only the events
        that name replaced events are decrypted.  ``seals.verify`` with ``newest``
        proves the seals that the chains continue from.
        """
        from refold.store.proofs.verification import Verifier

        by_session = groupby(self.seals.unsealed(), lambda stream: stream.main)
        for main, streams in by_session:
            verifier = Verifier(self.log, main, chain_only=True)
            yield main, verifier.run_since_seal(streams)

    @recorded("verify_seals")
    def verify_seals(self) -> SealsVerified | None:
        """Prove the tree over the ends of all streams, also against the anchor.

        ``verify`` proves each stream against the tree.  This method proves that the
        tree was signed and anchored, and that none of its streams is missing.  Returns
        None for a store in memory, which has no seals.
        """
        return None if self._open_seals is None else self.seals.verify()

    @computed_once
    def seals(self) -> Seals:
        """The tree over the ends of all streams: its heads, proofs and checks.

        Raises InvalidConfiguration for a store in memory.
        """
        if self._open_seals is None:
            raise InvalidConfiguration("memory:// keeps nothing that could be sealed")
        return self._open_seals()

    @recorded("seal")
    def seal(
        self,
        *,
        sweep: bool = False,
        accept_loss: bool = False,
        executor: Executor | None = None,
        progress: Callable[[int], object] = bool,
    ) -> TreeHead | None:
        """Seal new events: sign the ends of all streams, and anchor the signed head.

        Returns the newest tree head, None if nothing was ever written.  After an
        interruption, the next call completes the seal.

        sweep:       look at every stream, not only at those that the log names as new.
        accept_loss: accept the database after a backup was restored; the key store
                     forgets the lost events.
        executor:    as in ``rebuild``: its tasks read ranges of streams, and this
                     process signs.
        progress:    called with the number of streams that were read.

        Raises SealBroken if the database is not the one that was sealed before.
        """
        from refold.store.work.jobs import spread

        def endings(streams: list[ids.StreamId]) -> list[Ending]:
            starts = range(0, len(streams), _STREAMS_AT_ONCE)
            parts = [streams[start : start + _STREAMS_AT_ONCE] for start in starts]

            def report(part: list[ids.StreamId], _: int) -> None:
                progress(len(part))

            of_parts = spread(self, _endings, parts, executor, report)
            return list(chain.from_iterable(of_parts))

        return self.seals.seal(
            now=self.clock(), sweep=sweep, accept_loss=accept_loss, endings=endings
        )

    @recorded("repair", "streams")
    def repair(
        self,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        apply: bool = False,
    ) -> Iterator[tuple[ids.StreamId, list[ports.Damage]]]:
        """Report damage, and with ``apply`` repair what can be derived from events.

        Yields each session's main stream with its damage: missing or changed head rows,
        stored views, blobs that no event names, keys that a redaction left behind.
        Events are never changed: their damage is only reported.

        Raises InvalidConfiguration for a store in memory.
        """
        from refold.store.proofs import verification

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
        """Run the present redaction rules over stored sessions; changes nothing.

        Yields each session with the findings: places, types, and counts, never values.
        ``executor`` is as in ``rebuild``.
        """
        from refold.store.proofs import verification
        from refold.store.work.jobs import spread

        infos = self._readable(user_id, session_id)
        return spread(self, verification.recheck, infos, executor)

    @recorded("reredact", "sessions")
    def reredact(
        self,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        executor: Executor | None = None,
    ) -> Iterator[Rechecked]:
        """Replace what ``recheck`` finds; this cannot be undone.

        A session with findings is encrypted under a new key, and its old key is
        destroyed; ``redaction_applied`` events bind the replacements to the chain.
        Contexts and summaries are then derived from the redacted events.  After an
        interruption, call it again.
        """
        from refold.store.proofs import verification
        from refold.store.work.jobs import spread

        infos = self._writable(user_id, session_id)
        return spread(self, verification.reredact, infos, executor)

    def _readable(
        self, user_id: str | None, session_id: str | None
    ) -> Iterator[ports.SessionInfo]:
        """The sessions that are not erased."""
        infos = ports.listed(self.log.sessions, ports.scope(user_id, session_id))
        return (info for info in infos if info.status != "erased")

    def _writable(
        self, user_id: str | None, session_id: str | None
    ) -> Iterator[ports.SessionInfo]:
        """The sessions of one user, or those of all users that are not frozen."""
        infos = self._readable(user_id, session_id)
        return (info for info in infos if info.is_live or user_id is not None)

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
        checks: bool = False,
        executor: Executor | None = None,
        progress: Callable[[ports.SessionInfo, int], None] | None = None,
    ) -> Iterator[Rebuilt]:
        """Write the summaries that would exist if this strategy had always run.

        Yields each session with its result.  Views of other strategies do not change.
        After an interruption, the next call continues where it stopped.

        summarizer:      writes the summaries; None is the store's; a dry run asks none.
        strict, dry_run, checks: as ``Rebuilder`` documents.
        executor:        has ``submit``, such as a pool of processes or Dask's; its
                         processes open the store with their own environment.
        progress:        called with a session and its events that were read; with an
                         executor, when the session is done.

        Raises UnknownStrategy, InvalidConfiguration, SummarizerFailed if strict.
        """
        from refold.projections.context.abridged import Abridged
        from refold.projections.context.summaries import summarizer_for
        from refold.store.work.jobs import spread
        from refold.store.work.rebuilds import rebuilt

        chosen = self.settings.strategy(strategy)
        writes: Summarizer = Abridged()
        if not dry_run and not checks:
            configured = summarizer or self.upkeep.summarizer or writes
            writes = summarizer_for(chosen, configured)
        work = partial(
            rebuilt,
            strategy=chosen,
            summarizer=writes,
            strict=strict,
            dry_run=dry_run,
            checks=checks,
        )
        infos = self._writable(user_id, session_id)
        agent_sessions = (info for info in infos if not info.is_internal)
        return spread(self, work, agent_sessions, executor, progress)

    @recorded("catch_up", "views")
    def catch_up(self, user_id: str | None = None) -> int:
        """Bring every stored view up to its session's head; returns how many moved."""
        from refold.store.contexts import bring_all_up

        return bring_all_up(self.log, ports.scope(user_id))

    @recorded("stats", "figures")
    def costs(
        self,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        by: Literal["session", "user", "day"] = "session",
    ) -> list[Spending]:
        """Return the tokens and dollars of answers, by Refold's table of prices.

        by: one entry for each session, each user, or each day in UTC, sorted.

        The answers that wrote summaries count, too.  Every answer is read.

        Raises CorruptEvent, KeyUnavailable, InvalidConfiguration for another ``by``.
        """
        from refold.store.costs import spending

        if by not in ("session", "user", "day"):
            raise InvalidConfiguration("costs are summed by session, user or day")
        return spending(self.log, self._readable(user_id, session_id), by)

    @recorded("stats", "figures")
    def stats(self, user_id: str | None = None) -> dict[str, Any]:
        """Return sizes and rates of the store, or of a user; every row is counted.

        ``lag`` is, for each strategy, how many events its stored views are behind.
        ``retired_keys`` is 0 unless ``reredact`` was interrupted.
        """
        return self.log.stats(ports.scope(user_id), now=self.clock())

    def close(self) -> None:
        """Wait for background work, then release the database and the keys."""
        self.upkeep.background.close()
        if self._reads is not None:
            self._reads.close()
        if self._trail is not None:
            self._trail.close()
        self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _reads(log: ports.EventLog, time: StoreTime, clock: Callable[[], int]) -> Reads:
    from refold.store.reads import Reads

    return Reads(lambda: log.retention, lambda: time.stamp(clock()))


def _writer_class(*, is_audited: bool) -> type[Writer]:
    if not is_audited:
        return Writer
    from refold.store.proofs.access_log import RecordedWriter

    return RecordedWriter


def _is_texts_by_name(labels: object) -> bool:
    if not isinstance(labels, Mapping):
        return False
    return all(isinstance(text, str) for text in (*labels, *labels.values()))


def _report(
    progress: Callable[[str, int, int], None], name: str, total: int, done: int
) -> None:
    progress(name, done, total)


# The tasks of an executor; they run in this process or in another one.


def _endings(store: SessionStore, streams: list[ids.StreamId], progress: Any) -> Any:
    endings = store.seals.endings(streams)
    progress(len(streams))
    return endings


def _verified(
    store: SessionStore, info: ports.SessionInfo, _: object, *, chain_only: bool
) -> tuple[ports.SessionInfo, Verified]:
    session = store.session(user_id=info.user_id, session_id=info.session_id)
    return info, session.verify(chain_only=chain_only)


def _imported(
    store: SessionStore, path: Any, _: object, **options: Any
) -> list[Imported]:
    return store.import_transcript(path, **options)
