"""What stands in for a redacted value: ``[REDACTED:PHONE]``."""

import re

# ``#tag`` is reserved for pseudonyms; a text that holds one keeps it whole.
PLACEHOLDER = re.compile(r"\[REDACTED:[A-Z][A-Z0-9_]{1,39}(?:#[a-z2-7]{8})?\]")
LONGEST = 64
_RENAMED = re.compile(r"~[0-9]+$")


def placeholder(kind: str) -> str:
    """The placeholder for a value of type ``kind``."""
    return f"[REDACTED:{kind}]"


def pieces(text: str) -> list[tuple[str, bool]]:
    """Split ``text`` into what may be redacted and the placeholders it already has.

    Returns (piece, is a placeholder) in order; joined they are ``text``.
    """
    if "[REDACTED:" not in text:
        return [(text, False)]
    found = []
    end = 0
    for match in PLACEHOLDER.finditer(text):
        found += [(text[end : match.start()], False), (match.group(), True)]
        end = match.end()
    found.append((text[end:], False))
    return [(piece, kept) for piece, kept in found if piece]


def spoken(key: str) -> str:
    """What a redacted key still says of its value: its words, no placeholder.

    It is the same before and after ``renamed`` numbered the key, so a second pass
    sees the context of the first.
    """
    if "[REDACTED:" not in key:
        return key
    bare = PLACEHOLDER.sub(" ", key)
    return key if bare == key else _RENAMED.sub("", bare)


def renamed(key: str, taken: set[str], copies: dict[str, int]) -> str:
    """``key``, or ``key~2``, ``key~3``… if it is taken; ``copies`` counts for each."""
    name, copy = key, copies.get(key, 1)
    while name in taken:
        copy += 1
        name = f"{key}~{copy}"
    copies[key] = copy
    return name
