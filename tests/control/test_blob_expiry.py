"""Complete texts expire on their own: the events stay, and name what is left."""

from __future__ import annotations

import base64
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.adapters.rows import BlobRow
from refold.adapters.streams import Blobs
from refold.domain.erasure import RetentionPolicy
from refold.domain.errors import Expired
from refold.store import Session, SessionStore
from refold.store.exports import check_export
from tests.control.conftest import Later
from tests.support.operations import LONG, WINDOW

DAY = timedelta(days=1)
POLICY = RetentionPolicy(blobs=30 * DAY)
IMAGE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + os.urandom(30_000)).decode()


@pytest.fixture
def session_with_blobs(store: SessionStore) -> Session:
    """Create a session with a long text and an image, shown to a model once."""
    session = store.session(user_id="ada", session_id="s")
    picture = refold.events.Attachment(kind="image", media_type="image/png", data=IMAGE)
    session.append(
        [
            refold.UserInput(text=LONG),
            refold.UserInput(text="look", attachments=(picture,)),
        ]
    )
    tools: Any = [{"name": f"t{n}", "input_schema": {"d": "x" * 50}} for n in range(40)]
    session.record_request(session.context("keep_all", tools=tools))
    return session


def problems(store: SessionStore) -> list[str]:
    codes: list[str] = []
    for _, verification in store.verify():
        codes += [problem.code for problem in verification.problems]
    return codes


def digests(session: Session) -> list[str]:
    """Return the digests of blobs that the session's events name."""
    digests: list[str] = []
    for event in session.events():
        text = str(event.payload.payload())
        digests += [part[:64] for part in text.split('session.blob("')[1:]]
    return digests


def test_an_expired_text_is_removed_and_its_event_stays(
    store: SessionStore, session_with_blobs: Session, later: Later
) -> None:
    before = session_with_blobs.events()
    named_digests = digests(session_with_blobs)
    assert len(named_digests) >= 3

    report = later(store, 31 * DAY).erasures.retain(POLICY)

    assert report.blobs == len(set(named_digests))
    assert report.sessions == []
    assert session_with_blobs.events() == before
    for digest in named_digests:
        with pytest.raises(Expired, match="retention"):
            session_with_blobs.history.blob(digest)
    assert store.stats()["blob_bytes"] == 0


def test_an_expired_blob_verifies_as_expired_not_damaged(
    store: SessionStore, session_with_blobs: Session, later: Later
) -> None:
    assert problems(store) == []

    later(store, 31 * DAY).erasures.retain(POLICY)

    ((_, verification),) = store.verify()
    assert verification.problems == []
    assert (verification.superseded, verification.superseded_digests) == (3, 1)
    if store.stats()["engine"] != "memory":
        assert [damage for _, damages in store.repair() for damage in damages] == []


def test_a_context_shows_the_rest_of_an_expired_text(
    store: SessionStore, session_with_blobs: Session, later: Later
) -> None:
    assert IMAGE in str(session_with_blobs.context("keep_all").messages)

    later(store, 31 * DAY).erasures.retain(POLICY)

    shown = str(session_with_blobs.context("keep_all").messages)
    assert IMAGE not in shown
    assert "bytes left out here" in shown
    assert session_with_blobs.prepare(WINDOW).messages


def test_an_expired_text_cannot_be_faked_without_the_key(
    store: SessionStore, session_with_blobs: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forged_row(_: Blobs, address: bytes, __: object) -> BlobRow:
        return BlobRow(address, b"", 0)

    monkeypatch.setattr(Blobs, "expired", forged_row)
    old_blobs = next(iter(store.log.retention.old_blobs(store.clock() + 1)))
    assert session_with_blobs.session_id == old_blobs.session_id
    assert store.log.retention.expire_blobs(old_blobs)

    assert "blob" in problems(store)


def test_blobs_stay_expired_after_key_rotation(
    store: SessionStore, session_with_blobs: Session, later: Later
) -> None:
    later(store, 31 * DAY).erasures.retain(POLICY)

    store.keys.rotate_session("ada", session_id="s")

    assert problems(store) == []
    with pytest.raises(Expired):
        session_with_blobs.history.blob(digests(session_with_blobs)[0])


def test_newer_texts_and_those_on_hold_or_used_by_forks_stay(
    store: SessionStore, session_with_blobs: Session, later: Later
) -> None:
    for user in ("bob", "eve"):
        store.session(user_id=user, session_id="s").append(refold.UserInput(text=LONG))
    store.erasures.hold("bob", "case", "a lawsuit")
    store.session(user_id="eve", session_id="s").fork(1, session_id="child")
    later(store, 29 * DAY).session(user_id="ada", session_id="new").append(
        refold.UserInput(text=LONG)
    )
    digest_of_long = digests(store.session(user_id="ada", session_id="new"))[0]

    report = later(store, 31 * DAY).erasures.retain(POLICY)

    assert report.blobs == len(set(digests(session_with_blobs)))
    for user, name in (("ada", "new"), ("bob", "s"), ("eve", "s"), ("eve", "child")):
        session = store.session(user_id=user, session_id=name)
        assert session.history.blob(digest_of_long) == LONG


def test_a_dry_run_counts_and_a_later_export_is_complete(
    store: SessionStore, session_with_blobs: Session, later: Later, tmp_path: Path
) -> None:
    later_store = later(store, 31 * DAY)

    plan = later_store.erasures.retain(POLICY, dry_run=True)

    assert session_with_blobs.history.blob(digests(session_with_blobs)[0])
    assert later_store.erasures.retain(POLICY).blobs == plan.blobs
    assert later_store.erasures.retain(POLICY).blobs == 0
    store.export_user("ada", tmp_path / "out")
    assert check_export(tmp_path / "out").problems == []
