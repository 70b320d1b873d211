"""A client that writes transcripts, and whose requests pass through a proxy or not.

The proxy's recorder, captures, and imports run in separate processes.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import Any, Final

from refold.store import SessionStore
from tests.support import warm
from tests.support.wire import WireClient, agent, call, result, user

USER: Final = "ada"
SESSION: Final = "0a6f2f0c-7a52-4a36-9d0c-2b6f6d1f4c11"
Entry = dict[str, Any]


class BothWays:
    """The client, and the processes that record it.

    texts:     the texts of the conversation, as they are stored.
    calls:     the ids of the calls.
    delegated: the texts of each sub-agent, by its id.
    thinks:    whether an answer with calls has signed thinking, which a transcript has
               in a separate entry.
    """

    def __init__(
        self, url: str, folder: Path, session: str = SESSION, *, thinks: bool = False
    ) -> None:
        self._url = url
        self._session = session
        self._thinks = thinks
        self.folder = folder
        self.path = folder / "project" / f"{session}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.client = WireClient(None, session)
        self.texts: list[str] = []
        self.calls: list[str] = []
        self.delegated: dict[str, list[str]] = {}
        self._agent_id = ""
        self._entries = 0
        self._turns = 0
        self._recorder: warm.Process | None = None
        self._follower: warm.Process | None = None

    # The acts of the client.

    def turn(self, *, proxied: bool) -> None:
        """Send a prompt, run two calls at once, and get an answer."""
        self._turns += 1
        if proxied:
            self._start_proxy()
        number = f"{self._session[:4]}-{self._turns}"
        prompt = f"ask {number} ada{self._turns}@example.org"
        self.texts.append(f"ask {number} [REDACTED:EMAIL]")
        self._write("user", [{"type": "text", "text": prompt}])
        if proxied:
            reminder = f"<reminder>{number}</reminder>"
            self.texts.append(reminder)
            self.client.messages.append(user(reminder))
        self.client.messages.append(user(prompt))
        thinking = {"type": "thinking", "thinking": f"hm {number}", "signature": "c2ln"}
        calls = [call(f"toolu_{number}{name}", number=number) for name in "ab"]
        self.calls += [block["id"] for block in calls]
        first = [thinking, *calls] if self._thinks else calls
        self._answer(f"look {number}", *first, proxied=proxied)
        results = [result(block["id"], f"output of {block['id']}") for block in calls]
        # They end in another order than the request has them.
        for block in reversed(results):
            self._write("user", [block])
        self.client.messages.append(user(*results))
        self._answer(f"done {number}", proxied=proxied)

    def delegate(self, agent_id: str, *, proxied: bool) -> None:
        """Let a sub-agent answer once; it has a separate transcript."""
        prompt = f"task of {agent_id}"
        answer = f"answer of {agent_id}"
        main = self.client
        path = self.path
        self.client = WireClient(None, self._session, thread=agent_id)
        self.path = path.with_suffix("") / "subagents" / f"agent-{agent_id}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if proxied:
            self._start_proxy()
        self._agent_id = agent_id
        self._write("user", [{"type": "text", "text": prompt}])
        self.client.messages.append(user(prompt))
        self._answer(answer, proxied=proxied)
        self._agent_id = ""
        self.delegated[agent_id] = [prompt, answer]
        self.client = main
        self.path = path

    def _answer(self, text: str, *blocks: Entry, proxied: bool) -> None:
        """Send the messages, and get an answer."""
        self.texts.append(text)
        thinking = [block for block in blocks if block["type"] == "thinking"]
        others = [block for block in blocks if block["type"] != "thinking"]
        content = [*thinking, {"type": "text", "text": text}, *others]
        message_id = f"msg_{text.replace(' ', '_')}"
        exchange = self.client.exchange()
        if proxied:
            body = exchange.body.decode()
            headers = dict(exchange.headers)
            self._record("begin", exchange.exchange_id, body=body, headers=headers)
        for block in content:  # the transcript grows while the answer arrives
            self._write("assistant", [block], message_id)
        if proxied:
            self._record(
                "finish",
                exchange.exchange_id,
                answer=content,
                message_id=message_id,
            )
        self.client.messages.append(agent(*content))

    def _write(self, role: str, content: list[Entry], message_id: str = "") -> None:
        """Append an entry to the transcript."""
        self._entries += 1
        first = int(self._session[:8], 16) % 1_000 * 1_000
        uuid = f"00000000-0000-4000-8000-{first + self._entries:012}"
        parent = f"00000000-0000-4000-8000-{first + self._entries - 1:012}"
        message: Entry = {"role": role, "content": content}
        if message_id:
            message |= {"id": message_id, "model": "claude-opus-4-8"}
        entry: Entry = {
            "type": role,
            "uuid": uuid,
            "parentUuid": parent if self._entries > 1 else None,
            "sessionId": self._session,
            "timestamp": f"2026-01-01T00:{self._entries // 60:02}:"
            f"{self._entries % 60:02}.000Z",
            "message": message,
        }
        if self._agent_id:
            entry |= {"isSidechain": True, "agentId": self._agent_id}
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    # The processes that record it.

    def _record(self, act: str, name: str, **fields: Any) -> None:
        """Let the proxy record an act."""
        assert self._recorder is not None
        line = json.dumps({"act": act, "id": name, **fields})
        self._recorder.stdin.write(line + "\n")
        self._recorder.stdin.flush()
        acknowledged = self._recorder.stdout.readline().strip() == name
        assert acknowledged, self._recorder.communicate()

    def _start_proxy(self) -> None:
        """Start the recorder, unless it runs."""
        if self._recorder is None:
            self._recorder = warm.module("tests.support.wire_recorder", self._url, USER)
            assert self._recorder.stdout.readline() == "ready\n"

    def end_proxy(self) -> None:
        """End the recorder."""
        if self._recorder is not None:
            _, complaints = self._recorder.communicate()
            assert self._recorder.returncode == 0, complaints
            self._recorder = None

    def kill_proxy(self) -> None:
        """Kill the recorder."""
        if self._recorder is not None:
            self._recorder.send_signal(SIGKILL)
            self._recorder.communicate()
            self._recorder = None

    def import_transcript(self) -> None:
        """Import all transcripts."""
        self._run("import", str(self.folder), "--user", USER)

    def capture(self) -> None:
        """Capture everything that the transcript has."""
        self._run(*self._capture_arguments(), "--once")

    def follow(self) -> None:
        """Start a process that follows the transcript."""
        arguments = ["refold", "--db", self._url, *self._capture_arguments()]
        self._follower = warm.Process(arguments, environment=os.environ)

    def kill_follower(self, random: Random | None = None) -> None:
        """Kill the process that follows, perhaps a little later."""
        if self._follower is not None:
            if random is not None:
                time.sleep(random.random() * 0.05)  # the moment of the kill
            self._follower.send_signal(SIGKILL)
            self._follower.communicate()
            self._follower = None

    def _capture_arguments(self) -> list[str]:
        return ["capture", "claude-code", "--user", USER, "--folder", str(self.folder)]

    def _run(self, *arguments: str) -> None:
        process = warm.Process(
            ["refold", "--db", self._url, *arguments], environment=os.environ
        )
        printed = process.communicate()
        assert process.returncode == 0, printed


def differences(store: SessionStore, both: BothWays) -> list[str]:
    """Describe each text or call that the session does not have exactly as expected."""
    session = store.session(user_id=USER, session_id=both.client.session or "")
    stored = Counter[str]()
    for event in session.events():
        fields = event.payload.payload()
        if event.type in ("user_input", "agent_response") and fields["text"]:
            stored[str(fields["text"])] += 1
        elif event.type in ("tool_call", "tool_result"):
            stored[f"{event.type} {fields['call_id']}"] += 1
    expected = Counter(both.texts)
    for call_id in both.calls:
        expected[f"tool_call {call_id}"] += 1
        expected[f"tool_result {call_id}"] += 1
    different = [
        f"{text}: {stored[text]}, not {expected[text]}"
        for text in sorted(stored | expected)
        if stored[text] != expected[text]
    ]
    return different + [str(problem) for problem in session.verify().problems]
