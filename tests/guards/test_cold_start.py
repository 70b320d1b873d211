"""The modules, expressions and files that a short process loads before its work."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest

COUNTED: Final = """
import json, re, sys, tomllib

counts = {"patterns": 0, "files": 0, "longest": 0}

def counted(work, name):
    def call(*arguments, **options):
        counts[name] += 1
        if name == "patterns":
            counts["longest"] = max(counts["longest"], len(arguments[0]))
        return work(*arguments, **options)
    return call

re._compiler.compile = counted(re._compiler.compile, "patterns")
tomllib.loads = counted(tomllib.loads, "files")
import refold
"""
REPORT: Final = """
print(json.dumps({"modules": sorted(sys.modules), **counts}), file=sys.stderr)
"""
OPEN: Final = """
store = refold.open(sys.argv[1])
"""
APPEND: Final = f"""{OPEN}
session = store.session(user_id="ada", session_id="s-1")
session.append(refold.UserInput(text="Hello"))
"""
CONTEXT: Final = f"""{APPEND}
session.context()
"""
REDACT: Final = """
refold.redact("a line")
"""
SESSIONS: Final = """
from refold.adapters.cli import main
main(["--db", sys.argv[1], "sessions"])
"""
Run: TypeAlias = Callable[[str], dict[str, Any]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs code in a process; returns its modules and counts."""

    def run_code(code: str) -> dict[str, Any]:
        ran = subprocess.run(
            [
                sys.executable,
                "-c",
                f"{COUNTED}{code}{REPORT}",
                f"sqlite:///{tmp_path / 'agent.db'}",
            ],
            env={"REFOLD_HOME": str(tmp_path), "REFOLD_CACHE": "off", "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        report: dict[str, Any] = json.loads(ran.stderr.splitlines()[-1])
        return report

    return run_code


@pytest.mark.parametrize(
    ("code", "modules", "patterns", "files"),
    [
        (OPEN, 370, 90, 1),
        (APPEND, 385, 160, 14),
        (CONTEXT, 410, 185, 15),
        (REDACT, 170, 115, 14),
    ],
    ids=["open", "append", "context", "redact"],
)
def test_a_short_process_loads_little(
    run: Run, code: str, modules: int, patterns: int, files: int
) -> None:
    report = run(code)

    assert len(report["modules"]) <= modules
    assert report["patterns"] <= patterns
    assert report["files"] <= files


@pytest.mark.parametrize("code", [OPEN, APPEND, CONTEXT, REDACT])
def test_a_short_process_compiles_no_long_pattern(run: Run, code: str) -> None:
    # The time to compile grows with the length.
    assert run(code)["longest"] <= 1_500


def test_a_short_process_builds_few_validators(run: Run) -> None:
    code = f"""{APPEND}
from refold.domain.model import Model
kinds = [Model]
for kind in kinds:
    kinds += kind.__subclasses__()
counts["built"] = sum(kind.__pydantic_complete__ for kind in kinds[1:])
"""

    assert run(code)["built"] <= 4


@pytest.mark.parametrize("code", [OPEN, APPEND, CONTEXT, REDACT])
def test_sqlite_needs_neither_sqlalchemy_nor_asyncio(run: Run, code: str) -> None:
    loaded = set(run(code)["modules"])

    assert loaded.isdisjoint({"sqlalchemy", "asyncio", "psycopg", "hyperscan"})


def test_redaction_without_a_store_loads_no_pydantic(run: Run) -> None:
    loaded = set(run(REDACT)["modules"])

    assert loaded.isdisjoint({"pydantic", "cryptography", "eventsourcing", "sqlite3"})


def test_a_command_that_reads_parses_no_rules(run: Run) -> None:
    run(APPEND)
    report = run(SESSIONS)

    loaded = set(report["modules"])
    assert "refold.redaction.rules" not in loaded
    assert loaded.isdisjoint({"sqlalchemy", "refold.redaction.scanner"})
    assert report["files"] <= 1


HELP: Final = """
from refold.adapters.cli import main
main(["--help"])
"""


@pytest.mark.parametrize("code", [OPEN, APPEND, CONTEXT, REDACT, SESSIONS, HELP])
def test_only_the_commands_of_the_proxy_load_it(run: Run, code: str) -> None:
    if code == SESSIONS:
        run(APPEND)

    loaded = set(run(code)["modules"])

    assert not [name for name in loaded if name.startswith("refold.adapters.proxy")]
    assert loaded.isdisjoint({"httpx2", "uvicorn", "refold.adapters.cli.child"})
