"""Fixtures for tests of the command line: a way to run it, and a store to run it on."""

import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from refold.adapters.cli import main

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "examples" / "sample" / "agent_run.jsonl"


class CommandResult(NamedTuple):
    """The result of a command: its exit code, stdout and stderr."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.out, self.err
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Terminal(io.TextIOWrapper):
    """Standard input that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


Refold = Callable[..., CommandResult]


@pytest.fixture
def refold(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Refold:
    """Run ``refold`` in this process, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)

    def run(*args: object, stdin: bytes = b"", asked: bool = False) -> CommandResult:
        kind = Terminal if asked else io.TextIOWrapper
        monkeypatch.setattr(sys, "stdin", kind(io.BytesIO(stdin)))
        capsys.readouterr()
        code = main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return CommandResult(code, out, err)

    return run


@pytest.fixture(scope="session")
def _store_with_sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample in a store, created once; tests work on copies."""
    folder = tmp_path_factory.mktemp("imported")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFOLD_HOME", str(folder / "home"))
        url = f"sqlite:///{folder / 'refold.db'}"
        args = ["--db", url, "import", str(SAMPLE), "--user", "lin", "--session", "run"]
        assert main(args) == 0
    return folder


@pytest.fixture
def sample(
    _store_with_sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A copy of the store with the sample for one test: user lin, session run."""
    shutil.copytree(_store_with_sample, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    return tmp_path / "refold.db"
