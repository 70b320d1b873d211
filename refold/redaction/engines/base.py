"""What an engine is."""

from __future__ import annotations

import codecs
from typing import Final, Literal, Protocol, TypeAlias

# Half of a surrogate pair has no UTF-8: engines see a character in its place that no
# pattern means, not a question mark.
UNPAIRED: Final = "refold.unpaired"


def _replaced(error: UnicodeError) -> tuple[bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "\ufffd".encode() * (error.end - error.start), error.end


codecs.register_error(UNPAIRED, _replaced)

EngineName: TypeAlias = Literal["auto", "vectorscan", "re2", "stdlib"]
# The number of a trigger, and where it ends.
Hit: TypeAlias = tuple[int, int]


class Engine(Protocol):
    """Triggers, ready to run over any bytes of UTF-8; threads may share it."""

    @property
    def name(self) -> str:
        """Which engine, and its version."""
        ...

    @property
    def gates(self) -> bool:
        """Whether ``clean`` is so fast that it pays to ask it first."""
        ...

    def clean(self, data: bytes, *, beside: bool) -> bool:
        """Whether no trigger is in ``data``, which may be JSON of the texts.

        beside: strings that are no keys may name what is beside them.
        """
        ...

    def scan(self, data: bytes) -> list[Hit]:
        """(number of a trigger, where it ends) for each place that has one.

        A place may be named more than once, and one may be named that has none.
        """
        ...
