"""A store with data that later rules find."""

from __future__ import annotations

from pathlib import Path

import pytest

import refold
from tests.support.redacting import MAIL, unaware
from tests.support.rewritten import LONG
from tests.support.stores import prepare


@pytest.fixture
def url(store_url: str, tmp_path: Path) -> str:
    """A store that holds an address: in an event, a blob and a derived stream."""
    url = prepare(store_url, tmp_path)
    with refold.open(url, redactor=unaware()) as store:
        session = store.session(user_id="ada", session_id="s")
        for number in range(3):
            session.append(
                [
                    refold.UserInput(text=f"{number} {MAIL} " + "word " * 30),
                    refold.AgentResponse(text="word " * 30),
                ]
            )
        session.compact("turn_window:full_turns=1,cached_turns=1")
        session.append(refold.UserInput(text=LONG))
    return url
