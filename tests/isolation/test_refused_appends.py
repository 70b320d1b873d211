"""An append that a role may not make is refused with the right that the role lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

import refold
from tests.support.roles import Walled
from tests.support.stores import open_at


def append(url: str, folder: Path, session_id: str) -> None:
    with open_at(url, folder) as store:
        session = store.session(user_id="ada", session_id=session_id)
        session.append(refold.UserInput(text="b"))


@pytest.mark.parametrize("session_id", ["s-1", "new"])
@pytest.mark.parametrize(
    ("role", "lacking"),
    [
        ("writer", "insufficient privilege on the table settings"),
        ("sealer", "insufficient privilege on the table heads"),
        ("auditor", "this role is not a member of refold_writer"),
    ],
)
def test_a_role_without_the_right_learns_which_right_an_append_needs(
    walled: Walled, tmp_path: Path, role: str, lacking: str, session_id: str
) -> None:
    append(walled.owner, tmp_path, "s-1")

    with pytest.raises(refold.StoreUnavailable) as refused:
        append(getattr(walled, role), tmp_path, session_id)

    message = str(refused.value)
    assert lacking in message
    assert "permission denied" not in message
    assert "refold schema --roles" in message
    with open_at(walled.owner, tmp_path) as store:
        assert [info.head_seq for info in store.sessions("ada")] == [1]
