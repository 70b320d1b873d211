"""Codex's rollouts: each line is an item of the conversation or a note about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final, NamedTuple

from refold.adapters.importers import base, decisions, exit_codes, messages, openai
from refold.adapters.importers.codex_history import Change, History
from refold.adapters.importers.identity import Identities
from refold.domain.canonical import canonical, text_digest
from refold.domain.envelope import Draft, Format, Mark, Native
from refold.domain.events import EditReason, JsonObject, ProviderEdit, is_busy
from refold.domain.ids import unknown_response_id
from refold.projections.instructions import title_of

NAME = "codex"
# Notes that repeat an item.
_REPETITIONS: Final = frozenset({"user_message", "agent_message", "agent_reasoning"})
# Notes of errors.
_ERRORS: Final = frozenset({"error", "stream_error", "turn_aborted"})
# Items that are stored as the client wrote them.
_OPAQUE: Final = frozenset({"compaction", "compaction_summary", "web_search_call"})
# The roles of messages that the model did not write.
_OTHERS: Final = frozenset({"developer", "system", "user"})
_DIGITS: Final = 16  # of the digest that names a response
_NOTHING_TAKEN_BACK: Final = "the user took back turns, and none stands before"
_OF_CLIENT: Final = "record of the client, no message"
# Text that the client writes in the user's name, between tags.
_CONTEXT: Final = re.compile(r"\s*<(environment_context|user_instructions)\b")


def recognises(source: base.Source) -> bool:
    """Whether the first line is a record about a session.

    Lines of the first versions have no ``type`` and ``payload`` around their content.
    """
    lines = (base.mapping(line.value) for line in source.lines())
    first = next(lines, {})
    if "type" in first:
        return first["type"] == "session_meta" and "payload" in first
    second = next(lines, {})
    is_session = {"id", "timestamp"} <= first.keys()
    return is_session and bool(second.keys() & {"type", "record_type"})


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Yield the one transcript of a rollout, with the name that Codex gives it."""
    recording = base.Recording(NAME, source.name)
    reading = _Rollout(recording, whole=True)
    identities = Identities()
    history = History()
    exported = base.ExportedEntries()
    for line in source.lines():
        entry = base.mapping(line.value)
        form = format_of(None)
        key = identities.native(form, entry).key if entry else None
        exported.take(entry, key)
        reading.line(line.number, entry, key)
        change = history.take(entry, key) if key else None
        if change is not None:
            reading.end()
            reading.change(line.number, entry, change)
        elif base.at(entry, "payload", "type") == "thread_rolled_back":
            recording.skip(_NOTHING_TAKEN_BACK, f"line {line.number}", note=True)
    reading.end()
    transcript = recording.transcript(reading.name, parent=reading.parent)
    yield replace(
        transcript,
        title=reading.title,
        folder=reading.folder,
        exported=exported.exported(),
    )


class _Pending(NamedTuple):
    """The pieces of an entry that are not recorded yet."""

    pieces: list[base.PieceOrSkipped]
    origin: base.Origin


class Answers:
    """Names the answers of the model in a rollout, whose lines have no ids of them.

    Items of the model that follow one another are one answer.  Another item, an error,
    a compaction, or the count of its tokens ends it.
    """

    def __init__(self) -> None:
        self._response_id = ""  # of the answer that a further item belongs to
        self._counted: Any = None  # the total of the last count of tokens

    def take(self, entry: dict[str, Any], key: str) -> str:
        """Take the next line; returns the id of its answer, or an empty text.

        key: of the line's entry.
        """
        kind, payload = _content_of(entry)
        if kind == "response_item":
            return self.take_item(payload, key)
        if self._is_end(kind, payload):
            self.end()
        return ""

    def take_item(self, item: dict[str, Any], key: str) -> str:
        """Take the next item; returns the id of its answer, or an empty text."""
        if not _is_of_answer(item):
            self.end()
            return ""
        if not self._response_id:
            name = text_digest(key)[:_DIGITS]
            self._response_id = unknown_response_id(name)
        return self._response_id

    def end(self) -> None:
        """Let the next item of the model begin an answer."""
        self._response_id = ""

    def _is_end(self, kind: str | None, payload: dict[str, Any]) -> bool:
        """Whether a line that is no item ends the answer before it."""
        if kind == "turn_context":
            return _is_plan_mode(payload)
        if kind != "event_msg":
            return True
        note = base.text(payload, "type") or ""
        if note == "token_count":
            total = base.at(payload, "info", "total_token_usage")
            is_new = total is not None and total != self._counted
            self._counted = total
            return is_new
        if note == "task_complete":
            return bool(payload.get("error"))
        return note in _ERRORS or note == "thread_rolled_back"


def _content_of(entry: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Return the kind and the content of a line."""
    kind = base.text(entry, "type")
    payload = entry.get("payload")
    if isinstance(payload, dict):
        return kind, payload
    # The first versions wrote the content alone.
    return "response_item" if kind else "session_meta", entry


def _is_of_answer(item: dict[str, Any]) -> bool:
    """Whether the model wrote an item."""
    is_result = (base.text(item, "type") or "").endswith("_output")
    return base.text(item, "role") not in _OTHERS and not is_result


def _is_plan_mode(payload: dict[str, Any]) -> bool:
    """Whether a turn begins in the mode for plans."""
    return base.text(payload, "collaboration_mode", "mode") == "plan"


class _Answer:
    """The entries since a response of the model began, until its tokens are known."""

    def __init__(self, response_id: str) -> None:
        self.response_id = response_id
        self.entries: list[_Pending] = []

    def set_usage(self, usage: JsonObject) -> None:
        """Put the tokens on the first event of the response."""
        for index, (pieces, origin) in enumerate(self.entries):
            has_event = any(isinstance(piece, base.Piece) for piece in pieces)
            if has_event and origin.response_id == self.response_id:
                self.entries[index] = _Pending(pieces, replace(origin, usage=usage))
                return


class _Rollout:
    """Reads the lines of a rollout one after another.

    whole: whether it gets all lines.  A capture passes a single line: then the tokens
           of an answer cannot be put on the answer.
    response_id: of the answer in a single line; empty if it is not known.
    """

    def __init__(
        self,
        recording: base.Recording | _Drafts,
        model: str | None = None,
        *,
        whole: bool = False,
        response_id: str = "",
    ) -> None:
        self._recording = recording
        self.title = ""
        self.folder = ""
        self._session = ""
        self._model = model
        self.parent: str | None = None
        self._tasks: set[str] = set()  # of the agents that the conversation spawned
        self._counted: Any = None  # the total of the last count of tokens
        self._whole = whole
        self._response_id = response_id
        self._answers = Answers()
        self._answer: _Answer | None = None

    def end(self) -> None:
        """Record the entries that still wait for the tokens of their response."""
        answer = self._answer
        self._answer = None
        if answer is not None:
            for pieces, origin in answer.entries:
                self._recording.take(pieces, origin)

    def _take(self, pieces: Iterable[base.PieceOrSkipped], origin: base.Origin) -> None:
        """Record pieces, after the entries that wait for the tokens of a response."""
        if self._answer is None:
            self._recording.take(pieces, origin)
        else:
            self._answer.entries.append(_Pending(list(pieces), origin))

    def _take_of_model(
        self, pieces: list[base.PieceOrSkipped], origin: base.Origin
    ) -> None:
        """Record an item of the model, which begins an answer or belongs to one."""
        response_id = origin.response_id
        if not self._whole or response_id is None:
            self._take(pieces, origin)
            return
        if self._answer is None or self._answer.response_id != response_id:
            self.end()
            self._answer = _Answer(response_id)
        self._take(pieces, origin)

    @property
    def name(self) -> str:
        """The session's name; that of a sub-agent has its parent's before it."""
        name = f"{self.parent}~{self._session}" if self.parent else self._session
        return base.session_name(name)

    def line(self, number: int, entry: dict[str, Any], key: str | None = None) -> None:
        """Take the next line; ``key`` identifies its entry."""
        kind, payload = _content_of(entry)
        response_id = self._response_id
        if key is not None:
            response_id = self._answers.take(entry, key)
        ts = base.moment(entry, "timestamp")
        origin = base.Origin(f"line {number}", ts=ts, key=key)
        if kind == "turn_context":
            self._model = base.text(payload, "model") or self._model
            if _is_plan_mode(payload):
                self._take([decisions.plan(decisions.PLAN_MODE)], origin)
        elif kind == "response_item":
            self._item(payload, origin, response_id)
        elif kind == "event_msg":
            self._event(payload, origin)
        else:
            self._take(self._about(str(kind), payload), origin)

    def change(self, number: int, entry: dict[str, Any], change: Change) -> None:
        """Record a change of the history by a line, and the items that it adds."""
        ts = base.moment(entry, "timestamp")
        source: JsonObject = {"replacement": True}
        origin = base.Origin(f"line {number}", ts=ts, source=source)
        for new in change.new:
            response_id = self._answers.take_item(new.value, new.key)
            self._item(new.value, replace(origin, key=new.key), response_id)
        self._answers.end()
        self.end()
        marked = base.Origin(origin.place, ts=ts, key=change.key)
        self._recording.mark(change.mark, marked, change.reason)

    def _about(
        self, kind: str, payload: dict[str, Any]
    ) -> Iterator[base.PieceOrSkipped]:
        """Yield the start of the session, and other records about it.

        ``codex_history`` decides which messages a compaction replaces.
        """
        if kind == "compacted":
            edit = {"type": kind, "message": payload.get("message")}
            yield base.Piece("provider_edit", {"edits": [edit]})
        elif kind != "session_meta" or "record_type" in payload:
            yield base.Skipped("", _OF_CLIENT, note=True)
        else:
            self.folder = self.folder or base.text(payload, "cwd") or ""
            if not self._session:  # a fork has the record of its origin, too
                self._session = base.session_name(payload, "id")
                source = base.mapping(payload, "source", "subagent", "thread_spawn")
                self.parent = base.session_name(source, "parent_thread_id") or None
            prompt = base.text(payload, "base_instructions", "text")
            prompt = prompt or base.text(payload, "instructions")
            if prompt:
                yield messages.system(prompt)

    def _item(
        self, item: dict[str, Any], origin: base.Origin, response_id: str
    ) -> None:
        """Take an item of the conversation: a message, call, result, or thought.

        response_id: of the answer that it belongs to; empty if it is in none.
        """
        role = item.get("role")
        kind = base.text(item, "type") or ""
        if role in ("developer", "system"):
            origin = replace(origin, source={"meta": True, "role": role})
            self._take([_developer_message(item)], origin)
            return
        context = _context_of(item)
        if base.text(item, "role") not in _OTHERS:
            origin = replace(origin, model=self._model, response_id=response_id or None)
        elif context is not None:
            origin = replace(origin, source={"meta": True, "context": context})
        if self.parent:
            self._take_task(kind, item)
        pieces = list(openai.response_item(item))
        if kind == "reasoning":
            pieces = list(messages.response([], openai.reasoning_blocks(item)))
        elif kind.endswith("_output") and pieces:
            pieces = [returned(item)]
        elif kind in _OPAQUE:
            pieces = [base.Piece("provider_edit", {"blocks": [item]})]
        pieces = list(decisions.in_codex(pieces))
        if not pieces:
            why = f"item without a text: {base.shown(kind)}"
            pieces = [base.Skipped("", why)]
        if _is_of_answer(item):
            self._take_of_model(pieces, origin)
        else:
            self._take(pieces, origin)

    def _take_task(self, kind: str, item: dict[str, Any]) -> None:
        """Give a sub-agent the title of its task, if it has its parent's history.

        The history ends with the call that spawned the agent, and the task follows.
        """
        if kind == "function_call" and item.get("name") == "spawn_agent":
            arguments, _ = base.parsed(base.text(item, "arguments") or "")
            task = base.text(arguments, "message")
            if task:
                self._tasks.add(task)
        elif kind == "message" and not self.title:
            texts = [
                base.text(part, "text") or "" for part in base.each(item, "content")
            ]
            task = "\n".join(texts)
            if task in self._tasks:
                self.title = title_of(task)

    def _event(self, payload: dict[str, Any], origin: base.Origin) -> None:
        """Take a note of the client: tokens, errors, and plans; skip the others."""
        kind = base.text(payload, "type") or ""
        if kind == "token_count":
            self._count(base.mapping(payload, "info"), origin)
        elif kind in _ERRORS:
            why = base.text(payload, "message") or base.text(payload, "reason") or ""
            fields = {"code": kind, "message": why, "where": "codex"}
            self._take([base.Piece("error", fields)], origin)
        elif kind == "task_complete" and payload.get("error"):
            self._take([_failed_turn(payload["error"])], origin)
        elif kind == "item_completed" and base.at(payload, "item", "type") == "Plan":
            plan = base.text(payload, "item", "text") or ""
            self._take([decisions.plan(plan)], origin)
        elif kind == "thread_name_updated":
            # A sub-agent's rollout may begin with the history of its parent.
            if payload.get("thread_id") in (None, self._session):
                self.title = base.text(payload, "thread_name") or self.title
            self._take([base.Skipped("", "name of the session", note=True)], origin)
        elif kind not in _REPETITIONS and kind != "thread_rolled_back":
            self._take([base.Skipped("", _OF_CLIENT, note=True)], origin)

    def _count(self, info: dict[str, Any], origin: base.Origin) -> None:
        """Record the tokens of a response, unless Codex repeats its last count.

        They stand on the first event of the response, if that is known.  The count is
        an event, too, which names the response: a capture, or an import of a file that
        ended before the count, recorded the response without its tokens.
        """
        total = info.get("total_token_usage")
        last = info.get("last_token_usage")
        if total == self._counted or not isinstance(last, dict):
            return
        self._counted = total
        input_tokens = int(base.number(last, "input_tokens") or 0)
        cached_tokens = int(base.number(last, "cached_input_tokens") or 0)
        usage: JsonObject = {
            "input_tokens": max(input_tokens - cached_tokens, 0),
            "output_tokens": int(base.number(last, "output_tokens") or 0),
            "cache_read_input_tokens": cached_tokens,
        }
        item = {"format": NAME, "kind": "token_count", "value": last}
        answer = self._answer
        if answer is None:
            count_origin = replace(origin, model=self._model, usage=usage)
        else:
            answer.set_usage(usage)
            count_origin = replace(
                origin,
                model=self._model,
                response_id=answer.response_id,
                source={**origin.source, "usage": usage},
            )
        self._take([base.Piece("item", item)], count_origin)
        self.end()


def returned(item: dict[str, Any]) -> base.Piece:
    """Return the result in an item.

    The output of some commands is JSON with their exit code and duration.
    """
    output = item.get("output")
    content = output
    if isinstance(output, dict) and "content" in output:
        content = output["content"]
    output_json = None
    # Only an object can have metadata, and most outputs are no JSON.
    if isinstance(content, str) and content.lstrip().startswith("{"):
        output_json, _ = base.parsed(content)
    metadata = base.mapping(output_json, "metadata")
    failed = (
        base.at(output, "success") is False
        or exit_codes.states_failure(content)
        or decisions.refused_in_codex(content)
    )
    took = base.milliseconds(metadata, "duration_seconds", per_unit=1000.0)
    return messages.tool_result(item["call_id"], content, failed=failed, took=took)


def _developer_message(item: dict[str, Any]) -> base.PieceOrSkipped:
    """Return a message of the client that is not its system prompt."""
    content = item.get("content")
    texts = [base.text(part, "text") for part in base.each(item, "content")]
    if isinstance(content, str):
        texts = [content]
    joined = "\n\n".join(text for text in texts if text)
    if not joined:
        return messages.EMPTY
    return base.Piece("system", {"text": joined, "where": "conversation"})


def _context_of(item: dict[str, Any]) -> str | None:
    """Return the tag of the context that the client wrote as the user's message.

    Returns None for a message that the user wrote.
    """
    text = base.text(next(base.each(item, "content"), {}), "text")
    tag = _CONTEXT.match(text) if text else None
    return tag[1] if tag else None


# The status of a provider's answer, in the JSON of an error.
_STATUS: Final = re.compile(r"\b(?:status|HTTP)\D{0,8}([45]\d\d)\b")


def _failed_turn(error: Any) -> base.Piece:
    """Return the error that ended a turn without an answer."""
    error_json = canonical(error).decode()
    message = error if isinstance(error, str) else base.text(error, "message")
    fields: dict[str, Any] = {
        "code": "task_failed",
        "where": "codex",
        "message": message or error_json,
    }
    status = _STATUS.search(error_json)
    if status:
        fields["context"] = {"status": int(status[1])}
        fields["retryable"] = is_busy(int(status[1]))
    return base.Piece("error", fields)


class _Drafts:
    """Collects the events of a line as drafts; the session checks them later.

    It has the methods of a ``base.Recording`` that a rollout uses.
    """

    def __init__(self) -> None:
        self.drafts: list[Draft] = []

    def take(self, pieces: Iterable[base.PieceOrSkipped], origin: base.Origin) -> None:
        """Add the drafts of pieces; those of an origin with a key get keys, too."""
        drafts = list(base.drafts_of(pieces, origin))
        if origin.key is None:  # the append gives them the key of the line
            self.drafts += drafts
            return
        for place, draft in enumerate(drafts):
            key = f"{origin.key}\0{place}" if place else origin.key
            meta = draft.meta.model_copy(update={"source": origin.source})
            keyed = replace(draft, key=key, continues=place > 0, meta=meta)
            self.drafts.append(keyed)

    def mark(self, mark: Mark, origin: base.Origin, reason: EditReason) -> None:
        """Add a change of the history; the append replaces its keys by seqs."""
        edit = ProviderEdit(reason=reason)
        self.drafts.append(Draft(edit, origin.ts, key=origin.key, mark=mark))

    def skip(self, why: str, *places: str, note: bool = False) -> None:
        """Do nothing: the session has the whole line as an item."""


def drafts_of(change: Change, entry: dict[str, Any], model: str | None) -> list[Draft]:
    """Return the events of a change, as a capture appends them after its line."""
    drafts = _Drafts()
    _Rollout(drafts, model).change(0, entry, change)
    return drafts.drafts


@cache
def format_of(model: str | None) -> Format:
    """Return the format of a line; ``model`` answers unless the line names another."""
    return _format(model, "")


def of_answer(native: Native, model: str | None, response_id: str) -> Native:
    """Return an item of an answer, whose events get the id of the answer."""
    return replace(native, format=_format(model, response_id))


def _format(model: str | None, response_id: str) -> Format:
    return Format(
        NAME,
        view=partial(_view, model, response_id),
        kind=lambda entry: base.text(entry, "type") or "",
        id=_id,
        is_transcript=True,
    )


def _view(
    model: str | None, response_id: str, _: str, entry: Any, __: object
) -> list[Draft]:
    """Return the events of a line that the log stores as an item."""
    drafts = _Drafts()
    _Rollout(drafts, model, response_id=response_id).line(0, base.mapping(entry))
    return drafts.drafts


def _id(entry: Any) -> str | None:
    """Return the id of a count of tokens, which Codex repeats; None for other lines."""
    total = base.at(entry, "payload", "info", "total_token_usage")
    return text_digest(str(total)) if total else None


def title_in(entry: dict[str, Any]) -> str:
    """Return the title that a line gives its session; empty if it gives none."""
    payload = base.mapping(entry, "payload")
    if base.text(payload, "type") != "thread_name_updated":
        return ""
    return base.text(payload, "thread_name") or ""


def name_of(entry: dict[str, Any]) -> str:
    """Return the session that a first line names; empty if it names none.

    The name of a sub-agent's session has that of its parent before it.
    """
    rollout = _Rollout(_Drafts())
    rollout.line(0, entry)
    return rollout.name
