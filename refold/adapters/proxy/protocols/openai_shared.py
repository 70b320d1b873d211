"""Tools, usage, and files in the forms that both APIs of OpenAI share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from refold.adapters.importers import base, openai
from refold.adapters.proxy.protocols.reading import (
    NOT_CONVERTED,
    Notes,
    UserEvents,
    without_secrets,
)
from refold.domain.events import Item, JsonObject

# Tokens read from a cache, as other providers with this API name them.
_CACHED: Final = ("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")
# Tokens written to a cache.
_WRITTEN: Final = ("cache_write_tokens", "cache_creation_tokens")


def tool_of(tool: Any) -> JsonObject:
    """Return a tool in the form of the Messages API.

    Tools of other types than functions are unchanged, except for credentials.
    """
    fields = base.mapping(tool)
    function = fields.get("function", fields)
    is_function = fields.get("type", "function") == "function"
    if not is_function or not isinstance(function, dict):
        return without_secrets(fields)
    converted: JsonObject = {}
    for name, value in function.items():
        if name == "parameters":
            converted["input_schema"] = value
        elif name != "type":
            converted[name] = value
    return without_secrets(converted)


def usage_of(usage: Any, service_tier: Any = None) -> JsonObject | None:
    """Return the usage of an answer so that all its tokens are counted once.

    The counts of other providers that differ from OpenAI's are put in its fields, or
    in those of the Messages API if the usage has tokens that were written to a cache.
    """
    if not isinstance(usage, dict) or not usage:
        return None
    counted: JsonObject = dict(usage)
    is_chat = "prompt_tokens" in usage
    details_name = "prompt_tokens_details" if is_chat else "input_tokens_details"
    details = base.mapping(usage, details_name)
    prompt = _count(usage, "prompt_tokens" if is_chat else "input_tokens")
    cached = _first(details, "cached_tokens") or _first(usage, *_CACHED)
    written = _first(details, *_WRITTEN) or _count(usage, "cache_creation_input_tokens")
    output_name = "completion_tokens" if is_chat else "output_tokens"
    output = _count(usage, output_name)
    reasoning = _count(
        base.mapping(usage, f"{output_name}_details"), "reasoning_tokens"
    )
    if reasoning and _count(usage, "total_tokens") == prompt + output + reasoning:
        # Some providers count reasoning apart from the rest of the answer.
        output += reasoning
        counted[output_name] = output
    if written and prompt >= cached + written:
        counted = {
            "input_tokens": prompt - cached - written,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": cached,
            "output_tokens": output,
            "as_sent": usage,
        }
    elif cached and not _count(details, "cached_tokens"):
        counted[details_name] = {**details, "cached_tokens": cached}
    if isinstance(service_tier, str):
        counted["service_tier"] = service_tier
    return counted


def _first(values: Mapping[str, Any], *names: str) -> int:
    """Return the first count above 0 under these names, else 0."""
    for name in names:
        count = _count(values, name)
        if count:
            return count
    return 0


def _count(values: Mapping[str, Any], name: str) -> int:
    """Return the count under this name; 0 if there is none."""
    count = values.get(name)
    return count if type(count) is int and count >= 0 else 0


def add_user_parts(
    events: UserEvents, content: Any, form: str, place: str, notes: Notes
) -> None:
    """Add the texts and files of a user's message; other parts become items.

    form: the name of the protocol.
    """
    parts = [content] if isinstance(content, str) else base.sequence(content)
    for index, part in enumerate(parts):
        text = openai.text_of(part)
        if text is not None:
            events.text(text)
            continue
        file = openai.file_of(base.mapping(part))
        if file is not None:
            events.file(file)
        else:
            kind = base.text(part, "type") or "part"
            notes.add(NOT_CONVERTED, f"{place}.content[{index}]: {base.shown(kind)}")
            events.event(Item(format=form, kind=kind, value=part))


def system_text(content: Any, place: str, notes: Notes) -> str | None:
    """Return the text of a system or developer message; None without one."""
    parts = [content] if isinstance(content, str) else base.sequence(content)
    texts: list[str] = []
    for index, part in enumerate(parts):
        text = openai.text_of(part)
        if text is None:
            notes.add(NOT_CONVERTED, f"{place}.content[{index}]: part that is no text")
        elif text:
            texts.append(text)
    return "\n\n".join(texts) or None
