"""Every role can add records next to the log, and only add them."""

from __future__ import annotations

from pathlib import Path

import pytest

import refold
from tests.support.roles import Walled
from tests.support.stores import prepare


def test_every_role_records_its_uses(walled: Walled, tmp_path: Path) -> None:
    prepare(walled.owner, tmp_path)
    with refold.open(walled.app, access_log="table") as store:
        store.session(user_id="ada", session_id="s-1").append(
            refold.UserInput(text="x")
        )
        store.session(user_id="ada", session_id="s-1").events()
    with refold.open(walled.sealer, access_log="table") as store:
        store.seal()
    with refold.open(walled.eraser, access_log="table") as store:
        store.erase("bob", "asked for", absent_ok=True)

    with refold.open(walled.auditor, access_log="table") as store:
        events = {record.event for record in store.access_log.records()}
        of_ada = list(store.access_log.records("ada"))
        accesses = store.access_log.accesses()

    assert len(events) >= 3
    assert of_ada
    assert [(access.user_id, access.session_id) for access in accesses] == [
        ("ada", "s-1")
    ]


def test_agents_cannot_read_the_access_log(walled: Walled, tmp_path: Path) -> None:
    prepare(walled.owner, tmp_path)
    with refold.open(walled.app, access_log="table") as store:
        store.session(user_id="ada", session_id="s-1").append(
            refold.UserInput(text="x")
        )

        with pytest.raises(refold.StoreUnavailable, match="privilege"):
            list(store.access_log.records("ada"))
