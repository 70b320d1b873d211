"""Codex's rollouts: each line is an item of the conversation or a note about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

from refold.adapters.importers import base, decisions, messages, openai
from refold.adapters.importers.codex_history import Change, History
from refold.adapters.importers.identity import Identities
from refold.domain.canonical import canonical, text_digest
from refold.domain.envelope import Draft, Format, Mark
from refold.domain.events import EditReason, JsonObject, ProviderEdit, is_busy

NAME = "codex"
_AGAIN: Final = frozenset({"user_message", "agent_message", "agent_reasoning"})
_BROKEN: Final = frozenset({"error", "stream_error", "turn_aborted"})
_OPAQUE: Final = frozenset({"compaction", "compaction_summary", "web_search_call"})
_DIGITS: Final = 16  # of the digest that names a response
_NOTHING_TAKEN_BACK: Final = "the user took back turns, and none stands before"
_OF_CLIENT: Final = "record of the client, no message"
# What the client writes in the user's name, between tags.
_CONTEXT: Final = re.compile(r"\s*<(environment_context|user_instructions)\b")
# How a command ended, in the lines before its output.
_EXIT_CODE: Final = re.compile(r"(?m)^(?:Process exited with code|Exit code:) (-?\d+)$")
_OUTPUT: Final = re.compile(r"(?m)^Output:")


def recognises(source: base.Source) -> bool:
    """Whether the first line tells of a session, framed or not."""
    lines = (base.mapping(line.value) for line in source.lines())
    first = next(lines, {})
    if "type" in first:
        return first["type"] == "session_meta" and "payload" in first
    framed = {"id", "timestamp"} <= first.keys()
    return framed and bool(next(lines, {}).keys() & {"type", "record_type"})


def read(source: base.Source) -> Iterator[base.Transcript]:
    """One transcript, named as Codex names it; lines may have no frame, as once."""
    recording = base.Recording(NAME, source.name)
    reading = _Rollout(recording, whole=True)
    identities = Identities()
    history = History()
    for line in source.lines():
        entry = base.mapping(line.value)
        form = format_of(None)
        key = identities.native(form, entry).key if entry else None
        reading.line(line.number, entry, key)
        change = history.take(entry, key) if key else None
        if change is not None:
            reading.end()
            reading.change(line.number, entry, change)
        elif base.at(entry, "payload", "type") == "thread_rolled_back":
            recording.skip(_NOTHING_TAKEN_BACK, f"line {line.number}", note=True)
    reading.end()
    yield recording.transcript(reading.name, parent=reading.parent)


class _Answer:
    """The entries since a response of the model began, until its tokens are known."""

    def __init__(self, response_id: str) -> None:
        self.response_id = response_id
        self.goes_on = True  # nothing but items of the model came so far
        self.found: list[tuple[list[base.PieceOrSkipped], base.Origin]] = []

    def spent(self, usage: JsonObject) -> None:
        """Put the tokens on the first event of the response."""
        for place, (found, origin) in enumerate(self.found):
            is_first = any(isinstance(one, base.Piece) for one in found)
            if is_first and origin.response_id == self.response_id:
                self.found[place] = found, replace(origin, usage=usage)
                return


class _Rollout:
    """Reads the lines of a rollout one after another.

    whole: whether it is given every line from the first on.  A capture gives it one
           line alone: then the tokens of an answer cannot be put on it.
    """

    def __init__(
        self,
        recording: base.Recording | _Drafts,
        model: str | None = None,
        *,
        whole: bool = False,
    ) -> None:
        self._recording = recording
        self._session = ""
        self._model = model
        self.parent: str | None = None
        self._spent: Any = None
        self._whole = whole
        self._answer: _Answer | None = None

    def end(self) -> None:
        """Record the entries that still wait for the tokens of their response."""
        answer = self._answer
        self._answer = None
        if answer is not None:
            for found, origin in answer.found:
                self._recording.take(found, origin)

    def _take(self, found: Iterable[base.PieceOrSkipped], origin: base.Origin) -> None:
        """Record this behind the entries that wait for the tokens of a response."""
        if self._answer is None:
            self._recording.take(found, origin)
        else:
            self._answer.found.append(([*found], origin))

    def _take_of_model(
        self, found: list[base.PieceOrSkipped], origin: base.Origin
    ) -> None:
        """Record an item of the model, which begins a response or belongs to one."""
        if not self._whole:
            self._recording.take(found, origin)
            return
        if self._answer is None or not self._answer.goes_on:
            self.end()
            name = text_digest(origin.key or origin.place)[:_DIGITS]
            self._answer = _Answer(f"msg:{name}")
        self._take(found, replace(origin, response_id=self._answer.response_id))

    def _take_of_others(
        self, found: Iterable[base.PieceOrSkipped], origin: base.Origin
    ) -> None:
        """Record an item that the model did not write: its response is complete."""
        if self._answer is not None:
            self._answer.goes_on = False
        self._take(found, origin)

    @property
    def name(self) -> str:
        name = f"{self.parent}~{self._session}" if self.parent else self._session
        return base.session_name(name)

    def line(self, number: int, entry: dict[str, Any], key: str | None = None) -> None:
        kind = entry.get("type")
        payload = entry.get("payload")
        if not isinstance(payload, dict):  # as the first versions wrote it
            kind = "response_item" if kind else "session_meta"
            payload = entry
        ts = base.moment(entry, "timestamp")
        origin = base.Origin(f"line {number}", ts=ts, key=key)
        if kind == "turn_context":
            self._model = base.text(payload, "model") or self._model
            if base.at(payload, "collaboration_mode", "mode") == "plan":
                self._take_of_others([decisions.plan(decisions.PLAN_MODE)], origin)
        elif kind == "response_item":
            self._item(payload, origin)
        elif kind == "event_msg":
            self._event(payload, origin)
        else:
            self._take_of_others(self._about(str(kind), payload), origin)

    def change(self, number: int, entry: dict[str, Any], change: Change) -> None:
        """Record what a line changes in the history."""
        ts = base.moment(entry, "timestamp")
        source: JsonObject = {"replacement": True}
        origin = base.Origin(f"line {number}", ts=ts, source=source)
        for new in change.new:
            self._item(new.value, replace(origin, key=new.key))
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
            if not self._session:  # a fork has the record of its origin, too
                self._session = base.session_name(payload, "id")
                source = base.mapping(payload, "source", "subagent", "thread_spawn")
                self.parent = base.session_name(source, "parent_thread_id") or None
            prompt = base.text(payload, "base_instructions", "text")
            if prompt := prompt or base.text(payload, "instructions"):
                yield messages.system(prompt)

    def _item(self, item: dict[str, Any], origin: base.Origin) -> None:
        role = item.get("role")
        kind = base.text(item, "type") or ""
        is_of_model = role not in ("developer", "system", "user")
        if role in ("developer", "system"):
            origin = replace(origin, source={"meta": True, "role": role})
            self._take_of_others([_developer_message(item)], origin)
            return
        if is_of_model:
            origin = replace(origin, model=self._model)
        elif context := _context_of(item):
            origin = replace(origin, source={"meta": True, "context": context})
        found = [*openai.response_item(item)]
        if kind.endswith("_output") and found:
            found = [_returned(item)]
        elif kind in _OPAQUE:
            found = [base.Piece("provider_edit", {"blocks": [item]})]
        why = f"item without a text: {base.shown(kind)}"
        found = [*decisions.in_codex(found)] or [base.Skipped("", why)]
        if is_of_model and not kind.endswith("_output"):
            self._take_of_model(found, origin)
        else:
            self._take_of_others(found, origin)

    def _event(self, payload: dict[str, Any], origin: base.Origin) -> None:
        """Take a note of the client: tokens, errors, and plans; skip the others."""
        kind = base.text(payload, "type") or ""
        if kind == "token_count":
            self._spend(base.mapping(payload, "info"), origin)
        elif kind in _BROKEN:
            why = base.text(payload, "message") or base.text(payload, "reason") or ""
            fields = {"code": kind, "message": why, "where": "codex"}
            self._take_of_others([base.Piece("error", fields)], origin)
        elif kind == "task_complete" and payload.get("error"):
            self._take_of_others([_failed_turn(payload["error"])], origin)
        elif kind == "item_completed" and base.at(payload, "item", "type") == "Plan":
            plan = base.text(payload, "item", "text") or ""
            self._take([decisions.plan(plan)], origin)
        elif kind not in _AGAIN and kind != "thread_rolled_back":
            self._take([base.Skipped("", _OF_CLIENT, note=True)], origin)

    def _spend(self, info: dict[str, Any], origin: base.Origin) -> None:
        """Record the tokens of a response; Codex repeats the same count.

        They stand on the first event of the response, if that is known.  The count is
        an event, too, which names the response: a capture, or an import of a file that
        ended before the count, recorded the response without them.
        """
        total = info.get("total_token_usage")
        last = info.get("last_token_usage")
        if total == self._spent or not isinstance(last, dict):
            return
        self._spent = total
        input_tokens = int(base.number(last, "input_tokens") or 0)
        cached_tokens = int(base.number(last, "cached_input_tokens") or 0)
        usage: JsonObject = {
            "input_tokens": max(input_tokens - cached_tokens, 0),
            "output_tokens": int(base.number(last, "output_tokens") or 0),
            "cache_read_input_tokens": cached_tokens,
        }
        item = {"format": NAME, "kind": "token_count", "value": last}
        counted = replace(origin, model=self._model)
        answer = self._answer
        if answer is None:
            counted = replace(counted, usage=usage)
        else:
            answer.spent(usage)
            source = {**origin.source, "usage": usage}
            name = answer.response_id
            counted = replace(counted, response_id=name, source=source)
        self._take([base.Piece("item", item)], counted)
        self.end()


def _returned(item: dict[str, Any]) -> base.Piece:
    """A result.  Some commands write JSON with their exit code and their duration."""
    output = item.get("output")
    content = output
    if isinstance(output, dict) and "content" in output:
        content = output["content"]
    parsed = base.parsed(content)[0] if isinstance(content, str) else None
    metadata = base.mapping(parsed, "metadata")
    failed = (
        base.at(output, "success") is False
        or bool(metadata.get("exit_code"))
        or _exit_code(content) != 0
        or decisions.refused_in_codex(content)
    )
    took = base.milliseconds(metadata, "duration_seconds", per_unit=1000.0)
    return messages.tool_result(item["call_id"], content, failed=failed, took=took)


def _exit_code(content: Any) -> int:
    """The exit code in the lines before a command's output; 0 without one."""
    text = content
    if isinstance(content, list):
        text = next(filter(None, (base.text(part, "text") for part in content)), None)
    if not isinstance(text, str):
        return 0
    output = _OUTPUT.search(text)
    code = _EXIT_CODE.search(text, 0, output.start() if output else len(text))
    return int(code[1]) if code and output else 0


def _developer_message(item: dict[str, Any]) -> base.PieceOrSkipped:
    """A message that the client sent beside its system prompt, where it stands."""
    content = item.get("content")
    texts = [base.text(part, "text") for part in base.each(item, "content")]
    if isinstance(content, str):
        texts = [content]
    joined = "\n\n".join(text for text in texts if text)
    if not joined:
        return messages.EMPTY
    return base.Piece("system", {"text": joined, "where": "conversation"})


def _context_of(item: dict[str, Any]) -> str | None:
    """Which part of its context the client wrote as the user's message."""
    text = base.text(next(base.each(item, "content"), {}), "text")
    named = _CONTEXT.match(text) if text else None
    return named[1] if named else None


def _failed_turn(error: Any) -> base.Piece:
    """The error that ended a turn without an answer."""
    why = error if isinstance(error, str) else base.text(error, "message")
    fields: dict[str, Any] = {"code": "task_failed", "where": "codex"}
    fields["message"] = why or canonical(error).decode()
    status = re.search(
        r"\b(?:status|HTTP)\D{0,8}([45]\d\d)\b", canonical(error).decode()
    )
    if status:
        fields["context"] = {"status": int(status[1])}
        fields["retryable"] = is_busy(int(status[1]))
    return base.Piece("error", fields)


class _Drafts:
    """Takes the events of a line as drafts; the session checks them later."""

    def __init__(self) -> None:
        self.taken: list[Draft] = []

    def take(self, found: Iterable[base.PieceOrSkipped], origin: base.Origin) -> None:
        drafts = [*base.drafts_of(found, origin)]
        if origin.key is None:  # the key is that of the line
            self.taken += drafts
            return
        for place, draft in enumerate(drafts):
            key = f"{origin.key}\0{place}" if place else origin.key
            meta = draft.meta.model_copy(update={"source": origin.source})
            keyed = replace(draft, key=key, continues=place > 0, meta=meta)
            self.taken.append(keyed)

    def mark(self, mark: Mark, origin: base.Origin, reason: EditReason) -> None:
        """Take a change of the history; its seqs are filled in by the append."""
        edit = ProviderEdit(reason=reason)
        self.taken.append(Draft(edit, origin.ts, key=origin.key, mark=mark))

    def skip(self, why: str, *places: str, note: bool = False) -> None:
        """Do nothing: the item of the line keeps it."""


def drafts_of(change: Change, entry: dict[str, Any], model: str | None) -> list[Draft]:
    """The events of what a line changes, as a capture appends them behind it."""
    drafts = _Drafts()
    _Rollout(drafts, model).change(0, entry, change)
    return drafts.taken


@cache
def format_of(model: str | None) -> Format:
    """The format of a line; ``model`` answers unless the line names another."""
    return Format(
        NAME, partial(_view, model), lambda entry: base.text(entry, "type") or "", _id
    )


def _view(model: str | None, _: str, entry: Any, __: object) -> list[Draft]:
    drafts = _Drafts()
    _Rollout(drafts, model).line(0, base.mapping(entry))
    return drafts.taken


def _id(entry: Any) -> str | None:
    """The id of a count of tokens, which Codex repeats; other lines have no ids."""
    total = base.at(entry, "payload", "info", "total_token_usage")
    return text_digest(str(total)) if total else None


def name_of(entry: dict[str, Any]) -> str:
    """The session that a first line names, a sub-agent's behind its parent's."""
    rollout = _Rollout(_Drafts())
    rollout.line(0, entry)
    return rollout.name
