"""A home with real clients, a provider and a store, and comparisons of requests."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import refold
from refold.domain.events import (
    AgentResponse,
    Attachment,
    SystemPrompt,
    Thinking,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.store import Session
from tests.clients.install import ROOT, folder
from tests.clients.programs import VARIABLE
from tests.support.provider import Call, Provider, call

PIXEL: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEElEQVR4nGP4z8AARAwQCgAf7gP9"
    "i18U1AAAAABJRU5ErkJggg=="
)
IMAGE: Final = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
}
PROMPT: Final = "And now the tests."
_TIMEOUT_SEC: Final = 240


class Part(NamedTuple):
    """A part of a conversation, in a form that both APIs can be compared in."""

    kind: str
    value: Any


class Client(NamedTuple):
    """A client.

    program: the name of its command.
    folder:  the folder with its settings and sessions, in its home.
    begin:   the first arguments of each run.
    run:     a call of its tool for commands.
    """

    program: str
    folder: str
    begin: Sequence[str]
    run: Call


CLIENTS: Final = {
    "claude-code": Client(
        "claude",
        ".claude",
        ("-p", "--dangerously-skip-permissions"),
        call("Bash", {"command": "echo one"}),
    ),
    "codex": Client(
        "codex",
        ".codex",
        (
            "exec",
            "--skip-git-repo-check",
            "--dangerously-bypass-approvals-and-sandbox",
        ),
        call("exec", 'text(await tools.exec_command({cmd: "echo one"}));'),
    ),
}


class Desk:
    """A home with clients, a folder to work in, a provider, and a store."""

    def __init__(self, folder: Path, provider: Provider) -> None:
        self.home = folder / "client"
        self.work = folder / "work"
        self.url = f"sqlite:///{folder / 'refold.db'}"
        self.provider = provider
        for path in (self.home, self.work, self.home / ".codex"):
            path.mkdir()

    def refold(self, *arguments: str) -> str:
        """Run the command line; returns its output."""
        command = [str(ROOT / ".venv/bin/refold"), "--db", self.url, *arguments]
        return self.run(command)

    def client(self, name: str, *arguments: str, prompt: str) -> None:
        """Run a client with a prompt."""
        client = CLIENTS[name]
        command = [str(program(client.program)), *client.begin]
        if name == "codex":
            command += ["-c", f'openai_base_url="{self.provider.url}/v1"']
        self.run([*command, *arguments, prompt])

    def resume_proxied(self, name: str, session_id: str, prompt: str) -> None:
        """Continue a session in a client under ``refold run`` with a prompt."""
        client = CLIENTS[name]
        resumed = ["resume"] if name == "codex" else ["--resume"]
        upstreams = ["--upstream", f"openai={self.provider.url}/v1"]
        self.refold(
            "run",
            "--user",
            "ada",
            *upstreams,
            "--",
            str(program(client.program)),
            *client.begin,
            *resumed,
            session_id,
            prompt,
        )

    def resume(self, name: str, session_id: str, prompt: str) -> None:
        """Continue a session in a client with a prompt."""
        if name == "codex":
            self.client(name, "resume", session_id, prompt=prompt)
        else:
            self.client(name, "--resume", session_id, prompt=prompt)

    def export(self, session: str, client: str, *options: str) -> str:
        """Write a session for a client; returns its id there."""
        command = ("resume", session, "--user", "ada", "--in", client)
        printed = self.refold(*command, "--print-command", *options)
        return printed.split()[-1]  # the command ends with the id

    def capture(self, client: str) -> None:
        """Append what a client wrote to the store."""
        self.refold("capture", client, "--once", "--user", "ada")

    def messages(self, session: str, *options: str) -> list[dict[str, Any]]:
        """The messages of the context of a session."""
        command = ("context", "--user", "ada", "--session", session, "--json")
        view = json.loads(self.refold(*command, *options))
        messages: list[dict[str, Any]] = view["messages"]
        return messages

    def sessions(self) -> dict[str, Session]:
        """The sessions of the store, by name."""
        store = refold.open(self.url)
        infos = store.sessions("ada")
        names = [info.session_id for info in infos if not info.is_internal]
        return {name: store.session(user_id="ada", session_id=name) for name in names}

    def run(self, command: list[str]) -> str:
        """Run a command in the work folder; returns its output."""
        environment = {
            "PATH": f"{ROOT / '.venv/node/bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.home),
            "CLAUDE_CONFIG_DIR": str(self.home / ".claude"),
            "CODEX_HOME": str(self.home / ".codex"),
            "TERM": "dumb",
            "LANG": "C.UTF-8",
            "REFOLD_HOME": os.environ["REFOLD_HOME"],
            "ANTHROPIC_BASE_URL": self.provider.url,
            "ANTHROPIC_API_KEY": "sk-test",
            "OPENAI_API_KEY": "sk-test",
            "CODEX_API_KEY": "sk-test",
            "GOOGLE_GEMINI_BASE_URL": self.provider.url,
            "GEMINI_API_KEY": "sk-test",
            "GEMINI_MODEL": "gemini-2.5-flash",
            "GEMINI_CLI_NO_RELAUNCH": "true",
            "GEMINI_TELEMETRY_ENABLED": "false",
            "IS_SANDBOX": "1",  # permissions can be skipped as root
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }
        completed = subprocess.run(
            command,
            cwd=self.work,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_SEC,
        )
        output = completed.stdout + completed.stderr
        assert completed.returncode == 0, f"{command}: {output}"
        return completed.stdout


def program(name: str) -> Path:
    """Return the path of a command."""
    newest = os.environ.get(VARIABLE) == "newest"
    return folder(newest=newest) / "bin" / name


def record(desk: Desk, session_id: str = "s") -> None:
    """Record a session with everything that an export has to carry."""
    with refold.open(desk.url) as store:
        session = store.session(user_id="ada", session_id=session_id)
        session.append(SystemPrompt(text="You are an agent of another kind."))
        session.append(
            UserInput(
                text="Why does the build fail?",
                attachments=(
                    Attachment(kind="image", media_type="image/png", data=PIXEL),
                ),
            )
        )
        session.append(UserInput(text="Be brief.\n\nI mean it."))
        thinking = Thinking(thinking="I should look.", signature="c2lnbmVk")
        meta = {"response_id": "r1"}
        session.append(AgentResponse(text="I look.", thinking=(thinking,)), meta=meta)
        for call_id in ("a", "b", "c"):
            arguments = {"path": f"/app/{call_id}.py", "n": [1, {"deep": "值"}]}
            tool_call = ToolCall(
                call_id=call_id, tool_name="read_file_of_mine", arguments=arguments
            )
            session.append(tool_call, meta=meta)
        session.append(ToolResult(call_id="b", content="no such file", status="error"))
        content = [{"type": "text", "text": "a picture"}, IMAGE]
        session.append(ToolResult(call_id="a", content=content))
        session.append(UserInput(text="Go on without the third."))
        session.append(AgentResponse(text="The file b.py is missing."))
        session.append(UserInput(text="Create it."))
        session.append(AgentResponse(text="Done."))


def parts_of_messages(
    messages: Sequence[Mapping[str, Any]], *, thinking: bool, errors: bool
) -> list[Part]:
    """The parts of messages of the Messages API.

    thinking, errors: whether thinking and marks of failed results are compared.
    """
    parts: list[Part] = []
    for message in messages:
        if message["role"] == "system":  # of the client
            continue
        for block in message["content"]:
            match block["type"]:
                case "text":
                    parts.append(Part(message["role"], block["text"]))
                case "image":
                    parts.append(Part("image", block["source"]["data"]))
                case "tool_use":
                    tool_call = (block["id"], block["name"], block["input"])
                    parts.append(Part("call", tool_call))
                case "tool_result":
                    failed = errors and bool(block.get("is_error"))
                    result = (block["tool_use_id"], failed, _contents(block["content"]))
                    parts.append(Part("result", result))
                case kind if thinking:
                    parts.append(Part(kind, {**block, "cache_control": None}))
    return parts


def _contents(content: Any) -> list[str]:
    """The texts and images of a tool's result, in the form of either API."""
    if isinstance(content, str):
        return [content]
    contents: list[str] = []
    for part in content:
        source = part.get("source") or {}
        url = str(part.get("image_url", ""))
        contents.append(part.get("text") or source.get("data") or url.split(",")[-1])
    return contents


def parts_of_items(items: Sequence[Mapping[str, Any]]) -> list[Part]:
    """The parts of items of the Responses API, without those of the client."""
    parts: list[Part] = []
    for item in items:
        kind = item.get("type")
        if kind == "message" and item["role"] in ("user", "assistant"):
            for content in item["content"]:
                if content["type"] == "input_image":
                    data = content["image_url"].split(",")[-1]
                    parts.append(Part("image", data))
                else:
                    parts.append(Part(item["role"], content["text"]))
        elif kind == "function_call":
            arguments = json.loads(item["arguments"])
            parts.append(Part("call", (item["call_id"], item["name"], arguments)))
        elif kind == "custom_tool_call":
            arguments = {"arguments": item["input"]}
            parts.append(Part("call", (item["call_id"], item["name"], arguments)))
        elif str(kind).endswith("_call_output"):
            result = (item["call_id"], False, _contents(item["output"]))
            parts.append(Part("result", result))
    return parts


def check_history(desk: Desk, client: str, messages: list[dict[str, Any]]) -> None:
    """Check that the last request begins with these messages and ends with a prompt."""
    request = desk.provider.requests[-1].json
    if client == "claude-code":
        sent = parts_of_messages(request["messages"], thinking=True, errors=True)
        expected = parts_of_messages(messages, thinking=True, errors=True)
    else:
        sent = parts_of_items(request["input"])
        expected = parts_of_messages(messages, thinking=False, errors=False)
    assert sent[: len(expected)] == expected
    assert sent[-1] == Part("user", PROMPT)
    more = [part for part in sent[len(expected) :] if part.kind == "assistant"]
    assert more == []


def answers_of(session: Session) -> list[str]:
    """The texts of a session's own answers, without those before a fork."""
    texts: list[str] = []
    for event in session.events():
        if isinstance(event.payload, AgentResponse):
            texts.append(event.payload.text)
    return texts


def origin_of(session: Session) -> str | None:
    """The session that a session was forked from."""
    forked_from = session.head().state.forked_from
    return None if forked_from is None else forked_from[0]
