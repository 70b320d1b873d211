"""The session store of the Claude Agent SDK.

The client keeps its own files under ``CLAUDE_CONFIG_DIR`` too, as they are: what is
redacted, erased or held here is still there.  Remove them, or have the client do so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from refold.adapters.frameworks import needed, settled, unstored
from refold.adapters.importers.claude_code import FORMAT
from refold.domain.errors import SessionNotFound
from refold.projections.items import NativeItem
from refold.store.sessions import Session
from refold.store.store import SessionStore

if not TYPE_CHECKING:
    needed("claude_agent_sdk", "claude-sdk")
from claude_agent_sdk import (
    HookMatcher,
    SessionStore as _Protocol,
    fold_session_summary,
)

_PROJECT, _SESSION, _PART = "claude_project", "claude_session", "claude_part"
_MAIN: Final = "main"
Key = Mapping[str, Any]


class RefoldSessionStore(_Protocol):
    """Mirrors transcripts into the sessions of one user: ``session_store=`` takes it.

    What the client reads back is what is stored: redacted.
    """

    def __init__(self, store: SessionStore, *, user_id: str) -> None:
        self._store, self._user_id = store, user_id

    async def append(self, key: Key, entries: Sequence[Any]) -> None:
        """Append what is new of these entries."""
        if entries:
            await settled(
                lambda: self._session(key).append_items(
                    FORMAT, entries, unscanned="stub"
                )
            )

    async def load(self, key: Key) -> list[Any] | None:
        """The entries as they are stored; None if there are none."""

        def read() -> list[Any]:
            return [item.value for item in self._session(key).items()]

        return await asyncio.to_thread(read) or None

    async def list_sessions(self, project_key: str) -> list[Any]:
        """Names and times of the project's sessions, without sub-agents'."""
        return await asyncio.to_thread(self._listed, project_key)

    async def list_session_summaries(self, project_key: str) -> list[Any]:
        """What the SDK folds of each session for its lists."""
        return await asyncio.to_thread(self._listed, project_key, _summary)

    async def delete(self, key: Key) -> None:
        """Erase a session with its sub-agents', or one of these; they may begin again.

        Raises OnHold under a legal hold.
        """

        def erase() -> None:
            part = key.get("subpath")
            for _, one in self._of(key["project_key"], key["session_id"], part):
                one.delete("deleted through the Claude Agent SDK")

        await asyncio.to_thread(erase)

    async def list_subkeys(self, key: Key) -> list[str]:
        """The sub-agents' parts of a session."""
        place = key["project_key"], key["session_id"]
        found = await asyncio.to_thread(self._of, *place)
        return [labels[_PART] for labels, _ in found if labels[_PART] != _MAIN]

    async def redacted(self, given: Any) -> Any:
        """A prompt, or other JSON, as the log may keep it: what to send.

        Its placeholders have no numbers: those are given when it is stored.
        """
        user = self._store.session(user_id=self._user_id, session_id="-")
        return await asyncio.to_thread(unstored, user, FORMAT, given)

    @property
    def hooks(self) -> Any:
        """For ``ClaudeAgentOptions(hooks=…)``: the model is sent what the log may keep.

        What tools return is redacted, and a prompt in which something is found refused:
        the SDK lets nobody change it.  Tools are given what the vault allows.
        """
        hooks = {"PreToolUse": self._give, "PostToolUse": self._hide}
        return {
            name: [HookMatcher(hooks=[hook], on_failure="block")]
            for name, hook in {**hooks, "UserPromptSubmit": self._refuse}.items()
        }

    async def _give(self, told: Any, *_: Any) -> Any:
        """Put values into the arguments of a call; who may call is not decided here."""
        project = Path(told["transcript_path"]).parent.name
        key = {"project_key": project, "session_id": told["session_id"]}
        if told.get("agent_id"):
            return {}  # numbers of the session stand for nothing in a sub-agent's

        def revealed() -> Any:
            return self._session(key).reveal(given, tool=told["tool_name"])

        new = given = told["tool_input"]
        with suppress(SessionNotFound):
            new = await asyncio.to_thread(revealed)
        return {} if new == given else _said("PreToolUse", updatedInput=new)

    async def _hide(self, told: Any, *_: Any) -> Any:
        new = await self.redacted(told["tool_response"])
        same = new == told["tool_response"]
        return {} if same else _said("PostToolUse", updatedToolOutput=new)

    async def _refuse(self, told: Any, *_: Any) -> Any:
        if await self.redacted(told["prompt"]) == told["prompt"]:
            return {}
        why = "The prompt holds what is redacted: send what redacted() gives of it."
        more = _said("UserPromptSubmit", suppressOriginalPrompt=True)
        return {"decision": "block", "reason": why, **more}

    def _session(self, key: Key) -> Session:
        labels = {
            _PROJECT: key["project_key"],
            _SESSION: key["session_id"],
            _PART: key.get("subpath") or _MAIN,
        }
        name = "\0".join(labels.values())
        return self._store.named(name, user_id=self._user_id, labels=labels)

    def _of(
        self, project: str, session: str | None = None, part: str | None = None
    ) -> list[tuple[dict[str, str], Session]]:
        """Sessions with their labels."""
        wanted = {_PROJECT: project, _SESSION: session, _PART: part}
        label = {name: value for name, value in wanted.items() if value is not None}
        who = self._user_id
        infos = self._store.sessions(who, label=label)
        found = [
            self._store.session(user_id=who, session_id=i.session_id) for i in infos
        ]
        return [(one.labels(), one) for one in found]

    def _listed(self, project: str, more: Any = lambda _: {}) -> list[Any]:
        found = []
        for labels, one in self._of(project, part=_MAIN):
            with suppress(SessionNotFound):
                about = {"mtime": one.head().updated_at // 1000, **more(one)}
                found.append({"session_id": labels[_SESSION], **about})
        return found


def _said(event: str, **what: Any) -> Any:
    return {"hookSpecificOutput": {"hookEventName": event, **what}}


def _summary(session: Session) -> Any:
    return {"data": session.fold("claude-summary", step=_folded) or {}}


def _folded(data: Any, item: NativeItem) -> Any:
    if not item.format:
        return data
    before: Any = None if data is None else {"session_id": "", "mtime": 0, "data": data}
    key: Any = {"project_key": "", "session_id": ""}
    return fold_session_summary(before, key, [item.value])["data"]
