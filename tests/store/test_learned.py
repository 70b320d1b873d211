"""A secret that a session showed once is found in every later event of the session."""

from __future__ import annotations

import base64
from pathlib import Path
from time import process_time
from urllib.parse import quote

import pytest

import refold
from refold.domain.envelope import Draft
from refold.redaction.learned import MOST_LEARNED, Learned, learnable
from refold.store import Session, SessionStore
from refold.store.session.imports import extend
from tests.support.stores import open_at

SECRET = "Tn7/vQ2+xLr9pWz4"
SHOWN = refold.UserInput(text=f"export DB_PASSWORD={SECRET}")
ECHO = refold.UserInput(text=f"the server printed {SECRET} on its own")
HIDDEN = "the server printed [REDACTED:SECRET] on its own"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def texts(session: Session) -> list[str]:
    return [str(event.payload.payload().get("text")) for event in session.events()]


@pytest.mark.parametrize(
    "spelling",
    [
        SECRET,
        encoded(SECRET),
        encoded(f"{SECRET}\n"),
        quote(SECRET, safe=""),
        f"'{SECRET}'",
        f"({SECRET}),",
    ],
)
def test_every_spelling_of_a_shown_secret_is_found(
    session: Session, spelling: str
) -> None:
    session.append(SHOWN)
    session.append(refold.UserInput(text=f"it printed {spelling} again"))

    _, last = texts(session)

    assert "[REDACTED:SECRET]" in last
    assert spelling.strip("'(),") not in last


def test_a_shown_secret_is_found_in_results_and_arguments(session: Session) -> None:
    session.append(SHOWN)
    call = refold.ToolCall(call_id="c", tool_name="t", arguments={"x": [SECRET]})
    session.append(call)
    session.append(refold.ToolResult(call_id="c", content={"rows": [["a", SECRET]]}))

    assert SECRET not in "".join(event.model_dump_json() for event in session.events())


def test_earlier_events_stay_unchanged(session: Session) -> None:
    session.append(ECHO)
    session.append(SHOWN)

    assert texts(session)[0] == ECHO.text


def test_events_of_one_append_learn_from_those_before(session: Session) -> None:
    session.append([ECHO, SHOWN, ECHO])

    assert texts(session)[0] == ECHO.text
    assert texts(session)[2] == HIDDEN


def test_other_sessions_do_not_know_the_secret(
    session: Session, store: SessionStore
) -> None:
    other = store.session(user_id="ada", session_id="other")
    session.append(SHOWN)
    other.append(ECHO)

    assert texts(other) == [ECHO.text]


def test_another_process_knows_the_secret(
    session: Session, store_url: str, tmp_path: Path
) -> None:
    session.append(SHOWN)

    with open_at(store_url, tmp_path) as other:
        again = other.session(user_id="ada", session_id="s-1")
        again.append(ECHO)

        assert texts(again)[1] == HIDDEN


def test_two_writers_agree_on_the_secret(
    session: Session, store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as other:
        second = other.session(user_id="ada", session_id="s-1")
        second.append(refold.UserInput(text="begin"))
        session.append(SHOWN)
        # Its cached head is older than the secret.
        second.append(ECHO)

    assert texts(session)[2] == HIDDEN


def test_a_retry_is_compared_with_the_secrets_of_its_time(session: Session) -> None:
    done = session.append(ECHO, idempotency_key="k")
    session.append(SHOWN)

    again = session.append(ECHO, idempotency_key="k")

    assert again == done._replace(duplicate=True)


def test_a_retry_of_a_redacted_event_is_a_duplicate(session: Session) -> None:
    session.append(SHOWN, idempotency_key="a")
    done = session.append(ECHO, idempotency_key="b")

    assert session.append(ECHO, idempotency_key="b") == done._replace(duplicate=True)
    assert session.append(SHOWN, idempotency_key="a").duplicate


def test_a_fork_inherits_the_secrets_that_its_parent_had_shown(
    session: Session,
) -> None:
    session.append(refold.UserInput(text="begin"))
    session.append(SHOWN)
    late = session.fork(2, session_id="late")
    early = session.fork(1, session_id="soon")
    late.append(ECHO)
    early.append(ECHO)

    assert texts(late)[-1] == HIDDEN
    assert texts(early)[-1] == ECHO.text


def test_an_import_records_the_same_as_appends(store: SessionStore) -> None:
    events = [ECHO, SHOWN, ECHO, refold.UserInput(text="done")]
    meta = refold.events.Meta(source={"format": "test"})
    drafts = [Draft(event, meta=meta) for event in events]
    live = store.session(user_id="ada", session_id="live")
    imported = store.session(user_id="ada", session_id="imported")

    for event in events:
        live.append(event)
    extend(imported, drafts, where="a.jsonl")
    again = extend(imported, drafts, where="a.jsonl")

    assert texts(imported) == texts(live)
    assert (again.events, again.duplicates) == (0, 4)


def test_a_stored_head_contains_the_learned_secrets(session: Session) -> None:
    session.append(SHOWN)
    head = session.head()
    loaded = type(head.state).load(
        head.state.stream, head.seq, closed=False, dumped=head.state.dump()
    )

    assert loaded.learned == head.state.learned
    assert loaded.learned


def test_only_digests_are_stored(session: Session) -> None:
    session.append(SHOWN)

    dumped = str(session.head().state.dump())

    assert "learned" in dumped
    assert SECRET not in dumped
    assert encoded(SECRET) not in dumped


def test_a_session_learns_a_limited_number_of_secrets(session: Session) -> None:
    for number in range(MOST_LEARNED * 4):
        value = f"Zq{number:04}vK{number * 7919:07}x"
        session.append(refold.UserInput(text=f"DB_PASSWORD={value}"))

    assert len(session.head().state.learned) <= 6 * MOST_LEARNED


@pytest.mark.parametrize(
    "value",
    [
        "password",
        "changeme1",
        "postgres15",
        "db_password_1",
        "my-service-name",
        "/etc/app/secret.key",
        "https://x.test/a",
        "settings.password",
        "DB_PASSWORD_FILE",
        "short1!",
        "12345678901",
        "550e8400-e29b-41d4-a716-446655440000",
        "${DB_PASSWORD}",
    ],
)
def test_words_names_and_paths_are_not_learned(value: str) -> None:
    assert not learnable("SECRET", value)


@pytest.mark.parametrize(
    "value", ["Harbor-Timber27", SECRET, "hunter2xY9", "9f8e7d6c5b"]
)
def test_secret_values_are_learned(value: str) -> None:
    assert learnable("SECRET", value)
    assert not learnable("EMAIL", value)


def test_a_call_id_stays_the_same_for_its_result(session: Session) -> None:
    call = refold.ToolCall(call_id="Tn7vQ2xLr9pWz4", tool_name="t")
    session.append(call)
    session.append(refold.UserInput(text="DB_PASSWORD=Tn7vQ2xLr9pWz4"))
    session.append(refold.ToolResult(call_id="Tn7vQ2xLr9pWz4", content="done"))

    assert not session.head().state.open_calls


def test_a_search_takes_a_few_microseconds() -> None:
    learned = Learned(lambda: b"k" * 32, {})
    for number in range(10):
        learned.learn([("SECRET", f"Zq{number}vK{number * 7919:07}x+Y")], 1)
    text = ("The build failed after 12 of 96 steps; see log 4f2a91 for more. " * 32)[
        :2048
    ]
    learned.clean([text])

    began = process_time()
    for _ in range(500):
        assert learned.clean([text])

    # A slow machine takes several times the intended 30 µs.
    assert (process_time() - began) / 500 < 150e-6


def test_no_output_shows_a_learned_secret() -> None:
    learned = Learned(lambda: b"k" * 32, {})
    learned.learn([("SECRET", SECRET)], 1)

    assert SECRET not in repr(learned) + str(learned.entries)
    assert not learned.before(1).entries
