"""Repair restores what the events can tell, on both engines, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

import refold
from refold.domain.errors import ExportFailed
from refold.domain.ports import Damage
from refold.store import Session, SessionStore
from tests.support.rewritten import problems, tamper
from tests.support.stores import open_at, prepare

WINDOW = "turn_window:full_turns=1,cached_turns=1"
LONG = "a line of a build log\n" * 20_000
CALL = refold.ToolCall(call_id="open", tool_name="bash")


@pytest.fixture
def url(store_url: str, tmp_path: Path) -> str:
    """A store with a session that has a blob, summaries, a view, a fork and a call."""
    prepare(store_url, tmp_path)
    with open_at(store_url, tmp_path) as store:
        session = filled_session(store, "s")
        fork = session.fork(4, session_id="f")
        fork.append(refold.UserInput(text="another way"))
        store.session(user_id="ada", session_id="t").append(refold.UserInput(text="hi"))
    return store_url


def filled_session(store: SessionStore, name: str) -> Session:
    session = store.session(user_id="ada", session_id=name)
    for _ in range(4):
        session.append([refold.UserInput(text="why " * 50), refold.Final(text="so")])
        session.prepare(WINDOW)
    session.append(refold.ToolCall(call_id="c", tool_name="make"))
    session.append(refold.ToolResult(call_id="c", content=LONG))
    session.append(CALL)
    return session


def damages(store: SessionStore, *, apply: bool = False) -> list[tuple[str, str, bool]]:
    all_damages: list[Damage] = [
        damage
        for _, session_damages in store.repair(apply=apply)
        for damage in session_damages
    ]
    return [
        (damage.stream.session_id, damage.kind, damage.mended) for damage in all_damages
    ]


def test_an_undamaged_store_has_no_damage(url: str) -> None:
    with refold.open(url) as store:
        before = [
            event.to_json()
            for event in store.session(user_id="ada", session_id="s").events()
        ]

        assert damages(store) == damages(store, apply=True) == []
        after = [
            event.to_json()
            for event in store.session(user_id="ada", session_id="s").events()
        ]

    assert after == before


@pytest.mark.parametrize(
    "harm",
    [
        "DELETE FROM @heads WHERE session_id='s' AND stream='main'",
        "UPDATE @heads SET seq=3 WHERE session_id='s' AND stream='main'",
        "UPDATE @heads SET tokens=7 WHERE session_id='s' AND stream='main'",
        "UPDATE @heads SET status='closed' WHERE session_id='s' AND stream='main'",
        "UPDATE @heads SET state=(SELECT state FROM @heads WHERE session_id='t') "
        "WHERE session_id='s' AND stream='main'",
        "DELETE FROM @heads WHERE session_id='s' AND stream<>'main'",
        "DELETE FROM @heads WHERE session_id='f'",
        "DELETE FROM @heads",
    ],
)
def test_repair_recomputes_a_head(url: str, harm: str) -> None:
    with refold.open(url) as store:
        context = store.session(user_id="ada", session_id="s").context(WINDOW).digest
    tamper(url, harm)

    with refold.open(url) as store:
        assert {kind for _, kind, _ in damages(store)} == {"head"}
        assert {mended for _, _, mended in damages(store, apply=True)} == {True}
        assert problems(store) == []
        assert damages(store) == []

    with refold.open(url) as store:
        session = store.session(user_id="ada", session_id="s")
        assert session.context(WINDOW).digest == context
        session.append(refold.ToolResult(call_id="open", content="done"))
        assert problems(store) == []


def test_a_repair_without_apply_changes_nothing(url: str) -> None:
    tamper(url, "DELETE FROM @heads WHERE session_id='s' AND stream='main'")

    with refold.open(url) as store:
        assert damages(store) == damages(store) == [("s", "head", False)]
        assert problems(store) != []


@pytest.mark.parametrize(
    "harm",
    [
        "DELETE FROM @events WHERE session_id='s' AND stream='main' AND seq=2",
        "DELETE FROM @events WHERE session_id='s' AND stream='main' AND seq=11",
        "UPDATE @events SET body=hash WHERE session_id='s' AND stream='main' AND seq=2",
        "UPDATE @events SET ts=5 WHERE session_id='s' AND stream='main' AND seq=2",
    ],
)
def test_damaged_events_are_reported_and_left(url: str, harm: str) -> None:
    tamper(
        url,
        "DROP TRIGGER IF EXISTS events_refuse_delete"
        if url.startswith("sqlite")
        else "SELECT 1",
        harm,
    )

    with refold.open(url) as store:
        before = problems(store)
        assert ("s", "events", False) in damages(store, apply=True)
        assert problems(store) == before != []


def test_a_changed_view_is_dropped(url: str) -> None:
    with refold.open(url) as store:
        context = store.session(user_id="ada", session_id="s").context(WINDOW).digest
    tamper(url, "UPDATE @views SET body=(SELECT hash FROM @events LIMIT 1)")

    with refold.open(url) as store:
        assert damages(store, apply=True) == [("s", "view", True)]
        assert damages(store) == []
        assert (
            store.session(user_id="ada", session_id="s").context(WINDOW).digest
            == context
        )


def test_only_unreferenced_blobs_are_deleted(url: str) -> None:
    tamper(
        url,
        "INSERT INTO @blobs (user_id, address, size, created_at, body, session_id) "
        "SELECT user_id, hash, 1, 1, hash, session_id FROM @events "
        "WHERE session_id='s' AND seq=1 AND stream='main'",
    )

    with refold.open(url) as store:
        assert damages(store, apply=True) == [("s", "blob", True)]
        assert damages(store) == []
        assert problems(store) == []
        assert store.stats()["blobs"] == 1


def test_blobs_are_kept_if_the_session_grows_concurrently(url: str) -> None:
    with refold.open(url) as store:
        session = store.session(user_id="ada", session_id="s")
        scanned = store.log.repairs.unnamed_blobs(session.stream)
        session.append(refold.ToolResult(call_id="open", content="done"))

        assert not store.log.repairs.drop_blobs(session.stream, scanned)


def test_a_repaired_head_is_not_behind_a_concurrent_append(url: str) -> None:
    with refold.open(url) as store:
        session = store.session(user_id="ada", session_id="s")
        head = store.log.head(session.stream)
        session.append(refold.ToolResult(call_id="open", content="done"))

        assert not store.log.repairs.put_head(session.stream, head)
        assert problems(store) == []


def test_repair_does_not_bring_back_an_erased_user(url: str) -> None:
    with refold.open(url) as store:
        stream = store.session(user_id="ada", session_id="s").stream
        head = store.log.head(stream)
        store.erase("ada", reason="asked for")

        with pytest.raises(refold.Erased):
            store.log.repairs.put_head(stream, head)
        assert damages(store, apply=True) == []


def test_the_repaired_head_of_a_frozen_user_is_not_open(url: str) -> None:
    with refold.open(url) as store:
        store.erasures.freeze("ada", "disputed")
    tamper(url, "DELETE FROM @heads WHERE session_id='s' AND stream='main'")

    with refold.open(url) as store:
        assert ("s", "head", False) in damages(store, apply=True)
        with pytest.raises(refold.RefoldError):
            store.session(user_id="ada", session_id="s").append(
                refold.UserInput(text="more")
            )
        store.erasures.unfreeze("ada", "settled")
        assert {mended for _, _, mended in damages(store, apply=True)} == {True}
        assert problems(store) == []


def test_repair_destroys_nothing_of_a_user_under_legal_hold(url: str) -> None:
    tamper(
        url,
        "INSERT INTO @blobs (user_id, address, size, created_at, body, session_id) "
        "SELECT user_id, hash, 1, 1, hash, session_id FROM @events "
        "WHERE session_id='s' AND seq=1 AND stream='main'",
    )

    with refold.open(url) as store:
        store.erasures.hold("ada", "case 7", "a court asked")
        assert damages(store, apply=True) == [("s", "blob", False)]
        store.erasures.release("ada", "case 7", "it ended")
        assert damages(store, apply=True) == [("s", "blob", True)]


def test_a_session_without_a_head_can_be_erased(url: str) -> None:
    tamper(url, "DELETE FROM @heads WHERE session_id='t'")

    with refold.open(url) as store:
        erased = store.erase("ada", "asked for", session_id="t")

        assert erased.certificate is not None
        assert erased.certificate.statement["counts"]["events"] == 1
        assert set(erased.left.values()) == {0}
        assert problems(store) == []
        with pytest.raises(refold.SessionNotFound):
            store.erase("ada", "asked for", session_id="never")


def test_a_sound_store_has_nothing_to_repair(memory: SessionStore) -> None:
    memory.session(user_id="ada", session_id="s").append(CALL)

    assert [damage for _, damage in memory.repair() if damage] == []


def test_an_export_fails_if_a_session_has_no_head(url: str, tmp_path: Path) -> None:
    tamper(url, "DELETE FROM @heads WHERE session_id='t'")

    with refold.open(url) as store:
        with pytest.raises(ExportFailed, match=r"'t' and no head.*refold repair"):
            store.export_user("ada", tmp_path / "out")
        assert not (tmp_path / "out").exists()

        assert ("t", "head", True) in damages(store, apply=True)
        assert store.export_user("ada", tmp_path / "out").path.exists()
