"""Memory outlives sessions: names, counts and seqs expire on their own."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import refold
from refold import RetentionPolicy
from refold.domain.errors import InvalidConfiguration
from refold.domain.events import Verdict
from refold.domain.ids import KEPT
from refold.projections.memory import items
from refold.store import SessionStore
from tests.control.conftest import Later
from tests.support.nested import problems_of

DAY = timedelta(days=1)
POLICY = RetentionPolicy(sessions=30 * DAY, memory=90 * DAY)
BOTH = pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)


def add_run(
    store: SessionStore, name: str, *tools: str, outcome: Any = "success"
) -> None:
    session = store.session(user_id="ada", session_id=name)
    session.append(refold.UserInput(text="a secret word: marzipan"))
    for number, tool in enumerate(tools):
        session.append(refold.ToolCall(call_id=f"c{number}", tool_name=tool))
        session.append(refold.ToolResult(call_id=f"c{number}", content="marzipan"))
    wrong = Verdict(
        item_id="7", verdict="incorrect", error_type="sign error", subject="math"
    )
    session.append(refold.Reflection(pass_=True))
    session.append(refold.Aggregate(results=(wrong,)))
    session.append(refold.Final(outcome=outcome))


def filled(store: SessionStore) -> SessionStore:
    for number in range(4):
        add_run(store, f"run-{number}", "search", "book")
    return store


def memory_items(store: SessionStore) -> list[Any]:
    """Return kind, content and sessions of every item of memory."""
    return [
        (item.kind, item.content, item.sessions)
        for item in store.memory.of("ada").items
    ]


def memory_sessions(store: SessionStore) -> list[str]:
    assert not [info for info in store.sessions() if info.session_id.startswith(KEPT)]
    infos = [info for info in store.log.sessions("ada") if info.status != "erased"]
    return [info.session_id for info in infos if info.session_id.startswith(KEPT)]


@BOTH
def test_memory_stays_the_same_after_its_sessions_expired(
    store: SessionStore, later: Later
) -> None:
    before = memory_items(filled(store))
    after = later(store, 31 * DAY)

    done = after.erasures.retain(POLICY)

    assert [name for _, name in done.sessions] == [f"run-{n}" for n in range(4)]
    assert memory_items(after) == before != []
    assert "Suggested tool path: search" in after.memory.advice("ada").text
    assert len(memory_sessions(after)) == 4
    assert not problems_of(after.verify())
    assert memory_items(later(store, 89 * DAY)) == before


@BOTH
def test_memory_expires_after_its_own_time(store: SessionStore, later: Later) -> None:
    filled(store)
    later(store, 31 * DAY).erasures.retain(POLICY)

    assert memory_items(later(store, 91 * DAY)) == []
    dry = later(store, 91 * DAY).erasures.retain(POLICY, dry_run=True)
    done = later(store, 91 * DAY).erasures.retain(POLICY)

    assert (dry.memory, done.memory) == (4, 4)
    assert memory_sessions(store) == []
    assert later(store, 91 * DAY).erasures.retain(POLICY).memory == 0


def test_memory_keeps_no_words_of_sessions(store: SessionStore, later: Later) -> None:
    filled(store)
    later(store, 31 * DAY).erasures.retain(POLICY)

    for name in memory_sessions(store):
        session = store.log.read(_stream(name))
        assert "marzipan" not in str([event.to_json() for event in session])
        assert "run-" not in name


def _stream(name: str) -> Any:
    from refold.domain.ids import StreamId

    return StreamId("ada", name)


def test_an_erasure_deletes_memory_too(store: SessionStore, later: Later) -> None:
    filled(store)
    after = later(store, 31 * DAY)
    after.erasures.retain(POLICY)
    before = memory_items(after)

    after.erase("ada", "asked", session_id="run-0")

    assert len(memory_sessions(after)) == 3
    assert memory_items(after) != before
    assert after.erase("ada", "asked", session_id="run-0").already
    done = after.erase("ada", "asked")
    assert set(done.left.values()) == {0}
    with pytest.raises(refold.Erased):
        memory_items(after)


def test_an_erasure_of_a_living_session_leaves_no_extract(
    store: SessionStore, later: Later
) -> None:
    filled(store)

    store.erase("ada", "asked", session_id="run-0")

    assert memory_sessions(store) == []
    assert all(sessions == 3 for _, _, sessions in memory_items(store))


def test_users_who_opted_out_leave_nothing(store: SessionStore, later: Later) -> None:
    filled(store)
    after = later(store, 31 * DAY)
    store.user("ada").opt_out()

    after.erasures.retain(POLICY)

    assert memory_sessions(after) == []


def test_a_later_opt_out_deletes_kept_memory(store: SessionStore, later: Later) -> None:
    filled(store)
    after = later(store, 31 * DAY)
    after.erasures.retain(POLICY)

    after.user("ada").opt_out()

    assert memory_items(after) == []
    assert after.erasures.retain(POLICY).memory == 4
    assert memory_sessions(after) == []


def test_the_profile_outlives_sessions_only_with_consent(
    store: SessionStore, later: Later
) -> None:
    store.user("ada").consent("declarative_memory")
    filled(store)
    before = store.memory.profile("ada")
    after = later(store, 31 * DAY)

    after.erasures.retain(POLICY)

    again = after.memory.profile("ada")
    assert again.learning_progress == before.learning_progress == {"math": 0.0}
    assert again.common_error_types == before.common_error_types
    assert len(memory_sessions(after)) == 8
    after.user("ada").withdraw("declarative_memory")
    assert after.memory.profile("ada").sessions == 0
    assert after.erasures.retain(POLICY).memory == 4
    assert len(memory_sessions(after)) == 4


def test_each_kind_has_its_own_time(store: SessionStore, later: Later) -> None:
    filled(store)
    policy = RetentionPolicy.read(
        'sessions = "30d"\n[memory]\npath = "120d"\neffort = "60d"\n'
    )
    later(store, 31 * DAY).erasures.retain(policy)

    def kinds(day: int) -> set[str]:
        return {kind for kind, _, _ in memory_items(later(store, day * DAY))}

    assert kinds(32) == {"path", "effort"}
    assert kinds(61) == {"path"}
    assert later(store, 61 * DAY).erasures.retain(policy).memory == 0
    assert later(store, 121 * DAY).erasures.retain(policy).memory == 4


def test_a_shorter_time_applies_to_existing_memory(
    store: SessionStore, later: Later
) -> None:
    filled(store)
    after = later(store, 50 * DAY)
    after.erasures.retain(POLICY)

    shorter = RetentionPolicy(sessions=30 * DAY, memory=45 * DAY)
    longer = RetentionPolicy(sessions=30 * DAY, memory=400 * DAY)

    assert after.erasures.retain(longer).memory == 0
    assert after.erasures.retain(shorter).memory == 4
    assert memory_sessions(after) == []
    add_run(store, "late", "search")
    assert later(store, 46 * DAY).erasures.retain(shorter).memory == 0
    assert memory_sessions(after) == []


@pytest.mark.parametrize(
    "text",
    [
        'sessions = "30d"\n[memory]\npath = "20d"',
        'sessions = "30d"\n[memory]\nwords = "90d"',
        'sessions = "30d"\n[memory]\npath = 90',
        '[memory]\npath = "90d"',
    ],
)
def test_an_impossible_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfiguration):
        RetentionPolicy.read(text)


def test_without_a_time_memory_expires_with_its_sessions(
    store: SessionStore, later: Later
) -> None:
    filled(store)
    after = later(store, 31 * DAY)

    after.erasures.retain(RetentionPolicy(sessions=30 * DAY))

    assert memory_items(after) == memory_sessions(after) == []


@pytest.fixture
def default_lifetimes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the default lifetimes of items, during and after the test."""
    monkeypatch.setattr(items, "_lifetimes", {})


@pytest.mark.usefixtures("default_lifetimes")
def test_items_last_as_long_as_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "refold.toml").write_text('[memory]\npath = "400d"\neffort = "5d"\n')
    monkeypatch.setenv("REFOLD_CONFIG", str(tmp_path / "refold.toml"))
    with refold.open("memory://") as store:
        items = {item.kind: item for item in filled(store).memory.of("ada").items}

    lifetimes = {
        kind: item.expires_at - item.updated_at for kind, item in items.items()
    }
    days = {kind: time // (86_400 * 1_000_000) for kind, time in lifetimes.items()}
    assert days == {"path": 400, "effort": 5}


@pytest.mark.usefixtures("default_lifetimes")
@pytest.mark.parametrize(
    "lifetimes", [{"words": DAY}, {"path": timedelta(0)}, {"path": timedelta.max}]
)
def test_an_impossible_lifetime_is_refused(lifetimes: dict[str, timedelta]) -> None:
    with pytest.raises(InvalidConfiguration, match="memory"):
        refold.memory.set_lifetimes(**lifetimes)
