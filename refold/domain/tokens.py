"""A deterministic estimate of tokens, so that a replay makes the same decisions."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

# The tokens that each message costs in addition to its content.
MESSAGE_OVERHEAD = 4
_ASCII_PER_TOKEN = 4.0
_OTHER_PER_TOKEN = 1.2
_ONE_TOKEN_TYPES: Final = frozenset({int, float, bool})
_JSON_TYPES: Final[tuple[type, ...]] = (str, dict, list, tuple)


def estimate_text(text: str) -> int:
    """Estimate the tokens of a text.

    A token has 4 ASCII characters, or 1.2 others (Chinese, Japanese, emoji).
    """
    return ceil(weight_of_text(text))


def weight_of_text(text: str) -> float:
    """Return the estimate of a text as a fraction, for a sum of short texts."""
    size = len(text)
    ascii_size = size if text.isascii() else len(text.encode("ascii", "ignore"))
    other_size = size - ascii_size
    return ascii_size / _ASCII_PER_TOKEN + other_size / _OTHER_PER_TOKEN


def estimate(value: Any) -> int:
    """Estimate the tokens of a JSON value: its texts, keys, and numbers."""
    total = 0
    texts: list[str] = []
    # The list grows during the loop.  Recursive calls are slower, and every append
    # makes estimates.
    parts: list[Any] = [value]
    for part in parts:
        kind = type(part)
        if kind is str:
            texts.append(part)
        elif kind is dict:
            total += len(part)
            texts += part
            parts += part.values()
        elif kind is list or kind is tuple:
            total += len(part)
            parts += part
        elif kind in _ONE_TOKEN_TYPES:
            total += 1
        elif part is not None:
            # An instance of a subclass counts as one of the JSON type.
            json_type = next((t for t in _JSON_TYPES if isinstance(part, t)), None)
            if json_type is None:
                total += 1
            else:
                parts.append(json_type(part))
    for text in texts:
        # For ASCII this is the same as estimate_text, and faster.
        total += (len(text) + 3) // 4 if text.isascii() else estimate_text(text)
    return total
