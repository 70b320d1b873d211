"""A run on a terminal: its turns, and beside them an event or a context, as text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from rich.text import Text
from textual import containers, widgets, work
from textual.app import App, ComposeResult

from refold.adapters.cli.commands import context, why
from refold.adapters.cli.events import STYLES
from refold.adapters.cli.output import Part, Screen, one_line, shown, styled
from refold.adapters.server import run
from refold.domain.canonical import shipped
from refold.domain.errors import InvalidEvent, UnknownStrategy
from refold.store import Session, SessionStore

_RESPONSES: Final = ("agent_response", "tool_call")


class _Lines(Screen):
    def __init__(self, width: int) -> None:
        self.text, self.width = Text(), width

    def line(self, *parts: Part, cut: Part = "", end: Sequence[Part] = ()) -> None:
        self.text.append_text(styled(*parts, cut, "  " if end else "", *end, "\n"))


def _said(what: str, style: str = "", **given: Any) -> Text:
    """What the template makes of these; nothing in it drives the terminal."""
    told = run.rendered("terminal.txt", "en", show=what, **given).strip("\n")
    return styled((shown(told), style))


class _Turns(widgets.Tree[Any]):
    BINDINGS = [*map(tuple, shipped("refold.adapters.cli", "terminal.toml")["keys"])]  # noqa: RUF012  # as its base has it


class Viewer(App[BaseException]):
    """Shows a run, opened at ``seq``; returns what ended it, if not its reader."""

    CSS_PATH, ENABLE_COMMAND_PALETTE = "terminal.tcss", False
    BINDINGS = [("escape", "all", "All")]  # noqa: RUF012  # as its base has it

    def __init__(self, store: SessionStore, session: Session, seq: int | None) -> None:
        super().__init__()
        self.theme = "ansi-dark"
        self.store, self.session, self.stored = store, session, session.writer.log
        self.wanted, self.follows = run.EVERYTHING, False
        self.at, self.end = seq or 1, 0

    def compose(self) -> ComposeResult:
        yield widgets.Static(id="place")
        with containers.Horizontal():
            self.turns = _Turns("", id="turns")
            yield self.turns
            with containers.VerticalScroll(id="told", can_focus=False):
                yield widgets.Static(id="text")
        yield widgets.Input(placeholder="words", select_on_focus=False)
        yield widgets.Footer(compact=True)

    def on_mount(self) -> None:
        self.turns.show_root, self.turns.guide_depth = False, 2
        self.action_all()
        self.set_interval(0.5, self._tail)

    def _handle_exception(self, error: Exception) -> None:
        cause = getattr(error, "error", None)  # of a thread
        if isinstance(cause, InvalidEvent | UnknownStrategy):
            self.notify(one_line(str(cause)), markup=False)
        else:  # the library would print the values of all variables
            self.exit(cause or error)

    def _load(self, **where: int) -> None:
        self._show(run.part(self.session, wanted=self.wanted, **where))

    def _show(self, part: run.Part) -> None:
        """Show a page, and in it the event nearest to where one is."""
        self.part, leaves = part, dict[int, Any]()
        seqs = [seq for turn in part.turns for seq in turn.seqs if seq]
        near = min(seqs, key=lambda seq: abs(seq - self.at), default=0)
        self.turns.clear().cursor_line = -1
        for turn in part.turns:
            line, told = (partial(_said, x, turn=turn) for x in ("turn_line", "turn"))
            opens = near in turn.seqs or self.wanted != run.EVERYTHING
            top = self.turns.root.add(line("bold"), (turn.seqs[0], told), expand=opens)
            for n, said in ((len(step), said) for step in turn.steps for said in step):
                one, back = said.envelope, (said.result or said).envelope
                seq = one.seq if one.stream == "main" else 0
                style = STYLES["events"].get(one.type, "dim")
                entry = _said("entry", style, said=said, n=n)
                leaf = top.add_leaf(entry, (seq, partial(_said, "event", said=said)))
                leaves |= {seq: leaf, back.seq if seq else 0: leaf}
        if near:
            self.call_after_refresh(self.turns.move_cursor, leaves[near])
        else:
            self.notify("no event here is like that")

    def _draw(self, text: Text, at: int) -> None:
        """Show a text about that seq, unless one is elsewhere by then."""
        if at == self.at:
            self.query_one("#text", widgets.Static).update(text)
            self.query_one("#told").scroll_home(animate=False)
        self.query_one("#place", widgets.Static).update(_said("place", app=self))

    @work(thread=True, exclusive=True)
    def _explain(self, at: int, width: int) -> None:
        """Show the context at a seq, each part as it was sent and why it is there."""
        page, found = _Lines(width), self.session.why(at=at, chains=False)

        def told(part: Any) -> None:
            if part.message:
                blocks: Any = found.view.messages[part.message - 1]["content"]
                context.blocks(page, blocks[part.first : part.first + part.blocks])
            elif part is found.parts[0]:
                context.blocks(page, found.view.system or "")

        why.show(page, found, told)
        context.hidden(page, found.view.to_json()["spans"], found.events.values())
        self.call_from_thread(self._draw, page.text, at)

    @work(thread=True, exclusive=True)
    def _search(self, words: str) -> None:
        user, name, _ = self.session.stream
        found = self.store.search(user, words, session_id=name, limit=run.LIMIT)
        seqs = sorted(one.seq for one in found)
        read = [one for seq in seqs for one in self.session.events(seq - 1, 1)]
        self.call_from_thread(self._show, self.part._replace(turns=run.turns(read)))

    def on_tree_node_highlighted(self, event: _Turns.NodeHighlighted[Any]) -> None:
        if event.node.data:
            seq, told = event.node.data
            self.at = seq or self.at
            self._draw(told(), self.at)

    def on_input_submitted(self, event: widgets.Input.Submitted) -> None:
        _, filters, named = event.value.partition("type:")
        kinds = named.replace(",", " ").split()
        types = tuple(one for one in kinds if one != "redacted")
        self._leave(run.Wanted(types, redacted="redacted" in kinds))
        self._load() if filters else self._search(event.value)

    def _leave(self, wanted: run.Wanted = run.EVERYTHING) -> None:
        self.wanted, self.query_one(widgets.Input).display = wanted, False
        self.turns.focus()

    def action_all(self) -> None:
        self._leave()
        self._load(after=max(0, self.at - run.LIMIT // 2))

    def action_ask(self, begun: str) -> None:
        box = self.query_one(widgets.Input)
        box.value, box.display, box.cursor_position = begun, True, len(begun)
        box.focus()

    def action_page(self, by: int) -> None:
        where = {"after": self.part.last} if by > 0 else {"before": self.part.first}
        if self.part.more if by > 0 else self.part.first > 1:
            self._load(**where)

    def action_scroll(self, by: int) -> None:
        told = self.query_one("#told")
        told.scroll_relative(y=by * told.size.height, animate=False)

    def action_follow(self) -> None:
        self.follows, self.end = not self.follows, 0
        self.query_one("#place", widgets.Static).update(_said("place", app=self))

    def _tail(self) -> None:
        if not (self.is_headless or sys.stdin.isatty()):
            self.exit()  # the terminal is gone, and the library would read on from it
        end = self.stored.head(self.session.stream).seq if self.follows else self.end
        if end != self.end:
            self.at = self.end = end
            self._load(before=end + 1)

    def action_step(self, by: int) -> None:
        """Show the context of the next request; of the next response, if none is."""
        at, read = self.at, partial(self.stored.read, self.session.stream)
        near: Any = {"after": at} if by > 0 else {"upto": at, "newest": True}
        kinds = ("request",) if read(types=("request",), limit=1) else _RESPONSES
        seqs = {one.seq for one in read(types=kinds, limit=run.LIMIT, **near)}
        if kinds is _RESPONSES:  # such events without another between are one response
            seqs = {seq - 1 for seq in seqs if seq > 1 and seq - 1 not in seqs}
        if found := [seq for seq in seqs if (seq - at) * by > 0]:
            self.at = min(found) if by > 0 else max(found)
            self.action_context(sure=False)

    def action_context(self, *, sure: bool = True) -> None:
        if many := self.part.head.seq > run.MANY:
            self._draw(_said("many", app=self), self.at)
        if sure or not many:
            self._explain(self.at, max(40, self.query_one("#text").size.width))
