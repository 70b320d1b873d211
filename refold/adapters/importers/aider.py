"""Aider's history of chats in Markdown: inputs, answers, and the client's output."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Final, NamedTuple

from refold.adapters.importers import base, messages
from refold.domain.envelope import Mark
from refold.domain.events import JsonObject

NAME = "aider"
_HEADER: Final = re.compile(
    r"# aider chat started at (\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2})\s*"
)
_USER: Final = "####"
_OUTPUT: Final = "> "
_BREAK: Final = "  "  # ends the lines that the client writes for itself
_BLANK: Final = "<blank>"
_MODEL: Final = re.compile(r"(?:Main )?[Mm]odel:? (\S+?)(?: with .*)?\s*$")
_TOKENS: Final = re.compile(
    r"Tokens: (?P<sent>[\d.,]+[kM]?) sent(?:, (?P<written>[\d.,]+[kM]?) cache write)?"
    r"(?:, (?P<read>[\d.,]+[kM]?) cache hit)?, (?P<received>[\d.,]+[kM]?) received\."
    r"(?:.{0,80}?Cost: \$(?P<cost>[\d.]+) (?:message|request))?"
)
# A command of the client.  If it sends a text, the file has the text once more.
_COMMAND: Final = re.compile(r"(/[a-z][a-z-]*(?=\s|$)|!)")
_CLEARING: Final = frozenset({"/clear", "/reset"})
_UNITS: Final = {"k": 1_000, "M": 1_000_000}


def recognises(source: base.Source) -> bool:
    """Whether the first line that is not empty begins a chat of aider."""
    if source.content != "text":
        return False
    for _, text in source.text_lines():
        if text.strip():
            return _HEADER.fullmatch(text) is not None
    return False


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Yield a transcript for each chat.

    A chat has no id: its session is named after the time at which it began.
    """
    chats = list(_chats(source))
    if not any(chat.started for chat in chats):
        raise source.failed("is no history of aider: no line begins a chat")
    for chat in chats:
        yield _Chat(source, chat).transcript()


class _Line(NamedTuple):
    number: int
    text: str


@dataclass(slots=True)
class _Lines:
    """The lines of one chat.

    started: as the file says it; empty before the first header.
    """

    number: int
    started: str
    lines: list[_Line] = field(default_factory=list)


@dataclass(slots=True)
class _Block:
    """Successive lines of a kind: "user", "output", or "answer".

    is_closed: whether an empty line ended it; answers have empty lines.
    """

    kind: str
    number: int
    lines: list[str]
    is_closed: bool = False

    @property
    def text(self) -> str:
        """The text of the block, without the marks of the client."""
        return "\n".join(self.lines).strip("\n")


def _chats(source: base.Source) -> Iterator[_Lines]:
    """Yield the lines of each chat."""
    chat = _Lines(1, "")
    for number, text in source.text_lines():
        header = _HEADER.fullmatch(text)
        if header is None:
            chat.lines.append(_Line(number, text))
            continue
        if chat.started or any(line.text.strip() for line in chat.lines):
            yield chat
        chat = _Lines(number, header[1])
    if chat.started or chat.lines:
        yield chat


class _Chat:
    """Reads one chat."""

    def __init__(self, source: base.Source, chat: _Lines) -> None:
        self._chat = chat
        self._recording = base.Recording(NAME, source.name)
        self._model: str | None = None
        self._started = _local(chat.started)
        # The keys of the inputs and answers that the client still sends.
        self._sent: list[str] = []

    def transcript(self) -> base.Transcript:
        """Return the transcript of the chat."""
        blocks = _blocks(self._chat.lines)
        place = f"line {self._chat.number}"
        if not any(block.kind != "output" for block in blocks):
            self._recording.skip("chat without messages", place, note=True)
            return self._recording.transcript("")
        for block, following in zip_longest(blocks, blocks[1:]):
            self._take(block, following)
        digits = re.sub(r"\D", "", self._chat.started)
        name = f"aider-{digits[:8]}-{digits[8:]}" if digits else ""
        return self._recording.transcript(name)

    def _take(self, block: _Block, following: _Block | None) -> None:
        """Record the event of a block; ``following`` is the block after it."""
        # The file has one time for each chat.
        is_first = not self._recording.begun
        place = f"line {block.number}"
        key = f"{NAME}\0{self._chat.started}\0{place}"
        ts = self._started if is_first else None
        origin = base.Origin(place, ts=ts, key=key)
        if block.kind == "user":
            piece = messages.user_input([block.text])
            command = _COMMAND.match(block.text)
            if command is not None:
                fields = {"format": NAME, "kind": "command", "value": block.text}
                piece = base.Piece("item", fields)
            self._recording.take([piece], origin)
            if command is not None and command[1] in _CLEARING:
                self._clear(origin)
            elif command is None:
                self._sent.append(key)
        elif block.kind == "answer":
            usage = None
            if following is not None and following.kind == "output":
                usage = _usage(following.text)
            origin = replace(
                origin,
                model=self._model,
                response_id=f"line:{block.number}",
                usage=usage,
            )
            self._recording.take(messages.response([block.text]), origin)
            self._sent.append(key)
        else:
            for line in block.lines:
                match = _MODEL.match(line)
                if match is not None:
                    self._model = match[1]
            fields = {"format": NAME, "kind": "output", "value": block.text}
            self._recording.take([base.Piece("item", fields)], origin)

    def _clear(self, origin: base.Origin) -> None:
        """Record that a command removed the history from what the client sends."""
        mark = Mark(left_out=tuple(self._sent))
        if mark.keys:
            edit = replace(origin, key=f"{origin.key}\0edit")
            self._recording.mark(mark, edit, "removal")
        self._sent = []


def _blocks(lines: Sequence[_Line]) -> list[_Block]:
    """Return the blocks of a chat.

    The client ends its own lines with two spaces, which the headings and quotes of an
    answer lack.  If no line has them, an editor has removed them all.
    """
    has_breaks = any(
        line.text.startswith((_USER, _OUTPUT)) and line.text.endswith(_BREAK)
        for line in lines
    )
    blocks: list[_Block] = []
    continues_until = 0  # the last line of an output of several lines
    for index, line in enumerate(lines):
        text = line.text
        is_own = text.endswith(_BREAK) or not has_breaks
        if index < continues_until:
            blocks[-1].lines.append(text.rstrip())
            continue
        if text.startswith(f"{_USER} ") and is_own:
            words = text.removeprefix(f"{_USER} ").rstrip()
            _add(blocks, "user", line.number, "" if words == _BLANK else words)
        elif text.startswith(_OUTPUT):
            end = index + 1
            if not is_own:
                end = _end_of_output(lines, index)
            if is_own or end > index + 1:
                _add(blocks, "output", line.number, text.removeprefix(_OUTPUT).rstrip())
                continues_until = end
            else:
                _add(blocks, "answer", line.number, text)
        elif text.strip() or (blocks and blocks[-1].kind == "answer"):
            _add(blocks, "answer", line.number, text)
        elif blocks:
            blocks[-1].is_closed = True
    return [block for block in blocks if block.text.strip()]


def _add(blocks: list[_Block], kind: str, number: int, text: str) -> None:
    """Add a line to the last block, or to a new one of its kind."""
    if blocks and blocks[-1].kind == kind and not blocks[-1].is_closed:
        blocks[-1].lines.append(text)
    else:
        blocks.append(_Block(kind, number, [text]))


def _end_of_output(lines: Sequence[_Line], start: int) -> int:
    """Return the line after an output that goes on without marks.

    Its last line ends with two spaces.  Returns the next line if it is none: then the
    line is a quote of an answer.
    """
    for index in range(start + 1, len(lines)):
        text = lines[index].text
        if text.startswith((f"{_USER} ", _OUTPUT)):
            break
        if text.endswith(_BREAK):
            return index + 1
    return start + 1


def _local(started: str) -> datetime | None:
    """Return the time at which a chat began; the file has no zone, so it is UTC.

    Returns None for a text that is no time, such as that of a thirteenth month.
    """
    try:
        return datetime.fromisoformat(started).replace(tzinfo=UTC)
    except ValueError:
        return None


def _usage(output: str) -> JsonObject | None:
    """Return the tokens and the cost in the client's output; tokens are rounded."""
    match = _TOKENS.search(output)
    if match is None:
        return None
    sent = _count(match["sent"])
    usage: JsonObject = {
        "input_tokens": sent,
        "output_tokens": _count(match["received"]),
    }
    if match["written"]:
        usage["cache_creation_input_tokens"] = _count(match["written"])
    if match["read"]:
        usage["cache_read_input_tokens"] = _count(match["read"])
    if match["cost"]:
        usage["cost_usd"] = float(match["cost"])
    return usage


def _count(text: str) -> int:
    """Return a number such as 812, 1,234, or 5.4k."""
    unit = _UNITS.get(text[-1:], 1)
    digits = text.rstrip("kM").replace(",", "")
    try:
        return round(float(digits) * unit)
    except ValueError:
        return 0
