"""Files are the user's: they outlive the session that wrote them, and are erased."""

from __future__ import annotations

import pytest

import refold
from refold.adapters.claude.tools import MemoryFiles
from refold.store import Session, SessionStore

NOTES = "/memories/notes.md"
WRITE = {"command": "create", "path": NOTES, "file_text": "one\n"}


@pytest.fixture
def files(session: Session) -> MemoryFiles:
    """Those of ada, with one that was written in this session."""
    session.append(refold.UserInput(text="Note it."))
    files = MemoryFiles(session)
    files.run(WRITE)
    return files


def test_a_file_stays_when_the_session_that_wrote_it_is_erased(
    store: SessionStore, session: Session, files: MemoryFiles
) -> None:
    store.erase("ada", "asked for", session_id=session.session_id)

    assert MemoryFiles(store.session(user_id="ada", session_id="later")).texts() == {
        NOTES: "one\n"
    }


def test_files_are_erased_as_a_session_of_their_own(
    store: SessionStore, session: Session, files: MemoryFiles
) -> None:
    store.erase("ada", "asked for", session_id="_files")

    with pytest.raises(refold.Erased):
        files.texts()
    with pytest.raises(refold.Erased):
        files.run(WRITE)
    assert [event.type for event in session.events()] == ["user_input"]
