"""Redaction of texts that arrive in pieces: streams, log records, printed output."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from refold.redaction.checks.extents import has_full_line
from refold.redaction.checks.names import patterns
from refold.redaction.engines import IN_RUN, run_start
from refold.redaction.engines.fold import Folded, fold, may_have_forms
from refold.redaction.engines.patterns import reach, unfinished
from refold.redaction.registered import Registered
from refold.redaction.scanner import CONTEXT, LEAD, TRAIL
from refold.redaction.types import LONGEST, Placeholders
from refold.redaction.values import Tally

if TYPE_CHECKING:
    from refold.redaction.plan import Tagger
    from refold.redaction.redactor import Redactor
    from refold.redaction.rules.rule import Rule

_CHUNK = 65_536
# How many characters before and after a value its check may read.
_CHECK_REACH = 64
# How many places to cut are tried before the stream waits for more text.
_TRIES = 4
_INVISIBLE = "\u200b"
# The last line of a private key marks the lines before it as a key, even if the text
# does not have the key's first line.  These are the limits of such a key:
_LONGEST_KEY: Final = 32_768
_FULL_KEY_LINE: Final = re.compile("[A-Za-z0-9+/]{32}")
_MOST_SHORT_LINES: Final = 3  # after its last full line
_KEYS: Final = patterns("extents")


class _Cut(NamedTuple):
    """A place at which a text can be divided.

    clean: the text up to and with the character there, redacted.
    tally: the findings in it.
    """

    place: int
    clean: str
    tally: Tally


class _Gate(NamedTuple):
    """A literal, the rules that are tried at it, and how far they can match or look."""

    literal: str
    rules: list[Rule]
    span: int


class StreamRedactor:
    """Redacts one text that arrives in pieces.

    The results of ``feed`` and ``close`` together are the result of ``redactor.text``
    for the whole text, however it is divided.  The end of the text is held back: some
    hundred characters, and more while a value may go on.  A value that may never end is
    held back to the end of the text, up to the plan's ``max_leaf_bytes``.

    Raises ValueError for a plan with ``drop_leaf``, or a redactor with a recognizer:
    both need the whole text.
    """

    def __init__(self, redactor: Redactor, *, tag: Tagger | None = None) -> None:
        if "drop_leaf" in redactor.plan.actions.values():
            raise ValueError("drop_leaf replaces whole texts: a stream has none")
        if redactor.recognizer is not None:
            raise ValueError("a recognizer judges whole texts: a stream has none")
        if not isinstance(redactor.registered, Registered | None):
            raise ValueError("a stream needs registered values of the class Registered")
        self._redactor = redactor
        self._tag = tag
        plan = redactor.plan
        self._placeholders = Placeholders(plan.labels, plan.numbered_types)
        self._gates = _gates(plan.rules)
        furthest = max((rule.reach for rule in plan.rules), default=0)
        # How many characters a rule reads before its literal or its digits.
        self._reach_back = max(0, furthest) + LEAD + max(CONTEXT, _CHECK_REACH)
        # How many characters at the end may belong to an incomplete trigger.
        self._open_length = max(
            CONTEXT + TRAIL + _CHECK_REACH, LONGEST, *map(_trigger_length, plan.rules)
        )
        self._pieces: list[str] = []
        self._length = 0
        # The length of the held text at the last try to release some of it.
        self._tried = 0
        # The characters at the start of the held text that were already returned.
        self._shared = 0
        self._closed = False
        self.tally = Tally()

    def feed(self, piece: str) -> str:
        """Add the next piece; return text that is redacted and final, maybe none.

        Raises RedactionError, and ValueError once it is closed.
        """
        if self._closed:
            raise ValueError("the stream is closed")
        released: list[str] = []
        for start in range(0, len(piece), _CHUNK):
            chunk = piece[start : start + _CHUNK]
            self._pieces.append(chunk)
            self._length += len(chunk)
            # The cost of a try grows with the held text, so tries become rarer.
            if self._length >= self._tried + max(self._tried // 4, CONTEXT):
                released.append(self._released())
        return "".join(released)

    def close(self) -> str:
        """Return the redacted rest.  Raises RedactionError."""
        if self._closed:
            return ""
        clean, tally = self._redacted("".join(self._pieces))
        self._pieces = []
        self._closed = True
        self.tally.update(tally)
        return clean[self._shared :]

    def _released(self) -> str:
        """Return the redacted text up to the last place where it can be cut.

        The rest waits for the text that follows.
        """
        waiting = "".join(self._pieces)
        clean = ""
        cut = self._cut(waiting)
        if cut:
            clean = cut.clean[self._shared :]
            waiting = waiting[cut.place :]
            self._shared = 1
            self.tally.update(cut.tally)
        self._pieces = [waiting]
        self._length = len(waiting)
        self._tried = len(waiting)
        return clean

    def _redacted(self, text: str) -> tuple[str, Tally]:
        return self._redactor.text(text, tag=self._tag)

    def _cut(self, text: str) -> _Cut | None:
        """The last place at which ``text`` can be divided; None if there is none.

        At such a place, more text changes nothing before it, nothing after it looks
        back over it, and the two redacted parts together are the redacted whole.  Both
        parts have the character there, so that a pattern sees what is next to its
        match.
        """
        registered = self._redactor.registered
        longest = registered.longest() if isinstance(registered, Registered) else 0
        if len(text) <= self._reach_back + self._open_length + longest:
            return None
        folded = fold(text)
        open_key = _start_of_open_key(folded.text)
        may_have_values = (
            longest > 0
            or self._redactor.scanner.has_trigger(text)
            or self._placeholders.within(text)
        )
        if not may_have_values:
            last = min(
                len(folded.text) - self._reach_back - self._open_length, open_key
            )
            for place in _places(text, folded, last):
                return _Cut(place, text[: place + 1], Tally())
            return None
        last = min(self._settled(folded.text), open_key) - longest
        places = list(_places(text, folded, last))
        return self._divided(text, places) if places else None

    def _settled(self, text: str) -> int:
        """The end of the part of the folded ``text`` that more text cannot change."""
        # The first place at which a match may depend on more text.
        first_open = run_start(text, len(text) - self._open_length, IN_RUN)
        lower = text.lower()
        for gate in self._gates:
            place = lower.find(gate.literal, max(0, len(text) - gate.span))
            while 0 <= place < first_open:
                if any(_may_go_on(rule, text, place) for rule in gate.rules):
                    first_open = place
                    break
                place = lower.find(gate.literal, place + 1)
        return first_open - self._reach_back

    def _divided(self, text: str, places: list[int]) -> _Cut | None:
        """The first of ``places`` at which the redacted parts make the whole."""
        whole, _ = self._redacted(text)
        for place in places:
            clean, tally = self._redacted(text[: place + 1])
            shared = text[place]
            if not clean.endswith(shared) or not whole.startswith(clean):
                continue
            rest, _ = self._redacted(text[place:])
            if rest.startswith(shared) and clean + rest[1:] == whole:
                return _Cut(place, clean, tally)
        return None


def _start_of_open_key(text: str) -> int:
    """The start of the lines at the end that may belong to a private key.

    They do if the next piece has the key's last line.  Without such lines, the length
    of the text.
    """
    first = max(0, len(text) - _LONGEST_KEY)
    if not _FULL_KEY_LINE.search(text, first):
        return len(text)
    # A line begins with the break before it, which may be an escape of two characters.
    lines = [(first, first)]
    lines += [match.span() for match in _KEYS.BREAK.finditer(text, first)]
    start = len(text)
    stop = len(text)
    has_full = False
    short_lines = 0
    for line_break, line in reversed(lines):
        if has_full_line(text, line, stop):
            start = line_break
            has_full = True
        elif _KEYS.LETTERS.search(text, line, stop):
            short_lines += 1
            if has_full or short_lines > _MOST_SHORT_LINES:
                break
        stop = line_break
    return start


def _gates(rules: tuple[Rule, ...]) -> list[_Gate]:
    """The literals at which rules are tried, each with its rules."""
    by_literal: dict[str, list[Rule]] = {}
    for rule in rules:
        if rule.at == "gate":
            for literal in rule.gate:
                by_literal.setdefault(literal, []).append(rule)
    gates: list[_Gate] = []
    for literal, of_literal in by_literal.items():
        furthest = max(reach(rule.pattern) for rule in of_literal)
        gates.append(_Gate(literal, of_literal, furthest + _CHECK_REACH))
    return gates


def _trigger_length(rule: Rule) -> int:
    """The most characters of a trigger of ``rule``."""
    longest = max(map(len, rule.gate), default=0)
    return longest + reach(rule.lead) + reach(rule.then)


def _may_go_on(rule: Rule, text: str, place: int) -> bool:
    """Whether more text could change the result of ``rule`` at ``place``."""
    match = re.compile(rule.pattern).match(text, place)
    if match and match.end() + _CHECK_REACH > len(text):
        return True
    try:
        return bool(unfinished(rule.pattern).match(text, place))
    except RecursionError:  # the pattern is nested too deeply to know
        return True


def _places(text: str, folded: Folded, last: int) -> Iterator[int]:
    """Places to cut ``text`` at, the best first: ends of lines, spaces, any place.

    ``last`` is a place in ``folded``.  Lines are folded as a whole, so a line is
    divided only if there is nothing to fold in its first part.
    """
    if last <= 0:
        return
    end = folded.place(last)
    yield from _spread(text, "\n", end)
    start = text.rfind("\n", 0, end) + 1
    part = text[start:end]
    # The rest of the line may need folding: the character stands for it.
    if may_have_forms(part) and fold(part + _INVISIBLE).text != part:
        return
    yield from _spread(text, " ", end, start)
    if " " not in part[-1024:] and end - 1 > start:
        yield end - 1


def _spread(text: str, character: str, end: int, start: int = 0) -> Iterator[int]:
    """Some places of ``character``, from the last backwards in growing steps."""
    step = 0
    for _ in range(_TRIES):
        end = text.rfind(character, start, max(start, end - step))
        if end <= 0:
            return
        yield end
        step = 2 * step + 1


# The attributes of every record; any other comes from `extra`, or from a formatter.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({})))
_FORMATTER: Final = logging.Formatter()


class TextSink(Protocol):
    """A stream that accepts text."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


class RedactingFilter(logging.Filter):
    """A filter for handlers and loggers that redacts log records and drops none.

    On a handler it sees every record that the handler writes; on a logger only those
    that are logged with that very logger.  It redacts the message with its arguments,
    the text of an exception and of a stack, and values from ``extra``.  The exception
    itself is removed from the record: its text stays in ``exc_text``.

    It never raises: a value that cannot be redacted is withheld, and the record says
    why.
    """

    def __init__(self, redactor: Redactor, name: str = "") -> None:
        super().__init__(name)
        self._redactor = redactor

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact ``record`` in place, if its logger is under the filter's name."""
        if not super().filter(record):
            return True
        record.msg = self._or_withheld(lambda: self._message(record))
        record.args = None
        if record.exc_info or record.exc_text:
            record.exc_text = self._or_withheld(lambda: self._exception(record))
            record.exc_info = None
        if record.stack_info:
            stack = str(record.stack_info)
            record.stack_info = self._or_withheld(lambda: self._text(stack))
        for name in vars(record).keys() - _STANDARD:
            extra = partial(self._extra, name, vars(record)[name])
            vars(record)[name] = self._or_withheld(extra)
        return True

    def _message(self, record: logging.LogRecord) -> Any:
        if isinstance(record.msg, dict) and not record.args:
            return self._redactor.value(record.msg)[0]
        return self._text(record.getMessage())

    def _exception(self, record: logging.LogRecord) -> str:
        text = record.exc_text
        if record.exc_info and record.exc_info[0]:
            text = _FORMATTER.formatException(record.exc_info)
        return self._text(text or "")

    def _extra(self, name: str, value: Any) -> Any:
        if value is None or isinstance(value, bool | float):
            return value
        if isinstance(value, str):
            return self._text(value, key=name)
        if isinstance(value, int | list | dict):
            (clean,) = self._redactor.value({name: value})[0].values()
            return clean
        for text in (str(value), repr(value)):
            clean = self._text(text, key=name)
            if clean != text:
                return clean
        return value

    def _text(self, text: str, key: str | None = None) -> str:
        return self._redactor.text(text, key=key)[0]

    def _or_withheld(self, work: Callable[[], Any]) -> Any:
        """The result of ``work``, or a note in its place if it fails."""
        try:
            return work()
        except Exception as error:
            return _withheld(error)


class RedactingWriter(io.TextIOBase):
    """A text stream that writes redacted text to another, for the output of tools.

    All writes together write the redacted text of all of them, however they divide it.
    The end is held back until the following text shows that no value goes on there:
    ``flush`` writes what is safe, ``close`` everything.  The other stream stays open.

    It has no ``fileno`` and no ``buffer``: bytes written to those would not be
    redacted.  Threads may share it.
    """

    def __init__(self, stream: TextSink, redactor: Redactor) -> None:
        super().__init__()
        self._stream = stream
        self._redactor = redactor
        self._redacting = StreamRedactor(redactor)
        self._lock = RLock()
        self._busy = False

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def write(self, text: str, /) -> int:
        """Add ``text``; return its length.  It is withheld if it cannot be redacted."""
        with self._lock:
            if self.closed:
                raise ValueError("write to a closed RedactingWriter")
            self._pass_on(lambda: self._redacting.feed(text))
        return len(text)

    def flush(self) -> None:
        """Flush the other stream; text that is held back stays held back."""
        with self._lock:
            if not self.closed:
                self._stream.flush()

    def close(self) -> None:
        """Write the text that is held back, and accept no more."""
        with self._lock:
            if self.closed:
                return
            try:
                self._pass_on(self._redacting.close)
            finally:
                super().close()

    def _pass_on(self, work: Callable[[], str]) -> None:
        """Write the result of ``work``, or a note in its place if it fails."""
        if self._busy:
            raise RuntimeError("a RedactingWriter was written to from its own write")
        self._busy = True
        try:
            text = work()
        except Exception as error:
            self._redacting = StreamRedactor(self._redactor)
            text = f"{_withheld(error)}\n"
        finally:
            self._busy = False
        if text:
            self._stream.write(text)


def redacted_lines(lines: Iterable[str], redactor: Redactor) -> Iterator[str]:
    """The redacted lines of the text that ``lines`` together are.

    A value of several lines is found too; its placeholder leaves fewer lines.

    Raises RedactionError.
    """
    redacting = StreamRedactor(redactor)
    rest = ""
    for line in lines:
        ready = rest + redacting.feed(line)
        *whole, rest = ready.split("\n")
        for complete in whole:
            yield f"{complete}\n"
    *whole, rest = (rest + redacting.close()).split("\n")
    for complete in whole:
        yield f"{complete}\n"
    if rest:
        yield rest


def _withheld(error: Exception) -> str:
    return f"[withheld: redaction stopped with {type(error).__name__}]"
