"""Rows for training and evaluation: the chats of users who allow it, and whence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import orjson

from refold.adapters.importers.atif import trajectory
from refold.domain.envelope import Envelope
from refold.domain.erasure import subject
from refold.domain.events import Final as Outcome, JsonObject
from refold.domain.ids import RESERVED
from refold.store import SessionStore
from refold.store.exports import DATASET, check_dataset, record_dataset

TRAINING: Final = "training"


@dataclass
class Dataset:
    """A dataset that is made of a store, row by row.

    scope: the consent that a user must have given, and not withdrawn.
    users: whose rows are in it so far; ``left`` is how many others were left out.
    """

    store: SessionStore
    scope: str = TRAINING
    export_id: str = field(default_factory=lambda: str(uuid4()))
    users: list[str] = field(default_factory=list)
    left: int = 0

    def rows(self, user_id: str | None = None) -> Iterator[JsonObject]:
        """A row for each session, of one user or of all.

        That there is a row of theirs is recorded with each user before it is made.

        Raises ExportFailed at the end if one of them is being erased: what was written
        must not be used then.
        """
        infos = self.store.sessions(user_id)
        for user in dict.fromkeys(info.user_id for info in infos):
            allowed = self.store.user(user).status().scopes.get(self.scope)
            if allowed is None or not allowed.granted:
                self.left += 1
                continue
            salt = record_dataset(self.store.writer, user, self.export_id, self.scope)
            self.users.append(user)
            consent: JsonObject = {"scope": self.scope, "at": allowed.at}
            for info in infos:
                if info.user_id == user and info.session_id not in RESERVED:
                    yield from self._row(user, info.session_id, salt, consent)
        check_dataset(self.store.writer, self.users)

    def _row(
        self, user: str, name: str, salt: bytes, consent: JsonObject
    ) -> Iterator[JsonObject]:
        session = self.store.session(user_id=user, session_id=name)
        events = [one for one in session.timeline() if one.stream == "main"]
        if chat := [*_chat(trajectory(events, "")["steps"])]:
            lineage: JsonObject = {
                "format": DATASET,
                "export": self.export_id,
                "user": subject(salt, user),
                "session": subject(salt, user, [name]),
                "seqs": [events[0].seq, events[-1].seq],
                "head": events[-1].hash,
                "consent": consent,
                "redaction": _redaction(events),
            }
            held: JsonObject = {"messages": [*chat]}
            yield held | _outcome(events) | {"lineage": lineage}


def _chat(steps: Any) -> Iterator[JsonObject]:
    """The messages of a trajectory as chat models are trained on them."""
    for step in steps:
        said: JsonObject = {"content": _text(step.get("message"))}
        calls: list[Any] = [_call(call) for call in step.get("tool_calls", ())]
        if thought := step.get("reasoning_content"):
            said["reasoning_content"] = thought
        if calls:
            said["tool_calls"] = calls
        role = {"agent": "assistant"}.get(step["source"], step["source"])
        if any(said.values()):
            yield {"role": role, **said}
        for result in step.get("observation", {}).get("results", ()):
            named = {"tool_call_id": i} if (i := result.get("source_call_id")) else {}
            who = "tool" if named else "user"
            yield {"role": who, **named, "content": _text(result.get("content"))}


def _call(call: Mapping[str, Any]) -> JsonObject:
    arguments = orjson.dumps(call["arguments"]).decode()
    function: JsonObject = {"name": call["function_name"], "arguments": arguments}
    return {"id": call["tool_call_id"], "type": "function", "function": function}


def _text(content: Any) -> str:
    """A message's text; of images the place is named."""
    if isinstance(content, str):
        return content
    return "\n\n".join(
        part["text"] if part["type"] == "text" else f"[{part['source']['path']}]"
        for part in content or ()
    )


def _redaction(events: Iterable[Envelope]) -> JsonObject:
    """By which rules the texts were redacted, and how many values of which type."""
    rules, types = set[str](), Counter[str]()
    for event in events:
        rules.add(str(event.redaction.get("rules")))
        found = event.redaction.get("types")
        types.update(found if isinstance(found, dict) else {})
    return {"rules": [*sorted(rules)], "types": dict(sorted(types.items()))}


def _outcome(events: Iterable[Envelope]) -> JsonObject:
    """How the run ended, if the log says."""
    ends = [one.payload for one in events if isinstance(one.payload, Outcome)]
    return {"outcome": ends[-1].outcome, "reward": ends[-1].reward} if ends else {}
