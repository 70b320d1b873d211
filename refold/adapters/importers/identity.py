"""Which entry of a transcript is which, by whatever way it comes in.

An import, a capture, a hook and the store of a framework give an entry the same name.
So whichever appends it first, the others find it there.
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

    An entry goes by the id that its program gave it, else by its content.  Equal
    entries without an id are numbered from the second one on.
    """

    def __init__(self) -> None:
        self._equal = Counter[str]()

    def native(self, form: Format, value: Any) -> Native:
        """The next entry of the file as an item of its session."""
        identity = form.id(value) or self._numbered(content_digest(value))
        return Native(form, form.kind(value), identity, value)

    def restore(self, identity: str) -> None:
        """Count an entry that was named before, by its identity."""
        match = _NUMBERED.fullmatch(identity)
        if match:
            digest = match[1]
            number = int(match[2] or 1)
            self._equal[digest] = max(self._equal[digest], number)

    def take_back(self, value: Any) -> None:
        """Count an entry without an id once less, since it is going to be named again.

        An entry that was not counted is passed over.
        """
        digest = content_digest(value)
        if self._equal[digest]:
            self._equal[digest] -= 1

    def _numbered(self, digest: str) -> str:
        self._equal[digest] += 1
        count = self._equal[digest]
        return digest if count == 1 else f"{digest}#{count}"


def content_digest(value: Any) -> str:
    """A digest of an entry as its program writes it: JSON without spaces.

    It does not depend on the bytes of a file, since the store of a framework is given
    the entry without them.
    """
    try:
        data = orjson.dumps(repaired(value)[0])
    except RecursionError:
        raise InvalidEvent("the entry is nested too deeply: flatten it") from None
    return sha256(data).hexdigest()[:_DIGITS]
