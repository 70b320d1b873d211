"""Sessions of coding agents are imported once, however often they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import refold
from refold.store import SessionStore
from tests.importers import agent_samples
from tests.importers.samples import write_lines


def shown(store: SessionStore, session_id: str) -> list[Any]:
    """Return the messages of a session's context."""
    view = store.session(user_id="ada", session_id=session_id).context("keep_all")
    return list(view.messages)


def imported(store: SessionStore, folder: Path, lines: list[Any]) -> list[Any]:
    path = write_lines(folder, lines)
    return list(store.import_transcript(path, user_id="ada"))


@pytest.mark.parametrize("form", agent_samples.LINES)
def test_a_session_is_imported_once(form: str, tmp_path: Path) -> None:
    with refold.open("memory://") as store:
        first = imported(store, tmp_path, agent_samples.LINES[form])
        again = imported(store, tmp_path, agent_samples.LINES[form])

    assert sum(result.events for result in first) >= 7
    assert [result.events for result in again] == [0] * len(first)
    assert all(item.note for result in again for item in result.skipped)


@pytest.mark.parametrize("form", agent_samples.LINES)
def test_a_session_that_grew_adds_only_what_is_new(form: str, tmp_path: Path) -> None:
    lines = agent_samples.LINES[form]
    with refold.open("memory://") as store:
        whole = imported(store, tmp_path, lines)
        expected = {each.session_id: shown(store, each.session_id) for each in whole}
    count = sum(result.events for result in whole)

    for cut in range(3, len(lines)):
        with refold.open("memory://") as store:
            before = imported(store, tmp_path, lines[:cut])
            after = imported(store, tmp_path, lines)
            written = sum(result.events for result in (*before, *after))
            contexts = {name: shown(store, name) for name in expected}

        assert written == count, cut
        assert contexts == expected, cut
