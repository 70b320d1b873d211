"""Texts as a model is sent them: tags, words, entries, blocks, and the API's rules."""

from __future__ import annotations

import re
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from refold.domain import events
from refold.domain.canonical import canonical, shipped
from refold.domain.envelope import Envelope
from refold.domain.events import Event, HumanReview, JsonObject


def tagged(name: str, text: str, /, **attributes: object) -> str:
    """``text`` between tags; it cannot close them itself.  None is no attribute."""
    given = ((key, value) for key, value in attributes.items() if value is not None)
    opening = "".join(f' {key}="{_attribute(value)}"' for key, value in given)
    if not text:
        return f"<{name}{opening}/>"
    if "</" in text:
        closing = rf"</(?={re.escape(name)}\b)"
        text = re.sub(closing, r"<\\/", text, flags=re.IGNORECASE)
    return f"<{name}{opening}>\n{text}\n</{name}>"


def value_text(value: Any) -> str:
    """A JSON value as text: a text as it is, anything else as compact JSON."""
    return value if isinstance(value, str) else canonical(value).decode()


def cut_middle(text: str, limit: int, mark: str = "[…{}…]") -> str:
    """At most ``limit`` characters of ``text``: both ends, and how much is left out.

    The mark counts towards the limit; where it does not fit, only the head is kept.
    """
    if len(text) <= limit:
        return text
    shown = mark.format(len(text))
    room = limit - len(shown)
    if room < 2:
        return text[: max(limit, 0)]
    head, tail = room - room // 2, room // 2
    shown = mark.format(len(text) - head - tail)
    return f"{text[:head]}{shown}{text[len(text) - tail :]}"


def _attribute(value: object) -> str:
    if type(value) is int:
        return str(value)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return escape(" ".join(cut_middle(text, 200).split()))


_CJK: Final = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
# A run of what is neither space nor CJK, and its first letter if it has one.  What is
# before that is taken whole or not at all, so that a long rule of dashes costs no more.
_RUN: Final = re.compile(
    rf"(?=[^\s{_CJK}])(?:[^\w\s{_CJK}]|_)*+([^\W_{_CJK}]?)[^\s{_CJK}]*+"
)
_CHARACTER: Final = re.compile(rf"(?![\W_])[{_CJK}]")
# What each byte of UTF-8 is: a letter or digit, a space, a mark, or not ASCII.
_LETTER, _SPACE, _MARK, _OTHER = b"a .x"
_KINDS: Final = bytes(
    _SPACE if chr(code).isspace() else _LETTER if chr(code).isalnum() else _MARK
    for code in range(128)
) + bytes([_OTHER] * 128)
# Where more than so much is not ASCII, looking for it takes longer than it saves.
_MOSTLY: Final = 1.1


def count_words(text: str) -> int:
    """How many words ``text`` has: each CJK character, each other run with a letter.

    Cutting something out of a text and joining the ends never makes it more.
    """
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > len(text) * _MOSTLY:
        return _count_runs(text)
    kinds = data.translate(_KINDS)
    if len(data) == len(text):
        return _count_ascii(kinds)
    return _count_mostly_ascii(data, kinds)


def _count_runs(text: str) -> int:
    letters = _RUN.findall(text)
    return len(letters) - letters.count("") + len(_CHARACTER.findall(text))


def _count_ascii(kinds: bytes) -> int:
    # In a thirtieth of the time: a run without a letter leaves nothing.
    return (b" " + kinds.translate(None, b".")).count(b" a")


def _count_mostly_ascii(data: bytes, kinds: bytes) -> int:
    """Runs with something else in them are taken out, and counted for themselves."""
    others, rest, at = list[bytes](), list[bytes](), 0
    found = kinds.find(_OTHER)
    while found >= 0:
        first = max(kinds.rfind(_SPACE, at, found) + 1, at)
        end = kinds.find(_SPACE, found)
        end = len(data) if end < 0 else end
        rest.append(kinds[at:first])
        others.append(data[first:end])
        at, found = end, kinds.find(_OTHER, end)
    ascii_words = _count_ascii(b"".join((*rest, kinds[at:])))
    return ascii_words + _count_runs(b" ".join(others).decode("utf-8", "surrogatepass"))


def count_value_words(value: Any) -> int:
    """The words of a JSON value: of its texts, keys and numbers."""
    return sum(map(count_words, leaves(value)))


def leaves(value: Any, *, keys: bool = True) -> Iterator[str]:
    """The texts, keys and numbers in a JSON value, in their order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if keys:
                yield key
            yield from leaves(item, keys=keys)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item, keys=keys)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


LISTS: Final = (
    *("created", "modified", "deleted", "viewed", "commands", "tools"),
    *("failed", "unknown", "results", "errors", "decisions"),
)
_TAGS: Final = (
    *("turn", "user", "agent", "interrupted", "goes_on", "left_out"),
    *("plan", "reflection", "verdicts", "ledger", "changed", "read", "ids", *LISTS),
)
_MARKUP: Final = re.compile(
    rf"</?(?:{'|'.join(_TAGS)})(?: [a-z]+=\"[0-9a-z.-]*\")*/?>|\[…\d+…\]"
)
_OURS: Final = re.compile(rf"<(?=/?(?:{'|'.join(_TAGS)})\b)")
_TURN: Final = re.compile(r"<turn .*?^</turn>", re.DOTALL | re.MULTILINE)
_LEFT_OUT: Final = re.compile(r"<left_out turns=\"(\d+)\"/>")


def stripped(text: str) -> str:
    """``text`` without the tags of an abridged history and the marks of its cuts."""
    return _MARKUP.sub("", text)


def harmless(text: str) -> str:
    """``text`` with what looks like a tag of an abridged history broken."""
    return _OURS.sub(r"<\\", text)


def own_words(text: str) -> int:
    """How many words of a summary are not markup that Refold added."""
    return count_words(stripped(text))


def turns_in(text: str) -> list[str]:
    """The turns of an abridged history, or the whole text if it is none."""
    return _TURN.findall(text) or [_LEFT_OUT.sub("", text).strip()]


def left_out_in(text: str) -> int:
    """How many turns an abridged history says it leaves out."""
    return sum(int(count) for count in _LEFT_OUT.findall(text))


def left_out(turns: int) -> str:
    """What says that so many older turns are left out; nothing if none are."""
    return f'<left_out turns="{turns}"/>' if turns else ""


Role = Literal["user", "assistant"]
_NONE_ASKED: Mapping[int, str] = MappingProxyType({})


class Entry(NamedTuple):
    """A tagged text.  ``content`` is what of it the log said: its words are counted."""

    role: Role
    tag: str
    body: str
    attributes: Mapping[str, object]
    content: tuple[Any, ...]

    def text(self, **more: object) -> str:
        """The body between its tags."""
        return tagged(self.tag, self.body, **more, **self.attributes)


def entry_of(event: Event, asked: Mapping[int, str] = _NONE_ASKED) -> Entry | None:
    """The entry of an event, None if never shown; ``asked``: questions by their seq."""
    about: dict[str, object]
    match event:
        case events.UserInput(text=text, attachments=attachments):
            named = [attachment_text(attachment) for attachment in attachments]
            texts = tuple(attachment.text or "" for attachment in attachments)
            body = "\n".join(part for part in (text, *named) if part)
            return Entry("user", "user", body, {}, (text, *texts))
        case events.AgentResponse(text=text):
            return Entry("assistant", "agent", text, {}, (text,))
        case events.ToolCall(tool_name=tool, arguments=arguments):
            body = value_text(arguments)
            return Entry("assistant", "call", body, {"tool": tool}, (tool, arguments))
        case events.ToolResult(tool_name=named_tool, content=content):
            about = {"tool": named_tool, "call": event.call_id, "status": event.status}
            told = (named_tool or "", content)
            return Entry("user", "late_result", result_text(content), about, told)
        case events.Planner(plan=plan, iteration=iteration):
            body = value_text(plan) if plan else ""
            return Entry("assistant", "plan", body, {"iteration": iteration}, (plan,))
        case events.Reflection(issues=issues, suggestion=suggestion):
            lines = [f"- {value_text(issue)}" for issue in issues]
            body = "\n".join((*lines, *([suggestion] if suggestion else ())))
            about = {"pass": event.pass_, "confidence": event.confidence}
            return Entry("assistant", "reflection", body, about, (*issues, suggestion))
        case events.Aggregate(results=results):
            dumped = (one.model_dump(mode="json", exclude_none=True) for one in results)
            verdicts = tuple(dumped)
            body = "\n".join(map(value_text, verdicts))
            return Entry("assistant", "aggregate", body, {}, verdicts)
        case events.Final(text=text, outcome=outcome):
            return Entry("assistant", "final", text, {"outcome": outcome}, (text,))
        case events.AgentError(is_transport=False) as error:
            code, message, context = error.code, error.message, error.context
            known = value_text(context) if context else ""
            body = "\n".join(filter(None, (message, known)))
            about = {"code": code, "where": error.where}
            return Entry("user", "error", body, about, (code, message, context))
        case HumanReview(decision=str(decision), question=question):
            if not question and event.refers_to is not None:
                question = asked.get(event.refers_to, "")
            asked_for = [tagged("question", question)] if question else []
            body = "\n".join((*asked_for, tagged("decision", decision)))
            about = {"trigger": event.trigger, "by": event.decided_by}
            return Entry("user", "human_review", body, about, (question, decision))
        case _:
            return None


def questions(envelopes: Iterable[Envelope]) -> dict[int, str]:
    """What was asked in the reviews among these events, by their seq."""
    reviews = ((o.seq, o.payload) for o in envelopes)
    asked = ((seq, one) for seq, one in reviews if isinstance(one, HumanReview))
    return {seq: one.question for seq, one in asked if one.question}


def attachment_text(attachment: events.Attachment) -> str:
    """An attachment as text: its own, or what it is and that it is not here."""
    one, about = attachment, {"kind": attachment.kind, "name": attachment.name}
    about |= {"type": one.media_type, "url": one.url, "sha256": one.sha256}
    if one.text and one.text.strip():
        return tagged("attachment", one.text, **about)
    return tagged("attachment", "", **about, shown=False)


def result_text(content: Any) -> str:
    """The content of a result as text; what is not text in it is named."""
    if isinstance(content, list) and content and all(map(_is_block, content)):
        return "\n".join(
            part["text"] if part["type"] == "text" else "[image]" for part in content
        )
    return value_text(content) if content not in (None, [], {}) else ""


def _is_block(part: Any) -> bool:
    match part:
        case {"type": "text", "text": str()} | {"type": "image", "source": dict()}:
            return True
    return False


def cleared_text(seq: int, tokens: int) -> str:
    """What stands for a result that is not shown any more, and how to read it."""
    return (
        f"[refold: the result at seq {seq}, about {tokens} tokens, was cleared here; "
        f"whole: session.events(after={seq - 1}, limit=1)]"
    )


Message = dict[str, Any]
Block = dict[str, Any]
# Each with the seq of the event it is of; None: it stands in no log.
Numbered = list[tuple[int | None, Block]]

IMAGE_TYPES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
NO_RESULT: Final = "(No result of this call has been recorded yet.)"
NO_OUTPUT: Final = "(The call returned nothing.)"
NO_INPUT: Final = "(The user sent an empty message.)"
CUT_OFF: Final = (
    "(The call was cut off: its outcome is unknown, it may have had effect.)"
)
NOT_AN_IMAGE: Final = "(An image stood here that cannot be shown.)"


def text_block(text: str) -> Block:
    """A text block."""
    return {"type": "text", "text": text}


def user_blocks(event: events.UserInput) -> list[Block]:
    """The user's text and attachments; never empty."""
    blocks = [text_block(event.text)] if event.text.strip() else []
    for one in event.attachments:
        image = _image(one.media_type, one.data)
        blocks.append(image or text_block(attachment_text(one)))
    return blocks or [text_block(NO_INPUT)]


def thinking_blocks(event: events.AgentResponse) -> list[Block]:
    """The response's thinking, byte for byte; what no provider signed is left out."""
    return [block for block in map(_thought, event.thinking) if block]


def call_input(arguments: JsonObject | str) -> JsonObject:
    """Arguments as the object that a call's input must be."""
    return {"arguments": arguments} if isinstance(arguments, str) else arguments


def result_block(tool_use_id: str, event: events.ToolResult | None) -> Block:
    """The result of a call; None: there is none yet."""
    block: Block = {"type": "tool_result", "tool_use_id": tool_use_id}
    if event is None:
        return {**block, "content": NO_RESULT}
    content = _result_content(event.content)
    if event.status == "unknown":
        text = isinstance(content, str)
        content = f"{CUT_OFF}\n{content}" if text else [text_block(CUT_OFF), *content]
    block["content"] = content
    return {**block, "is_error": True} if event.status == "error" else block


def _image(media_type: object, data: object) -> Block | None:
    if media_type not in IMAGE_TYPES or not is_base64(data):
        return None
    source = {"type": "base64", "media_type": media_type, "data": data}
    return {"type": "image", "source": source}


def is_base64(data: object) -> bool:
    """Whether ``data`` is something, in base64."""
    try:
        return isinstance(data, str) and bool(b64decode(data, validate=True))
    except ValueError:
        return False


def _thought(thinking: events.Thinking) -> Block | None:
    if thinking.type == "redacted_thinking":
        return {"type": thinking.type, "data": thinking.data} if thinking.data else None
    if not thinking.signature:
        return None
    text = thinking.thinking or ""
    return {"type": "thinking", "thinking": text, "signature": thinking.signature}


def _result_content(content: Any) -> str | list[Block]:
    if isinstance(content, list) and content:
        blocks = [_result_part(part) for part in content]
        if all(block is not None for block in blocks):
            return [block for block in blocks if block] or NO_OUTPUT
    text = result_text(content)
    return text if text.strip() else NO_OUTPUT


def _result_part(part: Any) -> Block | None:
    """A block of a result's list, {} for one without content, None for no block."""
    match part:
        case {"type": "text", "text": str(text)}:
            return text_block(text) if text.strip() else {}
        case {"type": "image", "source": dict(source)}:
            image = _image(source.get("media_type"), source.get("data"))
            return image or text_block(NOT_AN_IMAGE)
    return None


Messages = Sequence[Message]

_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,128}")
THINKING: Final = frozenset({"thinking", "redacted_thinking"})
# Which blocks a message of each role may have, and which fields a block of each type.
_ALLOWED: Final = shipped("refold.projections", "data", "messages.toml")
_ROLES: Final = {role: frozenset(kinds) for role, kinds in _ALLOWED["roles"].items()}
_FIELDS: Final = {kind: frozenset(some) for kind, some in _ALLOWED["fields"].items()}
_ALWAYS: Final = frozenset({"type", "cache_control"})


def violations(messages: Messages, system: str | None = None) -> list[str]:
    """What the Messages API would refuse, one sentence each; empty if nothing."""
    problems = [problem for rule in RULES for problem in rule(messages)]
    if system is not None and not system.strip():
        problems.append("system: must not be empty; leave it out")
    return problems


def _roles(messages: Messages) -> Iterator[str]:
    """Roles alternate between user and assistant, and the user is first."""
    if not messages:
        yield "messages: at least one message is needed"
    before = None
    for index, message in enumerate(messages):
        role = message.get("role")
        if role not in _ROLES:
            yield f"messages.{index}: role must be user or assistant"
        if set(message) - {"role", "content"}:
            yield f"messages.{index}: holds more than role and content"
        if not index and role == "assistant":
            yield "messages.0: the first message must be the user's"
        if index and role == before:
            yield f"messages.{index}: two messages of one role in a row"
        before = role


def _contents(messages: Messages) -> Iterator[str]:
    """Every message has content, in blocks that its role may have."""
    for index, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, str | list) or not content:
            yield f"messages.{index}: content must not be empty"
        elif isinstance(content, list) and not all(
            isinstance(b, dict) for b in content
        ):
            yield f"messages.{index}: content must be a text or a list of blocks"
        role = str(message.get("role"))
        for where, block in _blocks(index, message):
            kind = str(block.get("type"))
            if kind not in _ROLES.get(role, ()):
                yield f"{where}: a {kind} block cannot be in a message of the {role}"
            elif set(block) - _FIELDS[kind] - _ALWAYS:
                yield f"{where}: holds fields that a {kind} block does not have"


def _order(messages: Messages) -> Iterator[str]:
    """Results and thinking stand first in their message; thinking is not all of it."""
    for index, message in enumerate(messages):
        kinds = [block.get("type") for _, block in _blocks(index, message)]
        results = [kind == "tool_result" for kind in kinds]
        thoughts = [kind in THINKING for kind in kinds if kind != "compaction"]
        if results != sorted(results, reverse=True):
            yield f"messages.{index}: results must stand before anything else"
        if thoughts != sorted(thoughts, reverse=True):
            yield f"messages.{index}: thinking must stand before anything else"
        if thoughts and thoughts[-1]:
            yield f"messages.{index}: the final block cannot be thinking"


def _pairs(messages: Messages) -> Iterator[str]:
    """Each call has one result in the next message, and each result such a call."""
    before, ids = Counter[str](), Counter[str]()
    for index, message in enumerate(messages):
        made = _ids(message, "tool_use", "id")
        given = _ids(message, "tool_result", "tool_use_id")
        if before - given:
            yield f"messages.{index - 1}: calls without a result right after them"
        if given - before:
            yield f"messages.{index}: results without a call right before them"
        before = made
        ids += made
    if before:
        yield f"messages.{len(messages) - 1}: calls without a result right after them"
    if ids and max(ids.values()) > 1:
        twice = ids.most_common(1)[0][0]
        yield f"messages: tool_use ids must be unique, {twice} is not"


def _each(messages: Messages) -> Iterator[str]:
    """What a block of each kind holds is what the API takes."""
    for index, message in enumerate(messages):
        for where, block in _blocks(index, message):
            yield from (f"{where}{problem}" for problem in _problems(block))


def _ending(messages: Messages) -> Iterator[str]:
    """What the assistant is to go on from does not end in white space."""
    if not messages or messages[-1].get("role") != "assistant":
        return
    last = [block.get("text") for _, block in _blocks(0, messages[-1])][-1:]
    if any(isinstance(text, str) and text != text.rstrip() for text in last):
        yield f"messages.{len(messages) - 1}: final text must not end in white space"


RULES: Final = (_roles, _contents, _order, _pairs, _each, _ending)


def _problems(block: Block) -> Iterator[str]:
    match block.get("type"):
        case "text" if not _filled(block.get("text")):
            yield ": text must hold more than white space"
        case "tool_use":
            for field, pattern in (("id", _ID), ("name", _NAME)):
                value = block.get(field)
                if not isinstance(value, str) or not pattern.fullmatch(value):
                    yield f": {field} must match ^{pattern.pattern}$"
            if not isinstance(block.get("input"), dict):
                yield ": input must be an object"
        case "tool_result":
            yield from _result_problems(block)
        case "thinking":
            if not isinstance(block.get("thinking"), str):
                yield ": thinking must be a text"
            if not _filled(block.get("signature")):
                yield ": thinking needs the provider's signature"
        case "redacted_thinking" if not _filled(block.get("data")):
            yield ": redacted thinking needs its data"
        case "image":
            yield from _image_problems(block.get("source"))


def _result_problems(block: Block) -> Iterator[str]:
    content, failed = block.get("content"), block.get("is_error", False)
    if not isinstance(failed, bool):
        yield ": is_error must be true or false"
    if not isinstance(content, str | list | None):
        yield ": content must be a text or a list of blocks"
    if content in ("", []):
        yield ": content must not be empty; leave it out"
    if failed and not content:
        yield ": an error needs a content"
    if isinstance(content, str) and content.isspace():
        yield ": text must hold more than white space"
    for index, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "image", "document"):
            yield f".content.{index}: a result holds texts, images and documents"
        else:
            yield from (f".content.{index}{problem}" for problem in _problems(part))


def _image_problems(source: Any) -> Iterator[str]:
    match source:
        case {"type": "url"}:
            if not _filled(source.get("url")):
                yield ": an image needs its address"
        case {"type": "base64"}:
            if source.get("media_type") not in IMAGE_TYPES:
                yield f": media_type must be one of {', '.join(sorted(IMAGE_TYPES))}"
            if not is_base64(source.get("data")):
                yield ": data must be base64"
        case _:
            yield ": an image needs a base64 or url source"


def _blocks(index: int, message: Message) -> Iterator[tuple[str, Block]]:
    """The blocks of a message, each with where it is."""
    content = message.get("content")
    blocks = [text_block(content)] if isinstance(content, str) else content
    for number, block in enumerate(blocks if isinstance(blocks, list) else ()):
        if isinstance(block, dict):
            yield f"messages.{index}.content.{number}", block


def _ids(message: Message, kind: str, key: str) -> Counter[str]:
    blocks = (block for _, block in _blocks(0, message) if block.get("type") == kind)
    return Counter(str(block.get(key)) for block in blocks)


def _filled(text: Any) -> bool:
    return isinstance(text, str) and bool(text.strip())
