"""A deterministic estimate of tokens: decisions use it, so replay decides the same."""

from __future__ import annotations

from math import ceil
from typing import Any

MESSAGE_OVERHEAD = 4
_ASCII_PER_TOKEN = 4.0
_OTHER_PER_TOKEN = 1.2


def estimate_text(text: str) -> int:
    """Estimate how many tokens ``text`` costs.

    Four ASCII characters a token; of all others (Chinese, Japanese, emoji) 1.2 a
    token.
    """
    ascii_bytes = len(text) if text.isascii() else len(text.encode("ascii", "ignore"))
    return ceil(
        ascii_bytes / _ASCII_PER_TOKEN + (len(text) - ascii_bytes) / _OTHER_PER_TOKEN
    )


def estimate(value: Any) -> int:
    """Estimate the tokens of a JSON value: its strings, keys and numbers."""
    total, parts = 0, [value]
    for part in parts:  # which grows meanwhile: every append estimates, calls cost
        if isinstance(part, str):
            # Of ASCII it is what estimate_text says, a quarter rounded up.
            total += -(-len(part) // 4) if part.isascii() else estimate_text(part)
        elif isinstance(part, dict):
            total += len(part)
            parts += part
            parts += part.values()
        elif isinstance(part, list | tuple):
            total += len(part)
            parts += part
        elif part is not None:
            total += 1
    return total
