"""``view`` shows a run on a terminal as stored, as plain text, page by page."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from rich.cells import cell_len
from rich.color import ColorSystem
from textual._compositor import CompositorUpdate
from textual.message import Message
from textual.messages import Layout, Update
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input, Static, Tree

import refold
from refold.adapters.cli import main, terminal
from refold.adapters.cli.terminal import Viewer
from refold.adapters.display import values
from refold.adapters.server import run_pages
from refold.domain import errors
from refold.store import Session, SessionStore
from tests.cli.conftest import ROOT, Refold
from tests.server.hostile import events_with
from tests.support.talking import session_with_turns
from tests.support.waiting import (
    PATIENCE_SEC,
    read_to_end,
    read_until,
    until_async,
)

session_without_agents = partial(session_with_turns, agent=None)
HOSTILE = (
    "\x1b]0;ran\x07\x1b[2J\x1b[31m",
    "[bold red]ran[/bold red][@click=app.quit]go[/] [/nothing]",
    "left\u202etfel\u2066\u2069 \u200f",
    "a\u200bb\ufeffc\u200dd\u0301",
    "one\ttab\rback\u2028line\x85next\x9b31m",
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    with refold.open(tmp_path / "refold.db") as opened:
        yield opened


class Frame(NamedTuple):
    """The terminal after one refresh: its rows, and the row with the cursor."""

    rows: list[str]
    cursor_row: str

    @property
    def events(self) -> tuple[str, str, str]:
        """The seq of the event in the position, in the text, and under the cursor."""
        position = re.search(r"seq (\d+) / ", self.rows[0])
        text = re.search(r"seq (\d+) · ", "\n".join(row[36:] for row in self.rows[1:]))
        cursor = re.search(r"\d+", self.cursor_row)
        matches = (position and position[1], text and text[1], cursor and cursor[0])
        return tuple(match or "" for match in matches)  # type: ignore[return-value]  # three groups match


class FilmedViewer(Viewer):
    """A viewer that keeps every frame that its terminal shows."""

    CSS_PATH = str(Path(terminal.__file__).with_name("terminal.tcss"))

    def __init__(self, store: SessionStore, session: Session, seq: int | None) -> None:
        super().__init__(store, session, seq)
        self.console._color_system = ColorSystem.STANDARD
        self.frames: list[Frame] = []
        self.notes: list[str] = []  # the screen drops them soon
        self._characters = [[" "] * 80 for _ in range(24)]
        self._reversed = [[False] * 80 for _ in range(24)]

    def notify(self, message: str, **options: Any) -> None:
        self.notes.append(message)
        super().notify(message, **options)

    def paint_at_each_change(self) -> None:
        """Paint after every change that a widget announces: the worst timing."""

        def paint(message: Message) -> None:
            if isinstance(message, Update | Layout):
                self.screen._on_timer_update()

        self.screen.message_signal.subscribe(self, paint, immediate=True)

    def _display(self, screen: Screen[Any], renderable: Any) -> None:
        super()._display(screen, renderable)
        if isinstance(renderable, CompositorUpdate) and not self._batch_count:
            self._write(renderable.render_segments(self.console))
            rows = ["".join(row) for row in self._characters]
            cursors = [
                row
                for row, is_reversed in zip(rows, self._reversed, strict=True)
                if is_reversed[8] and not row.startswith(" run")
            ]
            self.frames.append(Frame(rows, cursors[0] if cursors else ""))

    def _write(self, written: str) -> None:
        """Put characters where a terminal would; knows cursor moves and styles."""
        row = column = 0
        is_reversed = False
        for piece in re.split(r"(\x1b\[[\d;]*[A-Za-z])", written):
            if move := re.fullmatch(r"\x1b\[(\d+);(\d+)H", piece):
                row = int(move[1]) - 1
                column = int(move[2]) - 1
            elif style := re.fullmatch(r"\x1b\[([\d;]*)m", piece):
                is_reversed = "7" in style[1].split(";")
            else:
                for character in piece.replace("\n", ""):
                    width = cell_len(character)
                    self._characters[row][column : column + width] = [character, ""][
                        :width
                    ]
                    self._reversed[row][column : column + width] = [is_reversed] * width
                    column += width


class Reader:
    """A person who reads a run, at a terminal of 80 by 24."""

    def __init__(self, pilot: Pilot[Any]) -> None:
        self.pilot = pilot
        self.viewer: FilmedViewer = pilot.app  # type: ignore[assignment]  # the app of this test

    async def settle(self) -> None:
        """Wait until all work is done and painted."""
        await self.pilot.pause()
        await self.until(
            lambda: all(worker.is_finished for worker in self.viewer.workers),
            "the end of all background work",
        )
        await self.until(lambda: not self.viewer._batch_count, "the last refresh")
        await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
            await self.settle()

    async def ask(self, key: str, text: str) -> None:
        """Open a field with its key, fill it in and submit it."""
        await self.press(key)
        self.viewer.query_one(Input).insert_text_at_cursor(text)
        await self.press("enter")

    async def until(self, holds: Callable[[], bool], expected: str) -> None:
        await until_async(
            holds, expected, state=lambda: self.screen, pause=self.pilot.pause
        )

    @property
    def rows(self) -> list[str]:
        """The rows on the screen."""
        strips = self.viewer.screen._compositor.render_strips()
        return ["".join(part.text for part in strip) for strip in strips]

    @property
    def screen(self) -> str:
        return "\n".join(self.rows)

    @property
    def lines(self) -> list[str]:
        """The complete lines of the visible tree."""
        tree = self.viewer.query_one(Tree)
        nodes = (tree.get_node_at_line(n) for n in range(tree.last_line + 1))
        return [str(node.label) for node in nodes if node is not None]

    @property
    def shown_text(self) -> str:
        """The complete text on the right."""
        return str(self.viewer.query_one("#text", Static).content)

    @property
    def place(self) -> str:
        return str(self.viewer.query_one("#place", Static).content)

    async def note(self, words: str) -> None:
        """Wait for a notification with these words."""
        notes = self.viewer.notes
        await self.until(lambda: any(words in note for note in notes), repr(words))


def run_script(
    store: SessionStore,
    session: Session,
    script: Callable[[Reader], Awaitable[object]],
    *,
    seq: int | None = None,
) -> BaseException | None:
    """Run the script on a viewer; return the error that ended the viewer."""

    async def read() -> BaseException | None:
        viewer = FilmedViewer(store, session, seq)
        async with viewer.run_test(size=(80, 24)) as pilot:
            reader = Reader(pilot)
            await reader.settle()
            await script(reader)
        return viewer.return_value

    return asyncio.run(read())


def without_line_breaks(text: str) -> str:
    return " ".join(text.split())


def test_turns_open_to_events_with_results_next_to_their_calls(
    store: SessionStore,
) -> None:
    session = session_without_agents(store)

    async def script(reader: Reader) -> None:
        assert reader.lines[0].startswith("1 before the first input")
        assert [line for line in reader.lines if "tool_call" in line] == []

        await reader.press("down", "enter")
        await reader.press("down")
        assert "Question 0" in reader.shown_text
        for text in ("8 events", "$0.00", "redacted EMAIL", "1 failed"):
            assert text in reader.lines[2]
        assert reader.lines[6].startswith("5 ∥ tool_call read → ok")
        assert reader.lines[7].startswith("6 ∥ ✗ tool_call list → error")
        assert not any("tool_result" in line for line in reader.lines)

        await reader.press("down", "down", "down")
        assert "n: 0" in reader.shown_text
        assert "content of file 0" in reader.shown_text
        assert "tool_result · read · ok" in reader.shown_text

    assert run_script(store, session, script) is None


def test_a_turn_shows_its_cost_and_redactions(store: SessionStore) -> None:
    async def script(reader: Reader) -> None:
        await reader.press("down")
        shown = without_line_breaks(reader.shown_text)
        assert shown.startswith("Question 0: what is in file 0?")
        assert "$0.0030 · redacted EMAIL · 1 failed" in shown
        assert "Answers: 1. Tokens: 1,000 in, 0 from cache" in shown
        assert "Answer 0: mail [REDACTED:EMAIL]." in shown

    assert run_script(store, session_without_agents(store), script) is None


def test_keys_move_between_requests_and_show_their_contexts(
    store: SessionStore,
) -> None:
    session = session_without_agents(store)
    requests = [event.seq for event in session.events(types=["request"])]

    async def script(reader: Reader) -> None:
        for seq in requests:
            await reader.press("right")
            assert f"seq {seq} / 33" in reader.place
            view = session.context(at=seq)
            assert view.digest in reader.shown_text
            for message in view.messages:
                for block in message["content"]:
                    text = block.get("text") or block.get("content")
                    if isinstance(text, str):
                        assert without_line_breaks(text) in without_line_breaks(
                            reader.shown_text
                        )
        shown = without_line_breaks(reader.shown_text)
        assert "Answer briefly." in shown
        assert "covers what was compacted" in shown
        assert "sent word for word: no summary covers it" in shown
        assert "left out not shown: events of this type stay in the log" in shown
        assert "covered by a summary: summary 1" in shown
        assert "replaced before storing in the events of this context" in shown
        assert f"seq {requests[-1]}, digest {view.digest[:12]} ✓" in shown

        await reader.press("right")
        assert f"seq {requests[-1]} / 33" in reader.place
        await reader.press("left", "left")
        assert session.context(at=requests[-3]).digest in reader.shown_text

    assert run_script(store, session, script) is None


def test_keys_move_between_responses_if_no_request_was_recorded(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="plain")
    session.append(refold.UserInput(text="Look."))
    session.append(
        [
            refold.ToolCall(call_id="a", tool_name="read", arguments={}),
            refold.ToolCall(call_id="b", tool_name="list", arguments={}),
            refold.ToolResult(call_id="a", content="one"),
            refold.ToolResult(call_id="b", content="two"),
            refold.AgentResponse(text="There."),
        ]
    )

    async def script(reader: Reader) -> None:
        await reader.press("right")
        assert "seq 5 / 6" in reader.place
        assert "There." not in reader.shown_text
        await reader.press("left")
        assert "seq 1 / 6" in reader.place
        assert session.context(at=1).digest in reader.shown_text
        assert "none recorded" in reader.shown_text

    assert run_script(store, session, script) is None


def test_the_context_is_shown_at_the_selected_event(store: SessionStore) -> None:
    session = session_without_agents(store)

    async def script(reader: Reader) -> None:
        assert "content of file 2" in reader.shown_text
        await reader.press("c")
        assert session.context(at=21).digest in reader.shown_text

    assert run_script(store, session, script, seq=21) is None


def test_a_run_opens_at_the_requested_seq(store: SessionStore) -> None:
    async def script(reader: Reader) -> None:
        assert "seq 24 · " in reader.shown_text
        assert "seq 22 / 33" in reader.place
        opened = [line for line in reader.lines if "request" in line]
        assert [line.split()[0] for line in opened] == ["19"]

    assert run_script(store, session_without_agents(store), script, seq=24) is None


def test_types_are_filtered_until_all_are_shown_again(store: SessionStore) -> None:
    async def script(reader: Reader) -> None:
        await reader.ask("t", "tool_call")
        assert len([line for line in reader.lines if "tool_call" in line]) == 8
        assert not any("agent_response" in line for line in reader.lines)
        assert "type:tool_call · esc: all" in reader.place

        await reader.ask("t", "agent_response redacted")
        responses = [line for line in reader.lines if "agent_response" in line]
        assert len(responses) == 4
        assert all("redacted EMAIL" in line for line in responses)

        await reader.press("escape")
        assert any("request" in line for line in reader.lines)
        assert "type:" not in reader.place

    assert run_script(store, session_without_agents(store), script) is None


def test_a_search_shows_the_events_that_match(store: SessionStore) -> None:
    async def script(reader: Reader) -> None:
        await reader.ask("slash", '"content of file" type:tool_result')
        results = [line for line in reader.lines if "tool_result" in line]
        assert [line.split()[0] for line in results] == ["7", "15", "23", "31"]

        await reader.press("home", "down", "down", "escape")
        assert reader.lines[0].startswith("1 before")
        assert "content of file" in reader.shown_text

        await reader.ask("slash", "nowhere")
        await reader.note("no event matches")
        await reader.press("escape")
        await reader.ask("slash", "!?")
        await reader.note("search for 1 to 50 words")
        assert reader.lines[0].startswith("1 before")

    assert run_script(store, session_without_agents(store), script) is None


def test_new_events_of_a_run_appear(store: SessionStore) -> None:
    session = session_without_agents(store)

    async def script(reader: Reader) -> None:
        await reader.press("f")
        assert "seq 33 / 33" in reader.place
        assert "following" in reader.place

        session.append(refold.UserInput(text="And now?"))
        await reader.until(lambda: "And now?" in reader.screen, "the new event")
        assert "seq 34 / 34" in reader.place
        assert "And now?" in reader.shown_text

        await reader.press("f")
        assert "following" not in reader.place
        session.append(refold.AgentResponse(text="Not seen."))
        reader.viewer._follow()
        await reader.settle()
        assert "Not seen." not in reader.screen

    assert run_script(store, session, script) is None


def test_tree_text_and_position_change_in_one_refresh(store: SessionStore) -> None:
    session = session_without_agents(store)

    async def script(reader: Reader) -> None:
        viewer = reader.viewer
        await reader.press("f")
        viewer.paint_at_each_change()
        viewer.frames.clear()
        for seq in range(34, 38):
            session.append(refold.AgentResponse(text=f"More {seq}."))
            await reader.until(
                lambda end=f"seq {seq} / {seq}": end in reader.place,  # type: ignore[misc]  # mypy infers no type from a default
                f"event {seq}",
            )
            await reader.settle()
        await reader.press("up", "up", "down")

        shown = [frame.events for frame in viewer.frames]
        in_order = [events for events, _ in groupby(shown)]
        seqs = ["34", "35", "36", "37", "36", "35", "36"]
        if in_order[0] == ("33", "33", "33"):
            in_order.pop(0)
        assert in_order == [(seq, seq, seq) for seq in seqs]

    assert run_script(store, session, script) is None


def test_a_long_run_is_read_page_by_page(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.session(user_id="ada", session_id="long")
    for n in range(25):
        session.append([refold.UserInput(text=f"Say {n}.{k}") for k in range(60)])
    rows: list[int] = []
    recorder = cast(Any, store.log).recorder
    select = recorder.select_events

    def counted_read(*args: Any, **kwargs: Any) -> Any:
        selected = select(*args, **kwargs)
        rows.append(len(selected))
        return selected

    monkeypatch.setattr(recorder, "select_events", counted_read)
    monkeypatch.setattr(run_pages, "MANY", 1_000)

    async def script(reader: Reader) -> None:
        assert len(reader.lines) == 101
        assert 0 < sum(rows) < 400
        assert "Say 15.0" in reader.shown_text

        rows.clear()
        await reader.press("n")
        assert "seq 952" in reader.place
        await reader.press("p", "p")
        assert "seq 851" in reader.place
        assert sum(rows) < 1_000

        rows.clear()
        session.append(refold.AgentResponse(text="Done."))
        await reader.press("right")
        assert "This reads 1,500 events" in without_line_breaks(reader.shown_text)
        assert sum(rows) < 1_000
        await reader.press("c")
        assert session.context(at=1_500).digest in reader.shown_text

    assert run_script(store, session, script, seq=901) is None


def test_content_of_events_is_shown_as_text(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="hostile")
    for text in HOSTILE:
        session.append(events_with(f"{text} end"), agent="worker")

    async def script(reader: Reader) -> None:
        tree = reader.viewer.query_one(Tree)
        for node in tree.root.children:
            node.expand_all()
        await reader.settle()
        assert tree.last_line > 5 * 10
        seen = ""
        for _ in range(tree.last_line + 1):
            await reader.pilot.press("down")
            await reader.pilot.pause()
            rows = reader.rows
            assert {cell_len(row) for row in rows} == {80}
            assert len(rows) == 24
            assert values._CONTROL.search("".join(rows)) is None
            seen += reader.shown_text
        assert "␛]0;ran␇␛[2J␛[31m end" in seen
        assert "[bold red]ran[/bold red][@click=app.quit]go[/] [/nothing]" in seen
        assert "left<U+202E>tfel<U+2066><U+2069> <U+200F> end" in seen
        assert "a\u200bb\ufeffc\u200dd\u0301 end" in seen
        assert "one\ttab␍back\u2028line<U+0085>next<U+009B>31m end" in seen

        await reader.press("c")
        assert "␛]0;ran␇" in reader.shown_text
        assert values._CONTROL.search(reader.screen) is None

    assert run_script(store, session, script) is None


def test_keys_are_named_on_a_screen_of_80_by_24(store: SessionStore) -> None:
    async def script(reader: Reader) -> None:
        last = reader.rows[-1]
        for key in ("← Request", "→ Request", "q Quit", "c Context", "p Earlier"):
            assert key in last
        for key in ("n Later", "/ Search", "t Type", "f Follow"):
            assert key in last
        assert {cell_len(row) for row in reader.rows} == {80}

    assert run_script(store, session_without_agents(store), script) is None


def test_an_erased_run_disappears(store: SessionStore) -> None:
    async def script(reader: Reader) -> None:
        store.erase("ada", "asked to")
        reader.viewer.call_later(reader.viewer.action_all)
        await until_async(
            lambda: reader.viewer.return_value is not None,
            "the end of the viewer",
            pause=lambda: asyncio.sleep(0),
        )

    assert isinstance(
        run_script(store, session_without_agents(store), script), errors.Erased
    )


def start_on_terminal(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start the command; return it and the other end of its terminal."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    url = f"sqlite:///{folder / 'refold.db'}"
    of = ("--db", url, "view", "--user", "ada", "--session", "run")
    with open(follower, "rb") as terminal:
        process = subprocess.Popen(
            [sys.executable, "-m", "refold", *of],
            cwd=ROOT,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={**os.environ, "TERM": "xterm-256color"},
        )
    return process, leader


def test_view_ends_when_its_terminal_closes(
    store: SessionStore, tmp_path: Path
) -> None:
    store.session(user_id="ada", session_id="run").append(refold.UserInput(text="Hi"))
    process, leader = start_on_terminal(tmp_path)
    try:
        read_until(leader, b"Hi")

        os.close(leader)

        process.wait(PATIENCE_SEC)
    finally:
        process.kill()
        process.wait()


def test_terminal_sequences_in_events_do_not_reach_a_terminal(
    store: SessionStore, tmp_path: Path
) -> None:
    session = store.session(user_id="ada", session_id="run")
    session.append(refold.UserInput(text=HOSTILE[0]))
    process, leader = start_on_terminal(tmp_path)
    try:
        written = read_until(leader, "␛]0;ran␇".encode())
        os.write(leader, b"q")
        written += read_to_end(leader)
        assert process.wait(PATIENCE_SEC) == 0
    finally:
        process.kill()
        process.wait()
        os.close(leader)

    assert b"\x1b]0;ran" not in written
    assert b"\x1b[2J" not in written


def at_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)


OF = ("view", "--user", "lin", "--session", "run")


@pytest.mark.parametrize("json", [(), ("--json",)])
def test_without_a_terminal_view_names_the_alternative(
    refold: Refold, sample: Path, json: tuple[str, ...]
) -> None:
    ran = refold("--db", f"sqlite:///{sample}", *OF, *json)

    assert (ran.code, ran.out) == (2, "")
    assert "--html" in ran.err
    assert "refold log" in ran.err


@pytest.mark.parametrize("missing", ["textual", "jinja2"])
def test_without_the_extra_view_names_the_package_to_install(
    missing: str,
    sample: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    at_terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, missing, None)

    assert main(["--db", f"sqlite:///{sample}", *OF]) == 2

    printed = capsys.readouterr().err
    assert f"{missing} is not installed" in printed
    assert "pip install 'refold[tui]'" in printed


@pytest.mark.parametrize("missing", ["jinja2", "markdown_it", "nh3"])
@pytest.mark.parametrize(
    "command", ["view --html run.html", "share --yes --out a.html"]
)
def test_without_the_extra_a_page_names_the_package_to_install(
    missing: str,
    command: str,
    sample: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    name, *options = command.split()

    assert main(["--db", f"sqlite:///{sample}", name, *OF[1:], *options]) == 2

    printed = capsys.readouterr().err
    assert f"{missing} is not installed: pip install 'refold[server]'" in printed


def test_a_missing_seq_is_refused_before_a_screen_is_opened(
    sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_terminal(monkeypatch)

    assert main(["--db", f"sqlite:///{sample}", *OF, "--seq", "9999"]) == 1

    out, err = capsys.readouterr()
    assert (out, "seq 9999 is not in session" in err) == ("", True)


def test_an_exported_page_accepts_no_seq(refold: Refold, sample: Path) -> None:
    ran = refold("--db", f"sqlite:///{sample}", *OF, "--html", "a.html", "--seq", 3)

    assert ran.code == 2
    assert "--seq is for the terminal" in ran.err
