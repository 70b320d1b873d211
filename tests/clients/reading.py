"""The conversation in a request, read without any code of the recorder.

Each protocol becomes a flat list of parts in order, so that what a provider received
can be compared with a context.  A context joins neighboring texts of one role.  It
shows the results of parallel calls in the order of the calls.  It shows a system
message in the conversation as a text of the user: in ``<system>``, except if the client
has put it into tags.  So ``joined`` does the same to both sides, and takes several line
breaks for one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from tests.support.provider import Seen
from tests.support.provider_shapes import Json

_TAGS: Final = re.compile(r"\s*<([a-z][\w-]*)[^<>]*>.*</\1>\s*", re.DOTALL)


class Part(NamedTuple):
    """One part of a conversation.

    kind:   text, thinking, call, result, or image.
    value:  the text, the call's arguments, the text of a result, or the digest of an
            image.
    name:   the tool of a call; for a result, the number of its call.
    images: the digests of the images in a result.
    """

    role: str
    kind: str
    value: Any
    name: str = ""
    images: tuple[str, ...] = ()


def sent(request: Seen, earlier: Sequence[Seen] = ()) -> list[Part]:
    """Return the parts of a request as the provider received it.

    earlier: the requests before it.  If it continues a response that the provider has
             stored, the parts begin with those of that request, and its answer.
    """
    return numbered(_parts(request, earlier))


def _parts(request: Seen, earlier: Sequence[Seen]) -> list[Part]:
    """Return the parts of a request, with the ids of its calls."""
    body = request.json
    match request.protocol:
        case "anthropic-messages":
            return [*_messages(body["messages"])]
        case "openai-chat":
            return [*_chat(body["messages"])]
        case "openai-responses":
            own = _responses(_without_system(body))
            return [*_stored(body.get("previous_response_id"), earlier), *own]
        case "gemini":
            return [*_gemini(body["contents"])]
        case "ollama":
            return [*_chat(body["messages"])]
    raise AssertionError(request.path)


def _stored(response_id: str | None, earlier: Sequence[Seen]) -> list[Part]:
    """Return the parts of the request with this response, and of the response."""
    if response_id is None:
        return []
    for place, request in enumerate(earlier):
        response = _response(bytes(request.sent))
        if response.get("id") == response_id:
            before = _parts(request, earlier[:place])
            return [*before, *_responses(response["output"])]
    raise AssertionError(f"no request was answered with {response_id}")


def _response(answer: bytes) -> Json:
    """Return the whole response in an answer, which may be a stream."""
    for line in answer.splitlines():
        if line.startswith(b"data: {"):
            event = json.loads(line.removeprefix(b"data: "))
            if event["type"] == "response.completed":
                response: Json = event["response"]
                return response
    try:
        whole: Json = json.loads(answer)
    except ValueError:
        return {}
    return whole


def shown(messages: Iterable[Any]) -> list[Part]:
    """Return the parts of a context, whose messages have the Messages API's form."""
    return numbered(_messages(messages))


def numbered(parts: Iterable[Part]) -> list[Part]:
    """Replace the ids of calls by their numbers, and leave out empty texts."""
    numbers: dict[str, str] = {}
    result = []
    for part in parts:
        match part.kind:
            case "call":
                call_id, arguments = part.value
                numbers.setdefault(call_id, str(len(numbers) + 1))
                result.append(part._replace(value=arguments))
            case "result":
                result.append(part._replace(name=numbers.get(part.name, "?")))
            case _:
                if part.value:
                    result.append(part)
    return result


def joined(parts: Iterable[Part]) -> list[Part]:
    """Join neighboring texts of one role, and sort neighboring results."""
    in_tags = []
    for part in _in_order_of_calls(parts):
        if part.role == "system":
            text = part.value
            if not _TAGS.fullmatch(text):
                text = f"<system>\n{text}\n</system>"
            in_tags.append(Part("user", "text", text))
        else:
            in_tags.append(part)
    return [_with_single_breaks(part) for part in _with_joined_texts(in_tags)]


def _with_joined_texts(parts: Iterable[Part]) -> list[Part]:
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        if last and part.kind == last.kind == "text" and part.role == last.role:
            result[-1] = last._replace(value=f"{last.value}\n{part.value}")
        else:
            result.append(part)
    return result


def _in_order_of_calls(parts: Iterable[Part]) -> Iterator[Part]:
    for is_result, run in groupby(parts, lambda part: part.kind == "result"):
        neighbors = list(run)
        if is_result:
            neighbors.sort(key=lambda part: int(part.name))
        yield from neighbors


def _with_single_breaks(part: Part) -> Part:
    if part.kind not in ("text", "result"):
        return part
    return part._replace(value=re.sub(r"\n+", "\n", part.value).strip())


def _messages(messages: Iterable[Any]) -> Iterator[Part]:
    for message in messages:
        role = message["role"]
        content = message["content"]
        if isinstance(content, str):
            yield Part(role, "text", content)
            continue
        if role == "system":
            yield _system(content)
            continue
        for block in content:
            match block["type"]:
                case "text":
                    yield Part(role, "text", block["text"])
                case "thinking":
                    yield Part(role, "thinking", block["thinking"])
                case "image":
                    yield Part(role, "image", _image(block["source"].get("data", "")))
                case "tool_use":
                    value = (block["id"], block["input"])
                    yield Part(role, "call", value, block["name"])
                case "tool_result":
                    yield from _result(role, block["tool_use_id"], block.get("content"))
                case kind:
                    yield Part(role, kind, json.dumps(block, sort_keys=True))


def _system(content: Iterable[Any]) -> Part:
    """Return a system message in the conversation as one text."""
    return Part("system", "text", "\n".join(block["text"] for block in content))


def _result(role: str, call_id: str, content: Any) -> Iterator[Part]:
    if content is None or isinstance(content, str):
        yield Part(role, "result", content or "", call_id)
        return
    texts = [block["text"] for block in content if block["type"] == "text"]
    images = []
    for block in content:
        if block["type"] == "image":
            images.append(_image(block["source"].get("data", "")))
    yield Part(role, "result", "\n".join(texts), call_id, tuple(images))


def _image(data: str) -> str:
    """Return the digest of an image in base64."""
    return hashlib.sha256(base64.b64decode(data)).hexdigest()


def _of_url(url: str) -> str:
    return _image(url.partition("base64,")[2])


def _chat(messages: Iterable[Any]) -> Iterator[Part]:
    """Chat Completions, and Ollama's form of it without ids."""
    open_calls: list[str] = []
    for number, message in enumerate(messages):
        role = message["role"]
        content = message.get("content")
        if role == "system" and number == 0:
            continue  # the system prompt of the request
        if role == "tool":
            call_id = message.get("tool_call_id") or open_calls.pop(0)
            yield from _result("user", call_id, content)
            continue
        thoughts = message.get("reasoning_content") or message.get("thinking")
        if thoughts:
            yield Part(role, "thinking", thoughts)
        for block in [content] if isinstance(content, str) else content or ():
            if isinstance(block, str):
                yield Part(role, "text", block)
            elif block["type"] == "image_url":
                yield Part(role, "image", _of_url(block["image_url"]["url"]))
            else:
                yield Part(role, "text", block["text"])
        for image in message.get("images", ()):
            yield Part(role, "image", _image(image))
        for index, tool_call in enumerate(message.get("tool_calls") or ()):
            function = tool_call["function"]
            call_id = tool_call.get("id") or f"{number}/{index}"
            open_calls.append(call_id)
            arguments = function["arguments"]
            if isinstance(arguments, str):
                arguments = json.loads(arguments or "{}")
            yield Part(role, "call", (call_id, arguments), function["name"])


def _without_system(body: Json) -> Any:
    """Return the input without tools and system prompt, which Codex puts there."""
    items = body["input"]
    if isinstance(items, str) or body.get("instructions"):
        return items
    rest = [item for item in items if item.get("type") != "additional_tools"]
    if rest and rest[0].get("role") in ("developer", "system"):
        return rest[1:]
    return rest


def _responses(items: Any) -> Iterator[Part]:
    if isinstance(items, str):
        yield Part("user", "text", items)
        return
    for item in items:
        match item.get("type", "message"):
            case "message":
                role = "system" if item["role"] == "developer" else item["role"]
                content = item["content"]
                if isinstance(content, str):
                    yield Part(role, "text", content)
                    continue
                if role == "system":
                    yield _system(content)
                    continue
                for block in content:
                    if block["type"] == "input_image":
                        yield Part(role, "image", _of_url(block["image_url"]))
                    else:
                        yield Part(role, "text", block["text"])
            case "agent_message":  # between agents of Codex
                for block in item["content"]:
                    if block["type"] == "input_text":
                        yield Part("user", "text", block["text"])
            # The first asks for a compaction.  The second is encrypted: the log has it,
            # and a context leaves it out.
            case "compaction_trigger" | "compaction":
                continue
            case "reasoning":
                for part in item.get("summary", ()):
                    yield Part("assistant", "thinking", part["text"])
            case "function_call":
                value = (item["call_id"], json.loads(item["arguments"] or "{}"))
                yield Part("assistant", "call", value, item["name"])
            case "custom_tool_call":
                # The arguments of a call are an object in the Messages API.
                value = (item["call_id"], {"arguments": item["input"]})
                yield Part("assistant", "call", value, item["name"])
            case "function_call_output" | "custom_tool_call_output":
                output = item["output"]
                images = []
                if not isinstance(output, str):
                    texts = []
                    for part in output:
                        if part["type"] == "input_image":
                            images.append(_of_url(part["image_url"]))
                        else:
                            texts.append(part["text"])
                    output = "\n".join(texts)
                call_id = item["call_id"]
                yield Part("user", "result", output, call_id, tuple(images))
            case kind:
                yield Part("other", kind, json.dumps(item, sort_keys=True))


def _gemini(contents: Iterable[Any]) -> Iterator[Part]:
    open_calls: list[str] = []
    for number, content in enumerate(contents):
        role = "assistant" if content.get("role") == "model" else "user"
        for index, part in enumerate(content["parts"]):
            if "functionCall" in part:
                function_call = part["functionCall"]
                call_id = function_call.get("id") or f"{number}/{index}"
                open_calls.append(call_id)
                value = (call_id, function_call.get("args", {}))
                yield Part(role, "call", value, function_call["name"])
            elif "functionResponse" in part:
                answer = part["functionResponse"]
                call_id = answer.get("id") or open_calls.pop(0)
                output = json.dumps(
                    answer["response"], ensure_ascii=False, separators=(",", ":")
                )
                yield Part("user", "result", output, call_id)
            elif "inlineData" in part:
                yield Part(role, "image", _image(part["inlineData"]["data"]))
            elif part.get("thought"):
                yield Part(role, "thinking", part.get("text", ""))
            else:
                yield Part(role, "text", part.get("text", ""))
