"""Tools that find personal data: Refold, and others if they are installed."""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from benchmarks.redaction.events import Json
from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor
from refold.redaction.rules import DEFAULT_PACKS, PACKS

_PLACEHOLDER = re.compile(r"\[REDACTED:([A-Z][A-Z0-9_]{1,39})(?:#[a-z2-7]{8})?\]")


class Span(NamedTuple):
    """A piece of a text, in characters, and its reported type."""

    start: int
    end: int
    type: str


class Tool(Protocol):
    """Something that finds personal data in texts."""

    @property
    def name(self) -> str:
        """The tool's name in the table."""
        ...

    def spans(self, text: str) -> Sequence[Span]:
        """Return the findings, with types in the words of this benchmark."""
        ...


def replaced(before: str, after: str) -> list[Span]:
    """Return the pieces of ``before`` that the placeholders of ``after`` replace.

    Only the texts are compared: the text between placeholders must be unchanged, except
    for white space, which JSON in a string may lose.  If it is changed, nothing counts
    as covered, and the change itself counts as found.
    """
    kept, types = _split(after)
    if not types:
        return []
    spans = _aligned(before, kept, types)
    if spans is None:
        places = [at for at, sign in enumerate(before) if not sign.isspace()]
        dense = "".join(before[at] for at in places)
        spans = _aligned(dense, ["".join(piece.split()) for piece in kept], types)
        if spans is None:
            return [Span(0, 0, "ALTERED")]
        spans = [Span(places[s], places[e - 1] + 1, kind) for s, e, kind in spans]
    return spans


def _aligned(before: str, kept: list[str], types: list[str]) -> list[Span] | None:
    match = re.fullmatch("(.+?)".join(map(re.escape, kept)), before, re.DOTALL)
    if match is None:
        return None
    return [
        Span(match.start(number), match.end(number), kind)
        for number, kind in enumerate(types, start=1)
    ]


def _split(after: str) -> tuple[list[str], list[str]]:
    pieces = _PLACEHOLDER.split(after)
    return pieces[::2], pieces[1::2]


EngineName: TypeAlias = Literal["auto", "vectorscan", "stdlib"]
# Best first.
ENGINES: tuple[EngineName, ...] = ("vectorscan", "stdlib")
LANGUAGES = ("pii-common", "pii-cn", "secrets", "pii-us", "pii-eu", "network")


def redactor(
    engine: EngineName = "auto", packs: Iterable[str] = DEFAULT_PACKS
) -> Redactor:
    """A redactor with the rules of ``packs``."""
    rules = tuple(rule for pack in packs for rule in PACKS[pack])
    return Redactor(Plan(rules=rules, engine=engine))


def engines() -> dict[str, Redactor]:
    """A redactor of the default policy for each engine that is installed."""
    redactors: dict[str, Redactor] = {}
    for engine in ENGINES:
        try:
            redactors[engine] = redactor(engine)
        except Exception as error:
            print(f"{engine}: not measured ({type(error).__name__}: {error})")
    return redactors


@dataclass(frozen=True)
class Refold:
    """The redactor, asked for spans."""

    redactor: Redactor
    name: str = "refold"

    def spans(self, text: str) -> Sequence[Span]:
        """Return the text with replaced findings."""
        return replaced(text, self.redactor.text(text)[0])

    def value(self, value: Json) -> Json:
        """Return a JSON value without the findings."""
        return self.redactor.value(value)[0]


def without(tool: Tool, text: str) -> str:
    """Return ``text`` without the findings of ``tool``."""
    if isinstance(tool, Refold):
        return tool.redactor.text(text)[0]
    kept = []
    at = 0
    for start, end, _ in sorted(tool.spans(text)):
        kept.append(text[at : max(at, start)])
        at = max(at, end)
    return "\0".join((*kept, text[at:]))


# Their words for the types that are compared; others are not counted for or against.
_TYPES = {
    "CREDIT_CARD": "BANK_CARD",
    "EMAIL_ADDRESS": "EMAIL",
    "IBAN_CODE": "IBAN",
    "IP_ADDRESS": "IP",
    "PHONE_NUMBER": "PHONE",
    "US_SSN": "SSN",
    "US_PASSPORT": "PASSPORT",
    "US_DRIVER_LICENSE": "DRIVER_LICENSE",
    "US_ITIN": "ITIN",
    "email": "EMAIL",
    "phone": "PHONE",
    "credit_card": "BANK_CARD",
    "social_security_number": "SSN",
    "credential": "SECRET",
}
_REST = re.compile(r"[^\s\"'<>,;]*")
_REGIONS = ("US", "GB", "DE", "FR", "IL", "IN", "CA", "BR", "CN")


@dataclass(frozen=True)
class _Peer:
    name: str
    find: Callable[[str], Iterator[Span]]

    def spans(self, text: str) -> Sequence[Span]:
        return list(self.find(text))


def peers() -> list[Tool]:
    """Those that are installed; the others are named."""
    available: list[Tool] = []
    for name, make in _MAKERS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                available.append(_Peer(name, make()))
        except ImportError as error:
            print(f"{name}: not measured, not installed ({error.name})")
    return available


def _presidio() -> Callable[[str], Iterator[Span]]:
    logging.getLogger("presidio-analyzer").setLevel(logging.ERROR)
    import spacy
    from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
    from presidio_analyzer.nlp_engine import SpacyNlpEngine

    class Blank(SpacyNlpEngine):  # type: ignore[misc]  # ships no types
        """No model: pattern recognizers need none."""

        def __init__(self) -> None:
            super().__init__(models=[{"lang_code": "en", "model_name": "blank"}])
            self.nlp: Any = {"en": spacy.blank("en")}

        def load(self) -> None:
            """Nothing to load."""

    registry = RecognizerRegistry(recognizers=_recognizers())
    engine = AnalyzerEngine(
        registry=registry, nlp_engine=Blank(), supported_languages=["en"]
    )

    def find(text: str) -> Iterator[Span]:
        for result in engine.analyze(text, "en"):
            if kind := _TYPES.get(result.entity_type):
                yield Span(result.start, result.end, kind)

    return find


def _recognizers() -> list[Any]:
    from presidio_analyzer import predefined_recognizers as known

    return [
        known.CreditCardRecognizer(),
        known.CryptoRecognizer(),
        known.EmailRecognizer(),
        known.IbanRecognizer(),
        known.IpRecognizer(),
        known.PhoneRecognizer(supported_regions=_REGIONS),
        known.UrlRecognizer(),
        known.UsItinRecognizer(),
        known.UsLicenseRecognizer(),
        known.UsPassportRecognizer(),
        known.UsSsnRecognizer(),
    ]


def _scrubadub() -> Callable[[str], Iterator[Span]]:
    import scrubadub

    scrubber = scrubadub.Scrubber()

    def find(text: str) -> Iterator[Span]:
        for filth in scrubber.iter_filth(text):
            if kind := _TYPES.get(filth.type):
                yield Span(filth.beg, filth.end, kind)

    return find


class _DetectSecrets:
    """Scans files only; its settings and the file exist as long as the object.

    Of some keys it names the prefix: the finding is taken to be the whole word.
    """

    def __init__(self) -> None:
        from detect_secrets.core.scan import scan_file
        from detect_secrets.settings import default_settings

        self._scan = scan_file
        self._kept = contextlib.ExitStack()
        self._kept.enter_context(default_settings())
        atexit.register(self._kept.close)
        folder = self._kept.enter_context(tempfile.TemporaryDirectory())
        self._path = Path(folder) / "sample.txt"

    def __call__(self, text: str) -> Iterator[Span]:
        self._path.write_text(text, encoding="utf-8", newline="")
        lines = [(0, ""), *_numbered(text)]
        for secret in self._scan(str(self._path)):
            start, line = lines[secret.line_number]
            at = line.find(secret.secret_value or "\0")
            if at >= 0:
                rest = _REST.match(line, at + len(secret.secret_value))
                end = rest.end() if rest else at
                yield Span(start + at, start + end, "SECRET")


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    start = 0
    for line in io.StringIO(text):
        yield start, line
        start += len(line)


_MAKERS: dict[str, Callable[[], Callable[[str], Iterator[Span]]]] = {
    "presidio": _presidio,
    "scrubadub": _scrubadub,
    "detect-secrets": _DetectSecrets,
}
