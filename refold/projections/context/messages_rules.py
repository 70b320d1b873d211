"""The rules of the Messages API for a conversation, each told apart and told once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

from refold.projections.context.blocks import IMAGE_TYPES, Block, is_base64

Messages = Sequence[dict[str, Any]]
Rule = Callable[[Messages], Iterator[str]]

_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_THINKING: Final = frozenset({"thinking", "redacted_thinking"})
_ROLES: Final = {
    "user": frozenset({"text", "image", "document", "tool_result"}),
    "assistant": frozenset({"text", "tool_use", "compaction"}) | _THINKING,
}
_FIELDS: Final = {
    "text": frozenset({"text", "citations"}),
    "image": frozenset({"source"}),
    "document": frozenset({"source", "title", "context", "citations"}),
    "tool_use": frozenset({"id", "name", "input"}),
    "tool_result": frozenset({"tool_use_id", "content", "is_error"}),
    "thinking": frozenset({"thinking", "signature"}),
    "redacted_thinking": frozenset({"data"}),
    "compaction": frozenset(
        {"content", "encrypted_content", "signature", "tool_changes"}
    ),
}
_ALWAYS: Final = frozenset({"type", "cache_control"})


def violations(
    messages: Sequence[dict[str, Any]], system: str | None = None
) -> list[str]:
    """What the Messages API would refuse, one sentence each; empty if nothing."""
    problems = [problem for rule in RULES for problem in rule(messages)]
    if system is not None and not system.strip():
        problems.append("system: must not be empty; leave it out")
    return problems


def roles(messages: Messages) -> Iterator[str]:
    """Messages are of the user or the assistant, and the first is the user's."""
    if not messages:
        yield "messages: at least one message is needed"
    for index, message in enumerate(messages):
        if message.get("role") not in _ROLES:
            yield f"messages.{index}: role must be user or assistant"
        if set(message) - {"role", "content"}:
            yield f"messages.{index}: holds more than role and content"
    if messages and messages[0].get("role") == "assistant":
        yield "messages.0: the first message must be the user's"


def alternation(messages: Messages) -> Iterator[str]:
    """Roles alternate."""
    for index, (one, other) in enumerate(pairwise(messages)):
        if one.get("role") == other.get("role"):
            yield f"messages.{index + 1}: two messages of one role in a row"


def contents(messages: Messages) -> Iterator[str]:
    """Every message has content, in blocks that its role may have."""
    for index, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, str | list) or not content:
            yield f"messages.{index}: content must not be empty"
        elif not all(isinstance(block, dict) for block in _blocks(message)):
            yield f"messages.{index}: content must be a text or a list of blocks"
    for where, role, block in _all(messages):
        kind = str(block.get("type"))
        if kind not in _ROLES.get(role, ()):
            yield f"{where}: a {kind} block cannot be in a message of the {role}"
        elif set(block) - _FIELDS[kind] - _ALWAYS:
            yield f"{where}: holds fields that a {kind} block does not have"


def texts(messages: Messages) -> Iterator[str]:
    """No text is empty or white space alone."""
    for where, _, block in _all(messages):
        if block.get("type") == "text" and not _filled(block.get("text")):
            yield f"{where}: text must hold more than white space"


def calls(messages: Messages) -> Iterator[str]:
    """Ids and names of calls are legal, ids unique, inputs objects."""
    ids: Counter[Any] = Counter()
    for where, _, block in _all(messages):
        if block.get("type") != "tool_use":
            continue
        if not _matches(_ID, block.get("id")):
            yield f"{where}: id must match ^{_ID.pattern}$"
        if not _matches(_NAME, block.get("name")):
            yield f"{where}: name must match ^{_NAME.pattern}$"
        if not isinstance(block.get("input"), dict):
            yield f"{where}: input must be an object"
        ids[str(block.get("id"))] += 1
        if ids[str(block.get("id"))] == 2:
            yield f"{where}: tool_use ids must be unique"


def pairs(messages: Messages) -> Iterator[str]:
    """Each call has one result in the next message, and each result such a call."""
    before: Counter[str] = Counter()
    for index, message in enumerate(messages):
        made, given = _ids(message, "tool_use", "id"), _results(message)
        if before - given:
            yield f"messages.{index - 1}: calls without a result right after them"
        if given - before:
            yield f"messages.{index}: results without a call right before them"
        before = made
    if before:
        yield f"messages.{len(messages) - 1}: calls without a result right after them"


def results(messages: Messages) -> Iterator[str]:
    """Results stand first in their message and hold texts and images that are valid."""
    for index, message in enumerate(messages):
        kinds = [block.get("type") == "tool_result" for block in _dicts(message)]
        if kinds != sorted(kinds, reverse=True):
            yield f"messages.{index}: results must stand before anything else"
    for where, _, block in _all(messages):
        if block.get("type") == "tool_result":
            yield from _result(where, block)


def thinking(messages: Messages) -> Iterator[str]:
    """Thinking is signed, stands first in its message and is not all there is."""
    for index, message in enumerate(messages):
        kinds = [
            block.get("type") in _THINKING
            for block in _dicts(message)
            if block.get("type") != "compaction"
        ]
        if kinds != sorted(kinds, reverse=True):
            yield f"messages.{index}: thinking must stand before anything else"
        if kinds and kinds[-1]:
            yield f"messages.{index}: the final block cannot be thinking"
    for where, _, block in _all(messages):
        if block.get("type") == "thinking":
            if not isinstance(block.get("thinking"), str):
                yield f"{where}: thinking must be a text"
            if not _filled(block.get("signature")):
                yield f"{where}: thinking needs the provider's signature"
        if block.get("type") == "redacted_thinking" and not _filled(block.get("data")):
            yield f"{where}: redacted thinking needs its data"


def images(messages: Messages) -> Iterator[str]:
    """Images are of a known type and hold base64, or have an address."""
    for where, _, block in _all(messages):
        if block.get("type") == "image":
            yield from _image(where, block)


def ending(messages: Messages) -> Iterator[str]:
    """What the assistant is to go on from does not end in white space."""
    if not messages or messages[-1].get("role") != "assistant":
        return
    last = [block.get("text") for block in _dicts(messages[-1])][-1:]
    if any(isinstance(text, str) and text != text.rstrip() for text in last):
        yield f"messages.{len(messages) - 1}: final text must not end in white space"


RULES: Final[tuple[Rule, ...]] = (
    roles,
    alternation,
    contents,
    texts,
    calls,
    pairs,
    results,
    thinking,
    images,
    ending,
)


def _result(where: str, block: Block) -> Iterator[str]:
    content = block.get("content")
    if not isinstance(block.get("is_error", False), bool):
        yield f"{where}: is_error must be true or false"
    if not isinstance(content, str | list | None):
        yield f"{where}: content must be a text or a list of blocks"
    if isinstance(content, str | list) and not content:
        yield f"{where}: content must not be empty; leave it out"
    if block.get("is_error") and not content:
        yield f"{where}: an error needs a content"
    if isinstance(content, str) and content and not content.strip():
        yield f"{where}: text must hold more than white space"
    for index, part in enumerate(content if isinstance(content, list) else ()):
        yield from _result_part(f"{where}.content.{index}", part)


def _result_part(where: str, part: Any) -> Iterator[str]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        if not _filled(part.get("text")):
            yield f"{where}: text must hold more than white space"
    elif kind == "image":
        yield from _image(where, part)
    elif kind != "document":
        yield f"{where}: a result holds texts, images and documents"


def _image(where: str, block: Block) -> Iterator[str]:
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    if source.get("type") == "url":
        if not _filled(source.get("url")):
            yield f"{where}: an image needs its address"
    elif source.get("type") != "base64":
        yield f"{where}: an image needs a base64 or url source"
    else:
        if source.get("media_type") not in IMAGE_TYPES:
            yield f"{where}: media_type must be one of {', '.join(sorted(IMAGE_TYPES))}"
        if not is_base64(source.get("data")):
            yield f"{where}: data must be base64"


def _blocks(message: dict[str, Any]) -> list[Any]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content) if isinstance(content, list) else []


def _dicts(message: dict[str, Any]) -> list[Block]:
    return [block for block in _blocks(message) if isinstance(block, dict)]


def _all(messages: Messages) -> Iterator[tuple[str, str, Block]]:
    for index, message in enumerate(messages):
        for number, block in enumerate(_dicts(message)):
            yield f"messages.{index}.content.{number}", str(message.get("role")), block


def _ids(message: dict[str, Any], kind: str, key: str) -> Counter[str]:
    blocks: Iterable[Block] = _dicts(message)
    return Counter(str(block.get(key)) for block in blocks if block.get("type") == kind)


def _results(message: dict[str, Any]) -> Counter[str]:
    return _ids(message, "tool_result", "tool_use_id")


def _filled(text: Any) -> bool:
    return isinstance(text, str) and bool(text.strip())


def _matches(pattern: re.Pattern[str], text: Any) -> bool:
    return isinstance(text, str) and pattern.fullmatch(text) is not None
