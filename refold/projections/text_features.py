"""What of a text decides how many tokens it is: counted, not yet weighed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from refold.domain.tokens import MESSAGE_OVERHEAD

# An image costs by its size in pixels, a page of a document by what is on it; neither
# is known without decoding it.
ATTACHMENT_TOKENS: Final = 1_600
_LETTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BLANKS: Final = b" \t\r\n\v\f"
_WORD = re.compile(rb"[A-Z]?[a-z]+|[A-Z]+")
_CJK = re.compile(
    "[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\uff00-\uffef]"
    "|[\U00020000-\U0003ffff]"
)


class Features(NamedTuple):
    """How much of each kind there is.

    word:   pieces of words in ASCII letters; ``readFile`` is two.
    mark:   ASCII signs that are neither letter nor blank.
    other:  characters that are neither ASCII nor Chinese, Japanese or Korean.
    frame:  tokens that no text decides: around messages and calls, and of images.
    """

    word: int = 0
    letter: int = 0
    mark: int = 0
    line: int = 0
    cjk: int = 0
    other: int = 0
    frame: int = 0


def of_text(text: str) -> Features:
    """The features of a text."""
    ascii_only = text.encode("ascii", "ignore")
    no_letters = ascii_only.translate(None, _LETTERS)
    foreign = len(text) - len(ascii_only)
    cjk = sum(1 for _ in _CJK.finditer(text)) if foreign else 0
    return Features(
        word=sum(1 for _ in _WORD.finditer(ascii_only)),
        letter=len(ascii_only) - len(no_letters),
        mark=len(no_letters.translate(None, _BLANKS)),
        line=ascii_only.count(b"\n"),
        cjk=cjk,
        other=foreign - cjk,
    )


def of_request(
    messages: Iterable[Mapping[str, Any]],
    system: str | Sequence[Mapping[str, Any]] | None = None,
    tools: Iterable[Mapping[str, Any]] = (),
) -> Features:
    """The features of a request, in the shapes of the Messages API."""
    parts = [*_of_content(system or "")]
    parts += [of_json(tool)._replace(frame=MESSAGE_OVERHEAD) for tool in tools]
    for message in messages:
        parts.append(Features(frame=MESSAGE_OVERHEAD))
        parts += _of_content(message["content"])
    return total(parts)


def of_json(value: Any) -> Features:
    """The features of a JSON value, written without blanks."""
    return of_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def total(parts: Iterable[Features]) -> Features:
    """The sum of features."""
    return Features(*map(sum, zip(*parts, Features(), strict=True)))


def _of_content(content: str | Sequence[Mapping[str, Any]]) -> Iterator[Features]:
    if isinstance(content, str):
        yield of_text(content)
        return
    for block in content:
        yield from _of_block(block)


def _of_block(block: Mapping[str, Any]) -> Iterator[Features]:
    match block:
        case {"type": "text", "text": str(text)}:
            yield of_text(text)
        case {"type": "tool_use", "name": str(name), "input": given}:
            yield of_text(name)._replace(frame=2 * MESSAGE_OVERHEAD)
            yield of_json(given)
        case {"type": "tool_result"}:
            yield Features(frame=2 * MESSAGE_OVERHEAD)
            yield from _of_content(block.get("content") or "")
        case {"type": "thinking", "thinking": str(text)}:
            yield of_text(text)
        case {"type": "redacted_thinking"}:
            # Encrypted: it says nothing of its tokens.
            yield Features()
        case {"source": {"type": "text", "data": str(text)}}:
            yield of_text(text)
        case {"type": "image" | "document"}:
            yield Features(frame=ATTACHMENT_TOKENS)
        case _:
            yield of_json(block)
