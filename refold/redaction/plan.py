"""What a redactor is to do, checked and complete: a policy becomes one."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import BoundedSemaphore, Thread
from time import monotonic
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import orjson

from refold.redaction.engines import EngineName
from refold.redaction.engines.fold import fold
from refold.redaction.rules import DEFAULT_RULES
from refold.redaction.rules.rule import Rule
from refold.redaction.types import GROUPED, TYPES, canonical, well_formed
from refold.redaction.values import NO_SKIP, JsonValue, RedactionError, Skip

Action: TypeAlias = Literal["redact", "keep", "drop_leaf"]
# Twice what the densest list of telephone numbers or passwords takes.
WORK_PER_KB: Final = 4096
# (type, value) to the eight characters that stand for the value, always the same.
Tagger: TypeAlias = Callable[[str, str], str]


@dataclass(frozen=True, slots=True)
class Plan:
    """Rules, and what is done with what they find.

    min_score:      from which score on a value is found, from 0 to 1.
    actions:        by type: ``redact`` (the default), ``keep``, or ``drop_leaf``, which
                    replaces the whole text that holds such a value.
    allow_values:   exact values that are never redacted; they win over every rule.
    allow_patterns: patterns; a value that one matches as a whole is never redacted.
    skip:           paths of a value that are left alone.
    skip_keys:      keys under which everything is left alone, wherever they stand.
    keys:           whether keys are redacted too.
    numbers:        integers are redacted with context or a checksum, never, or like
                    text.
    nested_json:    whether JSON in strings is redacted as JSON.
    labels:         by type: what stands between the brackets of its placeholder,
                    instead of ``REDACTED:TYPE``.
    audit:          what a receipt says: that it was scanned, counts, or also paths.
    on_error:       an error refuses the value, or replaces the text it happened in.
    max_leaf_bytes: the most bytes of a text.
    budget_ms:      how long one value may take at most; 0: as long as it needs.
    work_per_kb:    how many steps a text may take for each 1024 characters; 0: any.
    over_budget:    a text that takes more refuses the value, or a stub is in its place.
    pseudonyms:     placeholders carry a tag, the same for equal values of a user.
    numbered:       placeholders carry a number, the same for equal values of a session.
    kept:           types whose values are kept, encrypted, for who may see them.
    kept_sec:       how long, in seconds; 0: as long as the session.
    """

    name: str = "default"
    rules: tuple[Rule, ...] = DEFAULT_RULES
    engine: EngineName = "auto"
    min_score: float = 0.6
    actions: Mapping[str, Action] = field(default_factory=dict)
    allow_values: frozenset[str] = frozenset()
    allow_patterns: tuple[str, ...] = ()
    skip: Skip = NO_SKIP
    skip_keys: frozenset[str] = frozenset()
    keys: bool = True
    numbers: Literal["contextual", "never", "always"] = "contextual"
    nested_json: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    audit: Literal["silent", "counts", "paths"] = "counts"
    on_error: Literal["block", "drop_leaf"] = "block"
    max_leaf_bytes: int = 16_777_216
    budget_ms: int = 0
    work_per_kb: int = WORK_PER_KB
    over_budget: Literal["refuse", "stub"] = "refuse"
    pseudonyms: bool = False
    numbered: bool = False
    kept: frozenset[str] = frozenset()
    kept_sec: int = 0

    @property
    def numbered_kinds(self) -> frozenset[str]:
        """The types whose placeholders carry numbers."""
        if not self.numbered:
            return frozenset()
        return frozenset(TYPES).union(rule.type for rule in self.rules)

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that stand for all that decides what is redacted.

        The engine is not part of it: all engines find the same.
        """
        rules = [rule.canonical() for rule in sorted(self.rules, key=lambda r: r.id)]
        canonical = [
            rules,
            self.min_score,
            sorted(self.actions.items()),
            sorted(self.allow_values),
            sorted(self.allow_patterns),
            sorted(map(list, self.skip)),
            sorted(self.skip_keys),
            self.keys,
            self.numbers,
            self.nested_json,
            sorted(self.labels.items()),
            self.audit,
            self.on_error,
            self.max_leaf_bytes,
            self.pseudonyms,
            # Fingerprints of plans that number nothing stay what they are.
            *(["numbered"] if self.numbered else []),
        ]
        return hashlib.sha256(orjson.dumps(canonical)).hexdigest()[:12]


_HAN = re.compile("[\u3400-\u9fff]")
# Runs that were given up go on in the background: no more than so many at a time.
_AT_ONCE: Final = 4


class Span(NamedTuple):
    """A value in a text: places in characters, its type, how likely it is (0 to 1)."""

    start: int
    end: int
    type: str
    score: float


class Recognizer(Protocol):
    """Finds values in texts, in memory and on this machine.

    Threads may call it at the same time.
    """

    def analyze(self, text: str, language: str) -> Iterable[Span]:
        """The values in ``text``; ``language`` is a code like ``en`` or ``zh``."""


class _Failed(Exception):
    """A recognizer gave no answer that can be used; the message holds no text."""


@dataclass(frozen=True, eq=False, repr=False)
class Guard:
    """A recognizer that may be slow or wrong, and can do no harm by it.

    budget_ms:  how long one text may take; what takes longer is given up.
    on_failure: ``closed``: a text that was not recognized is refused; ``open``: it
                passes with what the rules found.
    max_bytes:  a longer text, in UTF-8, is not given to the recognizer: that is a
                failure too.
    language:   of all texts, or ``auto``: ``zh`` where there is a Chinese character,
                else ``en``.
    min_score:  what is less likely is no finding.
    """

    recognizer: Recognizer
    _: KW_ONLY
    budget_ms: int = 200
    on_failure: Literal["closed", "open"] = "closed"
    max_bytes: int = 65_536
    language: str = "auto"
    min_score: float = 0.6
    _running: BoundedSemaphore = field(
        init=False, default_factory=lambda: BoundedSemaphore(_AT_ONCE)
    )

    def spans(self, text: str) -> list[Span]:
        """What the recognizer finds in ``text``, in order, with our names of types.

        Raises RedactionError if it fails and that is to stop redaction.
        """
        if not text.strip():
            return []
        try:
            spans = sorted(_span(item, len(text)) for item in self._analyzed(text))
            return [span for span in spans if span.score >= self.min_score]
        except _Failed as failed:
            reason = str(failed)
        if self.on_failure == "open":
            return []
        # Outside of `except`, so that no context is attached.
        raise RedactionError(f"the recognizer {reason}")

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """(start, end, type) of each span, as a redactor asks for them."""
        return [(span.start, span.end, span.type) for span in self.spans(text)]

    def _analyzed(self, text: str) -> list[object]:
        if len(text.encode("utf-8", "surrogatepass")) > self.max_bytes:
            raise _Failed(f"takes at most {self.max_bytes} bytes")
        budget = self.budget_ms / 1000
        deadline = monotonic() + budget
        late = _Failed(f"took more than {self.budget_ms:.0f} ms")
        if not self._running.acquire(timeout=budget):
            raise late
        answers: SimpleQueue[list[object] | str] = SimpleQueue()
        # A daemon, so that one that never ends does not keep the program from it.
        Thread(target=self._run, args=(text, answers), daemon=True).start()
        try:
            answer = answers.get(timeout=max(0.0, deadline - monotonic()))
        except Empty:
            raise late from None
        if isinstance(answer, str):
            raise _Failed(f"stopped with {answer}")
        return answer

    def _run(self, text: str, answers: SimpleQueue[list[object] | str]) -> None:
        try:
            language = self.language
            if language == "auto":
                language = "zh" if _HAN.search(text) else "en"
            answers.put(list(self.recognizer.analyze(text, language)))
        except BaseException as error:
            # Its message may hold the text, its type does not.
            answers.put(type(error).__name__)
        finally:
            self._running.release()


def _span(item: Any, length: int) -> Span:
    """``item`` as a span within a text of that length; no name of a type is OTHER."""
    try:
        start, end, kind, score = item
        well = (type(start), type(end)) == (int, int) and 0 <= start < end <= length
        found = float(score)
    except (TypeError, ValueError):
        raise _Failed("returned something that is not a span") from None
    if not well:
        raise _Failed("returned a span outside of the text")
    if not 0 <= found <= 1:
        raise _Failed("returned a score that is not from 0 to 1")
    name = canonical(kind) if isinstance(kind, str) else ""
    return Span(start, end, name if well_formed(name) else "OTHER", found)


_NOT_DIGIT = re.compile(r"[^0-9]")
_NOT_ALNUM = re.compile(r"[\W_]")
_CHINA = re.compile(r"(?:00)?86(?=1[3-9][0-9]{9}$)")


def tag(key: bytes, type: str, value: str) -> str:  # noqa: A002 - what it is called
    """Eight characters that stand for ``value`` of that ``type`` under a user's key.

    Whoever has the key can try all telephone numbers: it is to be kept apart from the
    events, and to be destroyed with the user.
    """
    kind = canonical(type)
    message = f"{kind}\0{plain(kind, value)}".encode("utf-8", "surrogatepass")
    digest = hmac.digest(key, message, "sha256")
    return base64.b32encode(digest).decode().lower()[:8]


def plain(type: str, value: str) -> str:  # noqa: A002 - what it is called
    """``value`` however it was written, so that equal values have one tag."""
    text = fold(value).text.strip()
    if type == "PHONE":
        return _CHINA.sub("", _NOT_DIGIT.sub("", text))
    if type == "EMAIL":
        return text.replace("%40", "@").lower()
    return _NOT_ALNUM.sub("", text).upper() if type in GROUPED else text


def tagger(user_key: bytes) -> Tagger:
    """What gives each value its tag."""
    return partial(tag, user_key)


def late(user_key: Callable[[], bytes], type: str, value: str) -> str:  # noqa: A002
    """The tag of a value under a key that is asked for only where one is found."""
    return tag(user_key(), type, value)


class Numbers(Protocol):
    """A tagger that numbers values: ``told`` puts numbers for its tags in the end.

    ours: the model wrote it, and may name a placeholder that it was given.
    """

    def __call__(self, kind: str, value: str) -> str:
        """The tag of a value."""

    def told(self, value: JsonValue, *, ours: bool) -> JsonValue:
        """``value``, redacted with this, with numbers for tags."""
