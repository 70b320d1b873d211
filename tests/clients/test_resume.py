"""Real clients continue an exported session with the messages of its context."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

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
from tests.support.pages import ROOT
from tests.support.provider import Call, Provider, answer, call

VARIABLE: Final = "REFOLD_TEST_CLIENTS"  # "newest" tests the newest versions
PIXEL: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEElEQVR4nGP4z8AARAwQCgAf7gP9"
    "i18U1AAAAABJRU5ErkJggg=="
)
IMAGE: Final = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
}
PROMPT: Final = "And now the tests."
_PATIENCE_SEC: Final = 240


class Part(NamedTuple):
    """A part of a conversation, in a form that both APIs can be compared in."""

    kind: str
    value: Any


class Client(NamedTuple):
    """A client.

    program: the name of its command.
    folder:  the folder with its settings and sessions, in its home.
    begin:   the arguments that begin a conversation.
    more:    further arguments of each run.
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

    def __init__(self, place: Path, provider: Provider) -> None:
        self.home = place / "client"
        self.work = place / "work"
        self.url = f"sqlite:///{place / 'refold.db'}"
        self.provider = provider
        for folder in (self.home, self.work, self.home / ".codex"):
            folder.mkdir()

    def refold(self, *arguments: str) -> str:
        """Run the command line; returns its output."""
        command = [str(ROOT / ".venv/bin/refold"), "--db", self.url, *arguments]
        return self.run(command)

    def client(self, name: str, *arguments: str, prompt: str) -> None:
        """Run a client with a prompt."""
        client = CLIENTS[name]
        address: list[str] = []
        if name == "codex":
            address = ["-c", f'openai_base_url="{self.provider.url}/v1"']
        command = [str(program(name)), *client.begin, *address, *arguments, prompt]
        self.run(command)

    def resume(self, name: str, session_id: str, prompt: str) -> None:
        """Continue a session in a client with a prompt."""
        if name == "codex":
            self.client(name, "resume", session_id, prompt=prompt)
        else:
            self.client(name, "--resume", session_id, prompt=prompt)

    def export(self, session: str, client: str, *more: str) -> str:
        """Write a session for a client; returns its id there."""
        command = ("resume", session, "--user", "ada", "--in", client)
        return self.refold(*command, "--print-command", *more).split()[-1]

    def capture(self, client: str) -> None:
        """Append what a client wrote to the store."""
        self.refold("capture", client, "--once", "--user", "ada")

    def messages(self, session: str, *more: str) -> list[dict[str, Any]]:
        """The messages of the context of a session."""
        shown = ("context", "--user", "ada", "--session", session, "--json")
        messages: list[dict[str, Any]] = json.loads(self.refold(*shown, *more))[
            "messages"
        ]
        return messages

    def sessions(self) -> dict[str, Session]:
        """The sessions of the store, by name."""
        store = refold.open(self.url)
        infos = store.sessions("ada")
        names = [info.session_id for info in infos if not info.is_internal]
        return {name: store.session(user_id="ada", session_id=name) for name in names}

    def run(self, command: list[str]) -> str:
        """Run a command in the folder of work; returns its output."""
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
        ran = subprocess.run(
            command,
            cwd=self.work,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_PATIENCE_SEC,
        )
        assert ran.returncode == 0, f"{command}: {ran.stdout}{ran.stderr}"
        return ran.stdout


def program(name: str) -> Path:
    """Return the command of a client; skips the test if it is not installed."""
    return installed(CLIENTS[name].program)


def installed(command: str) -> Path:
    """Return the path of a command; skips the test if it is not installed."""
    folder = "clients-newest" if os.environ.get(VARIABLE) == "newest" else "clients"
    path = ROOT / ".venv" / folder / "bin" / command
    if not path.exists():
        pytest.skip(f"{command} is not installed in {path.parent}")
    return path


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Provider() as provider:
        yield Desk(tmp_path, provider)


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
            arguments = {"path": f"/work/{call_id}.py", "n": [1, {"deep": "值"}]}
            tool_call = ToolCall(
                call_id=call_id, tool_name="read_file_of_mine", arguments=arguments
            )
            session.append(tool_call, meta=meta)
        session.append(ToolResult(call_id="b", content="no such file", status="error"))
        shown = [{"type": "text", "text": "a picture"}, IMAGE]
        session.append(ToolResult(call_id="a", content=shown))
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
                    made = (block["id"], block["name"], block["input"])
                    parts.append(Part("call", made))
                case "tool_result":
                    failed = errors and bool(block.get("is_error"))
                    result = (block["tool_use_id"], failed, _contents(block["content"]))
                    parts.append(Part("result", result))
                case kind if thinking:
                    parts.append(Part(kind, {**block, "cache_control": None}))
    return parts


def _contents(content: Any) -> list[str]:
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
            made = (item["call_id"], item["name"], json.loads(item["arguments"]))
            parts.append(Part("call", made))
        elif kind == "custom_tool_call":
            made = (item["call_id"], item["name"], {"arguments": item["input"]})
            parts.append(Part("call", made))
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


@pytest.mark.parametrize("client", CLIENTS)
def test_a_resumed_client_sends_the_context_and_its_session_is_a_fork(
    desk: Desk, client: str
) -> None:
    program(client)
    record(desk)
    messages = desk.messages("s")
    session_id = desk.export("s", client)

    desk.provider.reply(answer("The tests pass."))
    desk.resume(client, session_id, PROMPT)
    desk.capture(client)

    check_history(desk, client, messages)
    sessions = desk.sessions()
    fork = sessions[session_id]
    assert sorted(sessions) == sorted(["s", session_id])
    assert fork.head().state.forked_from == ("s", sessions["s"].head().seq)
    assert answers_of(fork) == ["The tests pass."]
    assert desk.messages(session_id)[: len(messages)] == messages


@pytest.mark.parametrize("client", CLIENTS)
def test_an_earlier_event_and_a_strategy_are_continued(desk: Desk, client: str) -> None:
    program(client)
    record(desk)
    strategy = ("--strategy", "last_turns:n=1")
    messages = desk.messages("s", *strategy)
    session_id = desk.export("s", client, *strategy)
    desk.provider.reply(answer("The tests pass."))

    desk.resume(client, session_id, PROMPT)

    assert len(messages) < len(desk.messages("s"))
    check_history(desk, client, messages)


def test_claude_code_continues_the_newest_session_of_the_folder(desk: Desk) -> None:
    program("claude-code")
    record(desk)
    desk.export("s", "claude-code")
    desk.provider.reply(answer("The tests pass."))

    desk.client("claude-code", "--continue", prompt=PROMPT)

    check_history(desk, "claude-code", desk.messages("s"))


@pytest.mark.parametrize(
    ("first", "second"), [("claude-code", "codex"), ("codex", "claude-code")]
)
def test_a_session_goes_from_one_client_to_the_other_and_back(
    desk: Desk, first: str, second: str
) -> None:
    program(first)
    program(second)
    desk.provider.reply(answer("I look.", CLIENTS[first].run), answer("It says one."))
    desk.client(first, prompt="Look around.")
    desk.capture(first)
    (origin,) = desk.sessions()

    there = desk.export(origin, second)
    desk.provider.reply(answer("I look, too.", CLIENTS[second].run), answer("Yes."))
    desk.resume(second, there, PROMPT)
    first_request = desk.provider.requests[-2].json
    desk.capture(second)
    messages = desk.messages(there)
    back = desk.export(there, first)
    desk.provider.reply(answer("The tests pass."))
    desk.resume(first, back, PROMPT)
    desk.capture(first)

    assert "It says one." in json.dumps(first_request)
    check_history(desk, first, messages)
    sessions = desk.sessions()
    assert sorted(sessions) == sorted([origin, there, back])
    assert origin_of(sessions[there]) == origin
    assert origin_of(sessions[back]) == there
    calls = [event for event in sessions[there].events() if event.type == "tool_call"]
    assert len(calls) == 1
    assert answers_of(sessions[back]) == ["The tests pass."]


def answers_of(session: Session) -> list[str]:
    """The texts of the answers that a session has itself."""
    payloads = [event.payload for event in session.events()]
    return [one.text for one in payloads if isinstance(one, AgentResponse)]


def origin_of(session: Session) -> str | None:
    """The session that a session was forked from."""
    place = session.head().state.forked_from
    return None if place is None else place[0]


def test_gemini_cli_continues_an_exported_session(desk: Desk) -> None:
    command = installed("gemini")
    record(desk)
    settings = desk.home / ".gemini"
    chats = settings / "tmp/work/chats"
    chats.mkdir(parents=True)
    chosen = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
    (settings / "settings.json").write_text(json.dumps(chosen))
    projects = {"projects": {str(desk.work): "work"}}
    (settings / "projects.json").write_text(json.dumps(projects))
    (settings / "tmp/work/.project_root").write_text(str(desk.work))
    name = "session-2026-01-01T00-00-5c0f3f6e-7a0b-4a53-9a58-0d5f8d1f2a11.jsonl"
    export = ("export", "--user", "ada", "--session", "s", "--format", "gemini")
    desk.refold(*export, "--out", str(chats / name))
    desk.provider.reply(answer("The tests pass."))

    desk.run([str(command), "-p", PROMPT, "-r", "latest", "--yolo", "--skip-trust"])

    contents = desk.provider.requests[-1].json["contents"]
    parts = [part for content in contents for part in content["parts"]]
    texts = [part["text"] for part in parts if "text" in part]
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    results = [part["functionResponse"] for part in parts if "functionResponse" in part]
    expected = parts_of_messages(desk.messages("s"), thinking=False, errors=False)
    written = [part.value for part in expected if part.kind in ("user", "assistant")]
    assert texts[-len(written) - 1 :] == [*written, PROMPT]
    made = [part.value for part in expected if part.kind == "call"]
    assert [(one["id"], one["name"], one["args"]) for one in calls] == made
    assert [one["id"] for one in results] == [call_id for call_id, _, _ in made]
    assert sum("inlineData" in part for part in parts) == 2
