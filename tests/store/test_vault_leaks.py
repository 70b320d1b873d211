"""No output and no row of a database contains a value of the vault."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

import refold
from refold import AgentResponse, Reflection, SessionStore, ToolCall, ToolResult
from refold.adapters.importers.atif import trajectory
from refold.adapters.importers.dataset import Dataset
from refold.domain.errors import RefoldError
from refold.domain.events import SummarizerRef
from refold.projections.context.compaction import Source, Written
from refold.redaction.policy import Policy
from tests.support.stores import prepare

VALUES = ("ada.lovelace@example.org", "13912345670", "4111 1111 1111 1111")
KINDS = {
    "in memory": "version = 1\nnumbered = true\n",
    "kept": 'version = 1\nnumbered = true\n[vault]\ntypes = ["EMAIL", "PHONE"]\n'
    "days = 30\n",
}
WINDOW = "turn_window:full_turns=1,cached_turns=1"


class Gossip:
    """A summarizer that writes every revealed value that a model might have seen."""

    costs = False

    def __init__(self) -> None:
        self.source_text = ""

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        self.source_text += source.text
        text = f"They gave {VALUES[0]} and {VALUES[1]}."
        return Written(text, SummarizerRef(kind="gossip"))


def live(store: SessionStore, gossip: Gossip) -> refold.Session:
    """Return a session with each value in an input, an answer, a call and a result."""
    session = store.session(user_id="u-1", session_id="s-1")
    for turn in range(6):
        words = f"turn {turn}: " + ", ".join(VALUES)
        session.append(refold.UserInput(text=words))
        session.append(ToolCall(call_id="c", tool_name="send", arguments={"to": words}))
        session.append(
            ToolResult(call_id="c", content={"sent": [words]}, status="error")
        )
        session.append(AgentResponse(text=f"I wrote to {words}"))
    session.append(Reflection(pass_=False, confidence=0.1, issues=(words,)))
    view = session.prepare(WINDOW, summarizer=gossip)
    session.record_request(session.vault.reveal_view(view))
    session.reviews.ask()
    return session


def rows(url: str) -> Iterator[str]:
    """Yield every row of every table, and the bytes in it, as text."""
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        with sqlite3.connect(path) as connection:
            tables = connection.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table'"
            ).fetchall()
            for (name,) in tables:
                yield repr(connection.execute(f'SELECT * FROM "{name}"').fetchall())
        return
    with psycopg.connect(url) as server:
        listed = "SELECT tablename FROM pg_tables WHERE schemaname = 'refold'"
        for (name,) in server.execute(listed).fetchall():
            whole = sql.SQL("SELECT * FROM refold.{}").format(sql.Identifier(name))
            yield repr(server.execute(whole).fetchall())


@pytest.mark.each_engine
@pytest.mark.parametrize("kind", KINDS)
def test_no_output_contains_values_of_the_vault(
    kind: str, store_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    db = prepare(store_url, tmp_path)
    gossip = Gossip()
    with refold.open(db, policy=Policy.parse(KINDS[kind]), access_log="table") as store:
        session = live(store, gossip)
        store.user("u-1").consent("training")
        shown = session.vault.reveal_view(session.context(WINDOW))
        places: dict[str, Any] = {
            "given to the summarizer": gossip.source_text,
            "events": [event.to_json() for event in session.history.timeline()],
            "context": session.context(WINDOW).messages,
            "reviews": [question._asdict() for question in store.reviews.list("u-1")],
            "why": session.why(),
            "verified": session.verify(),
            "found": store.search("u-1", "turn"),
            "trajectory": trajectory(session.history.timeline(), "s-1"),
            "dataset": [*Dataset(store).rows()],
            "reprs": [store, session, shown, session.head()],
            "compared": session.proofs.compare(),
            "access": [*store.access_log.records()],
        }
        places["export"] = export(store, tmp_path / "export")
        places["errors"] = [*refusals(session)]
        places["rows"] = [*rows(db)]
    places["log"] = caplog.text

    assert VALUES[0] in str(shown.messages)
    for where, content in places.items():
        assert content or where == "log", where
        for value in VALUES:
            assert value not in str(content), where
            assert value not in json.dumps(str(content)), where


def export(store: SessionStore, folder: Path) -> str:
    store.export_user("u-1", folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    return "".join(path.read_text("utf-8", "replace") for path in files)


def refusals(session: refold.Session) -> Iterator[str]:
    """Yield the messages of errors about values that are refused."""
    for wrong in (
        lambda: session.append(ToolResult(call_id="none", content=VALUES[0])),
        lambda: session.append(ToolCall(call_id="", tool_name=VALUES[0])),
        lambda: session.append(refold.UserInput(text=VALUES[0]), expected_seq=1),
        lambda: session.prepare(f"no_such:{VALUES[0]}"),
    ):
        with pytest.raises(RefoldError) as raised:
            wrong()
        # A message may repeat what the caller named, but no value of an event.
        if "no_such" not in str(raised.value):
            yield f"{raised.value!r} {raised.value}"
