"""Fixtures for tests of ``refold run`` and ``refold proxy``: a store and a provider."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.provider import Provider
from tests.support.waiting import PATIENCE_SEC

REFOLD = (
    sys.executable,
    "-c",
    "import sys; from refold.adapters.cli import main; sys.exit(main(sys.argv[1:]))",
)
# Variables of the person who runs the tests must not lead them anywhere.
_FOREIGN = ("ANTHROPIC_", "OPENAI_", "GEMINI_", "GOOGLE_", "OLLAMA_", "CODEX_")


@dataclass
class Machine:
    """A folder with a store, and the environment of programs."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The URL of the store."""
        return f"sqlite:///{self.folder / 'agent.db'}"

    def command(self, *args: object) -> list[str]:
        """Return a command of Refold on the store."""
        return [*REFOLD, "--db", self.url, *map(str, args)]

    def refold(self, *args: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command of Refold on the store."""
        return subprocess.run(
            self.command(*args),
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SEC,
            check=False,
            **options,
        )

    def json(self, *args: object) -> Any:
        """Return what a command of Refold prints as JSON."""
        ran = self.refold(*args, "--json")
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    def session_ids(self) -> list[str]:
        """Return the ids of the recorded sessions."""
        return [session["session_id"] for session in self.json("sessions")]

    def events(self, session_id: str, user_id: str = "ada") -> list[Any]:
        """Return the events of a session."""
        ran = self.refold("log", "--user", user_id, "--session", session_id, "--json")
        assert ran.returncode == 0, ran.stderr
        return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine without settings of clients."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_FOREIGN) and "PROXY" not in name.upper()
    }
    environment["REFOLD_HOME"] = str(tmp_path / "home")
    environment["HOME"] = str(tmp_path)
    environment.pop("REFOLD_DB", None)
    return Machine(tmp_path, environment)


@pytest.fixture
def provider() -> Iterator[Provider]:
    """A provider on this machine."""
    with Provider() as running:
        yield running
