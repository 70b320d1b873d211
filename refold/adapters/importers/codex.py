"""Codex's rollouts: what was sent to the model and came back, a line each."""

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
    """What was read since a response of the model began, until its tokens are known."""

    def __init__(self, response_id: str) -> None:
        self.response_id = response_id
        self.goes_on = True  # nothing but items of the model came so far
        self.found: list[tuple[list[base.Found], base.Origin]] = []

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
        self._recording, self._session, self._model = recording, "", model
        self.parent: str | None = None
        self._spent: Any = None
        self._whole = whole
        self._answer: _Answer | None = None

    def end(self) -> None:
        """Record what still waited for the tokens of its answer."""
        answer = self._answer
        self._answer = None
        if answer is not None:
            for found, origin in answer.found:
                self._recording.take(found, origin)

    def _take(self, found: Iterable[base.Found], origin: base.Origin) -> None:
        """Record this, behind what waits for the tokens of its answer."""
        if self._answer is None:
            self._recording.take(found, origin)
        else:
            self._answer.found.append(([*found], origin))

    def _take_of_model(self, found: list[base.Found], origin: base.Origin) -> None:
        """Record an item of the model, which begins a response or belongs to one."""
        if not self._whole:
            self._recording.take(found, origin)
            return
        if self._answer is None or not self._answer.goes_on:
            self.end()
            name = text_digest(origin.key or origin.place)[:_DIGITS]
            self._answer = _Answer(f"msg:{name}")
        self._take(found, replace(origin, response_id=self._answer.response_id))

    def _take_of_others(self, found: Iterable[base.Found], origin: base.Origin) -> None:
        """Record an item that the model did not write: its response is complete."""
        if self._answer is not None:
            self._answer.goes_on = False
        self._take(found, origin)

    @property
    def name(self) -> str:
        name = f"{self.parent}~{self._session}" if self.parent else self._session
        return base.session_name(name)

    def line(self, number: int, entry: dict[str, Any], key: str | None = None) -> None:
        kind, told = entry.get("type"), entry.get("payload")
        if not isinstance(told, dict):  # as the first versions wrote it
            kind, told = "response_item" if kind else "session_meta", entry
        ts = base.moment(entry, "timestamp")
        origin = base.Origin(f"line {number}", ts=ts, key=key)
        if kind == "turn_context":
            self._model = base.text(told, "model") or self._model
            if base.at(told, "collaboration_mode", "mode") == "plan":
                self._take_of_others([decisions.plan(decisions.PLAN_MODE)], origin)
        elif kind == "response_item":
            self._item(told, origin)
        elif kind == "event_msg":
            self._event(told, origin)
        else:
            self._take_of_others(self._about(str(kind), told), origin)

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

    def _about(self, kind: str, told: dict[str, Any]) -> Iterator[base.Found]:
        """How the session began, and what became of its context."""
        if kind == "compacted":
            edit = {"type": kind, "message": told.get("message")}
            yield base.Piece("provider_edit", {"edits": [edit]})
        elif kind != "session_meta" or "record_type" in told:
            yield base.Skipped("", _OF_CLIENT, note=True)
        else:
            if not self._session:  # a fork has the record of its origin, too
                self._session = base.session_name(told, "id")
                by = "source", "subagent", "thread_spawn", "parent_thread_id"
                self.parent = base.session_name(told, *by) or None
            prompt = base.text(told, "base_instructions", "text")
            if prompt := prompt or base.text(told, "instructions"):
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

    def _event(self, told: dict[str, Any], origin: base.Origin) -> None:
        """What the client noted: the tokens of an answer, and what broke it off."""
        kind = base.text(told, "type") or ""
        if kind == "token_count":
            self._spend(base.mapping(told, "info"), origin)
        elif kind in _BROKEN:
            why = base.text(told, "message") or base.text(told, "reason") or ""
            fields = {"code": kind, "message": why, "where": "codex"}
            self._take_of_others([base.Piece("error", fields)], origin)
        elif kind == "task_complete" and told.get("error"):
            self._take_of_others([_failed_turn(told["error"])], origin)
        elif kind == "item_completed" and base.at(told, "item", "type") == "Plan":
            plan = base.text(told, "item", "text") or ""
            self._take([decisions.plan(plan)], origin)
        elif kind not in _AGAIN and kind != "thread_rolled_back":
            self._take([base.Skipped("", _OF_CLIENT, note=True)], origin)

    def _spend(self, info: dict[str, Any], origin: base.Origin) -> None:
        """Record an answer's tokens; the same count is told again and again.

        They stand on the first event of the response, if that is known.  The count is
        an event, too, which names the response: a capture, or an import of a file that
        ended before the count, recorded the response without them.
        """
        total, last = info.get("total_token_usage"), info.get("last_token_usage")
        if total == self._spent or not isinstance(last, dict):
            return
        self._spent = total
        given, read, made = (
            int(base.number(last, f"{name}_tokens") or 0)
            for name in ("input", "cached_input", "output")
        )
        usage: Any = {"input_tokens": max(given - read, 0), "output_tokens": made}
        usage["cache_read_input_tokens"] = read
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
    """A result; commands say in JSON how they ended, and after how many seconds."""
    content = given = item.get("output")
    if isinstance(given, dict) and "content" in given:
        content = given["content"]
    told = base.parsed(content)[0] if isinstance(content, str) else None
    ended = base.mapping(told, "metadata")
    failed = base.at(given, "success") is False or ended.get("exit_code")
    failed = failed or _exit_code(content) or decisions.refused_in_codex(content)
    took = base.milliseconds(ended, "duration_seconds", per_unit=1000.0)
    return messages.returned(item["call_id"], content, failed=bool(failed), took=took)


def _exit_code(content: Any) -> int:
    """What the lines before a command's output say; 0 if they say nothing."""
    text = content
    if isinstance(content, list):
        text = next(filter(None, (base.text(part, "text") for part in content)), None)
    if not isinstance(text, str):
        return 0
    output = _OUTPUT.search(text)
    code = _EXIT_CODE.search(text, 0, output.start() if output else len(text))
    return int(code[1]) if code and output else 0


def _developer_message(item: dict[str, Any]) -> base.Found:
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
    """Why a turn ended without an answer."""
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
    """Takes what is found in a line as drafts; a session judges them later."""

    def __init__(self) -> None:
        self.taken: list[Draft] = []

    def take(self, found: Iterable[base.Found], origin: base.Origin) -> None:
        drafts = [*base.typed(found, origin)]
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
        """What is no event stands in the item."""


def drafts_of(change: Change, entry: dict[str, Any], model: str | None) -> list[Draft]:
    """The events of what a line changes, as a capture appends them behind it."""
    drafts = _Drafts()
    _Rollout(drafts, model).change(0, entry, change)
    return drafts.taken


@cache
def format_of(model: str | None) -> Format:
    """A line of a rollout, which ``model`` answers as far as it does not say."""
    return Format(
        NAME, partial(_view, model), lambda entry: base.text(entry, "type") or "", _id
    )


def _view(model: str | None, _: str, entry: Any, __: object) -> list[Draft]:
    drafts = _Drafts()
    _Rollout(drafts, model).line(0, base.mapping(entry))
    return drafts.taken


def _id(entry: Any) -> str | None:
    """Of a count of tokens, which is told again and again; lines have no ids."""
    total = base.at(entry, "payload", "info", "total_token_usage")
    return text_digest(str(total)) if total else None


def name_of(entry: dict[str, Any]) -> str:
    """The session that a first line names, a sub-agent's behind its parent's."""
    rollout = _Rollout(_Drafts())
    rollout.line(0, entry)
    return rollout.name
