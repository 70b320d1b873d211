"""The texts of a context: tags, words, entries, blocks, and the rules of the API."""

from __future__ import annotations

import re
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from refold.domain import events
from refold.domain.canonical import canonical, load_packaged_toml
from refold.domain.envelope import Envelope
from refold.domain.events import Event, HumanReview, JsonObject
from refold.domain.placeholders import STANDS_FOR


def tagged(name: str, text: str, /, **attributes: object) -> str:
    """Put ``text`` between tags.

    A closing tag of the same name inside of the text is escaped.  Attributes that are
    None are left out.
    """
    opening = name
    for key, value in attributes.items():
        if value is not None:
            opening += f' {key}="{_attribute(value)}"'
    if not text:
        return f"<{opening}/>"
    if "</" in text:
        closing = rf"</(?={re.escape(name)}\b)"
        text = re.sub(closing, r"<\\/", text, flags=re.IGNORECASE)
    return f"<{opening}>\n{text}\n</{name}>"


def value_text(value: Any) -> str:
    """Return a text unchanged, and any other value as compact JSON."""
    return value if isinstance(value, str) else canonical(value).decode()


def verdict_text(verdict: events.Verdict) -> str:
    """Return a verdict in a few words: the item, the judgment, and the reasons."""
    fields = (verdict.error_type, verdict.subject, verdict.topic)
    reasons = ", ".join(field for field in fields if field)
    judgment = f"{verdict.item_id} {verdict.verdict}"
    return f"{judgment} ({reasons})" if reasons else judgment


def tasks_of(plan: Any) -> list[dict[str, Any]] | None:
    """Return the tasks of a plan that is a list of them, or None for another plan."""
    tasks = plan
    if isinstance(plan, dict) and len(plan) == 1:
        (tasks,) = plan.values()
    if not isinstance(tasks, list):
        return None
    if not all(isinstance(task, dict) for task in tasks):
        return None
    return tasks


def task_change(plan: Any) -> dict[str, Any] | None:
    """Return the task that a plan adds or changes, or None for another plan.

    Clients write ``{"task": {…}}``, with ``taskId`` for a change of a task.
    """
    if isinstance(plan, dict) and len(plan) == 1 and "task" in plan:
        task = plan["task"]
        return task if isinstance(task, dict) and task else None
    return None


def cut_middle(text: str, limit: int, mark: str = "[…{}…]") -> str:
    """Shorten ``text`` to ``limit`` characters: its two ends with a mark between them.

    The mark counts toward the limit.  If it does not fit, only the beginning of the
    text remains.

    mark: contains ``{}`` for the number of characters that are left out.
    """
    if len(text) <= limit:
        return text
    longest_mark = mark.format(len(text))
    room = limit - len(longest_mark)
    if room < 2:
        return text[: max(limit, 0)]
    tail = room // 2
    head = room - tail
    left_out = len(text) - head - tail
    return text[:head] + mark.format(left_out) + text[len(text) - tail :]


_LONGEST_PLACEHOLDER: Final = 80  # characters


def cut_around_placeholders(text: str, limit: int, mark: str = "[…{}…]") -> str:
    """Shorten ``text`` as ``cut_middle`` does, but never inside a placeholder.

    It has at most ``limit`` characters, the mark included.
    """
    if len(text) <= limit:
        return text
    room = limit - len(mark.format(len(text)))
    if room < 2:
        return text[: outside_placeholders(text, max(limit, 0), earlier=True)]
    tail = room // 2
    end = outside_placeholders(text, room - tail, earlier=True)
    start = outside_placeholders(text, len(text) - tail, earlier=False)
    return text[:end] + mark.format(start - end) + text[start:]


def outside_placeholders(text: str, place: int, *, earlier: bool) -> int:
    """Return the place, moved out of a placeholder of a redacted value."""
    nearby = max(0, place - _LONGEST_PLACEHOLDER)
    for match in STANDS_FOR.finditer(text, nearby, place + _LONGEST_PLACEHOLDER):
        if match.start() < place < match.end():
            return match.start() if earlier else match.end()
    return place


# A text that needs no escapes and no cut, such as the name of most tools.
_PLAIN_ATTRIBUTE: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,200}")


def _attribute(value: object) -> str:
    if type(value) is int:
        return str(value)
    if type(value) is str and _PLAIN_ATTRIBUTE.fullmatch(value):
        return value
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return escape(" ".join(cut_middle(text, 200).split()))


_CJK: Final = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
    "\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
# The four kinds of bytes in UTF-8, each a byte itself.
_LETTER: Final = ord("a")  # or a digit
_SPACE: Final = ord(" ")
_MARK: Final = ord(".")
_NOT_ASCII: Final = ord("x")


def _kind_of_byte(byte: int) -> int:
    if byte >= 128:
        return _NOT_ASCII
    character = chr(byte)
    if character.isspace():
        return _SPACE
    return _LETTER if character.isalnum() else _MARK


_KINDS: Final = bytes(_kind_of_byte(byte) for byte in range(256))
# With more bytes per character, a text has too little ASCII for the faster count.
_MOST_BYTES_PER_CHARACTER: Final = 1.1


def count_words(text: str) -> int:
    """Count the words of a text: each CJK character, and each other run with a letter.

    A text from which a part was cut out never has more words than before.
    """
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > len(text) * _MOST_BYTES_PER_CHARACTER:
        return _count_runs(text)
    kinds = data.translate(_KINDS)
    if len(data) == len(text):
        return _count_ascii(kinds)
    return _count_mostly_ascii(data, kinds)


def _count_runs(text: str) -> int:
    runs, characters = _patterns_of_words()
    first_letters = runs.findall(text)
    runs_with_letter = len(first_letters) - first_letters.count("")
    return runs_with_letter + len(characters.findall(text))


@cache
def _patterns_of_words() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return the patterns of a run without space and CJK, and of a CJK character.

    The group of the first is the first letter of a run, or empty without one.
    Characters before the letter match possessively, so that a long line of dashes takes
    linear time.  Most texts need neither pattern, and both are slow to compile.
    """
    run = rf"(?=[^\s{_CJK}])(?:[^\w\s{_CJK}]|_)*+([^\W_{_CJK}]?)[^\s{_CJK}]*+"
    return re.compile(run), re.compile(rf"(?![\W_])[{_CJK}]")


def _count_ascii(kinds: bytes) -> int:
    # Without the marks, each run with a letter begins with one behind a space.  This
    # takes a thirtieth of the time of `_count_runs`.
    return (b" " + kinds.translate(None, b".")).count(b" a")


def _count_mostly_ascii(data: bytes, kinds: bytes) -> int:
    """Count the runs that are not only ASCII separately from the rest.

    kinds: the kind of each byte of ``data``.
    """
    other_runs: list[bytes] = []
    ascii_kinds: list[bytes] = []
    counted = 0
    at = kinds.find(_NOT_ASCII)
    while at >= 0:
        first = max(kinds.rfind(_SPACE, counted, at) + 1, counted)
        end = kinds.find(_SPACE, at)
        if end < 0:
            end = len(data)
        ascii_kinds.append(kinds[counted:first])
        other_runs.append(data[first:end])
        counted = end
        at = kinds.find(_NOT_ASCII, end)
    ascii_kinds.append(kinds[counted:])
    other_text = b" ".join(other_runs).decode("utf-8", "surrogatepass")
    return _count_ascii(b"".join(ascii_kinds)) + _count_runs(other_text)


def count_value_words(value: Any) -> int:
    """Count the words of a JSON value: of its texts, keys, and numbers."""
    return sum(map(count_words, leaves(value)))


def leaves(value: Any, *, keys: bool = True) -> Iterator[str]:
    """Yield the texts, keys, and numbers of a JSON value in their order, as texts."""
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


# The lists of a turn in an abridged history, in the order in which it has them.
LISTS: Final = (
    "created",
    "modified",
    "deleted",
    "viewed",
    "commands",
    "tools",
    "steps",
    "failed",
    "succeeded_later",
    "reverted",
    "unknown",
    "results",
    "errors",
    "decisions",
    "system_messages",
    "client_notes",
)
_TAGS: Final = (
    "turn",
    "user",
    "agent",
    "interrupted",
    "continues_below",
    "goes_on",  # instead of "continues_below" in summaries of earlier versions
    "left_out",
    "plan",
    "reflection",
    "verdicts",
    "ledger",
    "changed",
    "changed_since_last_commit",
    "read",
    "ids",
    "urls",
    "hosts",
    "paths",
    "hashes",
    "issues",
    "symbols",
    "numbers",
    "names",
    "arguments",
    "root",
    *LISTS,
)
_MARKUP: Final = re.compile(
    rf"</?(?:{'|'.join(_TAGS)})(?: [a-z]+=\"[0-9a-z.-]*\")*/?>|\[…\d+…\]"
)
_TAG_START: Final = re.compile(rf"<(?=/?(?:{'|'.join(_TAGS)})\b)")
_TURN: Final = re.compile(r"<turn .*?^</turn>", re.DOTALL | re.MULTILINE)
_LEFT_OUT: Final = re.compile(
    r"<left_out turns=\"(?P<turns>\d+)\""
    r"(?: first=\"(?P<first>-?\d+)\" last=\"(?P<last>-?\d+)\")?"
    r"(?: calls=\"(?P<calls>\d+)\" ok=\"(?P<ok>\d+)\")?/>"
)
_TURN_TAG: Final = (
    r"<turn (?:first=\"(?P<first>-?\d+)\" last|number)=\"(?P<last>-?\d+)\""
    r"(?: calls=\"(?P<calls>\d+)\")?(?: ok=\"(?P<ok>\d+)\")?>"
)


def stripped(text: str) -> str:
    """Remove the tags of an abridged history and the marks of its cuts."""
    return _MARKUP.sub("", text)


def harmless(text: str) -> str:
    """Escape everything that looks like a tag of an abridged history."""
    return _TAG_START.sub(r"<\\", text)


def own_words(text: str) -> int:
    """Count the words of a summary without the markup that Refold adds."""
    return count_words(stripped(text))


def turns_in(text: str) -> list[str]:
    """Return the turns of an abridged history, or the whole text if it has none."""
    return _TURN.findall(text) or [_LEFT_OUT.sub("", text).strip()]


class LeftOutTurns(NamedTuple):
    """Turns that an abridged history leaves out: their number, place, and calls.

    first, last: seqs, or numbers of turns, as the history names its turns; None if an
                 earlier summary does not name them.
    ok:          the number of calls that succeeded.
    """

    turns: int = 0
    first: int | None = None
    last: int | None = None
    calls: int = 0
    ok: int = 0

    def __bool__(self) -> bool:
        return self.turns > 0

    def and_then(self, later: LeftOutTurns) -> LeftOutTurns:
        """These turns and later ones."""
        return LeftOutTurns(
            turns=self.turns + later.turns,
            first=later.first if self.first is None else self.first,
            last=self.last if later.last is None else later.last,
            calls=self.calls + later.calls,
            ok=self.ok + later.ok,
        )

    @property
    def tag(self) -> str:
        """The tag that stands for the turns; an empty text for none."""
        if not self.turns:
            return ""
        text = f'<left_out turns="{self.turns}"'
        if self.first is not None and self.last is not None:
            text += f' first="{self.first}" last="{self.last}"'
        if self.calls:
            text += f' calls="{self.calls}" ok="{self.ok}"'
        return f"{text}/>"


NONE_LEFT_OUT: Final = LeftOutTurns()


def left_out_in(texts: Iterable[str]) -> LeftOutTurns:
    """Return the turns that abridged histories say they leave out, oldest first."""
    total = LeftOutTurns()
    for text in texts:
        for match in _LEFT_OUT.finditer(text):
            total = total.and_then(_counted(match, int(match["turns"])))
    return total


def left_out(turns: Iterable[str]) -> LeftOutTurns:
    """Return what is left out if these turns are, oldest first."""
    total = LeftOutTurns()
    for turn in turns:
        # Only compacted contexts need the pattern, so it is compiled on first use.
        match = re.match(_TURN_TAG, turn)
        counted = LeftOutTurns(1) if match is None else _counted(match, 1)
        total = total.and_then(counted)
    return total


def _counted(match: re.Match[str], turns: int) -> LeftOutTurns:
    """Read the places and the calls in a tag; either may be missing.

    turns: the number of turns that the tag stands for.
    """
    last = match["last"]
    first = match["first"] or last
    calls = int(match["calls"] or 0)
    # A turn of which all calls succeeded may say only how many there were.
    ok = calls if match["ok"] is None else int(match["ok"])
    return LeftOutTurns(
        turns,
        None if first is None else int(first),
        None if last is None else int(last),
        calls,
        ok,
    )


Role = Literal["user", "assistant"]
_NO_QUESTIONS: Mapping[int, str] = MappingProxyType({})


class Entry(NamedTuple):
    """An event as a text between tags.

    content: the values that come from the log, whose words count.
    """

    role: Role
    tag: str
    body: str
    attributes: Mapping[str, object]
    content: tuple[Any, ...]

    def text(self, **more: object) -> str:
        """Return the body between its tags.

        more: attributes that come before the entry's own.
        """
        return tagged(self.tag, self.body, **more, **self.attributes)

    def with_note(self, note: str) -> Entry:
        """Return the entry with the note of the person who decided below it."""
        if not note:
            return self
        return self._replace(body="\n".join([self.body, tagged("note", note)]))


def entry_of(
    event: Event, questions: Mapping[int, str] = _NO_QUESTIONS
) -> Entry | None:
    """Return the entry of an event, or None if no context shows events of its type.

    questions: the questions of reviews by the seq of the review, for decisions that
               refer to one.
    """
    match event:
        case events.UserInput():
            return _input_entry(event)
        case events.AgentResponse(text=text):
            return Entry("assistant", "agent", text, {}, (text,))
        case events.ToolCall(tool_name=tool, arguments=arguments):
            body = value_text(arguments)
            return Entry("assistant", "call", body, {"tool": tool}, (tool, arguments))
        case events.ToolResult(content=content):
            return Entry(
                role="user",
                tag="late_result",
                body=result_text(content),
                attributes={
                    "tool": event.tool_name,
                    "call": event.call_id,
                    "status": event.status,
                },
                content=(event.tool_name or "", content),
            )
        case events.Planner(plan=plan, iteration=iteration):
            body = value_text(plan) if plan else ""
            return Entry("assistant", "plan", body, {"iteration": iteration}, (plan,))
        case events.Reflection(issues=issues, suggestion=suggestion):
            lines = [f"- {value_text(issue)}" for issue in issues]
            if suggestion:
                lines.append(suggestion)
            return Entry(
                role="assistant",
                tag="reflection",
                body="\n".join(lines),
                attributes={"pass": event.pass_, "confidence": event.confidence},
                content=(*issues, suggestion),
            )
        case events.Aggregate(results=results):
            verdicts = tuple(
                verdict.model_dump(mode="json", exclude_none=True)
                for verdict in results
            )
            body = "\n".join(map(value_text, verdicts))
            return Entry("assistant", "aggregate", body, {}, verdicts)
        case events.Final(text=text, outcome=outcome):
            return Entry("assistant", "final", text, {"outcome": outcome}, (text,))
        case events.AgentError(is_transport=False):
            return _error_entry(event)
        case HumanReview(decision=str(decision)):
            return _decision_entry(event, decision, questions)
        case events.SystemPrompt(where="conversation", text=str(text)):
            return Entry("user", "system", text, {}, (text,))
        case _:
            return None


# A text that its client has put between tags.
_IN_TAGS: Final = re.compile(
    r"\s*<([a-z][a-z0-9_-]*)(?:\s[^<>]*)?>.*</\1>\s*", re.DOTALL
)


def is_client_note(text: str) -> bool:
    """Whether a text of the system is a note that a client put between tags."""
    return _IN_TAGS.fullmatch(text) is not None


def system_text(text: str) -> str:
    """Return a text of the system as it stands within a conversation.

    The API has no message of the system there.  Tags tell the text from the user's
    words; a text that has tags already is shown as it was sent.
    """
    if is_client_note(text):
        return text
    return tagged("system", text)


def _input_entry(event: events.UserInput) -> Entry:
    parts = [event.text]
    parts += [attachment_text(attachment) for attachment in event.attachments]
    texts = [attachment.text or "" for attachment in event.attachments]
    return Entry(
        role="user",
        tag="user",
        body="\n".join(part for part in parts if part),
        attributes={},
        content=(event.text, *texts),
    )


def _error_entry(event: events.AgentError) -> Entry:
    parts = [event.message, value_text(event.context) if event.context else ""]
    return Entry(
        role="user",
        tag="error",
        body="\n".join(part for part in parts if part),
        attributes={"code": event.code, "where": event.where},
        content=(event.code, event.message, event.context),
    )


def _decision_entry(
    event: HumanReview, decision: str, questions: Mapping[int, str]
) -> Entry:
    question = event.question
    if not question and event.refers_to is not None:
        question = questions.get(event.refers_to, "")
    parts = [tagged("question", question)] if question else []
    parts.append(tagged("decision", decision))
    return Entry(
        role="user",
        tag="human_review",
        body="\n".join(parts),
        attributes={"trigger": event.trigger, "by": event.decided_by},
        content=(question, decision),
    )


def questions(envelopes: Iterable[Envelope]) -> dict[int, str]:
    """Return the questions of the reviews among these events, by their seq."""
    question_of: dict[int, str] = {}
    for envelope in envelopes:
        review = envelope.payload
        if isinstance(review, HumanReview) and review.question:
            question_of[envelope.seq] = review.question
    return question_of


def attachment_text(attachment: events.Attachment) -> str:
    """Return an attachment between tags: its text, or its description without one."""
    attributes = {
        "kind": attachment.kind,
        "name": attachment.name,
        "type": attachment.media_type,
        "url": attachment.url,
        "sha256": attachment.sha256,
    }
    if attachment.text and attachment.text.strip():
        return tagged("attachment", attachment.text, **attributes)
    return tagged("attachment", "", **attributes, shown=False)


def result_text(content: Any) -> str:
    """Return the content of a result as text, with ``[image]`` in place of images."""
    if isinstance(content, list) and content and all(map(_is_block, content)):
        return "\n".join(
            part["text"] if part["type"] == "text" else "[image]" for part in content
        )
    return "" if content in (None, [], {}) else value_text(content)


def _is_block(part: Any) -> bool:
    match part:
        case {"type": "text", "text": str()} | {"type": "image", "source": dict()}:
            return True
    return False


def cleared_text(seq: int, tokens: int, *, names_seq: bool = False) -> str:
    """Return the stub for a cleared result, whose block names the call.

    seq, tokens: of the result's event.
    names_seq:   whether the stub also names the event, as earlier rules did.
    """
    if not names_seq:
        return (
            f"[refold: this result, about {tokens} tokens, was cleared here; the log "
            "has all of it]"
        )
    return (
        f"[refold: the result at seq {seq}, about {tokens} tokens, was cleared here; "
        f"whole: session.events(after={seq - 1}, limit=1)]"
    )


Message = dict[str, Any]
Block = dict[str, Any]
# Blocks, each with the seq of its event, or None if it comes from no event.
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
    """Return a text block."""
    return {"type": "text", "text": text}


def user_blocks(event: events.UserInput) -> list[Block]:
    """Return the blocks of the user's text and attachments: at least one block."""
    blocks = [text_block(event.text)] if event.text.strip() else []
    for attachment in event.attachments:
        image = _image(attachment.media_type, attachment.data)
        blocks.append(image or text_block(attachment_text(attachment)))
    return blocks or [text_block(NO_INPUT)]


def thinking_blocks(event: events.AgentResponse) -> list[Block]:
    """Return the thinking of a response byte for byte, without unsigned thinking."""
    blocks = [_thinking_block(thinking) for thinking in event.thinking]
    return [block for block in blocks if block is not None]


def call_input(arguments: JsonObject | str) -> JsonObject:
    """Return arguments as an object, which the API requires as a call's input."""
    return {"arguments": arguments} if isinstance(arguments, str) else arguments


def result_content(content: Any) -> str | list[Block]:
    """Return the content of a result, never empty: blocks if it consists of blocks."""
    if isinstance(content, list) and content:
        blocks = [_result_part(part) for part in content]
        if None not in blocks:
            return [block for block in blocks if block] or NO_OUTPUT
    text = result_text(content)
    return text if text.strip() else NO_OUTPUT


def result_block(
    tool_use_id: str,
    event: events.ToolResult | None,
    content_of: Callable[[Any], str | list[Block]] = result_content,
) -> Block:
    """Return the block of a call's result.

    event:      the result, or None if the call has none yet.
    content_of: makes the content of the block.
    """
    block: Block = {"type": "tool_result", "tool_use_id": tool_use_id}
    if event is None:
        block["content"] = NO_RESULT
        return block
    content = content_of(event.content)
    if event.status == "unknown":
        if isinstance(content, str):
            content = f"{CUT_OFF}\n{content}"
        else:
            content = [text_block(CUT_OFF), *content]
    block["content"] = content
    if event.status == "error":
        block["is_error"] = True
    return block


def _image(media_type: object, data: object) -> Block | None:
    """Return the block of an image, or None if the API would not accept it."""
    if media_type not in IMAGE_TYPES or not is_base64(data):
        return None
    source = {"type": "base64", "media_type": media_type, "data": data}
    return {"type": "image", "source": source}


def is_base64(data: object) -> bool:
    """Whether ``data`` is valid base64 of at least one byte."""
    try:
        return isinstance(data, str) and bool(b64decode(data, validate=True))
    except ValueError:
        return False


def _thinking_block(thinking: events.Thinking) -> Block | None:
    """Return the block of thinking, or None if the provider did not sign it."""
    if thinking.type == "redacted_thinking":
        if not thinking.data:
            return None
        return {"type": thinking.type, "data": thinking.data}
    if not thinking.signature:
        return None
    return {
        "type": "thinking",
        "thinking": thinking.thinking or "",
        "signature": thinking.signature,
    }


def _result_part(part: Any) -> Block | None:
    """Return the block of a part of a result: {} without text, None for other JSON."""
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
# Blocks of an answer in a fixed order: thinking stands before calls.
_ORDERED: Final = THINKING | {"tool_use"}
# The types of blocks that a result may have.
_IN_RESULTS: Final = frozenset(
    {"text", "image", "document", "search_result", "tool_reference"}
)
_FIELDS_OF_ALL: Final = frozenset({"type", "cache_control"})


class _Allowed(NamedTuple):
    """The blocks that the Messages API takes.

    roles:  by role, the types of blocks that its messages may have.
    fields: by type of block, the fields that it may have besides those of every block.
    """

    roles: Mapping[str, frozenset[str]]
    fields: Mapping[str, frozenset[str]]


@cache
def _allowed() -> _Allowed:
    """Read the file once, and only in a process that checks messages."""
    tables = load_packaged_toml("refold.projections", "data", "messages.toml")
    return _Allowed(
        roles={role: frozenset(kinds) for role, kinds in tables["roles"].items()},
        fields={kind: frozenset(names) for kind, names in tables["fields"].items()},
    )


def violations(messages: Messages, system: str | None = None) -> list[str]:
    """Return the reasons for which the Messages API would refuse these messages.

    Returns one sentence for each, and an empty list for valid messages.
    """
    problems: list[str] = []
    for rule in RULES:
        problems += rule(messages)
    if system is not None and not system.strip():
        problems.append("system: must not be empty; leave it out")
    return problems


def _roles(messages: Messages) -> Iterator[str]:
    """Yield a problem unless roles alternate, and the user is first."""
    if not messages:
        yield "messages: at least one message is needed"
    previous = None
    for index, message in enumerate(messages):
        role = message.get("role")
        if role not in _allowed().roles:
            yield f"messages.{index}: role must be user or assistant"
        if set(message) - {"role", "content"}:
            yield f"messages.{index}: holds more than role and content"
        if index == 0 and role == "assistant":
            yield "messages.0: the first message must be the user's"
        if index > 0 and role == previous:
            yield f"messages.{index}: two messages of one role in a row"
        previous = role


def _contents(messages: Messages) -> Iterator[str]:
    """Yield a problem unless each message has content that its role allows."""
    allowed = _allowed()
    for index, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, str | list) or not content:
            yield f"messages.{index}: content must not be empty"
        elif isinstance(content, list) and not _are_objects(content):
            yield f"messages.{index}: content must be a text or a list of blocks"
        role = str(message.get("role"))
        for place, block in _blocks(index, message):
            kind = str(block.get("type"))
            if kind not in allowed.fields and role == "assistant":
                continue  # only the provider knows its blocks
            if kind not in allowed.roles.get(role, ()):
                yield f"{place}: a {kind} block cannot be in a message of the {role}"
            elif set(block) - allowed.fields[kind] - _FIELDS_OF_ALL:
                yield f"{place}: holds fields that a {kind} block does not have"


def _are_objects(content: list[Any]) -> bool:
    return all(isinstance(block, dict) for block in content)


def _order(messages: Messages) -> Iterator[str]:
    """Yield a problem unless results come first, and thinking comes before calls."""
    for index, message in enumerate(messages):
        kinds = [block.get("type") for _, block in _blocks(index, message)]
        # Between the blocks of its own tools, the provider may have thought again.
        has_own = any(kind not in _allowed().fields for kind in kinds)
        are_results = [kind == "tool_result" for kind in kinds]
        if not _true_first(are_results):
            yield f"messages.{index}: results must stand before anything else"
        # Between its texts, a model may have thought again as well.
        are_before_calls = [kind in THINKING for kind in kinds if kind in _ORDERED]
        if not has_own and not _true_first(are_before_calls):
            yield f"messages.{index}: thinking must stand before calls"
        if kinds and kinds[-1] in THINKING:
            yield f"messages.{index}: the final block cannot be thinking"


def _true_first(flags: list[bool]) -> bool:
    return flags == sorted(flags, reverse=True)


def _pairs(messages: Messages) -> Iterator[str]:
    """Yield a problem unless calls and results match in neighboring messages."""
    open_calls: Counter[str] = Counter()
    all_calls: Counter[str] = Counter()
    for index, message in enumerate(messages):
        calls = _ids(message, "tool_use", "id")
        results = _ids(message, "tool_result", "tool_use_id")
        if open_calls - results:
            yield f"messages.{index - 1}: calls without a result right after them"
        if results - open_calls:
            yield f"messages.{index}: results without a call right before them"
        open_calls = calls
        all_calls += calls
    if open_calls:
        yield f"messages.{len(messages) - 1}: calls without a result right after them"
    for call_id, count in all_calls.most_common(1):
        if count > 1:
            yield f"messages: tool_use ids must be unique, {call_id} is not"


def _each(messages: Messages) -> Iterator[str]:
    """Yield a problem unless each field of a block has a value that the API accepts."""
    for index, message in enumerate(messages):
        for place, block in _blocks(index, message):
            for problem in _problems(block):
                yield f"{place}{problem}"


def _ending(messages: Messages) -> Iterator[str]:
    """Yield a problem unless a final message of the assistant is trimmed.

    The model continues such a message.
    """
    if not messages or messages[-1].get("role") != "assistant":
        return
    last = len(messages) - 1
    blocks = [block for _, block in _blocks(last, messages[last])]
    if not blocks:
        return
    text = blocks[-1].get("text")
    if isinstance(text, str) and text != text.rstrip():
        yield f"messages.{last}: final text must not end in white space"


RULES: Final = (_roles, _contents, _order, _pairs, _each, _ending)


def _problems(block: Block) -> Iterator[str]:
    """Yield the problems of a block, each as a text that follows its place."""
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
        case "document":
            yield from _document_problems(block.get("source"))
        case "container_upload" if not _filled(block.get("file_id")):
            yield ": an upload needs the id of its file"


def _result_problems(block: Block) -> Iterator[str]:
    content = block.get("content")
    is_error = block.get("is_error", False)
    if not isinstance(is_error, bool):
        yield ": is_error must be true or false"
    if not isinstance(content, str | list | None):
        yield ": content must be a text or a list of blocks"
    if content in ("", []):
        yield ": content must not be empty; leave it out"
    if is_error and not content:
        yield ": an error needs a content"
    if isinstance(content, str) and content.isspace():
        yield ": text must hold more than white space"
    parts = content if isinstance(content, list) else []
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _IN_RESULTS:
            yield f".content.{index}: a result holds texts, images and documents"
        else:
            for problem in _problems(part):
                yield f".content.{index}{problem}"


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
        case {"type": "file"}:
            if not _filled(source.get("file_id")):
                yield ": an image needs the id of its file"
        case _:
            yield ": an image needs a base64, url or file source"


def _document_problems(source: Any) -> Iterator[str]:
    match source:
        case {"type": "url", "url": str(text)} | {"type": "file", "file_id": str(text)}:
            if not text.strip():
                yield ": a document needs its address, or the id of its file"
        case {"type": "base64"}:
            if source.get("media_type") != "application/pdf":
                yield ": media_type must be application/pdf"
            if not is_base64(source.get("data")):
                yield ": data must be base64"
        case {"type": "text", "data": str()} | {"type": "content", "content": _}:
            return
        case _:
            yield ": a document needs a base64, text, content, url or file source"


def _blocks(index: int, message: Message) -> Iterator[tuple[str, Block]]:
    """Yield the blocks of a message, each with its place.

    index: of the message.
    """
    content = message.get("content")
    if isinstance(content, str):
        content = [text_block(content)]
    if not isinstance(content, list):
        return
    for number, block in enumerate(content):
        if isinstance(block, dict):
            yield f"messages.{index}.content.{number}", block


def _ids(message: Message, kind: str, field: str) -> Counter[str]:
    """Return the ids in a field of the message's blocks of one type, with counts."""
    ids: Counter[str] = Counter()
    for _, block in _blocks(0, message):
        if block.get("type") == kind:
            ids[str(block.get(field))] += 1
    return ids


def _filled(text: Any) -> bool:
    """Whether a value is a text with more than white space."""
    return isinstance(text, str) and bool(text.strip())
