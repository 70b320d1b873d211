"""A link shows one run as it was shared, until it expires, is revoked, or is erased."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.domain.errors import (
    Frozen,
    InvalidConfiguration,
    SessionNotFound,
    ShareNotFound,
    StoreUnavailable,
)
from refold.domain.ports import SHARE_PREFIX
from refold.store import Session, SessionStore
from refold.store.shares import NewShare, Share
from tests.support import warm
from tests.support.redacting import MAIL
from tests.support.stores import open_at, prepare

pytestmark = pytest.mark.each_engine
WEEK = timedelta(days=7)


@pytest.fixture
def store(store_url: str, tmp_path: Path) -> Iterator[SessionStore]:
    with open_at(store_url, tmp_path, access_log="table") as opened:
        for user, text in (("ada", "hello of ada"), ("bob", "hello of bob")):
            session = opened.session(user_id=user, session_id="s")
            session.append(refold.UserInput(text=text))
        yield opened


def share(store: SessionStore, user: str = "ada", **how: Any) -> NewShare:
    lasts = how.pop("lasts", WEEK)
    return store.shares.create(user, session_id="s", lasts=lasts, **how)


def shown(session: Session, shared: Share) -> str:
    """Return what a link shows: the user, the session, and the events."""
    events = [event for event in session.history.timeline() if shared.shows(event)]
    texts = [str(event.payload.payload()) for event in events]
    return f"{session.user_id} {session.session_id} {' '.join(texts)}"


def test_a_link_shows_the_run_as_it_was_when_it_was_shared(
    store: SessionStore,
) -> None:
    new = share(store)
    store.session(user_id="ada", session_id="s").append(refold.UserInput(text="later"))

    page = store.shares.open(new.token, shown)

    assert "hello of ada" in page
    assert "later" not in page
    assert "bob" not in page
    assert new.share.seq == 1


def test_a_list_has_the_shares_of_a_user_and_no_tokens(store: SessionStore) -> None:
    new = share(store, creator=f"lin {MAIL}")
    share(store, "bob")

    listed = store.shares.list("ada")

    assert listed == [new.share]
    assert store.shares.list("ada", session_id="other") == []
    assert "lin" in listed[0].creator
    assert MAIL not in listed[0].creator
    assert new.token not in json.dumps(listed[0].to_json())


def test_a_revoked_link_shows_nothing(store: SessionStore) -> None:
    revoked = share(store)
    other = share(store)

    store.shares.revoke("ada", revoked.share.share_id)

    with pytest.raises(ShareNotFound):
        store.shares.open(revoked.token, shown)
    assert store.shares.open(other.token, shown)
    with pytest.raises(ShareNotFound):
        store.shares.revoke("ada", revoked.share.share_id)


def test_nobody_revokes_the_share_of_another_user(store: SessionStore) -> None:
    new = share(store)

    with pytest.raises(ShareNotFound):
        store.shares.revoke("bob", new.share.share_id)
    assert store.shares.open(new.token, shown)


class MovableClock:
    """A clock of a program, which it can move."""

    def __init__(self) -> None:
        self.time = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.time


def test_a_link_ends_at_its_time_and_its_share_is_deleted(
    store_url: str, tmp_path: Path
) -> None:
    clock = MovableClock()
    with open_at(store_url, tmp_path) as opened:
        parts = opened.writer
        store = SessionStore(parts.log, parts.redactor, parts.limits, clock=clock)
        session = store.session(user_id="ada", session_id="s")
        session.append(refold.UserInput(text="hello"))
        new = share(store, lasts=timedelta(minutes=1))
        clock.time += 59_999_999
        assert store.shares.open(new.token, shown)
        assert store.shares.list("ada") == [new.share]

        clock.time += 1

        with pytest.raises(ShareNotFound):
            store.shares.open(new.token, shown)
        assert store.log.share_places("ada")
        assert store.shares.list("ada") == []
        assert store.log.share_places("ada") == []


OPEN = """
import os
import refold
from refold.domain.errors import ShareNotFound
with refold.open(os.environ["URL"]) as store:
    try:
        store.shares.open(os.environ["TOKEN"], lambda session, share: "")
        print("shown")
    except ShareNotFound:
        print("refused")
"""


@pytest.mark.parametrize("days", [3650, -3650], ids=["fast", "slow"])
def test_a_wrong_clock_neither_ends_nor_extends_a_link(
    store: SessionStore,
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
    days: int,
) -> None:
    live = share(store)
    expired = share(store)
    _make_expired(store, expired)
    monkeypatch.setenv("URL", store_url)

    answers = []
    for new in (live, expired):
        monkeypatch.setenv("TOKEN", new.token)
        process = warm.module("tests.support.shifted", days * 86_400, "python", OPEN)
        printed, errors = process.communicate()
        assert process.returncode == 0, errors
        answers.append(printed.strip())

    assert answers == ["shown", "refused"]


def _make_expired(store: SessionStore, new: NewShare) -> None:
    """Store the share again, with an end in the past."""
    stream = store.session(user_id="ada", session_id="s").stream
    name = SHARE_PREFIX + new.share.share_id
    view = store.log.load_view(stream, name)
    assert view is not None
    body = {**view.body, "expires_at": new.share.created_at - 1}
    changed = replace(view, body=body)
    assert store.log.save_view(stream, name, changed, replaces=view.through_seq)


def test_a_changed_or_cut_token_shows_nothing(store: SessionStore) -> None:
    token = share(store).token
    changed = [token[:-1], token[:20], "", "x", token + "A", token + "==", token * 40]
    for index in range(0, len(token), 7):
        letter = "A" if token[index] != "A" else "B"
        changed.append(f"{token[:index]}{letter}{token[index + 1 :]}")
    changed.append(base64.urlsafe_b64encode(os.urandom(150)).decode())
    changed.append("\u00e9\u4e2d" + token)

    for text in changed:
        with pytest.raises(ShareNotFound):
            store.shares.open(text, shown)
    assert store.shares.open(token, shown)


def test_a_token_names_nobody_and_its_length_hides_the_names(
    store: SessionStore,
) -> None:
    session = store.session(user_id="a-longer-name", session_id="s")
    session.append(refold.UserInput(text="hello"))
    first = share(store)
    second = share(store)
    longer = share(store, "a-longer-name")

    ciphertext = base64.urlsafe_b64decode(first.token + "==")

    assert b"ada" not in ciphertext
    assert first.share.share_id.encode() not in ciphertext
    assert first.token != second.token
    assert len(longer.token) == len(first.token)


def test_a_token_of_another_store_shows_nothing(
    store: SessionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "other"))
    monkeypatch.delenv("REFOLD_KEYS", raising=False)
    with refold.open(tmp_path / "other.db") as other:
        session = other.session(user_id="ada", session_id="s")
        session.append(refold.UserInput(text="of the other store"))
        foreign = share(other)

        with pytest.raises(ShareNotFound):
            store.shares.open(foreign.token, shown)
        with pytest.raises(ShareNotFound):
            other.shares.open(share(store).token, shown)


@pytest.mark.parametrize("session_id", ["s", None])
def test_an_erasure_ends_links_and_its_certificate_counts_them(
    store: SessionStore, session_id: str | None
) -> None:
    ended = [share(store), share(store)]
    other = share(store, "bob")

    erased = store.erase("ada", "asked", session_id=session_id)

    assert erased.certificate is not None
    assert erased.certificate.statement["shares"] == 2
    for new in ended:
        with pytest.raises(ShareNotFound):
            store.shares.open(new.token, shown)
    assert store.log.share_places("ada") == []
    assert store.shares.open(other.token, shown)


def test_a_link_shows_nothing_in_the_grace_period_of_an_erasure(
    store: SessionStore,
) -> None:
    new = share(store)
    store.erase("ada", "asked", session_id="s", grace=timedelta(days=1))

    with pytest.raises(ShareNotFound):
        store.shares.open(new.token, shown)

    store.erasures.restore("ada", "a mistake")
    assert store.shares.open(new.token, shown)


def test_a_link_ends_when_its_run_is_encrypted_again(store: SessionStore) -> None:
    new = share(store)

    store.keys.rotate_session("ada", session_id="s")

    with pytest.raises(ShareNotFound):
        store.shares.open(new.token, shown)


def test_a_link_lasts_when_the_users_key_is_rotated(store: SessionStore) -> None:
    new = share(store)

    store.keys.rotate_user("ada")

    assert store.shares.open(new.token, shown)


def test_the_access_log_has_each_creation_opening_and_revocation(
    store: SessionStore,
) -> None:
    new = share(store)
    store.shares.open(new.token, shown)
    store.shares.list("ada")
    store.shares.revoke("ada", new.share.share_id, session_id="s")
    for token in (new.token, "no token"):
        with pytest.raises(ShareNotFound):
            store.shares.open(token, shown)
    store.access_log.flush()

    events = [
        (record.event, record.status)
        for record in store.access_log.records("ada")
        if record.event.startswith("share")
    ]
    everybody = [
        (record.event, record.user is None, record.error_code)
        for record in store.access_log.records()
        if record.event == "share_open" and record.status == "denied"
    ]

    assert events == [
        ("share", "ok"),
        ("share_open", "ok"),
        ("share_list", "ok"),
        ("share_revoke", "ok"),
        ("share_open", "denied"),
    ]
    assert everybody == [
        ("share_open", False, "ShareNotFound"),
        ("share_open", True, "ShareNotFound"),
    ]


@pytest.mark.parametrize("seconds", [0, 59, 365 * 86_400 + 1, -60])
def test_a_share_lasts_at_least_a_minute_and_at_most_a_year(
    store: SessionStore, seconds: int
) -> None:
    with pytest.raises(InvalidConfiguration, match="at least a minute"):
        share(store, lasts=timedelta(seconds=seconds))
    assert store.log.share_places("ada") == []


def test_a_missing_session_and_a_frozen_user_are_not_shared(
    store: SessionStore,
) -> None:
    with pytest.raises(SessionNotFound):
        store.shares.create("ada", session_id="none", lasts=WEEK)
    before = share(store)
    store.erasures.freeze("ada", "a dispute")

    with pytest.raises(Frozen):
        share(store)
    assert store.shares.open(before.token, shown)
    store.shares.revoke("ada", before.share.share_id)
    with pytest.raises(ShareNotFound):
        store.shares.open(before.token, shown)


def test_a_read_only_store_opens_links_but_neither_creates_nor_deletes_them(
    sqlite_url: str, tmp_path: Path
) -> None:
    prepare(sqlite_url, tmp_path)
    with refold.open(sqlite_url) as store:
        session = store.session(user_id="ada", session_id="s")
        session.append(refold.UserInput(text="hello of ada"))
        new = share(store)
    path = tmp_path / "refold.db"
    path.chmod(0o400)

    with refold.open(sqlite_url) as store:
        if os.access(path, os.W_OK):  # root may write to every file
            store.log.recorder.database.readonly = True  # type: ignore[attr-defined]  # as the file's mode says
        assert "hello of ada" in store.shares.open(new.token, shown)
        assert store.shares.list("ada") == [new.share]
        with pytest.raises(StoreUnavailable, match="read-only"):
            share(store)


def test_views_of_memory_are_dropped_without_ending_links(store: SessionStore) -> None:
    new = share(store)

    store.log.drop_views("ada", "s")
    store.user("ada").opt_out(reason="asked")

    assert store.shares.open(new.token, shown)
    assert not [verified for _, verified in store.verify("ada") if verified.problems]
