"""Encrypting a session again survives kill -9, destroys old data, and is proved."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

import refold
from refold.adapters import config
from refold.adapters.keys.ring import KeyRing, SessionKey
from refold.adapters.log import EncryptedLog
from refold.adapters.sql import sqlite
from refold.domain.events import JsonObject, UserInput
from refold.domain.upcast import UPCASTS
from refold.store.proofs.verification import Rechecker
from tests.support import warm
from tests.support.postgres import Postgres
from tests.support.redacting import MAIL, aware, unaware
from tests.support.rewriter import STEPS
from tests.support.rewritten import LONG, problems, readable_text
from tests.support.stores import prepare


def wrapped_keys(tmp_path: Path) -> list[bytes]:
    """Return the wrapped session keys of the key file."""
    with sqlite3.connect(key_file(tmp_path)) as keys:
        keys_found = keys.execute(
            "SELECT wrapped FROM session_keys UNION ALL "
            "SELECT wrapped FROM rotated_session_keys"
        ).fetchall()
    keys.close()
    return [row[0] for row in keys_found]


def key_file(tmp_path: Path) -> Path:
    shared = tmp_path / "keys.db"
    return shared if shared.exists() else next((config.home() / "keys").glob("*.db"))


def kill_at_step(url: str, step: str) -> None:
    process = warm.module("tests.support.rewriter", url, step)
    output = process.communicate()
    assert process.returncode == -signal.SIGKILL, output


@pytest.mark.parametrize("step", STEPS)
def test_kill_9_at_any_step_leaves_a_session_that_is_whole_and_can_be_finished(
    url: str, tmp_path: Path, step: str
) -> None:
    kill_at_step(url, step)
    committed = list(STEPS).index(step) >= list(STEPS).index("all is committed")

    left = readable_text(url)
    assert (MAIL in left) == (not committed)
    with refold.open(url, redactor=aware()) as store:
        (check,) = store.recheck()
        assert bool(check.exposures) == (not committed)
        assert check.unfinished == (step in ("all is committed", "the commit is safe"))
        list(store.reredact())

        (check,) = store.recheck()
        assert (check.exposures, check.unfinished) == ([], False)
    assert MAIL not in readable_text(url)
    assert len(wrapped_keys(tmp_path)) == 1


def test_the_old_key_is_no_longer_in_the_key_file(url: str, tmp_path: Path) -> None:
    (old,) = wrapped_keys(tmp_path)
    assert old in key_file(tmp_path).read_bytes()

    with refold.open(url, redactor=aware()) as store:
        list(store.reredact())

    (new,) = wrapped_keys(tmp_path)
    assert new != old
    files = list(key_file(tmp_path).parent.glob(key_file(tmp_path).name + "*"))
    assert not any(old in file.read_bytes() for file in files)


@pytest.fixture
def stolen_copy(url: str, postgres: Postgres, tmp_path: Path) -> Iterator[str]:
    """A copy of the database from before it was redacted again."""
    if url.startswith("sqlite"):
        copy = tmp_path / "copy.db"
        shutil.copy(url.removeprefix("sqlite:///"), copy)
        yield f"sqlite:///{copy}"
        return
    name = url.split("?")[0].rsplit("/", 1)[1]
    with psycopg.connect(postgres.url, autocommit=True) as server:
        server.execute(f'CREATE DATABASE "{name}_copy" TEMPLATE "{name}"')
    yield url.replace(name, f"{name}_copy")
    postgres.drop_database(f"{name}_copy")


def test_an_old_copy_opens_with_the_old_keys_and_not_with_the_new(
    url: str, stolen_copy: str, tmp_path: Path
) -> None:
    with refold.open(stolen_copy, redactor=aware()) as store:
        session = store.session(user_id="ada", session_id="s")
        digest = str(session.events()[-1].payload.payload()["text"])
        digest = digest.split('session.blob("')[1][:64]
        assert MAIL in session.history.blob(digest)
        assert MAIL in str([event.to_json() for event in session.events()])
    with refold.open(url, redactor=aware()) as store:
        list(store.reredact())

    with refold.open(stolen_copy, redactor=aware()) as store:
        session = store.session(user_id="ada", session_id="s")
        log = store.log
        assert isinstance(log, EncryptedLog)
        rows = log.recorder.select_events(session.stream)
        with pytest.raises(refold.KeyUnavailable, match="written with another key"):
            session.events()
        with pytest.raises(refold.KeyUnavailable, match="written with another key"):
            session.history.blob(digest)
        for row in rows:
            with pytest.raises(refold.CorruptEvent):
                log.mapper.to_domain_event(row)
        assert {code for _, code in problems(store)} >= {"key"}


def test_the_address_is_nowhere_on_the_disk(url: str, tmp_path: Path) -> None:
    with refold.open(url, redactor=aware()) as store:
        list(store.reredact())

        folders = [tmp_path]
        if url.startswith("postgresql"):
            query = "SELECT current_setting('data_directory')"
            with psycopg.connect(url) as server:
                folders += [Path(row[0]) for row in server.execute(query)]
        for folder in folders:
            for parent, _, names in os.walk(folder):  # skips removed folders
                for name in names:
                    with suppress(FileNotFoundError):  # of another test's database
                        file = Path(parent, name)
                        assert MAIL.encode() not in file.read_bytes(), file


def test_a_payload_of_an_older_shape_is_written_in_the_present_one(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exclaimed(old: JsonObject) -> JsonObject:
        return {**old, "text": f"{old['text']}!"}

    monkeypatch.setattr(UserInput, "version", 2)
    monkeypatch.setitem(UPCASTS, ("user_input", 1), exclaimed)

    with refold.open(url, redactor=aware()) as store:
        list(store.reredact())
        texts = [
            event.payload.text
            for event in store.session(user_id="ada", session_id="s").events()
            if isinstance(event.payload, UserInput)
        ]

        assert [text.count("!") for text in texts[:3]] == [1, 1, 1]
        assert problems(store) == []


def test_a_key_is_destroyed_after_a_commit_that_waits_for_the_disk(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    retire = KeyRing.destroy_older

    def retiring(ring: KeyRing, *names: str, before: SessionKey) -> int:
        steps.append("the old key is destroyed")
        return retire(ring, *names, before=before)

    monkeypatch.setattr(KeyRing, "destroy_older", retiring)
    with refold.open(f"{sqlite_url}?synchronous=normal", redactor=unaware()) as store:
        session = store.session(user_id="ada", session_id="s")
        session.append(refold.UserInput(text=MAIL))
        assert isinstance(store.log, EncryptedLog)
        writer = store.log.recorder.database._writer  # type: ignore[attr-defined]  # SQLite's
        writer.set_trace_callback(steps.append)
        rechecker = Rechecker(store.writer, session.stream)
        store.log.rewrite(session.stream, rechecker, now=1)

    assert steps[-6:] == [
        "PRAGMA synchronous=FULL",
        "BEGIN IMMEDIATE",
        sqlite.TOUCH,
        "COMMIT",
        "PRAGMA synchronous=NORMAL",
        "the old key is destroyed",
    ]


def test_a_lost_acknowledgement_is_detected(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refold.open(url, redactor=aware()) as store:
        assert isinstance(store.log, EncryptedLog)
        recorder = type(store.log.recorder)
        rewrite = recorder.rewrite

        def lost(*arguments: object) -> bool:
            rewrite(*arguments)  # type: ignore[arg-type]  # passed on as they came
            return False

        monkeypatch.setattr(recorder, "rewrite", lost)
        (done,) = store.reredact()

        assert done.applied is not None
        assert done.applied.key_version == 2
        (check,) = store.recheck()
        assert (check.exposures, check.unfinished) == ([], False)


APPENDS = (
    "GRANT USAGE ON SCHEMA refold TO @",
    "GRANT SELECT ON ALL TABLES IN SCHEMA refold TO @",
    "GRANT INSERT ON refold.events, refold.heads, refold.blobs, refold.receipts, "
    "refold.views TO @",
    "GRANT UPDATE ON refold.heads, refold.views TO @",
)
REDACTS = (
    "GRANT UPDATE ON refold.events TO @",
    "GRANT DELETE ON refold.blobs, refold.views TO @",
)


def test_the_app_role_cannot_redact_again(postgres_url: str, tmp_path: Path) -> None:
    role = f"writer_{os.getpid()}"
    with refold.open(prepare(postgres_url, tmp_path), redactor=unaware()) as store:
        store.session(user_id="ada", session_id="s").append(refold.UserInput(text=LONG))
    own = postgres_url.split("@", 1)
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
        grant(server, role, APPENDS)
        try:
            url = f"postgresql://{role}:x@{own[1]}"
            with refold.open(url, redactor=aware()) as store:
                session = store.session(user_id="ada", session_id="s")
                for _ in range(70):
                    session.append(refold.UserInput(text="on"), idempotency_key=None)
                session.context()
                with pytest.raises(refold.StoreUnavailable, match="privilege"):
                    list(store.reredact())
                grant(server, role, REDACTS)

                (done,) = store.reredact()

                assert done.applied is not None
                assert problems(store) == []
        finally:
            server.execute(f"DROP OWNED BY {role}")
            server.execute(f"DROP ROLE {role}")


def grant(
    server: psycopg.Connection[tuple[object, ...]], role: str, rights: tuple[str, ...]
) -> None:
    for right in rights:
        server.execute(right.replace("@", role))
