"""Internal sessions are in no listing; they are verified, exported and erased."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import refold as api
from refold.adapters.frameworks.mcp import Readable
from refold.adapters.importers.dataset import Dataset
from refold.adapters.server.access_tokens import SCOPES, verifier_of
from refold.adapters.server.app import COOKIE, application
from refold.domain.ids import KEPT, RESERVED, check_session_id, is_internal
from refold.store import SessionStore
from tests.cli.conftest import Refold

INTERNAL = "_user"


@pytest.fixture
def store(refold: Refold, tmp_path: Path) -> Iterator[SessionStore]:
    """A conversation of ada, who allowed something; bob only allowed something."""
    del refold  # the manifest goes to the directory of the database
    with api.open(f"sqlite:///{tmp_path}/refold.db") as opened:
        session = opened.session(user_id="ada", session_id="s-1")
        session.append([api.UserInput(text="Is training on?"), api.Final(text="Yes.")])
        for user in ("ada", "bob"):
            opened.user(user).consent("training", granted=True, reason="training is on")
        yield opened


def test_exactly_the_reserved_names_are_internal() -> None:
    assert all(is_internal(name) for name in (*RESERVED, f"{KEPT}user.1"))
    assert not is_internal("user")
    with pytest.raises(api.InvalidEvent, match="reserved"):
        check_session_id("_mine")


def test_a_store_lists_internal_sessions_only_if_asked(store: SessionStore) -> None:
    def listed_names(**how: Any) -> list[tuple[str, str]]:
        return [(info.user_id, info.session_id) for info in store.sessions(**how)]

    assert listed_names() == [("ada", "s-1")]
    assert listed_names(user_id="bob") == []
    assert listed_names(limit=1) == [("ada", "s-1")]
    assert listed_names(after=store.sessions()[0]) == []
    assert listed_names(internal=True) == [
        ("ada", INTERNAL),
        ("ada", "s-1"),
        ("bob", INTERNAL),
    ]


def test_pages_are_full_although_internal_sessions_are_skipped(
    store: SessionStore,
) -> None:
    for user in ("cid", "dan", "eve"):
        store.user(user).consent("training", granted=True)
    store.session(user_id="fay", session_id="s-1").append(api.UserInput(text="Hi."))

    listed = store.sessions(limit=2)

    assert [info.user_id for info in listed] == ["ada", "fay"]


@pytest.mark.parametrize(
    "command",
    [
        ("sessions",),
        ("sessions", "--user", "ada"),
        ("sessions", "--json"),
        ("search", "--user", "ada", "training"),
        ("stats", "--cost"),
        ("stats", "--cost", "--json"),
        ("export", "--format", "atif"),
        ("export", "--format", "otlp"),
        ("review", "list"),
        ("review", "scan"),
        ("erase", "--user", "ada", "--dry-run"),
        ("memory", "--user", "ada", "--all"),
    ],
)
@pytest.mark.usefixtures("store")
def test_no_command_lists_an_internal_session(
    refold: Refold, command: tuple[str, ...]
) -> None:
    ran = refold(*command)

    assert ran.code == 0, ran.err
    assert INTERNAL not in ran.out + ran.err


@pytest.mark.usefixtures("store")
def test_a_user_with_only_a_consent_has_no_sessions(refold: Refold) -> None:
    assert "user 'bob' has no sessions" in refold("sessions", "--user", "bob").out


@pytest.mark.usefixtures("store")
def test_figures_leave_out_internal_sessions(refold: Refold, tmp_path: Path) -> None:
    figures = refold("stats", "--json").json()
    written = refold("export", "--out", tmp_path / "all.jsonl", "--json").json()

    assert (figures["sessions"], figures["users"]) == (1, 2)
    assert (figures["sessions_last_hour"], figures["sessions_last_day"]) == (1, 1)
    assert (written["sessions"], written["events"]) == (1, 4)


def test_no_listing_over_http_or_mcp_has_internal_sessions(
    store: SessionStore,
) -> None:
    verifier = verifier_of()
    token = verifier.mint("ada", SCOPES)
    with TestClient(application(store, verifier)) as client:
        client.headers["Authorization"] = f"Bearer {token}"
        answers = [
            client.get(path).text
            for path in ("/v1/sessions", "/v1/search?words=training", "/v1/costs")
        ]
        plan = {"reason": "asked", "dry_run": True}
        answers.append(client.post("/v1/erasures", json=plan).text)
        del client.headers["Authorization"]
        client.cookies.set(COOKIE, token)
        pages = [
            client.get(path).text
            for path in ("/", "/?q=training", "/memory?every=1", "/erase?dry=1")
        ]
    readable = Readable(store, lambda: "ada")
    answers.append(json.dumps(readable.sessions()))
    answers.append(json.dumps(readable.search("training")))

    assert "s-1" in answers[0]
    assert "s-1" in pages[0]
    for answer in answers + pages:
        assert INTERNAL not in answer


def test_a_dataset_has_no_rows_of_internal_sessions(store: SessionStore) -> None:
    dataset = Dataset(store, "training")

    rows = list(dataset.rows(None))

    assert len(rows) == 1
    assert dataset.users == ["ada"]


@pytest.mark.usefixtures("store")
def test_an_internal_session_is_read_if_it_is_named(refold: Refold) -> None:
    log = refold("log", "--user", "ada", "--session", INTERNAL, "--json")
    results = refold("search", "--user", "ada", "--session", INTERNAL, "training")

    assert [event["type"] for event in log.lines()] == ["consent"]
    assert INTERNAL in results.out


def test_an_internal_session_is_verified_exported_and_erased(
    store: SessionStore, refold: Refold, tmp_path: Path
) -> None:
    verified = {info.session_id for info, _ in store.verify("ada")}
    whole = refold("export", "--user", "ada", "--out", tmp_path / "ada")
    lines = refold("export", "--user", "bob").lines()
    checked = refold("verify", "--export", tmp_path / "ada")
    erased = refold("erase", "--user", "bob", "--reason", "asked", "--yes")

    assert verified == {"s-1", INTERNAL}
    assert (whole.code, checked.code, erased.code) == (0, 0, 0)
    exported = "".join(
        path.read_text("utf-8") for path in (tmp_path / "ada").rglob("*.json*")
    )
    assert '"consent"' in exported
    assert [line["type"] for line in lines] == ["consent"]
    with pytest.raises(api.Erased):
        store.session(user_id="bob", session_id=INTERNAL).events()
