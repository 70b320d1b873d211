"""A viewer of runs in a terminal: a tree of turns, and the text of an event or context.

The tree, the text and the line with the position show one state.  Every change of it
goes through ``Viewer._one_refresh``, so that people never see half of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final, NamedTuple

from rich.text import Text
from textual import containers, widgets, work
from textual.app import App, ComposeResult
from textual.widget import Widget
from textual.widgets.tree import TreeNode
from textual.worker import get_current_worker

from refold.adapters.cli.commands import context, why
from refold.adapters.cli.events import STYLES
from refold.adapters.cli.output import Part, Screen, one_line, shown, styled
from refold.adapters.server import run_pages
from refold.domain.errors import InvalidEvent, UnknownStrategy
from refold.store import Session, SessionStore

_RESPONSES: Final = ("agent_response", "tool_call")


class _Lines(Screen):
    """Collects the lines that a command would print."""

    def __init__(self, width: int) -> None:
        self.text = Text()
        self.width = width

    def line(self, *parts: Part, cut: Part = "", end: Sequence[Part] = ()) -> None:
        gap = "  " if end else ""
        self.text.append_text(styled(*parts, cut, gap, *end, "\n"))


def _rendered(template: str, style: str = "", **values: Any) -> Text:
    """Return a part of the template as text, with visible control characters."""
    text = run_pages.rendered("terminal.txt", "en", show=template, **values)
    return styled((shown(text.strip("\n")), style))


class _Entry(NamedTuple):
    """The turn or event of a line of the tree.

    seq:  its place in the session; 0 for an event of a derived stream.
    text: renders its text for the pane.
    """

    seq: int
    text: Callable[[], Text]


class _Turns(widgets.Tree[_Entry]):
    """The tree of turns, which has the keys of the viewer."""

    # Each is a key, its action, and the name of the action in the last line.
    BINDINGS = [  # noqa: RUF012  # as its base has it
        ("q", "app.quit", "Quit"),
        ("left", "app.step(-1)", "Request"),
        ("right", "app.step(1)", "Request"),
        ("c", "app.context", "Context"),
        ("p", "app.page(-1)", "Earlier"),
        ("n", "app.page(1)", "Later"),
        ("slash", "app.ask('')", "Search"),
        ("t", "app.ask('type:')", "Type"),
        ("f", "app.follow", "Follow"),
        ("pagedown", "app.scroll(1)"),
        ("pageup", "app.scroll(-1)"),
    ]

    def select(self, node: TreeNode[_Entry]) -> None:
        """Put the cursor on a node, also on one that was just added."""
        self.get_node_at_line(0)  # computes the lines, without which it has no place
        self.move_cursor(node)


class Viewer(App[BaseException]):
    """Shows a run, and first the event at ``seq``.

    ``run`` returns the error that ended it; None if its reader did.
    """

    CSS_PATH = "terminal.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS = [("escape", "all", "All")]  # noqa: RUF012  # as its base has it

    def __init__(self, store: SessionStore, session: Session, seq: int | None) -> None:
        super().__init__()
        self.theme = "ansi-dark"
        self.store = store
        self.session = session
        self.log_reader = session.writer.log
        self.wanted = run_pages.EVERYTHING
        # The position for the next key.
        self.at = seq or 1
        # The position of the text, which is older while a new text is computed.
        self.shown_at = self.at
        self.selected: TreeNode[_Entry] | None = None
        self.follows = False
        self.followed_to = 0

    def compose(self) -> ComposeResult:
        self.place = widgets.Static(id="place")
        self.turns = _Turns("", id="turns")
        self.pane = containers.VerticalScroll(id="pane", can_focus=False)
        self.text = widgets.Static(id="text")
        self.input = widgets.Input(placeholder="words", select_on_focus=False)
        yield self.place
        with containers.Horizontal():
            yield self.turns
            with self.pane:
                yield self.text
        yield self.input
        yield widgets.Footer(compact=True)

    def on_mount(self) -> None:
        self.turns.show_root = False
        self.turns.guide_depth = 2
        self.watch(self.turns, "cursor_line", self._cursor_moved, init=False)
        self.action_all()
        self.set_interval(0.5, self._follow)

    def _handle_exception(self, error: Exception) -> None:
        """Show an error of a thread if reading may go on; else end with the error.

        The library would print the values of all variables.
        """
        cause = getattr(error, "error", None)  # an error of a thread
        if isinstance(cause, InvalidEvent | UnknownStrategy):
            self.notify(one_line(str(cause)), markup=False)
        else:
            self.exit(cause or error)

    @contextmanager
    def _one_refresh(self) -> Iterator[None]:
        """Show all changes of the block in one refresh of the screen.

        Each widget announces its changes to the screen after it has handled its
        messages.  The screen is not painted before the last of them has done so.
        """
        update = ExitStack()
        update.enter_context(self.batch_update())

        def end_after(pending: Sequence[Widget]) -> None:
            """End the update when these widgets have handled their messages."""
            if pending and pending[0].call_after_refresh(end_after, pending[1:]):
                return
            update.close()
            self.screen.check_idle()

        try:
            yield
        finally:
            end_after([self.turns, self.place, self.pane, self.text, self.input])

    def _load(self, wanted: run_pages.EventFilter, **position: int) -> None:
        """Read and show the page at a position (see ``run_pages.read_page``)."""
        page = run_pages.read_page(self.session, wanted=wanted, **position)
        self._show_page(page, wanted)

    def _show_page(
        self, page: run_pages.RunPage, wanted: run_pages.EventFilter
    ) -> None:
        """Show a page, and select the event in it that is nearest to the position."""
        seqs: list[int] = []
        for turn in page.turns:
            seqs += [seq for seq in turn.seqs if seq]
        nearest = min(seqs, key=lambda seq: abs(seq - self.at), default=0)
        with self._one_refresh():
            self.part = page
            self.wanted = wanted
            nodes = self._fill_tree(page, nearest)
            if nearest:
                self.turns.select(nodes[nearest])
            else:
                self.notify("no event matches")
            self._draw_place()

    def _fill_tree(
        self, page: run_pages.RunPage, nearest: int
    ) -> dict[int, TreeNode[_Entry]]:
        """Fill the tree with a page; returns the node of each event, by seq.

        nearest: the event to select, whose turn is expanded.
        """
        nodes: dict[int, TreeNode[_Entry]] = {}
        self.turns.clear()
        self.turns.cursor_line = -1
        for turn in page.turns:
            is_open = nearest in turn.seqs or self.wanted != run_pages.EVERYTHING
            top = self.turns.root.add(
                _rendered("turn_line", "bold", turn=turn),
                _Entry(turn.seqs[0], partial(_rendered, "turn", turn=turn)),
                expand=is_open,
            )
            for step in turn.steps:
                for event in step:
                    envelope = event.envelope
                    seq = envelope.seq if envelope.stream == "main" else 0
                    style = STYLES["events"].get(envelope.type, "dim")
                    leaf = top.add_leaf(
                        _rendered("entry", style, shown=event, n=len(step)),
                        _Entry(seq, partial(_rendered, "event", shown=event)),
                    )
                    nodes[seq] = leaf
                    if seq and event.result is not None:
                        nodes[event.result.envelope.seq] = leaf
        return nodes

    def _cursor_moved(self) -> None:
        """Show the text of the entry under the cursor."""
        node = self.turns.cursor_node
        if node is None or node.data is None or node is self.selected:
            return
        self.selected = node
        self.at = node.data.seq or self.at
        self.workers.cancel_group(self, "context")
        self._draw(node.data.text(), self.at)

    def _draw(self, text: Text, at: int) -> None:
        """Show a text, and the position that it is about."""
        with self._one_refresh():
            self.shown_at = at
            self.text.update(text)
            self.pane.scroll_home(animate=False)
            self._draw_place()

    def _draw_place(self) -> None:
        """Show the line with the position."""
        self.place.update(_rendered("place", app=self))

    @work(thread=True, exclusive=True, group="context")
    def _explain(self, at: int, width: int) -> None:
        """Show the context at a seq: each part, and the reason for it."""
        page = _Lines(width)
        explanation = self.session.why(at=at, chains=False)

        def show_blocks(part: Any) -> None:
            if part.message:
                blocks: Any = explanation.view.messages[part.message - 1]["content"]
                context.show_blocks(page, blocks[part.first : part.first + part.blocks])
            elif part is explanation.parts[0]:
                context.show_blocks(page, explanation.view.system or "")

        why.show(page, explanation, show_blocks, verbose=True)
        spans = explanation.view.to_json()["spans"]
        context.show_replacements(page, spans, explanation.events.values())
        worker = get_current_worker()

        def show() -> None:
            if not worker.is_cancelled:  # the reader has gone on
                self._draw(page.text, at)

        self.call_from_thread(show)

    @work(thread=True, exclusive=True, group="search")
    def _search(self, words: str) -> None:
        """Show the events that match a query, as one page in order of their seqs."""
        user_id, session_id, _ = self.session.stream
        hits = self.store.search(
            user_id, words, session_id=session_id, limit=run_pages.LIMIT
        )
        events = []
        for seq in sorted(hit.seq for hit in hits):
            events += self.session.events(seq - 1, 1)
        turns = run_pages.turns(events)
        worker = get_current_worker()

        def show() -> None:
            if not worker.is_cancelled:
                self._show_page(self.part._replace(turns=turns), run_pages.EVERYTHING)

        self.call_from_thread(show)

    def on_input_submitted(self, event: widgets.Input.Submitted) -> None:
        """Search for the input, or show only the types behind ``type:`` at its begin.

        The type ``redacted`` means events with redacted values.
        """
        words, prefix, types_text = event.value.partition("type:")
        with self._one_refresh():
            self._leave_input()
            if words.strip() or not prefix:
                self._search(event.value)
                return
            names = types_text.replace(",", " ").split()
            types = tuple(name for name in names if name != "redacted")
            self._load(run_pages.EventFilter(types, redacted="redacted" in names))

    def _leave_input(self) -> None:
        """Hide the input, and return to the tree."""
        self.input.display = False
        self.turns.focus()

    def action_all(self) -> None:
        """Show events of all types around the position."""
        with self._one_refresh():
            self._leave_input()
            self._load(
                run_pages.EVERYTHING, after=max(0, self.at - run_pages.LIMIT // 2)
            )

    def action_ask(self, prefix: str) -> None:
        """Show the input with this prefix in it."""
        self.input.value = prefix
        self.input.display = True
        self.input.cursor_position = len(prefix)
        self.input.focus()

    def action_page(self, by: int) -> None:
        """Show the next page, or for -1 the previous one."""
        if by > 0 and self.part.more:
            self._load(self.wanted, after=self.part.last)
        if by < 0 and self.part.first > 1:
            self._load(self.wanted, before=self.part.first)

    def action_scroll(self, by: int) -> None:
        """Scroll the text by this number of screens."""
        self.pane.scroll_relative(y=by * self.pane.size.height, animate=False)

    def action_follow(self) -> None:
        """Begin or stop to follow the run."""
        with self._one_refresh():
            self.follows = not self.follows
            self.followed_to = 0
            self._draw_place()
            self._follow()

    def _follow(self) -> None:
        """Show the end of a followed run if it has new events."""
        has_terminal = self.is_headless or sys.stdin.isatty()
        if not has_terminal:
            self.exit()  # the library would go on reading from it
        if not self.follows:
            return
        end = self.log_reader.head(self.session.stream).seq
        if end != self.followed_to:
            self.followed_to = end
            self.at = end
            self._load(self.wanted, before=end + 1)

    def action_step(self, by: int) -> None:
        """Show the context of the next request, or for -1 of the previous one."""
        seqs = self._request_seqs(newer=by > 0)
        later = [seq for seq in seqs if seq > self.at]
        earlier = [seq for seq in seqs if seq < self.at]
        if by > 0 and later:
            self.at = min(later)
            self.action_context(sure=False)
        if by < 0 and earlier:
            self.at = max(earlier)
            self.action_context(sure=False)

    def _request_seqs(self, *, newer: bool) -> set[int]:
        """Return the seqs of requests near the position.

        In a run without recorded requests, these are the seqs before responses.

        newer: read events after the position; else, events up to it.
        """
        read = partial(self.log_reader.read, self.session.stream)
        has_requests = bool(read(types=("request",), limit=1))
        types = ("request",) if has_requests else _RESPONSES
        if newer:
            events = read(types=types, limit=run_pages.LIMIT, after=self.at)
        else:
            events = read(types=types, limit=run_pages.LIMIT, upto=self.at, newest=True)
        seqs = {event.seq for event in events}
        if has_requests:
            return seqs
        # Adjacent events of a response are one response.
        return {seq - 1 for seq in seqs if seq > 1 and seq - 1 not in seqs}

    def action_context(self, *, sure: bool = True) -> None:
        """Show the context at the position; of a long run, only if ``sure``."""
        is_long = self.part.head.seq > run_pages.MANY
        if is_long:
            self.workers.cancel_group(self, "context")
            self._draw(_rendered("many", app=self), self.at)
        if sure or not is_long:
            self._explain(self.at, max(40, self.text.size.width))
