"""Only ciphertext is ever replaced, and a replacement without an event is detected."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

import refold
from refold.adapters import rewriting
from refold.adapters.log import EncryptedLog
from refold.adapters.rows import RowReplacement
from tests.support.redacting import aware
from tests.support.rewritten import engine_at, problems, schema_prefix, tamper


def body_of_event(url: str, seq: int) -> bytes:
    query = (
        f"SELECT body FROM {schema_prefix(url)}events WHERE stream='main' AND seq={seq}"
    )
    with engine_at(url).connect() as connection:
        return bytes(connection.execute(text(query)).scalar_one())


def test_restored_old_rows_are_found(url: str) -> None:
    old = body_of_event(url, 1)
    with refold.open(url, redactor=aware()) as store:
        list(store.reredact())
    hexed = f"x'{old.hex()}'" if url.startswith("sqlite") else f"'\\x{old.hex()}'"

    tamper(
        url,
        f"UPDATE @events SET body={hexed}, first_digest=NULL "
        "WHERE stream='main' AND seq=1",
    )

    with refold.open(url, redactor=aware()) as store:
        assert set(problems(store)) == {
            (1, "replaced"),
            (1, "corrupt"),
            (7, "replaced"),
        }


def test_a_replacement_that_no_event_binds_is_found(url: str) -> None:
    digest = "zeroblob(32)" if url.startswith("sqlite") else "sha256('')"
    tamper(url, f"UPDATE @events SET first_digest={digest} WHERE stream='main'")

    with refold.open(url, redactor=aware()) as store:
        reported = problems(store)

    assert {(seq, "replaced") for seq in range(1, 8)} <= set(reported)
    assert (1, "chain") in reported


def test_a_body_of_another_time_under_the_current_key_is_detected(url: str) -> None:
    """Somebody with the key can make one: it decrypts, and is not the bound one."""
    with refold.open(url, redactor=aware()) as store:
        list(store.reredact())
        log = store.log
        assert isinstance(log, EncryptedLog)
        rows = log.recorder.select_events(
            store.session(user_id="ada", session_id="s").stream
        )
        again = log.mapper.to_stored_event(
            RowReplacement(rows[1], None, log.key(rows[1].header.stream))
        ).state
    hexed = f"x'{again.hex()}'" if url.startswith("sqlite") else f"'\\x{again.hex()}'"

    tamper(url, f"UPDATE @events SET body={hexed} WHERE stream='main' AND seq=2")

    with refold.open(url, redactor=aware()) as store:
        assert problems(store) == [(7, "replaced")]


def allow_rewriting(connection: Connection) -> None:
    if connection.dialect.name == "sqlite":
        connection.execute(text("INSERT INTO settings VALUES ('rewriting', 'on')"))
    else:
        connection.execute(text("SET LOCAL refold.rewriting = 'on'"))


@pytest.mark.parametrize(
    "change",
    [
        "body=body",
        "ts=ts+1, first_digest=@",
        "hash=@, first_digest=@",
        "seq=seq+100, first_digest=@",
    ],
)
def test_even_during_rewriting_only_ciphertext_may_change(
    url: str, change: str
) -> None:
    digest = "zeroblob(32)" if url.startswith("sqlite") else "sha256(body)"
    change = change.replace("@", digest)

    with engine_at(url).begin() as connection:
        allow_rewriting(connection)
        with pytest.raises(DBAPIError, match="events are immutable"):
            connection.execute(text(f"UPDATE {schema_prefix(url)}events SET {change}"))
        connection.rollback()


def test_rewriting_is_forbidden_again_afterwards(url: str) -> None:
    with refold.open(url, redactor=aware()) as store:
        list(store.reredact())

        statement = f"UPDATE {schema_prefix(url)}events SET body=body"
        with (
            pytest.raises(DBAPIError, match="events are immutable"),
            engine_at(url).begin() as connection,
        ):
            connection.execute(text(statement))


def test_many_rows_are_bound_by_several_events(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewriting, "_BOUND", 5)
    monkeypatch.setattr(rewriting, "_NAMED", 2)

    with refold.open(url, redactor=aware()) as store:
        list(store.reredact())

        payloads = [
            event.payload.payload()
            for event in store.session(user_id="ada", session_id="s").history.pages()
        ]
        bound = [payload for payload in payloads if payload.get("stream") == "main"]
        assert [(payload["first_seq"], payload["last_seq"]) for payload in bound] == [
            (1, 3),
            (4, 7),
        ]
        assert [payload["seqs"] for payload in bound] == [[1, 3], [5, 7]]
        assert problems(store) == []
    tamper(url, "UPDATE @events SET first_digest=hash WHERE stream='main' AND seq=4")
    with refold.open(url, redactor=aware()) as store:
        assert problems(store) == [(4, "chain"), (7, "replaced")]
