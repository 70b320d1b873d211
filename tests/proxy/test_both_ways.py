"""A proxy, a capture, and imports of one session record each event once."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from refold.store import SessionStore
from tests.support.both_ways import SESSION, USER, BothWays, differences
from tests.support.wire import check_contexts

# Each letter is a step: P a turn through the proxy, N one without it, C a capture, I an
# import, K a kill of the proxy, F the start of a process that follows, X its kill.
_HISTORIES = (
    "NCPI",
    "NIPC",
    "PNCPC",
    "PNPC",
    "PNPI",
    "PNCNPCI",
    "NPNICPC",
    "PKPKNCPKI",
    "FPPC",
    "FNPNPC",
    "FPXNFPXNCI",
    "FPKNPXIC",
)


def follow_history(both: BothWays, history: str) -> int:
    """Take the steps of a history; returns the number of proxied requests."""
    random = Random(39)
    proxied = 0
    for step in history:
        if step == "P":
            both.turn(proxied=True)
            proxied += 2
        elif step == "N":
            both.turn(proxied=False)
        elif step == "C":
            both.kill_follower(random)
            both.capture()
        elif step == "I":
            both.import_transcript()
        elif step == "K":
            both.kill_proxy()
        elif step == "F":
            both.follow()
        elif step == "X":
            both.kill_follower(random)
    both.kill_follower()
    both.end_proxy()
    return proxied


@pytest.mark.parametrize("history", _HISTORIES)
def test_each_event_is_recorded_once(
    store: SessionStore, store_url: str, tmp_path: Path, history: str
) -> None:
    both = BothWays(store_url, tmp_path / "projects")
    proxied = follow_history(both, history)

    assert differences(store, both) == []
    assert check_contexts(store, both.client, USER) == proxied


@pytest.mark.parametrize("history", ["PI", "PC", "PNC", "PNCI", "FPPC"])
def test_an_answer_in_several_entries_is_recorded_once(
    store: SessionStore, store_url: str, tmp_path: Path, history: str
) -> None:
    both = BothWays(store_url, tmp_path / "projects", thinks=True)
    proxied = follow_history(both, history)

    assert differences(store, both) == []
    assert check_contexts(store, both.client, USER) == proxied


def test_signed_thinking_of_a_captured_answer_reaches_the_context(
    store: SessionStore, store_url: str, tmp_path: Path
) -> None:
    # A transcript has the thinking and the text as separate entries.
    both = BothWays(store_url, tmp_path / "projects", thinks=True)
    proxied = follow_history(both, "NCPC")

    assert check_contexts(store, both.client, USER) == proxied
    assert differences(store, both) == []


def test_a_sub_agent_of_both_is_recorded_once(
    store: SessionStore, store_url: str, tmp_path: Path
) -> None:
    both = BothWays(store_url, tmp_path / "projects")
    both.delegate("a1b2c3", proxied=True)
    both.capture()
    both.delegate("d4e5f6", proxied=False)
    both.capture()
    both.import_transcript()
    both.end_proxy()

    names = [info.session_id for info in store.sessions(USER)]
    assert sorted(names) == [f"{SESSION}~a1b2c3", f"{SESSION}~d4e5f6"]
    for name, texts in both.delegated.items():
        session = store.session(user_id=USER, session_id=f"{SESSION}~{name}")
        messages = session.events(types=("user_input", "agent_response"))
        assert [event.payload.payload()["text"] for event in messages] == texts
        assert not session.verify().problems
