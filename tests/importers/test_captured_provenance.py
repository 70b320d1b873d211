"""A captured session has the same provenance as an import of the file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

import refold
from refold.adapters.importers.follower import Follower
from refold.store import Session, SessionStore
from refold.store.proofs.provenance import Provenance, provenance
from tests.importers.samples import (
    SESSION,
    answered,
    use,
    user_entry,
    words,
    write_lines,
)
from tests.importers.test_branches import Entry, chained
from tests.importers.test_unrecorded import read, resumption, session

PLAIN = chained(
    user_entry("u1", "Look."),
    answered("a1", "m1", words("I look.")),
    answered("a2", "m1", use("c1", "Read")),
    user_entry("r1", [{"type": "tool_result", "tool_use_id": "c1", "content": "one"}]),
    answered("a3", "m2", words("Seen.")),
    user_entry("u2", "Thanks."),
)
RESUMED = [
    *session(*read(1, "/src/a.py", "a = 1"), version="2.1.29"),
    resumption("p", "2.1.29"),
    {**user_entry("u2", "Go on.", parentUuid="a9"), "version": "2.1.29"},
    {**answered("a10", "m10", words("Done."), parentUuid="u2"), "version": "2.1.29"},
]


def imported(store: SessionStore, entries: Sequence[Entry], home: Path) -> Session:
    path = write_lines(home, entries, f"{SESSION}.jsonl")
    store.import_transcript(path, user_id="ada")
    return store.session(user_id="ada", session_id=SESSION)


def captured(store: SessionStore, entries: Sequence[Entry], home: Path) -> Session:
    folder = home / "projects" / "-work"
    folder.mkdir(parents=True)
    path = folder / f"{SESSION}.jsonl"
    path.touch()
    for entry in entries:
        with path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        follower = Follower(store, "claude-code", user_id="ada", folder=folder.parent)
        with follower.alone():
            follower.look()
    return store.session(user_id="ada", session_id=SESSION)


def before_answers(of: Session) -> list[Provenance]:
    """Returns the provenance before each event of the model, and at the end."""
    answers = [
        event.seq
        for event in of.history.pages()
        if event.type in ("agent_response", "tool_call")
    ]
    results: list[Provenance] = []
    for at in [*(seq - 1 for seq in answers), of.head().seq]:
        view = of.context("keep_all", at=at)
        results.append(provenance(of.writer.log, of.stream, view))
    return results


@pytest.mark.parametrize("entries", [PLAIN, RESUMED], ids=["plain", "resumed"])
def test_a_capture_knows_as_much_of_its_contexts_as_an_import(
    entries: list[Entry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    with refold.open("memory://") as importing, refold.open("memory://") as capturing:
        of_import = before_answers(imported(importing, entries, tmp_path))
        of_capture = before_answers(captured(capturing, entries, tmp_path))

    assert [provenance_.kind for provenance_ in of_capture] == [
        provenance_.kind for provenance_ in of_import
    ]
    assert [provenance_.rules for provenance_ in of_capture] == [
        provenance_.rules for provenance_ in of_import
    ]
    assert "reconstructed" in {provenance_.kind for provenance_ in of_capture}
    assert of_capture[-1].kind == "assumed", "no answer follows"


def test_the_rules_of_a_context_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    with refold.open("memory://") as store:
        provenances = before_answers(captured(store, RESUMED, tmp_path))

    assert provenances[-2].rules == (
        "context of a resumed session",
        "files sent again after a compaction",
    )
    assert provenances[0].rules == ()


def test_a_context_of_another_strategy_is_assumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    with refold.open("memory://") as store:
        of = captured(store, PLAIN, tmp_path)
        view = of.context("last_turns:n=1", at=1)

        assert provenance(of.writer.log, of.stream, view).kind == "assumed"


def test_a_rerun_of_a_captured_session_is_reconstructed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    with refold.open("memory://") as store:
        ran = captured(store, PLAIN, tmp_path).proofs.rerun()

    assert ran.recorded
    assert (ran.recorded_requests, ran.differs) == (0, False)
