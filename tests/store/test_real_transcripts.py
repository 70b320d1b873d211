"""Real runs of five formats are imported completely, once, and verify."""

from __future__ import annotations

from collections import Counter

import pytest

from refold.adapters.importers import read
from refold.projections.context.text import violations
from refold.store import SessionStore
from refold.store.session.imports import extend
from tests.support.stores import ROOT

DATA = ROOT.parent / "shared" / "data"
NAMES = [
    "claude_code_python_to_rust.jsonl",
    "inspect_browser.json",
    "letta_convo.af",
    "swe_agent_fc_replace.traj",
    "tau_bench_airline.json",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_real_transcript_is_imported_once_and_completely(
    store: SessionStore, name: str
) -> None:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path.name} is not beside this checkout: nothing to import")
    transcripts = read(path)[:6]
    expected = Counter(
        draft.event.type for transcript in transcripts for draft in transcript.drafts
    )

    first, again = (
        [
            extend(
                store.session(user_id="ada", session_id=f"t-{number}"),
                transcript.drafts,
                where=name,
            )
            for number, transcript in enumerate(transcripts)
        ]
        for _ in range(2)
    )

    assert sum(done.events for done in first) == expected.total()
    assert sum(done.events for done in again) == 0
    assert sum(done.duplicates for done in again) == expected.total()
    stored: Counter[str] = Counter()
    for info, verified in store.verify():
        assert verified.problems == []
        session = store.session(user_id="ada", session_id=info.session_id)
        stored.update(event.type for event in session.history.pages())
        for strategy in ("keep_all", "turn_window:full_turns=2,cached_turns=2"):
            while session.compact(strategy):
                pass
            assert violations(session.context(strategy).messages) == []
    assert stored == expected
    assert all(not verified.problems for _, verified in store.verify())
