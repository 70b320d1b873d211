"""The clients that the tests run: their commands, environments, and tools."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.clients.install import ROOT, folder
from tests.support.provider import Call, Reply, Seen, answer, call

VARIABLE: Final = "REFOLD_TEST_CLIENTS"
"""Which clients the tests run: ``pinned`` for all, ``newest`` for the newest versions
from npm; without it, Claude Code and Codex with pinned versions."""

KEY: Final = "sk-test-Zk3vQ9xLmN7pRt2wYb5uCe8dHf4jGa6sVb1nQw0e"
"""The key of the provider in every client.  It must be nowhere on disk."""

PYTHON: Final = ROOT / ".venv/clients-python/bin"
_AIDER: Final = ROOT / ".venv/clients-aider/bin"


@dataclass(frozen=True)
class Program:
    """A client.

    command:     its path.
    upstream:    the name of the proxy's upstream that it asks.
    base:        the path at the end of the address in its variable.
    environment: its variables, in the given home, without the address of a provider.
    begin:       the arguments that begin a conversation with a prompt.
    resume:      those that continue the last one; None if it cannot.
    runs:        a call of its tool for commands; None if it has no tools.
    is_main:     whether a request belongs to the thread that a person talks to.
    variable:    the variable with the address of the provider; empty if ``--upstream``
                 names it.
    last:        the answers that a client needs after the last one of a scenario.
    rewrites:    whether a resumed conversation is not sent as it was, but rewritten.
    has_ids:     whether calls have ids.  Without them, the recorder counts the calls of
                 each answer.
    """

    command: Path
    upstream: str
    variable: str
    environment: Callable[[Path], Mapping[str, str]]
    begin: Callable[[str], list[str]]
    resume: Callable[[str], list[str]] | None
    runs: Callable[[str], Call] | None
    is_main: Callable[[Seen], bool] = lambda request: request.has_tools
    base: str = ""
    last: tuple[Reply, ...] = ()
    rewrites: bool = False
    has_ids: bool = True


def _npm(name: str) -> Path:
    return folder(newest=os.environ.get(VARIABLE) == "newest") / "bin" / name


def _claude_environment(home: Path) -> Mapping[str, str]:  # others use it
    return {
        "ANTHROPIC_API_KEY": KEY,
        "IS_SANDBOX": "1",  # permissions can be skipped as root
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }


def _tool_names(request: Seen) -> set[str]:
    return {tool.get("name", "") for tool in request.json.get("tools", ())}


CLAUDE_CODE: Final = Program(
    command=_npm("claude"),
    upstream="anthropic",
    variable="ANTHROPIC_BASE_URL",
    environment=_claude_environment,
    begin=lambda prompt: ["-p", prompt, "--dangerously-skip-permissions"],
    resume=lambda prompt: [
        "-p",
        prompt,
        "--continue",
        "--dangerously-skip-permissions",
    ],
    runs=lambda command: call("Bash", {"command": command}),
    is_main=lambda request: request.header("x-claude-code-agent-id") is None,
)


def _codex_environment(home: Path) -> Mapping[str, str]:
    folder = home / ".codex"
    folder.mkdir(exist_ok=True)
    return {
        "CODEX_HOME": str(folder),
        "OPENAI_API_KEY": KEY,
        "CODEX_API_KEY": KEY,
    }


_CODEX: Final = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
CODEX: Final = Program(
    command=_npm("codex"),
    upstream="openai",
    variable="",
    base="/v1",
    environment=_codex_environment,
    begin=lambda prompt: ["exec", *_CODEX, prompt],
    resume=lambda prompt: ["exec", *_CODEX, "resume", "--last", prompt],
    runs=lambda command: call(
        "exec", f"text(await tools.exec_command({{cmd: {json.dumps(command)}}}));"
    ),
    is_main=lambda request: (
        request.has_tools and request.header("x-openai-subagent") is None
    ),
)


def _gemini_environment(home: Path) -> Mapping[str, str]:
    settings = home / ".gemini/settings.json"
    settings.parent.mkdir(exist_ok=True)
    # As after a person has chosen to log in with a key.
    chosen = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
    settings.write_text(json.dumps(chosen))
    return {
        "GEMINI_API_KEY": KEY,
        "GEMINI_CLI_NO_RELAUNCH": "true",
        "GEMINI_TELEMETRY_ENABLED": "false",
        # The default model asks another one for a route first.
        "GEMINI_MODEL": "gemini-2.5-flash",
    }


GEMINI_CLI: Final = Program(
    command=_npm("gemini"),
    upstream="gemini",
    variable="GOOGLE_GEMINI_BASE_URL",
    environment=_gemini_environment,
    begin=lambda prompt: ["-p", prompt, "--yolo", "--skip-trust"],
    resume=lambda prompt: ["-p", prompt, "-r", "latest", "--yolo", "--skip-trust"],
    runs=lambda command: call("run_shell_command", {"command": command}),
)


def _qwen_environment(home: Path) -> Mapping[str, str]:  # others use it
    return {
        "OPENAI_API_KEY": KEY,
        "OPENAI_MODEL": "qwen3-coder",
        "QWEN_TELEMETRY_ENABLED": "false",
        "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
    }


_QWEN: Final = ["--yolo", "--auth-type", "openai"]
QWEN_CODE: Final = Program(
    command=_npm("qwen"),
    upstream="openai",
    variable="OPENAI_BASE_URL",
    base="/v1",
    environment=_qwen_environment,
    begin=lambda prompt: ["-p", prompt, *_QWEN],
    resume=lambda prompt: ["-p", prompt, "--continue", *_QWEN],
    runs=lambda command: call(
        "run_shell_command", {"command": command, "is_background": False}
    ),
    is_main=lambda request: "agent" in _function_names(request),
)


def _function_names(request: Seen) -> set[str]:
    """Return the names of the tools in the form of Chat Completions."""
    names = set()
    for tool in request.json.get("tools", ()):
        names.add(tool.get("function", {}).get("name", ""))
    return names


def _opencode_environment(home: Path) -> Mapping[str, str]:
    return {
        "ANTHROPIC_API_KEY": KEY,
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    }


_OPENCODE: Final = ["run", "--model", "anthropic/claude-sonnet-4-5"]
OPENCODE: Final = Program(
    command=_npm("opencode"),
    upstream="anthropic",
    variable="ANTHROPIC_BASE_URL",
    base="/v1",
    environment=_opencode_environment,
    begin=lambda prompt: [*_OPENCODE, prompt],
    resume=lambda prompt: [*_OPENCODE, "--continue", prompt],
    runs=lambda command: call("bash", {"command": command, "description": "A test"}),
    is_main=lambda request: "task" in _tool_names(request),
)


def _copilot_environment(home: Path) -> Mapping[str, str]:
    return {
        "COPILOT_PROVIDER_API_KEY": KEY,
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_MODEL": "gpt-5",
        "COPILOT_OFFLINE": "true",
        "COPILOT_AUTO_UPDATE": "false",
    }


COPILOT: Final = Program(
    command=_npm("copilot"),
    upstream="copilot",
    variable="COPILOT_PROVIDER_BASE_URL",
    base="/v1",
    environment=_copilot_environment,
    begin=lambda prompt: ["-p", prompt, "--allow-all-tools"],
    resume=lambda prompt: ["-p", prompt, "--continue", "--allow-all-tools"],
    runs=lambda command: call("bash", {"command": command, "description": "A test"}),
)


def _mini_environment(home: Path) -> Mapping[str, str]:
    return {
        "OPENAI_API_KEY": KEY,
        "MSWEA_CONFIGURED": "true",
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_GLOBAL_CONFIG_DIR": str(home),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


MINI_SWE_AGENT: Final = Program(
    command=PYTHON / "mini",
    upstream="openai",
    variable="OPENAI_BASE_URL",
    base="/v1",
    environment=_mini_environment,
    begin=lambda prompt: [
        "--model",
        "openai/gpt-5",
        "--task",
        prompt,
        "--output",
        "trajectory.json",
        "--yolo",
        "--exit-immediately",
    ],
    resume=None,
    runs=lambda command: call("bash", {"command": command}),
    # It ends when a command prints this.
    last=(
        answer(
            "I hand it in.",
            call("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}),
        ),
    ),
)


def _llm_environment(home: Path) -> Mapping[str, str]:
    return {"OPENAI_API_KEY": KEY, "LLM_USER_PATH": str(home / "llm")}


# Its tools are Python functions.
_LLM_TOOLS: Final = """
import subprocess

def run_command(command: str) -> str:
    "Run a command."
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout
"""
LLM: Final = Program(
    command=PYTHON / "llm",
    upstream="openai",
    variable="OPENAI_BASE_URL",
    base="/v1",
    environment=_llm_environment,
    begin=lambda prompt: ["-m", "gpt-4o-mini", "--functions", _LLM_TOOLS, prompt],
    resume=lambda prompt: ["--continue", "--functions", _LLM_TOOLS, prompt],
    runs=lambda command: call("run_command", {"command": command}),
)


def _aider_environment(home: Path) -> Mapping[str, str]:
    return {
        "OPENAI_API_KEY": KEY,
        "AIDER_ANALYTICS_DISABLE": "true",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


_AIDER_FLAGS: Final = [
    "--model",
    "openai/gpt-4o",
    "--no-git",
    "--yes-always",
    "--no-show-model-warnings",
    "--no-check-update",
    "--analytics-disable",
    "--no-show-release-notes",
]
AIDER: Final = Program(
    command=_AIDER / "aider",
    upstream="openai",
    variable="OPENAI_API_BASE",
    base="/v1",
    environment=_aider_environment,
    begin=lambda prompt: [*_AIDER_FLAGS, "--message", prompt],
    resume=lambda prompt: [
        *_AIDER_FLAGS,
        "--restore-chat-history",
        "--message",
        prompt,
    ],
    runs=None,
    # It reads its history from a page in Markdown.
    rewrites=True,
    is_main=lambda request: True,  # noqa: ARG005  # it has no tools
)
