"""Which entry of a transcript is which, by whatever way it comes in.

An import, a capture, a hook and the store of a framework give an entry the same name.
So whichever appends it first, the others find it there.
"""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from typing import Any, Final

from refold.domain.envelope import Format, Native

_DIGITS: Final = 32  # of the hexadecimal digest of an entry's bytes


class Identities:
    """Names the entries of one file, one after another.

    An entry goes by the id that its program gave it, else by its bytes.  Equal entries
    without an id are numbered from the second one on.
    """

    def __init__(self, equal: Counter[bytes] | None = None) -> None:
        self._equal = Counter[bytes]() if equal is None else equal

    def native(self, form: Format, value: Any, raw: bytes) -> Native:
        """The entry as an item of its session; ``raw`` are its bytes in the file."""
        identity = form.id(value) or self._by_bytes(raw)
        return Native(form, form.kind(value), identity, value)

    def _by_bytes(self, raw: bytes) -> str:
        digest = sha256(raw).digest()
        self._equal[digest] += 1
        name = digest.hex()[:_DIGITS]
        count = self._equal[digest]
        return name if count == 1 else f"{name}#{count}"
