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
    if isinstance(value, str):
        return estimate_text(value)
    if isinstance(value, dict):
        return sum(
            estimate_text(key) + 1 + estimate(item) for key, item in value.items()
        )
    if isinstance(value, list | tuple):
        return sum(estimate(item) + 1 for item in value)
    return 0 if value is None else 1
