"""Redaction of what comes by and by: text in pieces, records of logs, output."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from refold.redaction.engines import IN_RUN, run_start
from refold.redaction.engines.fold import Folded, fold
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
# How far before and after a value its validator may look.
_JUDGED = 64
# How many places to cut are tried before more text is waited for.
_TRIES = 4
_HIDDEN = "\u200b"
# A place in a text, what is before it redacted, with the character there, and a tally.
_Cut: TypeAlias = tuple[int, str, Tally]


class StreamRedactor:
    """Redacts a text that arrives in pieces; made for one text.

    What ``feed`` and ``close`` return is together what ``redactor.text`` returns for
    all pieces together, however the text is divided.  The end of what was fed is held
    back: some hundred characters, and more while a value may go on.  What may never end
    is held to the end, up to the plan's ``max_leaf_bytes``.

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
        self._redactor, self._tag = redactor, tag
        plan = redactor.plan
        self._placeholders = Placeholders(plan.labels, plan.numbered_kinds)
        rules = plan.rules
        self._gates = [
            # How far from it the end of a text must be to change nothing there.
            (literal, found, max(reach(rule.pattern) for rule in found) + _JUDGED)
            for literal, found in _gates(rules).items()
        ]
        # How far a rule looks back from where its literal or its digits begin.
        self._back = max([0, *(r.reach for r in rules)]) + LEAD + max(CONTEXT, _JUDGED)
        # How much of the end may belong to a trigger that is not complete.
        self._open = max(CONTEXT + TRAIL + _JUDGED, LONGEST, *map(_opening, rules))
        self._pieces: list[str] = []
        self._length = self._tried = 0
        self._shared = 0
        self._closed = False
        self.tally = Tally()

    def feed(self, piece: str) -> str:
        """Take the next piece; return what is redacted and final, maybe nothing.

        Raises RedactionError, and ValueError once it is closed.
        """
        if self._closed:
            raise ValueError("the stream is closed")
        ready = []
        for start in range(0, len(piece), _CHUNK):
            self._pieces.append(piece[start : start + _CHUNK])
            self._length += len(self._pieces[-1])
            # Each try costs as much as what is held is long.
            if self._length >= self._tried + max(self._tried // 4, CONTEXT):
                ready.append(self._released())
        return "".join(ready)

    def close(self) -> str:
        """Return the redacted rest.  Raises RedactionError."""
        if self._closed:
            return ""
        clean, tally = self._redacted("".join(self._pieces))
        self._pieces, self._closed = [], True
        self.tally.update(tally)
        return clean[self._shared :]

    def _released(self) -> str:
        held = "".join(self._pieces)
        clean = ""
        if cut := self._cut(held):
            place, clean, tally = cut
            clean, held = clean[self._shared :], held[place:]
            self._shared = 1
            self.tally.update(tally)
        self._pieces, self._length, self._tried = [held], len(held), len(held)
        return clean

    def _redacted(self, text: str) -> tuple[str, Tally]:
        return self._redactor.text(text, tag=self._tag)

    def _cut(self, text: str) -> _Cut | None:
        """The last place at which ``text`` can be divided, and each part stand alone.

        That is where nothing before it can be judged anew when more text comes, nothing
        that is to come looks back over it, and the parts together become what the whole
        becomes.  Both parts have the character there, so that a pattern sees what is
        next to what it matches.
        """
        registered = self._redactor.registered
        longest = registered.longest() if isinstance(registered, Registered) else 0
        if len(text) <= self._back + self._open + longest:
            return None
        clean = not (
            longest
            or self._redactor.scanner.stirs(text)
            or self._placeholders.within(text)
        )
        folded = fold(text)
        if clean:
            last = len(folded.text) - self._back - self._open
            for place in _places(text, folded, last):
                return place, text[: place + 1], Tally()
            return None
        last = self._settled(folded.text) - longest
        places = list(_places(text, folded, last))
        return self._divided(text, places) if places else None

    def _settled(self, text: str) -> int:
        """Up to where nothing in ``text``, which is folded, can be judged anew."""
        end = len(text) - self._open
        end = run_start(text, end, IN_RUN) - self._back
        lower = text.lower()
        for literal, rules, span in self._gates:
            place = lower.find(literal, max(0, len(text) - span))
            while 0 <= place < end + self._back:
                if any(_may_go_on(rule, text, place) for rule in rules):
                    end = min(end, place - self._back)
                    break
                place = lower.find(literal, place + 1)
        return end

    def _divided(self, text: str, places: list[int]) -> _Cut | None:
        whole, _ = self._redacted(text)
        for place in places:
            clean, tally = self._redacted(text[: place + 1])
            shared = text[place]
            if not clean.endswith(shared) or not whole.startswith(clean):
                continue
            rest, _ = self._redacted(text[place:])
            if rest.startswith(shared) and clean + rest[1:] == whole:
                return place, clean, tally
        return None


def _gates(rules: tuple[Rule, ...]) -> dict[str, list[Rule]]:
    found: dict[str, list[Rule]] = {}
    for rule in rules:
        if rule.at == "gate":
            for literal in rule.gate:
                found.setdefault(literal, []).append(rule)
    return found


def _opening(rule: Rule) -> int:
    """How long what triggers ``rule`` is at most."""
    longest = max(map(len, rule.gate), default=0)
    return longest + reach(rule.lead) + reach(rule.then)


def _may_go_on(rule: Rule, text: str, place: int) -> bool:
    """Whether more text could change what ``rule`` makes of ``place``."""
    match = re.compile(rule.pattern).match(text, place)
    if match and match.end() + _JUDGED > len(text):
        return True
    try:
        return bool(unfinished(rule.pattern).match(text, place))
    except RecursionError:
        return True


def _places(text: str, folded: Folded, last: int) -> Iterator[int]:
    """Places in ``text`` to cut at, the best first: ends of lines, spaces, any.

    ``last`` is a place in ``folded``.  Lines are folded as a whole: one is divided only
    if there is nothing to fold in its first part.
    """
    if last <= 0:
        return
    end = folded.place(last)
    yield from _spread(text, "\n", end)
    start = text.rfind("\n", 0, end) + 1
    part = text[start:end]
    plain = part.isascii() and "\\u" not in part
    if not plain and fold(part + _HIDDEN).text != part:
        return
    yield from _spread(text, " ", end, start)
    if " " not in part[-1024:] and end - 1 > start:
        yield end - 1


def _spread(text: str, character: str, end: int, start: int = 0) -> Iterator[int]:
    """Some places of ``character``, from the last one on in growing steps."""
    step = 0
    for _ in range(_TRIES):
        end = text.rfind(character, start, max(start, end - step))
        if end <= 0:
            return
        yield end
        step = 2 * step + 1


# What every record has: all else came from `extra`, or from a formatter.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({})))
_FORMATTER: Final = logging.Formatter()


class TextSink(Protocol):
    """A stream that text is written to."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


class RedactingFilter(logging.Filter):
    """A filter of log records that lets all pass, redacted: for handlers and loggers.

    On a handler it sees every record that the handler writes; on a logger only those
    that are logged with that very logger.  It redacts the message with its arguments,
    the text of an exception and of a stack, and what ``extra`` added.  The exception
    itself is taken off the record: its text stands in ``exc_text``.

    It never raises: what cannot be redacted is withheld, and the record says why.
    """

    def __init__(self, redactor: Redactor, name: str = "") -> None:
        super().__init__(name)
        self._redactor = redactor

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact ``record`` in place, if its logger is under the filter's name."""
        if not super().filter(record):
            return True
        record.msg = self._kept(lambda: self._message(record))
        record.args = None
        if record.exc_info or record.exc_text:
            record.exc_text = self._kept(lambda: self._exception(record))
            record.exc_info = None
        if record.stack_info:
            record.stack_info = self._kept(lambda: self._text(str(record.stack_info)))
        for name in vars(record).keys() - _STANDARD:
            extra = partial(self._extra, name, vars(record)[name])
            vars(record)[name] = self._kept(extra)
        return True

    def _message(self, record: logging.LogRecord) -> Any:
        if isinstance(record.msg, dict) and not record.args:
            return self._redactor.value(record.msg)[0]
        return self._text(record.getMessage())

    def _exception(self, record: logging.LogRecord) -> str:
        told = record.exc_info if record.exc_info and record.exc_info[0] else None
        text = _FORMATTER.formatException(told) if told else record.exc_text
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

    def _kept(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Exception as error:
            return _withheld(error)


class RedactingWriter(io.TextIOBase):
    """A text stream that writes to another what is redacted: for what tools print.

    What is written together is the text of all writes together, redacted, however the
    writes divide it.  So the end of it is held back until what follows shows that no
    value goes on there: ``flush`` writes what is safe, ``close`` all.  The other stream
    stays open.

    It has no ``fileno`` and no ``buffer``: bytes written to those would pass unseen.
    Threads may share it.
    """

    def __init__(self, stream: TextSink, redactor: Redactor) -> None:
        super().__init__()
        self._stream, self._redactor = stream, redactor
        self._redacting = StreamRedactor(redactor)
        self._lock = RLock()
        self._busy = False

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def write(self, text: str, /) -> int:
        """Take ``text``; return its length.  What cannot be redacted is withheld."""
        with self._lock:
            if self.closed:
                raise ValueError("write to a closed RedactingWriter")
            self._pass(lambda: self._redacting.feed(text))
        return len(text)

    def flush(self) -> None:
        """Flush the other stream; what is held back stays held back."""
        with self._lock:
            if not self.closed:
                self._stream.flush()

    def close(self) -> None:
        """Write what is held back, and take no more."""
        with self._lock:
            if self.closed:
                return
            try:
                self._pass(self._redacting.close)
            finally:
                super().close()

    def _pass(self, work: Callable[[], str]) -> None:
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
    """The lines of the text that ``lines`` are together, redacted.

    A value of several lines is found too; one that has become a placeholder leaves
    fewer lines.  Raises RedactionError.
    """
    redacting = StreamRedactor(redactor)
    rest = ""
    for line in lines:
        ready = rest + redacting.feed(line)
        *whole, rest = ready.split("\n")
        yield from (f"{one}\n" for one in whole)
    *whole, rest = (rest + redacting.close()).split("\n")
    yield from (f"{one}\n" for one in whole)
    if rest:
        yield rest


def _withheld(error: Exception) -> str:
    return f"[withheld: redaction stopped with {type(error).__name__}]"
