"""Other tools on the same data, where installed: Presidio and two more."""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.redaction.finding import Span, Tool

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
    found: list[Tool] = []
    for name, make in _MAKERS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found.append(_Peer(name, make()))
        except ImportError as error:
            print(f"{name}: not measured, not installed ({error.name})")
    return found


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
    """Scans files only; its settings and the file are kept as long as it is.

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
