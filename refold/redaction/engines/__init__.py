"""What looks through bytes for all that rules are triggered by, in one pass."""

from __future__ import annotations

import codecs
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, lru_cache, partial
from importlib import import_module, util
from typing import Any, AnyStr, Final, Literal, NamedTuple, Protocol, TypeAlias

from refold.redaction.engines.patterns import reach

# Half of a surrogate pair has no UTF-8: engines see a character in its place that no
# pattern means, not a question mark.
UNPAIRED: Final = "refold.unpaired"


def _replaced(error: UnicodeError) -> tuple[bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "\ufffd".encode() * (error.end - error.start), error.end


codecs.register_error(UNPAIRED, _replaced)

EngineName: TypeAlias = Literal["auto", "vectorscan", "stdlib"]
# The number of a trigger, and where it ends.
Hit: TypeAlias = tuple[int, int]


class Engine(Protocol):
    """Triggers, ready to run over any bytes of UTF-8; threads may share it."""

    @property
    def name(self) -> str:
        """Which engine, and its version."""

    @property
    def gates(self) -> bool:
        """Whether ``in_json`` is so fast that it pays to ask it first."""

    def in_json(self, data: bytes) -> list[Hit] | None:
        """What ``scan`` finds, in JSON of texts; None: a key may say what is there."""

    def scan(self, data: bytes) -> list[Hit]:
        """(number of a trigger, where it ends) for each place that has one.

        A place may be named more than once, and one may be named that has none.
        """


class Trigger(NamedTuple):
    """One thing to look for in a text, in any ASCII case.

    literal: what must be there, in lower case; empty for a shape.
    lead:    a pattern of the character before the literal, or empty.
    then:    a pattern of what follows the literal, or empty.
    shape:   a pattern, where there is no literal.
    run:     of digits, how many there are at least; 0: it is not about digits.
    word:    what stands shortly before the digits, or right after them; the shape is
             of both.
    key:     it is of strings that name something, as keys do, and end there; it is
             only asked whether it is there, with such digits.
    """

    literal: str = ""
    lead: str = ""
    then: str = ""
    shape: str = ""
    run: int = 0
    word: str = ""
    key: bool = False

    @property
    def expression(self) -> str:
        """A pattern without groups that capture: of a rare literal, that alone."""
        if self.shape:
            return self.shape
        if self.rare:
            return re.escape(self.literal)
        return f"{self.lead}{re.escape(self.literal)}{_shortest(self.then)}"

    @property
    def beside(self) -> bool:
        """Whether it is looked for only around many digits."""
        return self.run >= MANY and not (self.key or self.word)

    @property
    def reach(self) -> int:
        """How many characters before its end the literal may begin at most."""
        return len(self.literal) + reach(self.then) + 1

    @property
    def rare(self) -> bool:
        """Whether the literal alone hardly ever stands in prose or in code."""
        literal = self.literal
        numbered = len(literal) > 2 and any(map(str.isdigit, literal))
        signed = len(literal) > 5 and not literal.isalpha() and literal[0] != "-"
        return numbered or (signed and " " not in literal)


# What follows a key in JSON, and a string that may name what is beside it; in JSON that
# is a string itself, white space is escaped.
_ENDS_KEY = re.compile(rb"(?: |\\+[nrt])*:")
_ENDS_NAME = re.compile(rb"(?: |\\+[nrt])*[:,}\]]")


# How a key ends that any other string of its object may name.
_VALUE = re.compile(rb"(?i:val|value)[\"\\]")


def holds_value(data: bytes) -> bool:
    """Whether a key in JSON may be that of a value which a string beside it names."""
    return _VALUE.search(data) is not None


def names(data: bytes, end: int, *, beside: bool) -> bool:
    """Whether what ends there in JSON may name something.

    That are keys, strings in arrays, and ``beside`` a "value", any string.
    """
    if not _ENDS_NAME.match(data, end):
        return False
    if beside or _ENDS_KEY.match(data, end):
        return True
    start = data.rfind(b'"', 0, end - 1)
    # What follows a key is what an object holds.
    return data[start - 1 : start] != b":" and data[start - 2 : start] != b": "


_TAIL = re.compile(r"(\[(?:\\.|[^\]\\])+\]|\\?[^\\)\]])\{(\d+),\d+\}$")


def _shortest(then: str) -> str:
    """``then`` without what may follow but need not, which would end at many places."""
    tail = _TAIL.search(then)
    if tail is None:
        return then
    atom, least = tail.groups()
    return then[: tail.start()] + (f"{atom}{{{least}}}" if int(least) else "")


# Six or more digits, with separators between them.
_SIX: Final = r"[0-9](?:[ .()\-/]{0,3}[0-9]){5}"
# Shapes of so many digits are looked for only around runs that have them.
MANY: Final = 10
IN_RUN: Final = "0123456789 .()-/"
# How many bytes around a run rules may look at: four for each character.
BEFORE: Final = 4 * 76
AFTER: Final = 4 * 24
_CHUNK: Final = 64


def spoken(word: str) -> Trigger:
    """A word and the digits after it that it may speak of."""
    shape = rf"{re.escape(word)}[0-9]?[^0-9]{{0,60}}{_SIX}"
    return Trigger(shape=shape, run=6, word=word)


def spoken_after(word: str) -> Trigger:
    """Digits and a word right after them that may speak of them."""
    return Trigger(shape=rf"[0-9][ \-]{{1,2}}{re.escape(word)}", run=6, word=word)


def run_start(text: AnyStr, place: int, members: AnyStr) -> int:
    """Where a run of ``members``, ``IN_RUN``, around ``place`` begins; or ``place``."""
    while place > 0:
        first = max(0, place - _CHUNK)
        place = first + len(text[first:place].rstrip(members))
        if place > first:
            break
    return place


def run_end(text: AnyStr, place: int, members: AnyStr) -> int:
    """Where what may be a run of digits around ``place`` ends, or ``place``."""
    while place < len(text):
        rest = text[place : place + _CHUNK].lstrip(members)
        place = min(place + _CHUNK, len(text)) - len(rest)
        if rest:
            break
    return place


# After so many bytes the faster engine pays for the seconds it takes to compile.
_WORTH_IT: Final = 262_144
# Filled by a process that will not live long enough for a slow start to pay.
_SHORT_LIVED: Final[list[bool]] = []


class Warming:
    """``first`` until ``make`` is worth its time; all engines find the same."""

    def __init__(self, first: Engine, make: Callable[[], Engine]) -> None:
        self._engine, self._make = first, make
        self._left = _WORTH_IT
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        """Which engine is at work now."""
        return self._engine.name

    @property
    def gates(self) -> bool:
        """Whether it is worth asking first."""
        return self._engine.gates

    def in_json(self, data: bytes) -> list[Hit] | None:
        self._count(data)
        return self._engine.in_json(data)

    def scan(self, data: bytes) -> list[Hit]:
        self._count(data)
        return self._engine.scan(data)

    def _count(self, data: bytes) -> None:
        # A lost count of another thread only makes it a little later.
        if self._left > 0:
            self._left -= len(data)
            if self._left <= 0 and self._lock.acquire(blocking=False):
                self._start()

    def _start(self) -> None:
        # A daemon, so that a process which ends does not wait for seconds until the
        # engine is compiled.  Compiling holds no lock and no data of this process.
        thread = threading.Thread(target=self._warm, name="refold-warm", daemon=True)
        # A process that ends starts no thread any more: the first engine goes on.
        with suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def join(self) -> None:
        """Wait until the change that has begun, if any, is made."""
        if self._thread is not None:
            self._thread.join()

    def _warm(self) -> None:
        self._engine = self._make()


def start_quickly() -> None:
    """Let ``auto`` mean the engine that starts fastest, for all of this process."""
    _SHORT_LIVED.append(True)


def engine_of(name: EngineName, triggers: Sequence[Trigger]) -> Engine:
    """The engine called ``name`` over ``triggers``.

    ``auto`` begins with the standard library; where Vectorscan is installed, which
    takes seconds to compile, that takes over once there was enough to do.

    Raises ModuleNotFoundError if that engine is not installed.
    """
    given = tuple(triggers)
    if name != "auto":
        return _engine(name, given)
    plain = _engine("stdlib", given)
    if _SHORT_LIVED or best() == "stdlib":
        return plain
    return Warming(plain, partial(_engine, "vectorscan", given))


@lru_cache(maxsize=8)
def _engine(name: EngineName, triggers: tuple[Trigger, ...]) -> Engine:
    engine: Engine = _module(name).Triggers(triggers)
    return engine


# The literals that are in a text, and whether the text may look like something else.
Literals: TypeAlias = Callable[[str], tuple[list[str], bool]]


def literals(name: EngineName, texts: Sequence[str]) -> Literals:
    """What says which of ``texts`` are in a text; threads may share it.

    Raises ModuleNotFoundError if that engine is not installed.
    """
    made: Literals = _module(best() if name == "auto" else name).literals(texts)
    return made


def best() -> EngineName:
    """The fastest engine that is installed."""
    return "vectorscan" if installed() else "stdlib"


@cache
def installed() -> bool:
    """Whether what Vectorscan needs is installed: not every platform has it."""
    return util.find_spec("hyperscan") is not None


def check_installed(name: EngineName) -> None:
    """Raise ModuleNotFoundError if the engine ``name`` is not installed."""
    if name == "vectorscan" and not installed():
        raise ModuleNotFoundError(
            "the redaction engine vectorscan is not installed: choose stdlib, or "
            "install hyperscan",
            name="hyperscan",
        )


def _module(name: EngineName) -> Any:
    check_installed(name)
    return import_module(f"refold.redaction.engines.{name}")
