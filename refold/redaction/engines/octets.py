"""Patterns over characters as patterns over the bytes of their UTF-8."""

from __future__ import annotations

import re

# A class with what is said of how often, an escape, or any other character.
_TOKEN = re.compile(
    r"(?P<set>\[\^?(?:\\.|[^\]\\])+\])(?:(?P<maybe>\?)|\{(?P<least>\d+),(?P<most>\d+)\})?"
    r"|(?P<other>\\.|.)",
    re.DOTALL,
)
_MEMBER = re.compile(r"(\\.|[^\\])(?:-(\\.|[^\\]))?", re.DOTALL)
# Any character that is not ASCII; for a range of many, that is near enough.
_ANY = r"[\xc2-\xf4][\x80-\xbf]{1,3}"
_MANY = 512


def in_bytes(pattern: str) -> str:
    """``pattern`` over bytes: it matches wherever that does, perhaps more often."""
    out = []
    for token in _TOKEN.finditer(pattern):
        if token["set"] is None:
            out.append(_hex(token["other"]))
        elif token["set"].startswith("[^"):
            out.append(_negated(token, pattern))
        else:
            often = token[0][len(token["set"]) :]
            out.append(_members(token["set"]) + often)
    return "".join(out)


def narrow(pattern: str) -> str:
    """What of ``pattern`` can match in ASCII; empty: nothing."""
    only = _CLASS_OR_WAY.sub(_of_ascii, pattern)
    return only if only.isascii() and "[]" not in only else ""


# A class, or one way of a group that cannot match in ASCII.
_CLASS_OR_WAY = re.compile(
    r"\[(?:\\.|[^\]\\])+\]|\|[^\x00-\x7f]+(?=[|)])|(?<=\(\?:)[^\x00-\x7f]+\|"
)
_WIDE = re.compile(r"[^\x00-\x7f](?:-[^\x00-\x7f])?")


def _of_ascii(match: re.Match[str]) -> str:
    return _WIDE.sub("", match[0]) if match[0][0] == "[" else ""


def _hex(text: str) -> str:
    if text.isascii():
        return text
    escaped = "".join(rf"\x{byte:02x}" for byte in text.encode())
    return f"(?:{escaped})"


def _negated(token: re.Match[str], pattern: str) -> str:
    """A character that is none of some ASCII ones may take four bytes.

    At either end of a pattern one of them is enough.
    """
    negated, most = token["set"], token["most"]
    if most:
        return f"{negated}{{{token['least']},{4 * int(most)}}}"
    if token["maybe"]:
        return f"{negated}{{0,4}}"
    first = pattern[: token.start()] in ("", "(?:", "(?:^|")
    return negated if first or token.end() == len(pattern) else f"{negated}{{1,4}}"


def _members(text: str) -> str:
    """A class, as ways of a group if some of its members take several bytes."""
    if text.isascii():
        return text
    plain, ways = "", []
    for first, last in _MEMBER.findall(text[1:-1]):
        if first.isascii():
            plain += f"{first}-{last}" if last else first
        elif last and ord(last) - ord(first) > _MANY:
            ways.append(_ANY)
        else:
            codes = range(ord(first), ord(last or first) + 1)
            ways += [_hex(chr(code))[3:-1] for code in codes]
    return f"(?:{'|'.join([f'[{plain}]'] * bool(plain) + ways)})"
