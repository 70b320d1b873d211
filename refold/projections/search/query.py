"""Queries: words of which any matches, phrases, and filters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Self

from refold.domain.envelope import microseconds
from refold.domain.errors import InvalidEvent
from refold.domain.events import check_types
from refold.projections.search import documents
from refold.projections.search.terms import (
    STOP_STEMS,
    normalized,
    phrase_pattern,
    terms,
    whole_terms,
)

MOST_TERMS: Final = 50  # words in one search
_FILTERS: Final = (
    "type",
    "tool",
    "file",
    "model",
    "failed",
    "after",
    "before",
    "session",
)
_QUOTES: Final = '"\u201c\u201d\u201e'
_NOT_QUOTE: Final = f"[^{_QUOTES}]*"
_CLAUSE: Final = re.compile(
    rf"(?P<name>{'|'.join(_FILTERS)}):"
    rf"(?:[{_QUOTES}](?P<quoted_value>{_NOT_QUOTE})[{_QUOTES}]?|(?P<value>\S*))"
    rf"|[{_QUOTES}](?P<phrase>{_NOT_QUOTE})[{_QUOTES}]?"
    rf"|(?P<word>[^\s{_QUOTES}]+)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Query:
    """The conditions and the terms of a search.

    terms:    an event with any of them matches.
    phrases:  each must be in the event.
    required: facts that each event must have, and terms of the phrases.
    any_of:   of each set, an event must have one fact.
    excluded: facts that no event may have.
    after:    the earliest time, in microseconds since 1970.
    before:   the time that each event precedes.
    session:  the name of the only session to search, or the beginning of names.
    """

    terms: frozenset[str] = frozenset()
    phrases: tuple[re.Pattern[str], ...] = ()
    required: frozenset[str] = frozenset()
    any_of: tuple[frozenset[str], ...] = ()
    excluded: frozenset[str] = frozenset()
    after: int | None = None
    before: int | None = None
    session: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a query.

        Raises InvalidEvent for a query without words and filters, with more than 50
        words, or with a filter that has no valid value.
        """
        clauses = _Clauses()
        for match in _CLAUSE.finditer(text):
            if match["name"]:
                value = match["quoted_value"] or match["value"] or ""
                clauses.add_filter(match["name"].lower(), value)
            elif match["phrase"] is not None:
                clauses.add_phrase(match["phrase"])
            else:
                clauses.words.append(match["word"])
        wanted = clauses.wanted_terms()
        count = len(wanted)
        if count > MOST_TERMS or not (count or clauses.filters):
            raise InvalidEvent(f"search for 1 to {MOST_TERMS} words, not for {count}")
        return cls(
            terms=frozenset(wanted),
            phrases=tuple(clauses.phrases),
            required=frozenset(clauses.required),
            any_of=tuple(clauses.any_of),
            excluded=frozenset(clauses.excluded),
            after=clauses.after,
            before=clauses.before,
            session=clauses.session,
        )

    @property
    def has_filters(self) -> bool:
        """Whether an event with one of the terms may not match."""
        conditions = (self.required, self.any_of, self.excluded)
        return any(conditions) or self.after is not None or self.before is not None


@dataclass(slots=True)
class _Clauses:
    """The clauses of a query, collected one after another."""

    words: list[str] = field(default_factory=list)
    quoted: list[str] = field(default_factory=list)
    phrases: list[re.Pattern[str]] = field(default_factory=list)
    required: set[str] = field(default_factory=set)
    any_of: list[frozenset[str]] = field(default_factory=list)
    excluded: set[str] = field(default_factory=set)
    after: int | None = None
    before: int | None = None
    session: str | None = None
    filters: int = 0

    def wanted_terms(self) -> set[str]:
        """Return the terms to rank by; stop words only if there are no others."""
        in_words = set(terms(" ".join(self.words)))
        without_stop_words = in_words - STOP_STEMS
        in_phrases: set[str] = set()
        for phrase in self.quoted:
            in_phrases |= whole_terms(phrase)
        return without_stop_words | in_phrases or in_words

    def add_phrase(self, phrase: str) -> None:
        """Add words that must follow one another."""
        in_phrase = whole_terms(phrase)
        if not in_phrase:
            return
        self.quoted.append(phrase)
        self.required |= in_phrase
        self.phrases.append(phrase_pattern(normalized(phrase)))

    def add_filter(self, name: str, value: str) -> None:
        """Add a filter.  Raises InvalidEvent for a value that it cannot have."""
        self.filters += 1
        if name == "failed":
            self._add_failed(value)
            return
        if not value:
            raise InvalidEvent(f"the filter {name}: needs a value, as in {name}:…")
        match name:
            case "type":
                names = check_types(value.split(","))
                self.any_of.append(_facts(documents.TYPE, names))
            case "tool":
                tools = value.casefold().split(",")
                self.any_of.append(_facts(documents.TOOL, tools))
            case "model":
                parts = documents.model_parts(value)
                if not parts:
                    raise InvalidEvent("the filter model: needs a name, as in opus")
                self.required |= _facts(documents.MODEL, parts)
            case "file":
                self._add_file(value)
            case "after":
                self.after = _moment(name, value)
            case "before":
                self.before = _moment(name, value)
            case "session":
                self.session = value

    def _add_failed(self, value: str) -> None:
        if value.lower() in ("", "yes", "true"):
            self.required.add(documents.FAILED)
        elif value.lower() in ("no", "false"):
            self.excluded.add(documents.FAILED)
        else:
            raise InvalidEvent("the filter failed: takes yes or no")

    def _add_file(self, value: str) -> None:
        """Add the end of a file's path, or folders if the value ends with a slash."""
        names = documents.path_names(value)
        if not names:
            raise InvalidEvent("the filter file: needs a name, as in file:store.py")
        if value.endswith(("/", "\\")):
            self.required |= _facts(documents.FOLDER, names)
        else:
            end = "/".join(names[-documents.MOST_FOLDERS :])
            self.required.add(documents.FILE + end)


def _facts(kind: str, values: Iterable[str]) -> frozenset[str]:
    return frozenset(kind + value for value in values)


def _moment(name: str, value: str) -> int:
    """Return a time in microseconds since 1970.

    value: a date, or a time of ISO 8601; in UTC unless it has an offset.

    Raises InvalidEvent for another value.
    """
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        reason = f"the filter {name}: takes a date such as 2026-03-16"
        raise InvalidEvent(reason) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return microseconds(moment)
