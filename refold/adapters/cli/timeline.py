"""The timeline that ``refold log`` prints: events in order, each in a line or more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from refold.adapters.cli import options, output
from refold.adapters.cli.events import STYLES, Rails
from refold.adapters.display import values
from refold.adapters.display.events import changes_to, preview_of
from refold.domain import events
from refold.domain.errors import counted
from refold.domain.events import AgentResponse, ToolCall, ToolResult, UserInput
from refold.projections.context.outcomes import reason_in
from refold.projections.instructions import instruction_of

if TYPE_CHECKING:
    from refold.adapters.display.events import Numbered, Preview
    from refold.domain.envelope import Envelope


def show_last_answer(screen: output.Screen, entries: Iterable[Envelope]) -> None:
    """Print the last answer in these entries."""
    answer = ""
    for envelope in entries:
        if isinstance(envelope.payload, AgentResponse | events.Final):
            answer = envelope.payload.text or answer
    if answer:
        screen.line(output.shown(answer))
    else:
        output.complain("there is no answer in this part of the session")


_MAX_LINES: Final = 6  # of a text that is not printed in full
_STREAM_WIDTH: Final = 12  # characters of the name of a derived stream
# A line of a compact timeline joins lines of a text until it has this many characters.
_ENOUGH_TEXT: Final = 20


class Timeline:
    """Prints events in the order of the log, each before it reads the next."""

    def __init__(
        self,
        screen: output.Screen,
        verbosity: options.Verbosity,
        *,
        last_seq: int,
        full: bool = False,
    ) -> None:
        self._screen = screen
        self._is_full = full
        self._is_compact = verbosity == "compact"
        self._seq_width = max(3, len(str(last_seq)))
        self._rails = Rails()
        self._day = ""

    def show(self, numbered: Iterable[Numbered]) -> int:
        """Print the events, and return their number."""
        count = 0
        for item, is_turn_edge in _with_turn_edges(numbered):
            self._show_date(item.envelope)
            self._show_event(item, in_full=is_turn_edge)
            count += 1
        return count

    def _show_date(self, envelope: Envelope) -> None:
        """Print the date before the first event of a day, and a gap before a turn."""
        if envelope.stream != "main":
            return
        day = f"{envelope.ts:%Y-%m-%d}"
        if _is_instruction(envelope) or day != self._day:
            self._screen.line("")
        if day != self._day:
            self._day = day
            self._screen.line((f"{'':>{self._seq_width}}  {day} UTC", "dim"))

    def _show_event(self, item: Numbered, *, in_full: bool) -> None:
        """Print an event with its text.

        in_full: print the whole text, also in a compact timeline.
        """
        preview = preview_of(item.envelope)
        if self._is_compact and not in_full:
            self._show_in_one_line(item, preview)
            return
        self._show_head(item, preview)
        margin = (" " * (self._seq_width + 11), (self._rails.passing(), "yellow"), " ")
        if preview.failed and not self._is_full and self._screen.cuts:
            reason = _reason_lines(preview.body)
            self._screen.body("\n".join(reason), indent=margin)
            hidden = len(preview.body) - sum(len(line) + 1 for line in reason)
            if hidden > 0:
                note = f"… {counted(hidden, 'more character')} (--full)"
                self._screen.line(*margin, (note, "dim"))
            return
        max_lines = None if in_full or self._is_full else _MAX_LINES
        self._screen.body(preview.body, indent=margin, max_lines=max_lines)

    def _show_in_one_line(self, item: Numbered, preview: Preview) -> None:
        """Print an event and the start of its text on one line."""
        lines: list[str] = []
        if item.envelope.stream == "main":
            lines = [line.strip() for line in preview.body.split("\n")]
            lines = [line for line in lines if line]
        line_count = len(lines)
        if preview.failed:
            lines = [line.strip() for line in _reason_lines(preview.body)]
        text = ""
        shown_lines = 0
        for line in lines:
            if shown_lines > 0 and len(text) >= _ENOUGH_TEXT:
                break
            text = f"{text} {line}" if text else line
            shown_lines += 1
        hidden_lines = line_count - shown_lines
        if hidden_lines > 0:
            text += f"  (+{counted(hidden_lines, 'line')})"
        self._show_head(item, preview, text)

    def _show_head(self, item: Numbered, preview: Preview, text: str = "") -> None:
        """Print an event's first line: its type, the text, its marks and its tokens."""
        envelope = item.envelope
        style = STYLES["events"].get(envelope.type, "dim")
        is_derived = envelope.stream != "main"
        number = item.response if item.call is None else item.call
        seq = f"·{envelope.seq}" if is_derived else str(envelope.seq)
        head: list[output.Part] = [
            (f"{seq:>{self._seq_width}}  {envelope.ts:%H:%M:%S} ", "dim"),
            (self._rail(item), "yellow"),
            " ",
            (envelope.type, "bold red" if preview.failed else style),
            ("" if number is None else f" #{number}", style),
        ]
        if envelope.agent:
            head += [("  agent ", "dim"), output.shown(envelope.agent)]
        if preview.note:
            head += ["  ", output.shown(preview.note)]
        if item.call and item.began_at == envelope.seq and not self._is_compact:
            head.append((f"  response #{item.response}", "dim"))
        if is_derived:
            head.append((f"  stream {envelope.stream[:_STREAM_WIDTH]}", "dim"))
        cut = output.shown(f"  {text}") if text else ""
        self._screen.line(*head, cut=cut, end=_end_of_head(envelope))

    def _rail(self, item: Numbered) -> str:
        """Return the signs that join calls to results, for the line of an event."""
        match item.envelope.payload:
            case ToolCall(call_id=call_id):
                return self._rails.open(call_id)
            case ToolResult(call_id=call_id):
                return self._rails.close(call_id)
        return self._rails.passing()


def _reason_lines(body: str) -> list[str]:
    """Return the lines of a failure that say what failed and why, or its last lines."""
    lines = [line for line in body.split("\n") if line.strip()]
    if len(lines) <= _MAX_LINES:
        return lines
    reasons = reason_in(body).split("\n")
    return reasons if len(reasons) <= _MAX_LINES else lines[-_MAX_LINES:]


def _end_of_head(envelope: Envelope) -> list[output.Part]:
    """Return the parts at the right: redactions, cuts, warnings and tokens."""
    changes = changes_to(envelope)
    parts: list[output.Part] = []
    if changes.redacted:
        redacted = f" redacted {values.type_counts(changes.redacted)} "
        parts += [(redacted, "bold white on red"), "  "]
    if changes.stubs:
        times = f" × {changes.stubs}" if changes.stubs > 1 else ""
        parts += [(f" guarded{times} ", "black on yellow"), "  "]
    if changes.warnings:
        warnings = f" {', '.join(changes.warnings)} "
        parts += [(warnings, "black on yellow"), "  "]
    parts.append((f"{envelope.token_estimate:,} tok", "dim"))
    return parts


def _with_turn_edges(numbered: Iterable[Numbered]) -> Iterator[tuple[Numbered, bool]]:
    """Yield events, each with whether it is an instruction or a turn's last answer."""
    # An answer and the events after it.  Whether it is the last answer of its turn is
    # known at the next input or answer.
    pending: list[Numbered] = []
    for item in numbered:
        if _is_input(item) or _is_answer(item):
            yield from _marked(pending, turn_ends=_is_input(item))
            pending = []
        pending.append(item)
    yield from _marked(pending, turn_ends=True)


def _marked(
    pending: list[Numbered], *, turn_ends: bool
) -> Iterator[tuple[Numbered, bool]]:
    """Yield pending events, each with whether it is at an edge of its turn.

    turn_ends: whether the turn ends after the pending events.
    """
    for item in pending:
        is_last_answer = turn_ends and _is_answer(item)
        yield item, _is_instruction(item.envelope) or is_last_answer


def _is_input(item: Numbered) -> bool:
    """Whether the event is the input of a user."""
    return isinstance(item.envelope.payload, UserInput)


def _is_instruction(envelope: Envelope) -> bool:
    """Whether the event is the input of a person, not a text that the client added."""
    return bool(instruction_of(envelope).kind)


def _is_answer(item: Numbered) -> bool:
    """Whether the event is an answer with text."""
    event = item.envelope.payload
    return isinstance(event, AgentResponse | events.Final) and bool(event.text.strip())
