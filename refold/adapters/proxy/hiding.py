"""Replaces values in the bodies of a session's requests by numbered placeholders.

Redaction searches the whole body, not only the content that becomes events.  The parts
of a body that were searched before are not searched again: each request repeats the
history.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

import orjson

from refold.adapters.proxy.placeholders import SEALED, Placeholders, is_signed
from refold.adapters.proxy.protocols.reading import json_of
from refold.domain import errors
from refold.domain.ids import StreamId
from refold.redaction.learned import Learned
from refold.redaction.redactor import RedactionError
from refold.store.appends import Writer
from refold.store.vault import Numbering, Renumbering

# A value that is found may show another one beside it.
_ROUNDS: Final = 4
_MOST_PARTS: Final = 100_000
# Fields with ids that clients and providers generate, and words of the protocols.
_IDS: Final = frozenset(
    {
        "call_id",
        "id",
        "item_id",
        "model",
        "previous_response_id",
        "role",
        "tool_call_id",
        "tool_use_id",
        "type",
    }
)
_ID: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.:/-]*")


class Hiding:
    """The values of one session that its provider does not get.

    They stay in the memory of this process.  After a restart, the next request of the
    client contains them, and they get the same numbers from the session's table.

    writer: redacts with numbered placeholders.
    """

    def __init__(self, writer: Writer, stream: StreamId) -> None:
        self._writer = writer
        self._stream = stream
        self._values: dict[str, str] = {}  # by placeholder
        self._numbers: set[str] = set()  # placeholders of numbers of JSON
        self._clean: set[bytes] = set()  # digests of parts without values
        self.placeholders = Placeholders({})

    def add(self, numbering: Numbering) -> bool:
        """Add the values that got numbers; returns whether one of them is new."""
        has_new = False
        for numbered in numbering.numbered_values():
            if self._values.get(numbered.placeholder) == numbered.value:
                continue
            has_new = True
            self._values[numbered.placeholder] = numbered.value
            if numbered.is_number:
                self._numbers.add(numbered.placeholder)
        if has_new:
            self.placeholders = Placeholders(self._values, self._numbers)
        return has_new

    def numbering(self, numbers: Mapping[str, int]) -> Numbering:
        """Return the tagger of requests: any placeholder in them may be the session's.

        numbers: the table so far.

        Raises RedactionFailed for an internal session, which has no numbers.
        """
        tag = self._writer.numbering(self._stream, numbers, kind=Renumbering)
        if not isinstance(tag, Numbering):
            reason = "its session has no numbered placeholders"
            raise errors.RedactionFailed("request", reason=reason)
        return tag

    def hidden(
        self, content: bytes, numbers: Mapping[str, int], learned: Learned
    ) -> tuple[bytes, Mapping[str, int]]:
        """Return a body with placeholders in place of values, and the table of numbers.

        content: the body without its encoding.
        numbers: the table before it.
        learned: the secrets that the session has shown.

        Raises NotRecordable if the body is not JSON.  Raises RedactionFailed if a value
        cannot be replaced, such as one in the metadata of an image.
        """
        for _ in range(_ROUNDS):
            body = self.placeholders.hidden(content)
            numbering = self._searched(body, numbers, learned)
            if numbering is None:
                return body, numbers
            numbers = numbering.known
        raise errors.RedactionFailed("request", reason="each search finds more values")

    def _searched(
        self, body: bytes, numbers: Mapping[str, int], learned: Learned
    ) -> Numbering | None:
        """Number the values in a body; returns None if it has none."""
        redactor = self._writer.redactor
        if learned.entries:
            redactor = redactor.learning(learned)
        tag = self.numbering(numbers)
        types: set[str] = set()
        value, _ = json_of(body)
        for part in _parts(value):
            name = blake2b(orjson.dumps(part), digest_size=16).digest()
            if name in self._clean:
                continue
            try:
                clean, tally = redactor.value(_without_sealed(part), tag=tag)
                if tally:
                    tag.with_numbers(clean, ours=True)
            except RedactionError as error:
                raise errors.RedactionFailed("request", reason=str(error)) from None
            if tally:
                types.update(tally.types)
                continue
            if len(self._clean) >= _MOST_PARTS:
                self._clean.clear()
            self._clean.add(name)
        if not types:
            return None
        if not self.add(tag):
            names = ", ".join(sorted(types))
            reason = f"no placeholder can stand for a value of the type {names} in it"
            raise errors.RedactionFailed("request", reason=reason)
        return tag


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the parts of a body: each item of its lists, and its other fields."""
    if not isinstance(value, dict):
        yield {"body": value}
        return
    for name, field in value.items():
        if isinstance(field, list):
            for item in field:
                yield {name: item}
        else:
            yield {name: field}


def _without_sealed(value: Any) -> Any:
    """Return JSON without the texts that a provider signed, and without ids."""
    if isinstance(value, list):
        return [_without_sealed(item) for item in value]
    if not isinstance(value, dict):
        return value
    has_signature = is_signed(value)
    searched: dict[str, Any] = {}
    for name, field in value.items():
        if name in SEALED or (has_signature and name in ("data", "thinking")):
            continue
        if name in _IDS and isinstance(field, str) and _ID.fullmatch(field):
            continue
        searched[name] = _without_sealed(field)
    return searched
