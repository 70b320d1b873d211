"""The names of the tools that Refold answers itself: no way to a goal leads by them."""

from __future__ import annotations

from typing import Final

RETRIEVAL: Final = "memory_retrieval"
FILES: Final = "memory"
OWN_TOOLS: Final = frozenset({RETRIEVAL, FILES})
