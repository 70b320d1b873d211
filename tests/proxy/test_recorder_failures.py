"""If the store fails, the agent goes on, and the next request heals the gap."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace

import pytest

import refold
from refold.adapters.proxy.recorder import NOT_RECORDED, StoreRecorder
from refold.adapters.proxy.recording import Recording
from refold.adapters.sql import sqlite
from refold.domain import errors
from refold.store import SessionStore
from tests.support.wire import (
    WireClient,
    agent,
    check_contexts,
    reply,
    stored_texts,
    user,
)

USER = "ada"


@pytest.fixture(autouse=True)
def _waits_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_BUSY", 0.1)


def locked(url: str) -> sqlite3.Connection:
    """Lock the database for writers until the connection is closed."""
    path = url.removeprefix("sqlite:///")
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection


def test_the_next_request_heals_what_a_store_missed(sqlite_url: str) -> None:
    with refold.open(sqlite_url) as store:
        client = WireClient(StoreRecorder(store, user_id=USER))
        client.say("One.", "1")
        lock = locked(sqlite_url)
        client.messages.append(user("Two."))
        exchange = client.exchange()
        with pytest.raises(errors.StoreUnavailable):
            client.recorder.begin(exchange)
        with pytest.raises(errors.StoreUnavailable):
            client.recorder.finish(exchange, reply("2"))
        client.messages.append({"role": "assistant", "content": reply_text("2")})
        lock.close()
        client.say("Three.", "3")

        counts = stored_texts(store, USER)
        assert set(counts.values()) == {1}
        assert set(counts) == {"One.", "1", "Two.", "2", "Three.", "3"}
        assert check_contexts(store, client, USER) == 2
        (session,) = client.recorder.sessions()
        assert session.requests == 2  # of three


def test_a_body_beyond_the_limit_is_reported_and_healed_later(sqlite_url: str) -> None:
    warnings: list[str] = []
    with refold.open(sqlite_url) as store:
        client = WireClient(StoreRecorder(store, user_id=USER))
        recording = Recording(client.recorder, warnings.append)
        for words in ("One.", "Two."):
            client.messages.append(user(words))
            exchange = client.exchange()
            exchange = replace(exchange, body=exchange.body[:20], truncated=True)
            asyncio.run(recording.begin(exchange))
            recording.finish(exchange, reply("Yes."), lambda: None)
            client.messages.append(agent("Yes."))
        recording.close()
        client.recorder = StoreRecorder(store, user_id=USER)
        client.say("Three.", "3")

        assert warnings == [
            "a request was not recorded, and the agent goes on: the request cannot be "
            "recorded: it is larger than the limit of the proxy"
        ]
        assert recording.problems.count == 2
        counts = stored_texts(store, USER)
        assert counts["One."] == counts["Two."] == counts["Three."] == 1
        assert check_contexts(store, client, USER) == 1


def test_a_request_that_failed_is_recorded_with_its_answer(sqlite_url: str) -> None:
    with refold.open(sqlite_url) as store:
        client = WireClient(StoreRecorder(store, user_id=USER))
        client.say("One.", "1")
        lock = locked(sqlite_url)
        client.messages.append(user("Two."))
        exchange = client.exchange()
        with pytest.raises(errors.StoreUnavailable):
            client.recorder.begin(exchange)
        lock.close()
        client.recorder.finish(exchange, reply("2"))

        assert set(stored_texts(store, USER)) == {"One.", "1", "Two.", "2"}
        assert check_contexts(store, client, USER) == 2


def reply_text(words: str) -> list[dict[str, str]]:
    """The content of an answer."""
    return [{"type": "text", "text": words}]


def test_an_ended_session_is_not_recorded_any_more(store: SessionStore) -> None:
    client = WireClient(StoreRecorder(store, user_id=USER))
    client.say("One.", "1")
    session = store.session(user_id=USER, session_id="s-1")
    session.end()
    client.messages.append(user("Two."))
    exchange = client.exchange()

    with pytest.raises(errors.SessionClosed):
        client.recorder.begin(exchange)
    client.recorder.finish(exchange, reply("2"))
    assert "Two." not in stored_texts(store, USER)


def test_an_erased_session_does_not_come_back(store: SessionStore) -> None:
    client = WireClient(StoreRecorder(store, user_id=USER))
    client.say("One.", "1")
    store.session(user_id=USER, session_id="s-1").delete()
    client.messages.append(user("Two."))
    exchange = client.exchange()

    with pytest.raises(errors.Erased):
        client.recorder.begin(exchange)
    client.recorder.finish(exchange, reply("2"))
    assert not store.sessions(USER)


def test_a_readmitted_user_is_recorded_with_new_keys(store: SessionStore) -> None:
    client = WireClient(StoreRecorder(store, user_id=USER), session=None)
    client.say("One.", "1")
    store.erase(USER, "asked")
    client.messages.append(user("Two."))
    with pytest.raises(errors.Erased):
        client.recorder.begin(client.exchange())
    store.erasures.readmit(USER, "back")
    client.send("2")
    client.recorder = StoreRecorder(store, user_id=USER)
    client.say("Three.", "3")

    assert len(store.sessions(USER)) == 1
    assert set(stored_texts(store, USER).values()) == {1}
    assert check_contexts(store, client, USER) == 2


def test_an_answer_is_recorded_if_the_clock_is_set_back(store: SessionStore) -> None:
    client = WireClient(StoreRecorder(store, user_id=USER))
    client.messages.append(user("One."))
    answer = reply("1")
    client.recorder.begin(exchange := client.exchange())
    assert answer.ended_at < exchange.began_at
    client.recorder.finish(exchange, answer)

    session = store.session(user_id=USER, session_id="s-1")
    (response,) = session.events(types=("agent_response",))
    assert response.meta.duration_ms == 0
    assert (response.meta.model_extra or {})["first_byte_ms"] == 0


def test_content_that_is_too_large_becomes_a_note(store: SessionStore) -> None:
    client = WireClient(StoreRecorder(store, user_id=USER))
    pieces = [{"type": "text", "text": f"piece {n}" * 3} for n in range(60_000)]
    client.say("Look.", {"type": "tool_use", "id": "c1", "name": "ls", "input": {}})
    client.messages.append(
        user({"type": "tool_result", "tool_use_id": "c1", "content": pieces})
    )
    client.send("Much.")
    client.say("Next.", "Yes.")

    session = store.session(user_id=USER, session_id="s-1")
    (result,) = session.events(types=("tool_result",))
    codes = {warning.code for warning in result.meta.warnings}
    assert codes & {NOT_RECORDED, "kept_as_text"}
    assert len(session.events(types=("request",))) == 3


def test_another_writer_does_not_confuse_the_recorder(store: SessionStore) -> None:
    client = WireClient(StoreRecorder(store, user_id=USER))
    client.say("One.", "1")
    store.session(user_id=USER, session_id="s-1").label(project="tests")
    client.say("Two.", "2")

    assert set(stored_texts(store, USER).values()) == {1}
    assert check_contexts(store, client, USER) == 2


def test_a_named_session_takes_a_client_without_tools(store: SessionStore) -> None:
    recorder = StoreRecorder(store, user_id=USER, session_id="chosen")
    client = WireClient(recorder, session=None, tools=())
    client.say("One.", "1")
    client.say("Two.", "2")

    (info,) = store.sessions(USER)
    assert info.session_id == "chosen"
    assert check_contexts(store, client, USER) == 2
