"""The store, with the sessions of all users in one log."""

from __future__ import annotations

import hmac
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain, count, groupby
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
    from refold.store.overviews import OverviewFilter, OverviewPage, Sort
    from refold.store.proofs.access_log import AccessLog
    from refold.store.proofs.verification import Rechecked, Verified
    from refold.store.reads import Reads
    from refold.store.reviews import Reviews
    from refold.store.search import SearchHit, SearchResult
    from refold.store.shares import Shares
    from refold.store.work.rebuilds import Rebuilt

_STREAMS_AT_ONCE: Final = 50  # streams whose ends one task of an executor reads


def now() -> int:
    """Return the time of this machine, in microseconds since 1970 in UTC."""
    return time.time_ns() // 1000


@repr_without_texts
class Imported(NamedTuple):
    """The result of importing one transcript.

    format:     the format of the transcript.
    events:     the number of written events.
    duplicates: the number of events that the session had already.
    redactions: the number of redacted values, by type.
    skipped:    the entries that were not imported.
    """

    session_id: str
    format: str
    events: int
    duplicates: int
    redactions: Counter[str]
    skipped: tuple[ports.Skipped, ...] = ()


def _refuse_transcripts(path: Path, *_: object, **__: object) -> NoReturn:
    """Raise InvalidConfiguration: this store cannot read transcripts."""
    raise InvalidConfiguration(f"{path}: this store reads no transcripts")


def _saved_params(log: ports.EventLog, user_id: str) -> Mapping[str, int]:
    """Return the numbers of turns that the user saved."""
    from refold.store.turn_settings import saved_turns

    return saved_turns(log, user_id).params()


# Sorts after the names of all sessions.
_AFTER_ALL_NAMES: Final = "\U0010ffff"


def _checked_labels(
    user_id: str | None, label: Mapping[str, str] | None
) -> Mapping[str, str]:
    """Return the labels of a list.

    Raises InvalidConfiguration for other values, and for labels without their user.
    """
    labels = {} if label is None else label
    if not _is_texts_by_name(labels):
        raise InvalidConfiguration('label: texts by name, {"project": "refold"}')
    if user_id is None and labels:
        raise InvalidConfiguration("name the user whose sessions they are, too")
    return labels


def _size_of_list(page: OverviewPage) -> tuple[int | None, dict[str, int]]:
    return None, {"sessions": len(page.sessions)}


class SessionStore:
    """Stores the sessions of agents.

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
        transcripts: ports.ReadTranscripts = _refuse_transcripts,
        open_again: Callable[[], Any] | None = None,
    ) -> None:
        self.log = log
        self.clock = clock
        if time is None or clock is not now:
            time = GivenTime(clock)
        self.time = time
        # A function that opens this store in another process; None if none can.
        self.open_again = open_again
        self.upkeep = upkeep or Upkeep()
        self.settings = settings or Settings()
        self._open_seals = seals
        self._shares_memory = shared_memory
        self._read_transcripts = transcripts
        self._reads = _reads(log, time, clock) if count_uses else None
        # If ``audit`` is a function, nothing is recorded.  It opens the trail, which
        # may have old records.
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
        """Records of the uses of the store, and counts of the reads of its sessions."""
        from refold.store.proofs.access_log import AccessLog

        if self._open_trail is not None:
            self._trail = self._open_trail()
        return AccessLog(self.writer, self._trail, self._reads)

    @computed_once
    def erasures(self) -> Erasures:
        """Pending erasures, legal holds, freezes, retention, certificates."""
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

    @computed_once
    def shares(self) -> Shares:
        """The served shares: links to runs that expire."""
        from refold.store.shares import Shares

        return Shares(self.writer, self.session)

    def session(self, *, user_id: str, session_id: str) -> Session:
        """Return the session with this id, which begins with its first append.

        Raises InvalidEvent for ids that cannot be stored.
        """
        ids.check_id("user_id", user_id)
        ids.check_session_id(session_id)
        stream = ids.StreamId(user_id, session_id, ids.MAIN)
        return Session(stream, self.writer, self.upkeep, self._settings_of(user_id))

    def _settings_of(self, user_id: str) -> Settings:
        """Return the settings for a user, whose saved turns are read on first use."""
        saved = partial(_saved_params, self.writer.log, user_id)
        return self.settings.of_user(saved)

    def named(
        self, name: str, *, user_id: str, labels: Mapping[str, str] = ports.NO_LABELS
    ) -> Session:
        """Return the session for a name of another system, such as a thread or a path.

        The name may be any text.  The session's id is a keyed hash of it, and the
        session's label ``name`` is the redacted text.  After the session is deleted,
        this returns a new session for the name.

        labels: further labels for a new session.

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
            return replace(session, first_labels={**labels, "name": name})
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
        """List the sessions of a user, or of all users, sorted by user and id.

        label:    only sessions with all these labels: ``{"project": "refold"}``.
        after:    only sessions after this one in the order; a text is the id of a
                  session of the user.
        limit:    return at most this many; pass the last one as ``after`` to get the
                  next page.
        internal: include ``_user``, in which Refold records a user's decisions.
                  Extracts that memory keeps of deleted sessions are never listed.

        Raises InvalidConfiguration for a label or an id without its user, InvalidEvent
        for an id that no session can have.
        """
        user_id = ports.scope(user_id).user_id
        labels = _checked_labels(user_id, label)
        if user_id is None and isinstance(after, str):
            raise InvalidConfiguration("name the user whose sessions they are, too")
        last_listed: tuple[str, str] | None = None  # user and session
        if isinstance(after, ports.SessionInfo):
            last_listed = (after.user_id, after.session_id)
        elif after is not None:
            if after:
                ids.check_id("session_id", after)
            last_listed = (user_id or "", after)
        limit = None if limit is None else ids.bounded("limit", limit)
        infos: list[ports.SessionInfo] = []
        while limit is None or len(infos) < limit:
            missing = None if limit is None else limit - len(infos)
            page = self.log.sessions(
                user_id, labels=labels, after=last_listed, limit=missing
            )
            for info in page:
                if info.status == "erased" or info.session_id.startswith(ids.KEPT):
                    continue
                if internal or not info.is_internal:
                    infos.append(info)
            if missing is None or len(page) < missing:
                break
            last_listed = (page[-1].user_id, page[-1].session_id)
        return infos

    @recorded("session_list", "sessions", measure=_size_of_list)
    def overviews(
        self,
        user_id: str | None = None,
        *,
        label: Mapping[str, str] | None = None,
        sort: Sort = "last",
        descending: bool | None = None,
        matching: OverviewFilter | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> OverviewPage:
        """List sessions with titles, counts, tokens and dollars, in pages.

        A call reads at most 50,000 new events, those of the sessions with the newest
        writes first.  ``unread`` of the page counts the sessions that have more: call
        this again to read them.  Sorted by ``last`` or ``session``, and without a
        filter, it reads only the sessions of the page.

        sort, descending, after, limit: options that ``page_of`` documents.
        matching: only sessions that this filter matches.
        label:    as in ``sessions``.

        Raises InvalidConfiguration for a label or ``after`` without its user, and for
        an unknown sort; InvalidEvent for an ``after`` of another order.
        """
        from refold.store.overviews import (
            EVERY_SESSION,
            Overviews,
            page_of,
            read_page,
            read_sorted_page,
        )

        if user_id is None and after:
            raise InvalidConfiguration("name the user whose sessions they are, too")
        user_id = ports.scope(user_id).user_id
        labels = _checked_labels(user_id, label)
        overviews = Overviews(self.log, now=self.clock())
        matching = matching or EVERY_SESSION
        if limit is not None:
            limit = ids.bounded("limit", limit)
        is_text = isinstance(after, str | None)
        if limit and matching == EVERY_SESSION and is_text:
            owner = self._only_user() if user_id is None else user_id
            if owner is not None:
                page = read_page(
                    overviews,
                    owner,
                    sort=sort,
                    descending=descending,
                    labels=labels,
                    after=after,
                    limit=limit,
                )
                if page is not None:
                    return page
        if limit:
            return read_sorted_page(
                overviews,
                user_id,
                sort=sort,
                descending=descending,
                matching=matching,
                labels=labels,
                after=after,
                limit=limit,
            )
        return page_of(
            overviews.of(self.sessions(user_id, label=label)),
            sort=sort,
            descending=descending,
            matching=matching,
            after=after,
            limit=limit,
        )

    def _only_user(self) -> str | None:
        """Return the user if the store has sessions of exactly one."""
        first = self.log.sessions(limit=1)
        if not first:
            return None
        user_id = first[0].user_id
        others = self.log.sessions(after=(user_id, _AFTER_ALL_NAMES), limit=1)
        return None if others else user_id

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
        """Append the transcripts in a file or an export's folder, each as a session.

        Everything is redacted.  If you import a file again after it has grown, or after
        an interruption, only entries that the session lacks are appended.

        path:       a file or folder, or several of them.  With several, each session
                    gets the id in its transcript, else the name of its file.
        session_id: the id for a single transcript; several transcripts get numbered
                    ids.  None means the id in the transcript, else the file's name.
        format:     a format of ``refold import --format``; ``auto`` recognises it.
        strict:     true refuses a file with a damaged line.  False imports the rest and
                    adds the line to ``skipped``.
        progress:   called with the session id, the events done, and all events.
        executor:   imports several paths in other processes, as in ``rebuild``, in any
                    order.  Import the session of a fork before the fork.

        Raises ImportFailed, after which nothing of that transcript is written, and the
        errors of an append.
        """
        ids.check_id("user_id", user_id)
        if session_id is not None:
            ids.check_session_id(session_id)
        if not isinstance(path, (str, os.PathLike)):
            return self._import_several(path, user_id, format, executor, strict=strict)
        from refold.store.session.imports import append_transcript

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
            report: Callable[[int], object] | None = None
            if progress is not None:
                report = partial(_report, progress, name, len(transcript.drafts))
            session = self.session(user_id=user_id, session_id=name)
            extended = append_transcript(
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
        self,
        user_id: str,
        text: str,
        *,
        session_id: str | None = None,
        limit: int = 20,
        per_session: int | None = 5,
    ) -> list[SearchHit]:
        """Return the events that match ``text`` best, the best first.

        ``search_with_total`` also returns how many match, and has the details.

        Raises InvalidEvent for a query that is not valid, SessionNotFound, Erased.
        """
        return self._search(user_id, text, session_id, limit, per_session, None).hits

    @recorded("search")
    def search_with_total(
        self,
        user_id: str,
        text: str,
        *,
        session_id: str | None = None,
        limit: int = 20,
        per_session: int | None = 5,
        index_at_most: int | None = None,
    ) -> SearchResult:
        """Return the events that match ``text`` best, and how many match.

        Any of the words matches, in upper or lower case and in another form such as a
        plural; events with more words, with rarer ones and with more of them come first
        (BM25).  Any two adjacent characters of Chinese, Japanese, or Korean are a word.
        A phrase in double quotes must be in each event.  So must the filters ``type:``,
        ``tool:``, ``file:``, ``model:``, ``failed:``, ``after:``, ``before:`` and
        ``session:``.

        The first search of a session builds its index.  The index contains keyed hashes
        of words, is encrypted with the session's key, and is deleted with the session.

        per_session:   the number of hits of one session.  It has more only if other
                       sessions have too few.  ``more_in_session`` of each hit counts
                       the others.  None or 0 returns the best events of all.
        index_at_most: about the number of new events to index before the search.  The
                       result says how many were left out.  None indexes all.

        Raises InvalidEvent for a query that is not valid, SessionNotFound, Erased.
        """
        return self._search(
            user_id, text, session_id, limit, per_session, index_at_most
        )

    def _search(
        self,
        user_id: str,
        text: str,
        session_id: str | None,
        limit: int,
        per_session: int | None,
        index_at_most: int | None,
    ) -> SearchResult:
        from refold.projections.search.query import Query
        from refold.store.search import search

        ids.check_id("user_id", user_id)
        self.log.erasures.refuse_erased(user_id)
        query = Query.parse(text)
        named_internal = session_id is not None and ids.is_internal(session_id)
        infos = self.sessions(user_id, internal=named_internal)
        if session_id is not None:
            infos = [info for info in infos if info.session_id == session_id]
            if not infos:
                raise errors.SessionNotFound(user_id, session_id)
        most = ids.bounded("limit", limit)
        of_session = ids.bounded("per_session", per_session or 0)
        return search(
            self.log,
            infos,
            query,
            most,
            per_session=of_session or None,
            index_at_most=index_at_most,
        )

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

        The export contains sessions, derived streams, whole texts, views, consent,
        holds and certificates, and a manifest with the digest of each file.

        out:      the directory, which appears when the export is complete.  Until then,
                  the files are in a hidden directory next to it, which is removed if
                  the export fails.
        executor: exports sessions in other processes, as in ``rebuild``.  All of them
                  must have access to that directory.

        Raises Erased if the user or a session is erased during the export,
        SessionNotFound for a user without sessions, ExportFailed if ``out`` exists and
        is not empty.
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

        Early in the erasure, the user is marked as erased.  From then on, every call
        for the user raises Erased, also calls that are running.  After an interruption,
        the next call completes the erasure.  A call after that changes nothing.

        session_id:  erase only this session and its forks.
        reason, operator: texts for the certificate.  They are redacted, and the user's
                     id is removed.
        grace:       make the data unreadable at once, and destroy it after this time;
                     until then, ``restore`` undoes the erasure.
        key_backups: how long backups of the key store exist.  Until they are gone, a
                     backup of the keys with a backup of the data is still readable.
        vacuum:      rewrite the tables, so that the files of the database contain no
                     deleted bytes.  Other writers wait for this.
        absent_ok:   accept a user without data: sign a certificate, and let no user
                     with this id begin a session.  If false, UserNotFound is raised.
        salt:        32 random bytes for the certificate, if you want to keep them
                     before the call; None generates them.
        progress:    called with a table, its deleted rows, and all of its rows.

        Raises OnHold, UserNotFound, SessionNotFound, StoreUnavailable, and
        InvalidConfiguration for a negative time, or one over 999999 days.
        """
        from refold.store import erasure

        request = erasure.ErasureRequest(
            scope=erasure.erasure_scope(user_id, session_id),
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
        """Verify all sessions one after the other; yields each with its result.

        Problems outside of listed sessions come last: events whose session lost its
        head, and interrupted erasures.

        chain_only: prove only the hash chains, as in ``Session.verify``.
        executor:   verifies sessions in other processes, as in ``rebuild``.
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
        """Prove the hash chains of the events after the newest seals.

        Yields the main stream of each session with such events.  Only events that name
        replaced events are decrypted.  ``seals.verify`` with ``newest`` proves the
        seals with which these chains begin.
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
        progress: Callable[[int], object] | None = None,
    ) -> TreeHead | None:
        """Seal new events: sign the ends of all streams, and anchor the signed head.

        Returns the newest tree head, or None if the store has no events.  After an
        interruption, the next call completes the seal.

        sweep:       read every stream, not only those that the log lists as new.
        accept_loss: accept a database that was restored from a backup.  The key store
                     forgets the events that the backup lacks.
        executor:    reads streams in other processes, as in ``rebuild``.  This process
                     signs.
        progress:    called with the number of streams that were read.

        Raises SealBroken if the database is not the one that was sealed before.
        """
        from refold.store.work.jobs import spread

        def endings(streams: list[ids.StreamId]) -> list[Ending]:
            starts = range(0, len(streams), _STREAMS_AT_ONCE)
            parts = [streams[start : start + _STREAMS_AT_ONCE] for start in starts]

            def report(part: list[ids.StreamId], _: int) -> None:
                if progress is not None:
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
        """Report damage; with ``apply``, repair data that can be derived from events.

        Yields each session's main stream with its damage: missing or changed heads,
        changed stored views, blobs that no event names, and keys that an interrupted
        redaction left.  Events are never changed; damage to them is only reported.

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
        """Search stored sessions with the current redaction rules; changes nothing.

        Yields each session with the places, types and numbers of findings, and never
        with values.

        executor: searches sessions in other processes, as in ``rebuild``.
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
        """Replace the values that ``recheck`` finds; this cannot be undone.

        A session with findings is encrypted with a new key, and its old key is
        destroyed.  ``redaction_applied`` events bind the replacements to the hash
        chain.  Afterwards, contexts and summaries are derived from the redacted events.
        After an interruption, call this again.

        executor: redacts sessions in other processes, as in ``rebuild``.
        """
        from refold.store.proofs import verification
        from refold.store.work.jobs import spread

        infos = self._writable(user_id, session_id)
        return spread(self, verification.reredact, infos, executor)

    def _readable(
        self, user_id: str | None, session_id: str | None
    ) -> Iterator[ports.SessionInfo]:
        """Return the sessions that are not erased."""
        infos = ports.listed(self.log.sessions, ports.scope(user_id, session_id))
        return (info for info in infos if info.status != "erased")

    def _writable(
        self, user_id: str | None, session_id: str | None
    ) -> Iterator[ports.SessionInfo]:
        """Return the sessions of one user, or of all users that are not frozen."""
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

        Yields the result for each session.  Views of other strategies do not change.
        After an interruption, the next call continues where this one stopped.

        summarizer:      writes the summaries; None means the summarizer of the store.
                         A dry run calls none.
        strict, dry_run, checks: options that ``Rebuilder`` documents.
        executor:        rebuilds sessions in other processes; any object with
                         ``submit``, such as a pool of processes or a Dask client.  Its
                         processes open the store with their own environment.
        progress:        called with a session and the number of its events that were
                         read; with an executor, only when the session is done.

        Raises UnknownStrategy, InvalidConfiguration, SummarizerFailed if strict.
        """
        from refold.projections.context.abridged import Abridged
        from refold.projections.context.summaries import summarizer_for
        from refold.store.work.jobs import spread
        from refold.store.work.rebuilds import rebuild_session

        chosen = self.settings.strategy(strategy)
        chosen_summarizer: Summarizer = Abridged()
        if not dry_run and not checks:
            configured = summarizer or self.upkeep.summarizer or chosen_summarizer
            chosen_summarizer = summarizer_for(chosen, configured)
        work = partial(
            rebuild_session,
            strategy=chosen,
            summarizer=chosen_summarizer,
            strict=strict,
            dry_run=dry_run,
            checks=checks,
        )
        infos = self._writable(user_id, session_id)
        agent_sessions = (info for info in infos if not info.is_internal)
        return spread(self, work, agent_sessions, executor, progress)

    @recorded("catch_up", "views")
    def catch_up(self, user_id: str | None = None) -> int:
        """Bring every stored view to its session's head; returns how many changed."""
        from refold.store.contexts import update_views

        return update_views(self.log, ports.scope(user_id))

    @recorded("stats", "figures")
    def costs(
        self,
        user_id: str | None = None,
        *,
        session_id: str | None = None,
        by: Literal["session", "user", "day"] = "session",
    ) -> list[Spending]:
        """Return the tokens and dollars of answers, by Refold's table of prices.

        This reads all answers, and includes those that wrote summaries.

        by: sum by ``session``, ``user``, or ``day`` in UTC.

        Raises CorruptEvent, KeyUnavailable, InvalidConfiguration for another ``by``.
        """
        from refold.store.costs import spending

        if by not in ("session", "user", "day"):
            raise InvalidConfiguration("costs are summed by session, user or day")
        return spending(self.log, self._readable(user_id, session_id), by)

    @recorded("stats", "figures")
    def stats(self, user_id: str | None = None) -> dict[str, Any]:
        """Return figures of the store, or of a user; this counts every row.

        ``lag`` is the number of events that stored views lack, by strategy.
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
