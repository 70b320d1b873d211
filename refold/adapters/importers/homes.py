"""The folders in a home where coding agents keep their sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple


class Agent(NamedTuple):
    """A coding agent, and its files.

    form:     the format of its files.
    name:     the name that people know.
    patterns: of the files of its sessions, relative to a home.  The files of
              sub-agents may be found by those of their sessions.
    """

    form: str
    name: str
    patterns: tuple[str, ...]


# The folders of editors with the data of their extensions, and the extensions.
_EDITORS: Final = (
    ".config/*/User/globalStorage",
    ".vscode-server/data/User/globalStorage",
    ".vscode-remote/data/User/globalStorage",
    "Library/Application Support/*/User/globalStorage",
    "AppData/Roaming/*/User/globalStorage",
)
_EXTENSIONS: Final = ("saoudrizwan.claude-dev", "rooveterinaryinc.roo-cline")


def _tasks_of_editors() -> Iterator[str]:
    """Yield the patterns of the tasks of Cline and Roo Code, in each editor."""
    yield ".cline/data/tasks/*/api_conversation_history.json"
    for editor in _EDITORS:
        for extension in _EXTENSIONS:
            yield f"{editor}/{extension}/tasks/*/api_conversation_history.json"


AGENTS: Final = (
    Agent(
        "claude-code",
        "Claude Code",
        (".claude/projects/*/*.jsonl", ".config/claude/projects/*/*.jsonl"),
    ),
    Agent(
        "codex",
        "Codex",
        (
            ".codex/sessions/*/*/*/rollout-*.jsonl",
            ".codex/sessions/rollout-*.json*",
            ".codex/archived_sessions/rollout-*.jsonl",
        ),
    ),
    Agent(
        "gemini-cli",
        "Gemini CLI",
        (
            ".gemini/tmp/*/chats/session-*.json",
            ".gemini/tmp/*/chats/session-*.jsonl",
            ".gemini/tmp/*/chats/*/*.jsonl",
        ),
    ),
    Agent(
        "qwen-code",
        "Qwen Code",
        (
            ".qwen/projects/*/chats/*.jsonl",
            ".qwen/projects/*/subagents/*/agent-*.jsonl",
        ),
    ),
    Agent(
        "copilot-cli",
        "GitHub Copilot CLI",
        (
            ".copilot/session-state/*/events.jsonl",
            ".copilot/session-state/*.jsonl",
        ),
    ),
    Agent(
        "opencode",
        "opencode",
        (
            ".local/share/opencode/opencode.db",
            ".local/share/opencode/storage/session/*/ses_*.json",
        ),
    ),
    Agent("openhands", "OpenHands", (".openhands/conversations/*/base_state.json",)),
    Agent("cline", "Cline and Roo Code", tuple(_tasks_of_editors())),
)


class AgentFiles(NamedTuple):
    """The files of an agent in a home.

    size: of all files, in bytes.
    """

    agent: Agent
    files: tuple[Path, ...]
    size: int


def files_of(home: Path, agent: Agent) -> list[Path]:
    """Return the files of an agent's sessions, each once, by name."""
    files: dict[Path, None] = {}
    for pattern in agent.patterns:
        for path in sorted(home.glob(pattern)):
            files[path] = None
    return [*files]


def agents_in(home: Path, *, form: str | None = None) -> list[AgentFiles]:
    """Return the agents that have sessions in a home; none for other folders.

    form: of the only agent to look for; None looks for all.
    """
    if not home.is_dir():
        return []
    agents: list[AgentFiles] = []
    for agent in AGENTS:
        if form is not None and agent.form != form:
            continue
        files = files_of(home, agent)
        if files:
            agents.append(AgentFiles(agent, tuple(files), _size(files)))
    return agents


def _size(files: Iterable[Path]) -> int:
    """Return the size of files; one that is gone has none."""
    total = 0
    for path in files:
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total


class Home(NamedTuple):
    """A home, and the agents in it whose sessions are imported."""

    path: Path
    agents: Sequence[Agent]

    def files(self) -> list[Path]:
        """Return the files that the agents have now."""
        files: list[Path] = []
        for agent in self.agents:
            files += files_of(self.path, agent)
        return files
