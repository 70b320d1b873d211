"""Each use of a store leaves one record of the operation and its outcome."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

import refold
from refold.store import Session, SessionStore
from refold.store.erasure import Erasures, Keys
from refold.store.memory.consent import User
from refold.store.memory.memories import Memories
from refold.store.proofs.access_log import AccessLog
from refold.store.recorded import recording_of
from refold.store.reviews import Reviews
from refold.store.session.delegation import Delegation
from refold.store.session.history import SessionHistory
from refold.store.session.memory import SessionMemory
from refold.store.session.native import NativeItems
from refold.store.session.proofs import SessionProofs
from refold.store.session.reviews import SessionReviews
from refold.store.session.strategies import SessionStrategies
from refold.store.session.vault import SessionVault
from refold.store.work.jobs import process_pool
from tests.support.auditing import APPENDED, WINDOW, records, session_of, talk
from tests.support.stores import open_at, prepare

# Public methods that are not recorded, each with its reason.
ELSEWHERE: Final = {
    "Session.append": "every append is recorded, by whatever it is made",
    "Session.append_async": "the same",
    "NativeItems.append": "the same",
    "NativeItems.put_bytes": "the same",
    "SessionHistory.follow_async": "it reads with ``pages``, which is recorded",
    "Session.acontext": "the context is recorded that it makes",
    "Session.aprepare": "the same",
    "Session.close": "it reads nothing, and writes nothing",
    "Session.end": "it appends",
    "Session.record_request": "the same",
    "Session.attempt": "the same",
    "Session.label": "the same",
    "SessionReviews.decide": "the same",
    "User.consent": "the same",
    "User.withdraw": "the same",
    "User.opt_out": "the same",
    "User.opt_in": "the same",
    "User.forget": "the same",
    "User.prefer": "the same",
    "User.unprefer": "the same",
    "User.save_turns": "the same",
    "Session.fork": "it looks at the head, and appends",
    "Session.at": "it looks at the head",
    "SessionStrategies.activate": "it looks at the context, and appends",
    "SessionStrategies.retire": "it looks at the head, and appends",
    "SessionStrategies.default_fingerprint": "it looks at the head",
    "Delegation.begin": "it looks at the head, and appends",
    "Delegation.hand_over": "it reads, and appends to another session",
    "Delegation.parent": "it reads the first event",
    "Session.why": "``proofs.why`` is recorded",
    "Session.verify": "``proofs.verify`` is recorded",
    "SessionStrategies.chosen": "it looks at the head",
    "SessionStore.verify": "each session is recorded, when it is proved",
    "SessionStore.session": "it reads nothing",
    "SessionStore.named": "it reads nothing but whether it was deleted",
    "SessionStore.import_transcript": "its appends are recorded",
    "SessionStore.user": "it reads nothing",
    "Erasures.public_key": "it is public",
    "Erasures.unfinished": "it is part of verifying",
    "AccessLog.count": "it reads nothing",
    "AccessLog.flush": "it reads nothing",
    "AccessLog.note": "it is the recording itself",
    "AccessLog.close": "what waits to be recorded is written by it",
    "SessionStore.close": "what waits to be recorded is written by it",
}


@pytest.mark.parametrize(
    "audited",
    [
        AccessLog,
        Delegation,
        Erasures,
        Keys,
        Memories,
        NativeItems,
        Reviews,
        Session,
        SessionHistory,
        SessionMemory,
        SessionProofs,
        SessionReviews,
        SessionStore,
        SessionStrategies,
        SessionVault,
        User,
    ],
)
def test_every_public_method_is_recorded_or_has_a_reason(audited: type) -> None:
    public = {
        name
        for name in dir(audited)
        if not name.startswith("_") and callable(getattr(audited, name))
    }
    calls = {name for name in public if recording_of(getattr(audited, name))}

    elsewhere = {name for name in public if f"{audited.__name__}.{name}" in ELSEWHERE}
    assert public - calls - elsewhere == set()
    assert elsewhere & calls == set()


def test_an_append_is_recorded_with_all_its_fields(audited: SessionStore) -> None:
    session = audited.session(user_id="ada", session_id="s-1")
    events = [refold.UserInput(text="a"), refold.AgentResponse(text="b")]

    receipt = session.append(events, request_id="r-1")

    (record,) = records(audited)
    assert (record.event, record.status, record.level) == (APPENDED, "ok", "INFO")
    assert record.state_version == receipt.last_seq
    assert record.event_type == "user_input,agent_response"
    assert record.meta == {"events": 2}
    assert record.error_code is None
    for name in (record.user, record.session, record.request):
        assert re.fullmatch("[0-9a-f]{32}", name or "")
    assert len({record.user, record.session, record.request}) == 3


def test_a_line_has_the_documented_fields(audited: SessionStore) -> None:
    audited.session(user_id="ada", session_id="s-1").append(refold.UserInput(text="a"))

    (record,) = records(audited)

    assert list(record.to_json()) == [
        "ts",
        "level",
        "event",
        "user_id",
        "session_id",
        "request_id",
        "state_version",
        "event_type",
        "duration_ms",
        "status",
        "error_code",
        "meta",
    ]
    assert datetime.fromisoformat(str(record.to_json()["ts"])).tzinfo == UTC


Work = Callable[[SessionStore], Any]


WORK: dict[str, tuple[Work, list[str]]] = {
    "head": (lambda store: session_of(store).head(), ["session_load"]),
    "events": (lambda store: session_of(store).events(), ["session_load"]),
    "pages": (lambda store: list(session_of(store).history.pages()), ["session_load"]),
    "timeline": (
        lambda store: list(session_of(store).history.timeline()),
        ["session_load"],
    ),
    "a moment": (lambda store: session_of(store).at(2), ["session_load"]),
    "state": (lambda store: session_of(store).state(), ["session_load"]),
    "context": (lambda store: session_of(store).context(WINDOW), ["session_context"]),
    "context of then": (
        lambda store: session_of(store).context(WINDOW, at=4),
        ["session_context"],
    ),
    "prepare": (
        lambda store: session_of(store).prepare(WINDOW),
        [*["compaction"] * 3, "session_context"],
    ),
    "compact": (lambda store: session_of(store).compact(WINDOW), ["compaction"]),
    "replay": (
        lambda store: list(session_of(store).proofs.replay()),
        ["session_replay"],
    ),
    "why": (lambda store: session_of(store).why(WINDOW), ["session_why"]),
    "compare": (
        lambda store: session_of(store).proofs.compare([WINDOW]),
        ["session_compare"],
    ),
    "rerun": (
        lambda store: [
            session_of(store).record_request(session_of(store).context("keep_all")),
            session_of(store).proofs.rerun(),
        ],
        ["session_context", APPENDED, "session_rerun"],
    ),
    "review": (lambda store: session_of(store).reviews.ask(), ["session_review"]),
    "reviews": (lambda store: store.reviews.list(), ["review_list"]),
    "verify": (lambda store: session_of(store).verify(), ["session_verify"]),
    "verify all": (lambda store: list(store.verify()), ["session_verify"]),
    "stats": (lambda store: session_of(store).history.stats(), ["session_stats"]),
    "sessions": (lambda store: store.sessions("ada"), ["session_list"]),
    "search": (lambda store: store.search("ada", "why"), ["search"]),
    "search with total": (
        lambda store: store.search_with_total("ada", "why"),
        ["search"],
    ),
    "end": (lambda store: session_of(store).end(), [APPENDED]),
    "append of asyncio": (
        lambda store: asyncio.run(
            session_of(store).append_async(refold.UserInput(text="x"))
        ),
        [APPENDED],
    ),
    "large append of asyncio": (
        lambda store: asyncio.run(
            session_of(store).append_async(refold.UserInput(text="word " * 9_000))
        ),
        [APPENDED],
    ),
    "fork": (
        lambda store: session_of(store).fork(2, session_id="f"),
        ["session_load", APPENDED],
    ),
    "request": (
        lambda store: session_of(store).record_request(
            session_of(store).context("keep_all")
        ),
        ["session_context", APPENDED],
    ),
    "consent": (lambda store: store.user("ada").opt_out(), ["memory_write"]),
    "consent read": (lambda store: store.user("ada").status(), ["memory_load"]),
    "rebuild": (
        lambda store: list(store.rebuild(WINDOW)),
        [*["compaction"] * 3, "rebuild"],
    ),
    "recheck": (lambda store: list(store.recheck()), ["recheck"]),
    "reredact": (lambda store: list(store.reredact()), ["reredact"]),
    "statistics": (lambda store: store.stats(), ["stats"]),
    "seal": (lambda store: store.seal(), ["seal"]),
    "hold": (lambda store: store.erasures.hold("ada", "case", "asked"), ["hold"]),
    "plan": (lambda store: store.erasures.plan("ada"), ["erasure_plan"]),
    "erase": (lambda store: store.erase("ada", "asked"), ["erasure"]),
    "purge": (lambda store: store.access_log.purge(timedelta(days=1)), ["audit_purge"]),
}


@pytest.mark.parametrize("act", WORK)
def test_each_operation_is_recorded_once(audited: SessionStore, act: str) -> None:
    work, expected = WORK[act]
    talk(session_of(audited), 4)
    earlier = len(records(audited))

    work(audited)

    assert [record.event for record in records(audited)][earlier:] == expected


def test_an_export_of_a_user_is_recorded(audited: SessionStore, tmp_path: Path) -> None:
    talk(session_of(audited), 1)

    audited.export_user("ada", tmp_path / "out")

    assert [record.event for record in records(audited)] == [APPENDED, "export"]


def test_a_blob_that_is_read_is_recorded(audited: SessionStore) -> None:
    session = session_of(audited)
    session.append(refold.UserInput(text="word " * 20_000))
    (event,) = session.events()
    digest = re.search(r"[0-9a-f]{64}", json.dumps(event.payload.payload()))
    assert digest is not None

    whole = session.history.blob(digest[0])

    assert records(audited)[-1].event == "session_blob"
    assert records(audited)[-1].meta == {"characters": len(whole)}


def test_counts_are_recorded(audited: SessionStore) -> None:
    talk(session_of(audited), 4)
    view = session_of(audited).context(WINDOW)
    list(session_of(audited).history.pages())
    iterator = session_of(audited).history.pages()
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]  # a generator

    counts = [record.meta for record in records(audited)[4:]]

    shown = {"messages": len(view.messages), "tokens": view.tokens}
    assert counts == [shown, {"events": 8}, {"events": 1}]


def test_the_access_log_records_the_tokens_that_a_compaction_saved(
    audited: SessionStore,
) -> None:
    talk(session_of(audited), 4)

    summary = session_of(audited).compact(WINDOW)

    assert summary is not None
    record = records(audited)[-1]
    payload: Any = summary.payload
    assert (record.event, record.event_type) == ("compaction", "summary")
    assert record.state_version == payload.decided_at_seq
    assert record.meta == {
        "events": payload.source_event_count,
        "tokens_before": payload.tokens_before,
        "tokens_after": payload.tokens_after,
    }


def test_a_failed_compaction_is_recorded_as_an_error(audited: SessionStore) -> None:
    class FailingSummarizer:
        kind = "abridged"
        model = None
        costs = False

        def summarize(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("it is broken")

    talk(session_of(audited), 4)

    assert session_of(audited).compact(WINDOW, summarizer=FailingSummarizer()) is None  # type: ignore[arg-type]  # broken

    record = records(audited)[-1]
    assert (record.event, record.status) == ("compaction", "error")
    assert record.error_code == "SummarizerFailed"


def test_a_compaction_in_the_background_is_recorded(
    store_url: str, tmp_path: Path
) -> None:
    url = prepare(store_url, tmp_path)
    with refold.open(url, access_log="table") as store:
        talk(session_of(store), 4)
        session_of(store).prepare(WINDOW, wait=False)
        store.upkeep.background.wait_idle()

        assert "compaction" in [record.event for record in records(store)]


def test_a_refused_append_is_recorded_as_an_error(audited: SessionStore) -> None:
    session_of(audited).append(refold.UserInput(text="a"))

    with pytest.raises(refold.StaleSession):
        session_of(audited).append(refold.UserInput(text="b"), expected_seq=7)

    record = records(audited)[-1]
    assert (record.status, record.error_code) == ("error", "StaleSession")
    assert record.level == "ERROR"


def test_nothing_is_recorded_by_default(store_url: str, tmp_path: Path) -> None:
    with open_at(store_url, tmp_path) as store:
        talk(session_of(store), 1)
        session_of(store).events()

        assert list(store.access_log.records()) == []
        assert not store.access_log.is_on


def test_the_environment_sets_the_destination(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_ACCESS_LOG", "table")
    with open_at(store_url, tmp_path) as store:
        talk(session_of(store), 1)

        assert len(records(store)) == 1


def test_processes_of_a_rebuild_record_their_work(
    store_url: str, tmp_path: Path
) -> None:
    with refold.open(prepare(store_url, tmp_path), access_log="table") as store:
        for name in ("s-1", "s-2", "s-3"):
            talk(store.session(user_id="ada", session_id=name), 4)

        with process_pool(2) as executor:
            list(store.rebuild(WINDOW, executor=executor))

        events = [record.event for record in records(store)]
        assert events.count("compaction") == 9
        assert events.count("rebuild") == 1
