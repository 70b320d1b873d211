"""A deterministic estimate of tokens: decisions use it, so replay decides the same."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

MESSAGE_OVERHEAD = 4
_ASCII_PER_TOKEN = 4.0
_OTHER_PER_TOKEN = 1.2
_SINGLE: Final = frozenset({int, float, bool})
_PLAIN: Final[tuple[type, ...]] = (str, dict, list, tuple)


def estimate_text(text: str) -> int:
    """Estimate how many tokens ``text`` costs.

    Four ASCII characters a token; of all others (Chinese, Japanese, emoji) 1.2 a
    token.
    """
    size = len(text)
    plain = size if text.isascii() else len(text.encode("ascii", "ignore"))
    return ceil(plain / _ASCII_PER_TOKEN + (size - plain) / _OTHER_PER_TOKEN)


def estimate(value: Any) -> int:
    """Estimate the tokens of a JSON value: its strings, keys and numbers."""
    total, parts, texts = 0, [value], list[str]()
    for part in parts:  # which grows meanwhile: every append estimates, calls cost
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
        elif kind in _SINGLE:
            total += 1
        elif part is not None:
            # Of a class of its own, it is what that class is.
            plain = next((c for c in _PLAIN if isinstance(part, c)), None)
            if plain is None:
                total += 1
            else:
                parts.append(plain(part))
    for text in texts:
        # Of ASCII it is what estimate_text says, a quarter rounded up.
        total += (len(text) + 3) // 4 if text.isascii() else estimate_text(text)
    return total
