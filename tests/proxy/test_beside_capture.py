"""The proxy, a capture, and an import of one session store each message once."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from refold.adapters.importers.follower import Follower
from refold.adapters.proxy.recorder import StoreRecorder
from refold.adapters.proxy_lock import is_proxy_running, running_proxy
from refold.domain.events import AgentResponse, ToolCall, ToolResult, UserInput
from refold.store import SessionStore
from tests.support.wire import (
    WireClient,
    agent,
    call,
    check_contexts,
    reply,
    result,
    stored_texts,
    user,
)

USER = "ada"
SESSION = "0a6f2f0c-7a52-4a36-9d0c-2b6f6d1f4c11"


def entry(number: int, role: str, text: str) -> dict[str, Any]:
    """Return a line of a transcript of Claude Code."""
    parent = None
    if number > 1:
        parent = f"00000000-0000-4000-8000-{number - 1:012}"
    return {
        "type": role,
        "uuid": f"00000000-0000-4000-8000-{number:012}",
        "parentUuid": parent,
        "sessionId": SESSION,
        "timestamp": f"2026-01-01T00:00:{number:02}.000Z",
        "message": {"role": role, "content": [{"type": "text", "text": text}]},
    }


def dialog(*texts: str) -> list[dict[str, Any]]:
    """Return lines of a transcript in which a user and the agent take turns."""
    roles = ("user", "assistant")
    return [
        entry(number, roles[(number - 1) % 2], text)
        for number, text in enumerate(texts, start=1)
    ]


GREETING = dialog("Hello.", "Hi.")


def record_greeting(store: SessionStore) -> WireClient:
    """Let the proxy record a greeting; returns the client."""
    client = WireClient(StoreRecorder(store, user_id=USER), SESSION)
    client.say("Hello.", "Hi.")
    return client


def transcript(folder: Path, *entries: dict[str, Any]) -> Path:
    """Write a transcript to the place where Claude Code writes it."""
    path = folder / "project" / f"{SESSION}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in entries))
    return path


def captured(store: SessionStore, folder: Path) -> None:
    """Capture the folder once."""
    follower = Follower(store, "claude-code", user_id=USER, folder=folder)
    follower.catch_up()


def capture_dialog(store: SessionStore, folder: Path, *texts: str) -> WireClient:
    """Capture a dialog without the proxy; returns a client of the proxy."""
    transcript(folder, *dialog(*texts))
    captured(store, folder)
    return WireClient(StoreRecorder(store, user_id=USER), SESSION)


def say_with_two_recorders(store: SessionStore, client: WireClient) -> None:
    """Say two more things, the second through a proxy that was restarted."""
    client.say("Thanks.", "Gladly.")
    client.recorder = StoreRecorder(store, user_id=USER)
    client.say("Bye.", "See you.")


def test_a_capture_leaves_a_proxied_session_alone(
    store: SessionStore, tmp_path: Path
) -> None:
    client = record_greeting(store)
    path = transcript(tmp_path, *GREETING)
    captured(store, tmp_path)
    (imported,) = store.import_transcript(path, user_id=USER)
    client.say("Bye.", "See you.")

    assert imported.events == 0
    assert imported.duplicates == 2
    assert set(stored_texts(store, USER).values()) == {1}
    assert check_contexts(store, client, USER) == 2


def test_an_import_adds_the_entries_that_the_proxy_did_not_see(
    store: SessionStore, tmp_path: Path
) -> None:
    record_greeting(store)
    path = transcript(
        tmp_path, *dialog("Hello.", "Hi.", "Without the proxy.", "I know.")
    )

    (imported,) = store.import_transcript(path, user_id=USER)
    (again,) = store.import_transcript(path, user_id=USER)

    assert (imported.events, again.events) == (2, 0)
    texts = stored_texts(store, USER)
    assert texts["Without the proxy."] == texts["I know."] == 1
    assert set(texts.values()) == {1}


def test_an_input_that_is_captured_after_its_answer_was_recorded_is_stored_once(
    store: SessionStore, tmp_path: Path
) -> None:
    client = record_greeting(store)
    client.say("Hello.", "Hi again.")
    entries = [*GREETING]
    follower = Follower(store, "claude-code", user_id=USER, folder=tmp_path)
    with follower.alone():
        for count in (1, 2):
            transcript(tmp_path, *entries[:count])
            follower.look()
        entries.append(entry(3, "user", "Hello."))
        transcript(tmp_path, *entries)
        follower.look()
        entries.append(entry(4, "assistant", "Hi again."))
        entries.append(entry(5, "user", "Hello."))
        transcript(tmp_path, *entries)
        follower.look()

    assert stored_texts(store, USER) == {"Hello.": 3, "Hi.": 1, "Hi again.": 1}


def test_an_input_that_the_proxy_recorded_again_does_not_hide_a_later_equal_one(
    store: SessionStore, tmp_path: Path
) -> None:
    client = record_greeting(store)
    client.say("Go on.", "Done.")
    client.messages[:] = [*client.messages[2:], *client.messages[:2]]  # in other order
    client.say("More.", "There is no more.")
    path = transcript(tmp_path, *dialog("Hello.", "Hi.", "Go on.", "Done.", "Hello."))
    recorded = stored_texts(store, USER)["Hello."]
    store.import_transcript(path, user_id=USER)

    assert recorded == 2
    assert stored_texts(store, USER)["Hello."] == 3


def test_the_proxy_goes_on_from_captured_entries(
    store: SessionStore, tmp_path: Path
) -> None:
    client = capture_dialog(store, tmp_path, "Hello.", "Hi.")
    client.messages[:] = [
        user("<reminder>Be kind.</reminder>", "Hello."),
        {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]},
    ]
    client.say("How are you?", "Well.")
    captured(store, tmp_path)

    counts = stored_texts(store, USER)
    assert counts["Hello."] == counts["Hi."] == counts["How are you?"] == 1


def test_results_of_parallel_calls_are_stored_once_in_any_order(
    store: SessionStore,
) -> None:
    session = store.session(user_id=USER, session_id=SESSION)
    session.append(UserInput(text="Look."))
    response = {"response_id": "r1"}
    session.append(AgentResponse(text="I look."), meta=response)
    for call_id in ("a", "b"):
        tool_call = ToolCall(call_id=call_id, tool_name="bash", arguments={})
        session.append(tool_call, meta=response)
    for call_id in ("b", "a"):
        session.append(ToolResult(call_id=call_id, content=f"output {call_id}"))
    client = WireClient(StoreRecorder(store, user_id=USER), SESSION)
    client.messages[:] = [
        user("Look."),
        agent("I look.", call("a"), call("b")),
        user(result("a", "output a"), result("b", "output b")),
    ]

    client.send("Done.")
    client.recorder = StoreRecorder(store, user_id=USER)
    client.say("Thanks.", "Gladly.")

    assert len(session.events(types=("tool_call", "tool_result"))) == 4
    assert set(stored_texts(store, USER).values()) == {1}
    assert check_contexts(store, client, USER) == 2


def test_an_answer_that_a_capture_appends_first_is_stored_once(
    store: SessionStore, tmp_path: Path
) -> None:
    client = record_greeting(store)
    client.messages.append(user("Mail ada@example.org."))
    exchange = client.exchange()
    client.recorder.begin(exchange)
    answer = "I mailed ada@example.org."
    transcript(tmp_path, *dialog("Hello.", "Hi.", "Mail ada@example.org.", answer))
    captured(store, tmp_path)
    client.recorder.finish(exchange, reply("I mailed ada@example.org."))
    client.messages.append(agent("I mailed ada@example.org."))
    client.say("Thanks.", "Gladly.")

    counts = stored_texts(store, USER)
    assert counts["I mailed [REDACTED:EMAIL]."] == 1
    assert set(counts.values()) == {1}
    assert check_contexts(store, client, USER) == 3


def test_an_answer_that_is_captured_before_its_late_request_is_stored_once(
    store: SessionStore, tmp_path: Path
) -> None:
    """On a busy machine, a request may be recorded after its answer arrived."""
    client = WireClient(StoreRecorder(store, user_id=USER), SESSION)
    with_call = entry(3, "assistant", "")
    with_call["message"]["content"] = [call("t1")]
    answer = entry(2, "assistant", "First, I look.")
    transcript(tmp_path, entry(1, "user", "Look around."), answer, with_call)
    captured(store, tmp_path)
    client.say("Look around.", "First, I look.", call("t1"))
    client.messages.append(user(result("t1")))
    client.send("All is done.")

    assert set(stored_texts(store, USER).values()) == {1}
    assert check_contexts(store, client, USER) == 2
    assert not store.session(user_id=USER, session_id=SESSION).verify().problems


def test_an_input_that_is_captured_before_the_request_before_it_is_stored_once(
    store: SessionStore, tmp_path: Path
) -> None:
    client = capture_dialog(store, tmp_path, "Hello.", "Hi.", "Bye.")
    client.say("Hello.", "Hi.")
    client.say("Bye.", "See you.")

    assert set(stored_texts(store, USER).values()) == {1}
    assert check_contexts(store, client, USER) == 2


def test_a_captured_message_with_a_redacted_value_is_stored_once(
    store: SessionStore, tmp_path: Path
) -> None:
    texts = ("Mail ada@example.org.", "I mailed ada@example.org.")
    client = capture_dialog(store, tmp_path, *texts)
    client.messages[:] = [
        user("Mail ada@example.org."),
        agent("I mailed ada@example.org."),
    ]
    say_with_two_recorders(store, client)

    assert set(stored_texts(store, USER).values()) == {1}
    assert check_contexts(store, client, USER) == 2


def test_equal_answers_without_the_proxy_are_appended(
    store: SessionStore, tmp_path: Path
) -> None:
    client = WireClient(StoreRecorder(store, user_id=USER), SESSION)
    client.say("Go on.", "Done.")
    path = transcript(tmp_path, *dialog("Go on.", "Done.", "Go on.", "Done."))
    captured(store, tmp_path)
    (imported,) = store.import_transcript(path, user_id=USER)

    counts = stored_texts(store, USER)
    assert counts == {"Go on.": 2, "Done.": 2}
    assert imported.events == 0


def test_a_capture_waits_for_a_running_proxy_that_may_record_the_rest(
    store: SessionStore, tmp_path: Path
) -> None:
    record_greeting(store)
    transcript(tmp_path, *dialog("Hello.", "Hi.", "Bye."))

    with running_proxy():
        captured(store, tmp_path)
        while_running = stored_texts(store, USER)
    captured(store, tmp_path)

    assert while_running["Bye."] == 0
    assert stored_texts(store, USER)["Bye."] == 1


def test_no_proxy_seems_to_run_on_a_file_system_without_locks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    with running_proxy():
        monkeypatch.setattr(fcntl, "flock", refuse)
        assert not is_proxy_running()


def test_a_capture_waits_only_shortly_for_a_proxy(
    store: SessionStore, tmp_path: Path
) -> None:
    client = record_greeting(store)
    client.messages.append(user("More."))
    client.recorder.begin(client.exchange())  # its proxy is killed
    path = transcript(
        tmp_path,
        *GREETING,
        entry(3, "user", "More."),
        entry(4, "user", "Without the proxy."),
        entry(5, "assistant", "I know."),
    )
    minute_ago = time.time() - 60
    os.utime(path, (minute_ago, minute_ago))

    with running_proxy():
        captured(store, tmp_path)

    texts = stored_texts(store, USER)
    assert texts["Without the proxy."] == texts["I know."] == 1
    assert set(texts.values()) == {1}


def test_a_capture_reads_a_deleted_file_to_its_end_while_a_proxy_runs(
    store: SessionStore, tmp_path: Path
) -> None:
    record_greeting(store)
    path = transcript(tmp_path, *GREETING)
    follower = Follower(store, "claude-code", user_id=USER, folder=tmp_path)

    with running_proxy(), follower.alone():
        follower.look()
        with path.open("a") as file:
            file.write(json.dumps(entry(3, "user", "Bye.")) + "\n")
        path.unlink()
        follower.look()

    assert stored_texts(store, USER)["Bye."] == 1


def test_a_rewritten_transcript_adds_no_answer_of_the_proxy(
    store: SessionStore, tmp_path: Path
) -> None:
    record_greeting(store)
    entries = [*GREETING]
    transcript(tmp_path, *entries)
    follower = Follower(store, "claude-code", user_id=USER, folder=tmp_path)

    with follower.alone():
        follower.look()
        summary = {"type": "summary", "summary": "Greetings", "leafUuid": "x"}
        transcript(tmp_path, summary, *entries)
        follower.look()

    assert set(stored_texts(store, USER).values()) == {1}


def test_an_equal_call_with_an_id_of_a_captured_one_is_recorded(
    store: SessionStore,
) -> None:
    session = store.session(user_id=USER, session_id=SESSION)
    session.append(UserInput(text="Look."))
    session.append(ToolCall(call_id="call_1", tool_name="bash", arguments={}))
    session.append(ToolResult(call_id="call_1", content="output"))
    session.append(AgentResponse(text="Done."))
    client = WireClient(StoreRecorder(store, user_id=USER), SESSION)
    client.messages[:] = [
        user("Look."),
        agent(call("call_1")),
        user(result("call_1", "output")),
        agent("Done."),
        user("Look again."),
    ]

    client.send(call("call_1"))

    assert len(session.events(types=("tool_call",))) == 2


def test_equal_captured_messages_with_a_redacted_value_are_stored_once(
    store: SessionStore, tmp_path: Path
) -> None:
    request = "Mail ada@example.org."
    client = capture_dialog(store, tmp_path, request, "Done.", request, "Done again.")
    client.messages[:] = [
        user("Mail ada@example.org."),
        agent("Done."),
        user("Mail ada@example.org."),
        agent("Done again."),
    ]
    say_with_two_recorders(store, client)

    texts = stored_texts(store, USER)
    assert texts.pop("Mail [REDACTED:EMAIL].") == 2
    assert set(texts.values()) == {1}
    assert check_contexts(store, client, USER) == 2


def test_a_second_equal_answer_of_codex_is_imported(
    store: SessionStore, tmp_path: Path
) -> None:
    client = WireClient(StoreRecorder(store, user_id=USER), SESSION)
    client.say("Go on.", "Done.")
    lines: list[dict[str, Any]] = [{"type": "session_meta", "payload": {"id": SESSION}}]
    for role, words in (
        ("user", "Go on."),
        ("assistant", "Done."),
        ("assistant", "Done."),
    ):
        kind = "output_text" if role == "assistant" else "input_text"
        content = [{"type": kind, "text": words}]
        message = {"type": "message", "role": role, "content": content}
        lines.append({"type": "response_item", "payload": message})
    path = tmp_path / f"rollout-2026-01-01T00-00-00-{SESSION}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (imported,) = store.import_transcript(path, user_id=USER)
    (again,) = store.import_transcript(path, user_id=USER)

    assert stored_texts(store, USER) == {"Go on.": 1, "Done.": 2}
    assert (imported.events, again.events) == (1, 0)
