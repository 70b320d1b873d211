"""Engines: find the triggers of all rules in bytes, in one pass."""

from __future__ import annotations

import codecs
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, lru_cache, partial
from importlib import import_module, util
from typing import Any, AnyStr, Final, Literal, NamedTuple, Protocol, TypeAlias
from weakref import WeakSet

from refold.domain.locks import forkable_lock
from refold.redaction.engines.patterns import reach

# Half of a surrogate pair has no UTF-8.  Engines see a character in its place that no
# pattern contains, and no question mark.
UNPAIRED: Final = "refold.unpaired"


def _replaced(error: UnicodeError) -> tuple[bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "\ufffd".encode() * (error.end - error.start), error.end


codecs.register_error(UNPAIRED, _replaced)

EngineName: TypeAlias = Literal["auto", "vectorscan", "stdlib"]
# The number of a trigger, and the end of its place.
Hit: TypeAlias = tuple[int, int]


class Engine(Protocol):
    """Triggers, ready to be found in bytes of UTF-8; threads may share it."""

    @property
    def name(self) -> str:
        """The name of the engine and its version."""

    @property
    def gates(self) -> bool:
        """Whether ``in_json`` is so fast that calling it first saves time."""

    def in_json(self, data: bytes) -> list[Hit] | None:
        """The hits in JSON, as ``scan``; None if a key may give context to a text."""

    def scan(self, data: bytes) -> list[Hit]:
        """(number of a trigger, end) for each place that has one.

        The end of a literal is its own, without the text after it.  A place may be
        listed more than once, and a place without a trigger may be too.
        """


class Trigger(NamedTuple):
    """A form to look for in a text, in any ASCII case.

    literal: the text to find, in lower case; empty for a shape.
    lead:    a pattern of the character before the literal, or empty.
    then:    a pattern of the text after the literal, or empty.
    shape:   a pattern, for triggers without a literal.
    run:     the least number of digits; 0 for triggers without digits.
    word:    the word shortly before the digits, or right after them; the shape has
             both.
    key:     it is a word of keys and other names, which end there.  Engines only say
             whether such a word is there, and for some, digits too.
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
        """A pattern without capturing groups; of a rare literal, the literal alone."""
        if self.shape:
            return self.shape
        if self.rare:
            return re.escape(self.literal)
        return f"{self.lead}{re.escape(self.literal)}{self.after}"

    @property
    def after(self) -> str:
        """The part of ``then`` that is looked for."""
        return _shortest(self.then)

    @property
    def near_digits(self) -> bool:
        """Whether engines look for it only near many digits."""
        return self.run >= MANY and not (self.key or self.word)

    @property
    def reach(self) -> int:
        """The most characters between the start of the literal and the end of a hit."""
        return len(self.literal) + reach(self.then) + 1

    @property
    def rare(self) -> bool:
        """Whether prose and code hardly ever have the literal."""
        literal = self.literal
        if len(literal) > 2 and any(map(str.isdigit, literal)):
            return True
        if " " in literal:
            return False
        return len(literal) > 5 and not literal.isalpha() and literal[0] != "-"


# The end of a key in JSON, and of any string that may name another.  Within a JSON
# string, white space is escaped.
_ENDS_KEY = re.compile(rb"(?: |\\+[nrt])*:")
_ENDS_NAME = re.compile(rb"(?: |\\+[nrt])*[:,}\]]")


# The end of a key whose value another string of its object may name.
_VALUE = re.compile(rb"(?i:val|value)[\"\\]")


def holds_value(data: bytes) -> bool:
    """Whether JSON may have a ``value`` that another string of its object names."""
    return _VALUE.search(data) is not None


def names(data: bytes, end: int, *, has_value: bool) -> bool:
    """Whether the string that ends at ``end`` in JSON may name something.

    Keys and strings in arrays may; in JSON with a ``value``, any string may.
    """
    if not _ENDS_NAME.match(data, end):
        return False
    if has_value or _ENDS_KEY.match(data, end):
        return True
    start = data.rfind(b'"', 0, end - 1)
    # A string after a colon is the value of a key.
    return data[start - 1 : start] != b":" and data[start - 2 : start] != b": "


_TAIL = re.compile(r"(\[(?:\\.|[^\]\\])+\]|\\?[^\\)\]])\{(\d+),\d+\}$")


def _shortest(then: str) -> str:
    """``then`` without the optional rest of its last repeat, which has many ends."""
    tail = _TAIL.search(then)
    if tail is None:
        return then
    atom, least = tail.groups()
    start = then[: tail.start()]
    return f"{start}{atom}{{{least}}}" if int(least) else start


# Six or more digits, with separators between them.
_SIX: Final = r"[0-9](?:[ .()\-/]{0,3}[0-9]){5}"
# Shapes with at least this many digits are looked for only near runs that have them.
MANY: Final = 10
IN_RUN: Final = "0123456789 .()-/"
# How many bytes around a run rules may look at: four for each character.
BEFORE: Final = 4 * 76
AFTER: Final = 4 * 24
_CHUNK: Final = 64


def spoken(word: str) -> Trigger:
    """A word and digits after it to which it may give context."""
    shape = rf"{re.escape(word)}[0-9]?[^0-9]{{0,60}}{_SIX}"
    return Trigger(shape=shape, run=6, word=word)


def spoken_after(word: str) -> Trigger:
    """Digits and a word right after them that may give them context."""
    return Trigger(shape=rf"[0-9][ \-]{{1,2}}{re.escape(word)}", run=6, word=word)


def run_start(text: AnyStr, place: int, members: AnyStr) -> int:
    """The start of the run of ``members`` (``IN_RUN``) before ``place``; else that."""
    while place > 0:
        first = max(0, place - _CHUNK)
        place = first + len(text[first:place].rstrip(members))
        if place > first:
            break
    return place


def run_end(text: AnyStr, place: int, members: AnyStr) -> int:
    """The end of the run of ``members`` (``IN_RUN``) after ``place``; else that."""
    while place < len(text):
        rest = text[place : place + _CHUNK].lstrip(members)
        place = min(place + _CHUNK, len(text)) - len(rest)
        if rest:
            break
    return place


# After this many bytes, loading a compiled database costs less than going on without.
_WORTH_LOADING: Final = 32_768
# After this many bytes, the faster engine is worth the seconds of its compilation.
_WORTH_COMPILING: Final = 262_144
# Not empty in a process that ends too soon to compile.
_SHORT_LIVED: Final[list[bool]] = []


class CompiledCache(Protocol):
    """Compiled rules that processes share, so that only one of them compiles.

    fills: whether this process stores what it compiles.
    """

    fills: bool

    def load(self, rules: str) -> Sequence[bytes] | None:
        """Return the databases that were compiled from these rules, or None."""

    def discard(self, rules: str) -> None:
        """Remove databases that cannot be used."""

    def store(self, rules: str, databases: Sequence[bytes]) -> bool:
        """Store databases; returns whether other processes now find them."""

    def request(self, rules: str, triggers: Sequence[Trigger]) -> None:
        """Have another process compile and store these rules, or do nothing."""


# At most one: the cache of this process.
_caches: Final[list[CompiledCache]] = []
_logger: Final = logging.getLogger("refold")


def use_cache(cache: CompiledCache | None) -> None:
    """Load compiled rules from this cache from now on; None uses none."""
    # One assignment, since other threads read the list.
    _caches[:] = [] if cache is None else [cache]


def cache_in_use() -> CompiledCache | None:
    """Return the cache of this process; None without one."""
    return next(iter(_caches), None)


@contextmanager
def _without_failing_cache() -> Iterator[None]:
    """Log an error of the cache, and use none from then on: redaction needs none."""
    try:
        yield
    except Exception as error:
        use_cache(None)
        name = type(error).__name__
        _logger.warning("compiled rules cannot be used or stored: %s", name)


class Warming:
    """Runs ``first`` until a faster engine is worth its start; both find the same.

    make: compiles the faster engine, in a thread; None never compiles it here.
    load: returns the faster engine if it was compiled before, else None.
    """

    def __init__(
        self,
        first: Engine,
        make: Callable[[], Engine] | None,
        load: Callable[[], Engine | None] | None = None,
    ) -> None:
        self._first = first
        self._engine = first
        self._make = make
        self._load = load
        self._scanned = 0
        # After how many bytes to look for the faster engine; 0 after the last time.
        self._next_look = _WORTH_LOADING
        self._lock = forkable_lock()
        self._thread: threading.Thread | None = None
        _warming.add(self)

    @property
    def name(self) -> str:
        """The name and version of the engine that runs now."""
        return self._engine.name

    @property
    def gates(self) -> bool:
        """Whether calling ``in_json`` first saves time."""
        return self._engine.gates

    def in_json(self, data: bytes) -> list[Hit] | None:
        if self._next_look:
            self._count(data)
        return self._engine.in_json(data)

    def scan(self, data: bytes) -> list[Hit]:
        if self._next_look:
            self._count(data)
        return self._engine.scan(data)

    def look_for_faster(self) -> None:
        """Load the faster engine, or start to compile it if it is worth that by now.

        Another thread that looks at the same time looks in vain.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._look()
        finally:
            self._lock.release()

    def _count(self, data: bytes) -> None:
        # If threads lose a count, the faster engine only starts a little later.
        self._scanned += len(data)
        if self._scanned >= self._next_look:
            self.look_for_faster()

    def _look(self) -> None:
        if not self._next_look:
            return
        engine = self._loaded()
        if engine is not None:
            self._next_look = 0
            self._engine = engine
        elif self._scanned < _WORTH_COMPILING:
            self._next_look = _WORTH_COMPILING
        elif self._make is not None:
            self._next_look = 0
            self._start(self._make)
        else:  # another process may compile it
            self._next_look = self._scanned + _WORTH_COMPILING

    def _loaded(self) -> Engine | None:
        """Return the faster engine if it was compiled before and can be used."""
        if self._load is None:
            return None
        try:
            return self._load()
        except Exception as error:  # the first engine finds the same
            name = type(error).__name__
            _logger.warning("the faster engine of redaction cannot be loaded: %s", name)
            self._load = None
            return None

    def look_again_after_fork(self) -> None:
        """Look for the faster engine again if another thread was compiling it."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            if self._engine is self._first:
                self._next_look = self._scanned + _WORTH_COMPILING

    def _start(self, make: Callable[[], Engine]) -> None:
        def replace_engine() -> None:
            self._engine = make()

        # A daemon thread, so that a process can end without waiting for the compiler,
        # which holds no lock and no data of the process.
        thread = threading.Thread(
            target=replace_engine, name="refold-warm", daemon=True
        )
        # A process that is ending cannot start threads; the first engine stays.
        with suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def join(self) -> None:
        """Wait until the faster engine is there, if it was started."""
        if self._thread is not None:
            self._thread.join()


# All objects of this process that wait for a faster engine.
_warming: Final[WeakSet[Warming]] = WeakSet()


def _look_again_after_fork() -> None:
    """Called in a forked child, which has none of the threads that compile."""
    for warming in list(_warming):
        warming.look_again_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_look_again_after_fork)


def start_quickly() -> None:
    """Never compile for ``auto`` in this process, which ends too soon for that."""
    _SHORT_LIVED.append(True)


def engine_of(name: EngineName, triggers: Sequence[Trigger]) -> Engine:
    """The engine called ``name`` over ``triggers``.

    ``auto`` begins with the standard library.  If Vectorscan is installed, which takes
    seconds to compile, it takes over once enough bytes were scanned.  With a cache that
    has the compiled rules, it takes over sooner.

    Raises ModuleNotFoundError if that engine is not installed.
    """
    all_triggers = tuple(triggers)
    if name != "auto":
        return _engine(name, all_triggers)
    first = _engine("stdlib", all_triggers)
    if best() == "stdlib" or (_SHORT_LIVED and not _caches):
        return first
    make = None if _SHORT_LIVED else partial(_engine, "vectorscan", all_triggers)
    return Warming(first, make, partial(_loaded_or_requested, all_triggers))


@lru_cache(maxsize=8)
def _engine(name: EngineName, triggers: tuple[Trigger, ...]) -> Engine:
    if name == "vectorscan":
        return _loaded(triggers) or _compiled(triggers)
    engine: Engine = _module(name).Triggers(triggers)
    return engine


def _loaded_or_requested(triggers: tuple[Trigger, ...]) -> Engine | None:
    """The engine with the databases in the cache, which requests missing ones."""
    engine = _loaded(triggers)
    cache = cache_in_use()
    if engine is None and cache is not None:
        with _without_failing_cache():
            cache.request(identity_of(triggers), triggers)
    return engine


def _loaded(triggers: tuple[Trigger, ...]) -> Engine | None:
    """The engine with the databases in the cache; None without them."""
    cache = cache_in_use()
    if cache is None:
        return None
    module = _module("vectorscan")
    rules = identity_of(triggers)
    with _without_failing_cache():
        databases = cache.load(rules)
        if databases is None:
            return None
        try:
            engine: Engine = module.Triggers(triggers, databases)
        except module.UNUSABLE:  # such as those of another processor
            cache.discard(rules)
        else:
            return engine
    return None


def _compiled(triggers: tuple[Trigger, ...]) -> Engine:
    """The compiled engine, whose databases go into the cache."""
    module = _module("vectorscan")
    engine: Engine = module.Triggers(triggers)
    cache = cache_in_use()
    if cache is not None and cache.fills:
        with _without_failing_cache():
            cache.store(identity_of(triggers), module.serialized(engine))
    return engine


def is_cached(triggers: Sequence[Trigger]) -> bool:
    """Whether the cache has usable databases of the triggers.

    Raises ModuleNotFoundError if Vectorscan is not installed.
    """
    return _loaded(tuple(triggers)) is not None


def identity_of(triggers: Sequence[Trigger]) -> str:
    """Return a digest of the triggers, and of all code that compiles them.

    Raises ModuleNotFoundError if Vectorscan is not installed.
    """
    identity: str = _module("vectorscan").identity_of(triggers)
    return identity


def fill_cache(triggers: Sequence[Trigger]) -> bool:
    """Compile the triggers unless the cache has them; returns whether it has them now.

    Raises ModuleNotFoundError if Vectorscan is not installed.
    """
    if not _caches:
        return False
    if is_cached(triggers):
        return True
    _compiled(tuple(triggers))
    return is_cached(triggers)


# Returns the literals in a text, and whether the text must also be searched folded.
Literals: TypeAlias = Callable[[str], tuple[list[str], bool]]


def literals(name: EngineName, texts: Sequence[str]) -> Literals:
    """A function that returns which of ``texts`` are in a text; threads may share it.

    Raises ModuleNotFoundError if that engine is not installed.
    """
    engine = best() if name == "auto" else name
    search: Literals = _module(engine).literals(texts)
    return search


def best() -> EngineName:
    """The fastest engine that is installed."""
    return "vectorscan" if installed() else "stdlib"


@cache
def installed() -> bool:
    """Whether the package that Vectorscan needs is installed."""
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
