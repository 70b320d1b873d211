"""The CPU of lists of sessions, in a store with many short sessions of one user.

``python -m benchmarks.lists --sessions 100000`` makes up the sessions, and lists them.
``--keep FILE`` keeps the store for the next run, and uses it if it exists.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import refold
from refold.store import SessionStore
from refold.store.overviews import OverviewFilter, OverviewPage

_USER: Final = "ada"
_FIRST_DAY: Final = datetime(2025, 1, 1, tzinfo=UTC)
_SECONDS: Final = 365 * 24 * 3600
_PAGE: Final = 100  # sessions
_MODELS: Final = ("claude-opus-4-1", "claude-sonnet-4-5", "gpt-5")
_WORDS: Final = (
    "fix", "the", "build", "test", "of", "importer", "why", "does", "fail", "add",
    "a", "page", "for", "sessions", "rename", "column", "explain", "error", "in",
)  # fmt: skip


def fill(store: SessionStore, sessions: int) -> None:
    """Append sessions with a request, a call, its result, and an answer."""
    draw = random.Random(1)
    for number in range(sessions):
        began = _FIRST_DAY + timedelta(seconds=draw.randrange(_SECONDS))
        call = f"c{number}"
        title = " ".join(draw.choices(_WORDS, k=8))
        session = store.session(user_id=_USER, session_id=f"s-{number:06}")
        session.append(
            [
                refold.UserInput(text=title),
                refold.ToolCall(call_id=call, tool_name="Bash", arguments={}),
                refold.ToolResult(
                    call_id=call,
                    tool_name="Bash",
                    content="done",
                    status="error" if number % 7 == 0 else "ok",
                ),
                refold.AgentResponse(text="It works now."),
            ],
            ts=began,
            agent="claude-code",
            meta={
                "model": draw.choice(_MODELS),
                "usage": {"input_tokens": draw.randrange(9_999), "output_tokens": 90},
                "project": f"project-{number % 40}",
            },
        )


def measure(url: str) -> None:
    """Print the CPU of each list, each in an opened store that has read nothing."""
    lists: dict[str, Callable[[SessionStore], OverviewPage]] = {
        "newest page": lambda store: store.overviews(_USER, limit=_PAGE),
        "page by name": lambda store: store.overviews(
            _USER, sort="session", limit=_PAGE
        ),
        "page by dollars": lambda store: store.overviews(
            _USER, sort="dollars", limit=_PAGE
        ),
        "page by title": lambda store: store.overviews(
            _USER, sort="title", limit=_PAGE
        ),
        "failed, newest": lambda store: store.overviews(
            _USER, matching=OverviewFilter(failed=True), limit=_PAGE
        ),
        "words in the title": lambda store: store.overviews(
            _USER, matching=OverviewFilter(text="importer fail"), limit=_PAGE
        ),
        "all sessions": lambda store: store.overviews(_USER),
    }
    for name, listed in lists.items():
        with refold.open(url) as store:
            store.session(user_id=_USER, session_id="s-000000").head()
            before = _cpu()
            page = listed(store)
            print(
                f"{name:24} {_cpu() - before:7.3f} s   "
                f"{len(page.sessions):,} of {page.total:,} sessions"
            )


def fold_all(store: SessionStore) -> None:
    """Store the overviews of all sessions, as lists do in steps."""
    while store.overviews(_USER, sort="dollars", limit=1).unread:
        pass


@contextmanager
def _home(folder: Path) -> Iterator[None]:
    """Keep the keys of the store in the folder."""
    before = os.environ.get("REFOLD_HOME")
    os.environ["REFOLD_HOME"] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ["REFOLD_HOME"]
        else:
            os.environ["REFOLD_HOME"] = before


def run(folder: Path, sessions: int) -> None:
    """Fill a store in the folder, if it has none, and measure lists of its sessions."""
    path = folder / "lists.db"
    url = f"sqlite:///{path}?synchronous=normal"
    with _home(folder):
        if not path.exists():
            before = _cpu()
            with refold.open(url) as store:
                fill(store, sessions)
                print(f"{'append the sessions':24} {_cpu() - before:7.3f} s")
                before = _cpu()
                fold_all(store)
                print(f"{'store their overviews':24} {_cpu() - before:7.3f} s")
        measure(url)


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Read the arguments, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--keep", type=Path, help="the folder of the store")
    arguments = parser.parse_args()
    if arguments.keep is not None:
        arguments.keep.mkdir(parents=True, exist_ok=True)
        run(arguments.keep, arguments.sessions)
        return
    with TemporaryDirectory() as folder:
        run(Path(folder), arguments.sessions)


if __name__ == "__main__":
    main()
