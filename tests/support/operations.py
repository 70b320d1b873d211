"""Every operation of a store that queries its database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import sqlalchemy as sa

import refold
from refold.adapters.log import EncryptedLog
from refold.adapters.rows import Batch, Wrote
from refold.adapters.sql.access_log import AccessTable
from refold.adapters.sql.recorder import FollowingStreams
from refold.domain.erasure import Accesses, ErasureScope, Unused
from refold.domain.errors import StaleSession
from refold.domain.ids import StreamId
from refold.domain.ports import Append, Head, Scope
from refold.store import Session, SessionStore
from refold.store.erasure import Eraser, ErasureRequest
from refold.store.exports import CopyRecords
from refold.testing.event_log import NOW, append_to, user_inputs
from refold.testing.ports import record
from tests.support.redacting import MAIL, aware, unaware
from tests.support.talking import talk

WINDOW: Final = "turn_window:full_turns=2,cached_turns=1"
LONG: Final = "a line of text. " * 5_000


def fill(store: SessionStore, *, rounds: int = 30) -> None:
    """Create sessions for the operations: long, compacted, forked, with a blob.

    Six rounds are enough for tests that do not count.
    """
    session = session_of(store)
    session.append(refold.UserInput(text=LONG))
    for _ in range(rounds):
        talk(session, 4)
        session.compact(WINDOW)
    session.record_request(session.context(WINDOW))
    session.append([refold.Pin(seqs=(3, 9, 20)), refold.StateUpdate(set={"a": 1})])
    session.fork(40, session_id="fork")
    talk(store.session(user_id="ada", session_id="fork"), 8)


def session_of(store: SessionStore) -> Session:
    """Return the session that the operations use."""
    return store.session(user_id="ada", session_id="s-1")


def log_of(store: SessionStore) -> EncryptedLog:
    """Return the log of the store, which has a recorder."""
    assert isinstance(store.log, EncryptedLog)
    return store.log


def _in_another_process(store: SessionStore) -> Session:
    """Return the session as another process has it, unaware of our appends."""
    writer = session_of(store).writer
    other = SessionStore(store.log, writer.redactor, writer.limits)
    return session_of(other)


def _lost(store: SessionStore) -> None:
    _in_another_process(store).append(user_inputs("first"))
    session_of(store).append(user_inputs("behind it"))


def _stale(store: SessionStore) -> None:
    with suppress(StaleSession):
        session_of(store).append(user_inputs("x"), expected_seq=1)


def _twice(store: SessionStore) -> None:
    for _ in range(2):
        session_of(store).append(user_inputs("once"), idempotency_key="once")


def _exclusive(store: SessionStore) -> None:
    def build(head: Head) -> Append:
        return append_to(head, *user_inputs("exclusive"), idempotency_key="exclusive")

    for _ in range(2):
        store.log.append_exclusive(session_of(store).stream, build)


def _together(store: SessionStore) -> None:
    """Append to several sessions, one of them new, like callers that share a commit."""
    log = log_of(store)
    batches = list[Batch]()
    for name in ("s-1", "fork", "together"):
        stream = StreamId("ada", name)
        log.keys.session(*stream[:2], now=1)
        append = append_to(
            log.head(stream), *user_inputs("at once"), idempotency_key=f"{name} once"
        )
        batches.append(log.batch(append))
    done = log.recorder.database.write_group(batches)
    assert [type(outcome) for outcome in done] == [Wrote] * len(batches), done


def _labelled(store: SessionStore) -> None:
    session = session_of(store)
    session.label(topic="builds", team="one")
    assert session.labels()
    session.label(team=None)
    assert store.sessions("ada", label={"topic": "builds"})


def _repaired(store: SessionStore) -> None:
    """Write a head unchanged, and look for blobs that no event names."""
    session = store.session(user_id="ada", session_id="later")
    session.append(user_inputs("e" * 70_000))
    repairs = store.log.repairs
    stream = session.stream
    assert repairs.put_head(stream, store.log.head(stream))
    scanned = repairs.unnamed_blobs(stream)
    address = b"\0" * 32
    assert repairs.drop_blobs(stream, scanned._replace(addresses=(address,)))


def _compacted(store: SessionStore) -> None:
    talk(session_of(store), 6)
    assert session_of(store).compact(WINDOW) is not None


def _rewritten(store: SessionStore) -> None:
    """Redact a session again, and look for remains of its old key."""
    writer = session_of(store).writer
    blind = SessionStore(store.log, unaware(), writer.limits)
    session = blind.session(user_id="ada", session_id="later")
    session.append(refold.UserInput(text=f"mail {MAIL}"))
    session.compact(WINDOW)
    list(
        SessionStore(store.log, aware(), writer.limits).reredact(
            "ada", session_id="later"
        )
    )
    store.log.destroy_old_keys(session.stream)


def _leased(store: SessionStore) -> None:
    leases = store.log.leases
    derived = session_of(store).stream._replace(stream="d" * 64)
    hour = 3_600_000_000
    assert leases.take_lease(derived, "me", clock=store.clock, period=hour)
    assert not leases.take_lease(derived, "you", clock=store.clock, period=hour)
    assert leases.renew_lease(derived, "me", clock=store.clock, period=hour)
    assert leases.holding(derived, clock=store.clock).left > 0
    with leases.fenced(derived, "me"):
        session_of(store).append(refold.UserInput(text="under a lease"))
    assert leases.release_lease(derived, "me")
    assert leases.take_lease(derived, "you", clock=store.clock, period=hour)
    assert leases.mark_done(derived, "you", clock=store.clock, period=1)


def _followed(store: SessionStore) -> None:
    recorder = log_of(store).recorder
    newest = recorder.max_notification_id() or 0
    recorder.select_notifications(max(newest - 5, 1), 3, stop=newest)
    with recorder.subscribe(gt=max(newest - 5, 0)) as subscription:
        next(iter(subscription))
    next(FollowingStreams(recorder))


def _dropped(store: SessionStore) -> None:
    session_of(store).strategies.catch_up()
    names = store.log.view_names("ada", "s-1")
    assert names
    assert store.log.load_view(session_of(store).stream, names[0]) is not None
    store.log.drop_views("ada", "s-1")
    session_of(store).context(WINDOW)


def _moved(store: SessionStore) -> None:
    session_of(store).strategies.catch_up()
    talk(session_of(store), 1)
    assert session_of(store).strategies.catch_up()


def _erased(store: SessionStore) -> None:
    """Erase a session with a blob, a summary and a fork, and then its user."""
    session = store.session(user_id="mia", session_id="gone")
    session.append(user_inputs("c" * 70_000))
    talk(session, 8)
    session.compact(WINDOW)
    session.fork(3, session_id="child")
    store.erasures.hold("mia", "case", "asked for")
    store.erasures.release("mia", "case", "over")
    store.erasures.plan("mia")
    store.erase("mia", "one of them", session_id="gone")
    store.erase("mia", "all of them", grace=timedelta(days=1), absent_ok=True)
    store.erasures.restore("mia", "a mistake")
    store.erase("mia", "all of them", absent_ok=True)
    store.erasures.readmit("mia", "back")
    assert store.erasures.certificates("mia")


def _lost_record(store: SessionStore) -> None:
    """Delete the record of an erasure, find the marked rows, and restore them."""
    store.session(user_id="mia", session_id="marked").append(user_inputs("x"))
    store.erase("mia", "soon", grace=timedelta(days=1))
    database = log_of(store).recorder.database
    database.run("mia", sa.delete(database.tables.erasures))
    assert store.erasures.stranded()
    store.erasures.restore("mia", "its record was lost")


def _sealed(store: SessionStore) -> None:
    assert store.seal() is not None
    for name in ("s-1", "fork"):
        talk(store.session(user_id="ada", session_id=name), 1)
    assert store.seal() is not None
    store.seal(accept_loss=True)


def _audited(store: SessionStore) -> None:
    rows = AccessTable(log_of(store).recorder.database)
    rows.write([record(1), record(2)])
    rows.find(limit=9)
    rows.find(user="a" * 32, session="b" * 32, since=NOW, limit=9, after=b"1")
    rows.forget("a" * 32)
    rows.forget("a" * 32, ["b" * 32])
    assert sum(rows.purge(NOW * 2)) == 2


def _frozen(store: SessionStore) -> None:
    store.erasures.freeze("ada", "asked for")
    assert store.erasures.is_frozen("ada")
    store.erasures.unfreeze("ada", "over")


def _used(store: SessionStore) -> None:
    retention = store.log.retention
    at = store.clock()
    retention.add_accesses("ada", [Accesses("ada", "s-1", 2, at)])
    assert retention.accesses("ada")


def _copied(store: SessionStore) -> None:
    copies = CopyRecords(store.writer, "events", "stdout")
    copies.record("ada")
    assert store.log.erasures.exports("ada")
    copies.drop()


def _unused(store: SessionStore) -> None:
    """Begin to erase one session of a user, as retention does, and continue."""
    talk(store.session(user_id="max", session_id="old"), 2)
    talk(store.session(user_id="max", session_id="new"), 2)
    eraser = Eraser(session_of(store).writer)
    scope = ErasureScope("max", ("old",))
    job = eraser.new_job(ErasureRequest(scope, "retention", ""))
    unused = Unused(store.clock(), reads=True, all_sessions=("new", "old"))
    assert store.log.retention.begin_unused(job, unused) is not None
    eraser.run(job)


def _expired(store: SessionStore) -> None:
    store.session(user_id="max", session_id="new").append(user_inputs("d" * 70_000))
    retention = store.log.retention
    for blobs in retention.old_blobs(store.clock()):
        if blobs.user_id == "max":
            assert retention.expire_blobs(blobs)


def _corrected(store: SessionStore) -> None:
    """Correct every time that is later than a moment ago."""
    retention = store.log.retention
    at = store.clock()
    retention.add_accesses("max", [Accesses("max", "new", 1, at)])
    retention.correct_uses(later_than=at - 1, now=at)
    retention.correct_blobs(later_than=at - 1, now=at)
    assert store.time.observe().disputed is False


Operation = Callable[[SessionStore], Any]
OPERATIONS: Final[dict[str, Operation]] = {
    "append": lambda store: session_of(store).append(user_inputs("x")),
    "append from asyncio": lambda store: asyncio.run(
        session_of(store).append_async(user_inputs("x"))
    ),
    "append of a batch": lambda store: session_of(store).append(
        user_inputs(*"abcdefgh")
    ),
    "append of a long text": lambda store: session_of(store).append(
        user_inputs(LONG + LONG)
    ),
    "append to a new session": lambda store: talk(
        store.session(user_id="ada", session_id="new"), 1
    ),
    "append of a new user": lambda store: talk(
        store.session(user_id="eve", session_id="new"), 1
    ),
    "append that another was before": _lost,
    "append on an old head": _stale,
    "append and its retry": _twice,
    "append that locks the head": _exclusive,
    "page of events": lambda store: session_of(store).events(after=20, limit=10),
    "what is plain of events": lambda store: list(
        log_of(store).recorder.plain(session_of(store).stream)
    ),
    "newest event": lambda store: store.log.read(
        session_of(store).stream, limit=1, newest=True
    ),
    "events of a type": lambda store: session_of(store).state(),
    "spans": lambda store: store.log.read(
        session_of(store).stream, spans=[(3, 5), (9, 9)]
    ),
    "timeline": lambda store: list(session_of(store).history.timeline()),
    "context": lambda store: session_of(store).context(WINDOW),
    "context of the last request's strategy": lambda store: session_of(store).context(),
    "context of everything": lambda store: session_of(store).context("keep_all"),
    "context of a fork": lambda store: store.session(
        user_id="ada", session_id="fork"
    ).context(WINDOW),
    "context of an earlier moment": lambda store: session_of(store).context(
        WINDOW, at=50
    ),
    "why": lambda store: session_of(store).why(WINDOW),
    "compaction": _compacted,
    "prepare": lambda store: session_of(store).prepare(WINDOW),
    "rebuild": lambda store: list(
        store.rebuild("turn_window", user_id="ada", session_id="s-1")
    ),
    "view that moves": _moved,
    "views dropped": _dropped,
    "lease": _leased,
    "labels": _labelled,
    "appends of several sessions": _together,
    "drafts that are known": lambda store: store.log.known(
        session_of(store).stream, ["a"]
    ),
    "repair": _repaired,
    "audit log": _audited,
    "copies of exports": _copied,
    "blob": lambda store: (
        session_of(store).append(user_inputs("b" * 70_000))
        and list(session_of(store).verify().problems)
    ),
    "verify": lambda store: list(store.verify("ada", session_id="s-1")),
    "replay": lambda store: list(session_of(store).proofs.replay()),
    "rewriting": _rewritten,
    "follow": _followed,
    "erasure": _erased,
    "freeze": _frozen,
    "uses of a session": _used,
    "erasure of what is unused": _unused,
    "expiry of whole texts": _expired,
    "correction of times": _corrected,
    "seal": _sealed,
    "sweep": lambda store: (
        session_of(store).append(user_inputs("x")) and store.seal(sweep=True)
    ),
    "proof of an event": lambda store: store.seals.prove(
        session_of(store).stream, 3, size=None
    ),
    "proof of the tree": lambda store: store.verify_seals(),
    "sessions of a user": lambda store: store.sessions("ada"),
    "overviews of a user": lambda store: store.overviews("ada"),
    "parents of a page": lambda store: store.log.listed_names("ada", ["s-1"]),
    "newest page of a user": lambda store: store.overviews("ada", limit=2),
    "page of a user by name": lambda store: store.overviews(
        "ada", sort="session", limit=2
    ),
    "page of a user by title": lambda store: store.overviews(
        "ada", sort="title", limit=2
    ),
    "stored view": lambda store: store.log.load_view(session_of(store).stream, "none"),
    "whether a user is known": lambda store: log_of(store).recorder.knows("ada"),
    "receipt": lambda store: store.log.receipt(StreamId("ada", "s-1"), "once"),
    "sizes of a session": lambda store: session_of(store).history.stats(),
    "views of a session behind": lambda store: session_of(store).strategies.catch_up(),
    "what stands in plain": lambda store: [
        *log_of(store).recorder.plain(session_of(store).stream)
    ],
    "erasures whose record is lost": _lost_record,
    "all sessions": lambda store: store.sessions(),
    "whether there is any session": lambda store: log_of(store).recorder.has_sessions(),
    "events without a head": lambda store: store.log.orphans(),
    "sizes": lambda store: store.stats(),
    "all views behind": lambda store: store.log.lagging(Scope(), by=1, limit=100),
}

# Operations on a whole store scan these tables, and no operation of a session does: a
# list of sessions is as long as the number of sessions.
WHOLE: Final[dict[str, frozenset[str]]] = {
    "follow": frozenset({"heads"}),  # where no order of all events exists
    # All stored views of a user: the index filters them by name.
    "overviews of a user": frozenset({"views"}),
    "page of a user by title": frozenset({"views"}),
    # All rows of a user, in any session.
    "erasure": frozenset({"heads", "events", "blobs", "receipts", "views", "leases"})
    | {"seals", "leaves", "audit"},
    "proof of an event": frozenset({"leaves", "tree_heads"}),
    "proof of the tree": frozenset(
        {"leaves", "seals", "tree_heads", "heads", "receipts", "views", "leases"}
        | {"blobs"}
    ),
    "sweep": frozenset({"heads", "seals"}),
    "erasure of what is unused": frozenset({"heads", "leaves"}),
    "expiry of whole texts": frozenset({"blobs"}),
    # Of all users; and the newest event, for which the scan stops at the first row.
    "correction of times": frozenset({"heads", "accesses", "blobs", "events"}),
    # All rows of the user whose data is restored.
    "erasures whose record is lost": frozenset(
        {"heads", "events", "leases", "receipts", "views"}
    ),
    "all sessions": frozenset({"heads"}),
    "whether there is any session": frozenset({"heads"}),  # it stops at the first row
    "events without a head": frozenset({"events", "heads"}),
    "sizes": frozenset({"heads", "events", "views", "blobs"}),
    "all views behind": frozenset({"heads", "views"}),
}
