"""A killed retention is detected, and completed by the next run."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import refold
from refold.domain.erasure import ErasureScope
from tests.support import warm
from tests.support.engines import BOTH
from tests.support.retainer import POLICY, STEPS, in_a_year
from tests.support.stores import open_at, prepare
from tests.support.talking import talk


@BOTH
@pytest.mark.parametrize("step", STEPS)
def test_a_killed_retention_is_completed(
    store_url: str, tmp_path: Path, step: str
) -> None:
    with open_at(prepare(store_url, tmp_path), tmp_path) as store:
        talk(store.session(user_id="ada", session_id="one"), 2)
        talk(store.session(user_id="ada", session_id="two"), 2)
    process = warm.module("tests.support.retainer", store_url, step)
    process.communicate()
    assert process.returncode == -signal.SIGKILL

    with open_at(store_url, tmp_path) as store:
        begun = step not in ("nothing is done", "it is certified")
        assert len(store.erasures.pending()) == begun
        if step != "nothing is done":
            with pytest.raises(refold.Erased):
                store.session(user_id="ada", session_id="one").events()

        done = in_a_year(store).erasures.retain(POLICY)

        assert done.completed == begun
        assert len(done.sessions) == (2 if step == "nothing is done" else 0)
        assert (store.sessions(internal=True), store.erasures.pending()) == ([], [])
        assert len(store.erasures.certificates()) == 1
        assert not any(store.log.erasures.left(ErasureScope("ada")).values())
