"""Names the entries of transcripts, so that each is recorded once.

An import, a capture, a hook and the store of a framework give an entry the same name.
The first of them appends it, and the others find that it is there.
"""

from __future__ import annotations

import re
from collections import Counter
from hashlib import sha256
from typing import Any, Final

import orjson

from refold.domain.canonical import repaired
from refold.domain.envelope import Format, Native
from refold.domain.errors import InvalidEvent

_DIGITS: Final = 32  # of the hexadecimal digest of an entry
_NUMBERED: Final = re.compile(rf"([0-9a-f]{{{_DIGITS}}})(?:#([0-9]+))?")


class Identities:
    """Names the entries of one file, one after another.

    The name is the id that the program gave an entry, else a digest of its content.
    Equal entries without an id are numbered from the second one on.
    """

    def __init__(self) -> None:
        self._equal = Counter[str]()

    def native(self, form: Format, value: Any) -> Native:
        """Return the next entry of the file as an item of its session."""
        identity = form.id(value) or self._numbered(content_digest(value))
        return Native(form, form.kind(value), identity, value)

    def restore(self, identity: str) -> None:
        """Count an entry that was named in an earlier run, by its name."""
        match = _NUMBERED.fullmatch(identity)
        if match:
            digest = match[1]
            number = int(match[2] or 1)
            self._equal[digest] = max(self._equal[digest], number)

    def take_back(self, value: Any) -> None:
        """Undo the count of an entry without an id, which will be named again.

        Does nothing if the entry was not counted.
        """
        digest = content_digest(value)
        if self._equal[digest]:
            self._equal[digest] -= 1

    def _numbered(self, digest: str) -> str:
        """Return a digest with its number; the first one has none."""
        self._equal[digest] += 1
        count = self._equal[digest]
        return digest if count == 1 else f"{digest}#{count}"


def content_digest(value: Any) -> str:
    """Return a digest of an entry's JSON without spaces.

    It does not depend on the bytes of a file, because the store of a framework gets
    entries without them.

    Raises InvalidEvent for an entry that is nested too deeply.
    """
    try:
        data = orjson.dumps(repaired(value)[0])
    except RecursionError:
        raise InvalidEvent("the entry is nested too deeply: flatten it") from None
    return sha256(data).hexdigest()[:_DIGITS]
