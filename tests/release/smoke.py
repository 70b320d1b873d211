"""A check of an installed wheel, which runs without the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from importlib import import_module
from importlib.metadata import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

FRAMEWORKS = "refold.adapters.frameworks"
# For each extra, the modules that need it.
MODULES = {
    "adk": [f"{FRAMEWORKS}.google_adk"],
    "agent-framework": [f"{FRAMEWORKS}.agent_framework"],
    "claude-sdk": [f"{FRAMEWORKS}.claude_sdk"],
    "dask": ["distributed"],
    "langgraph": [f"{FRAMEWORKS}.langgraph", f"{FRAMEWORKS}.langgraph_store"],
    "mcp": [f"{FRAMEWORKS}.mcp"],
    "openai-agents": [f"{FRAMEWORKS}.openai_agents"],
    "otel": ["httpx2", "opentelemetry.proto.collector.trace.v1.trace_service_pb2"],
    "parquet": ["pyarrow.parquet"],
    "plot": ["matplotlib.pyplot"],
    "proxy": ["refold.adapters.proxy.server"],
    "pydantic-ai": [f"{FRAMEWORKS}.pydantic_ai"],
    "server": ["refold.adapters.server.app"],
    "strands": [f"{FRAMEWORKS}.strands"],
    "tui": ["refold.adapters.cli.terminal"],
}


def main(extra: str) -> None:
    """Record, read, verify and erase; then load what the extra adds."""
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["REFOLD_HOME"] = folder
        os.environ["REFOLD_CACHE"] = f"{folder}/cache"
        os.environ["REFOLD_DB"] = "sqlite:///smoke.db"
        _record()
        _read()
        if extra in ("parquet", "all"):
            _run("export", "--format", "parquet", "--columns", "all", "--out", "tables")
            assert list(Path("tables").rglob("*.parquet"))
        _erase()
    names = sorted(MODULES) if extra == "all" else [extra] if extra else []
    for name in names:
        for module in MODULES[name]:
            import_module(module)


def _record() -> None:
    import refold

    assert refold.__version__ == metadata("refold")["Version"]
    with refold.open(os.environ["REFOLD_DB"]) as store:
        session = store.session(user_id="ada", session_id="s-1")
        session.append(refold.UserInput(text="Write to ada@build.test."))
        assert session.context().messages


def _read() -> None:
    context = _run("context", "--user", "ada", "--session", "s-1")
    assert "[REDACTED:EMAIL]" in context
    assert "ada@build.test" not in context
    _run("verify")
    _run("seal")


def _erase() -> None:
    _run("erase", "--user", "ada", "--reason", "smoke", "--yes")
    _run("verify")


def _run(*arguments: str) -> str:
    program = Path(sysconfig.get_path("scripts"), "refold")
    ran = subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, check=False
    )
    if ran.returncode != 0:
        sys.exit(f"refold {' '.join(arguments)}: {ran.stdout}{ran.stderr}")
    return ran.stdout


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
