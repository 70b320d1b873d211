"""The CPU of lists of sessions, in a store with many short sessions of one user.

``python -m benchmarks.lists --sessions 100000`` makes up the sessions, and lists them
in each order and with each filter.  ``--keep FOLDER`` keeps the store for the next run,
and uses it if it exists.  ``--url URL`` measures a store in another database, such as
PostgreSQL with its keys in REFOLD_KEYS; the CPU is this process's, without that of the
server.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from uuid import UUID

import refold
from refold.store import SessionStore
from refold.store.overviews import (
    EVERY_SESSION,
    SORTS,
    OverviewFilter,
    OverviewPage,
    Sort,
)

_USER: Final = "ada"
_FIRST_DAY: Final = datetime(2025, 1, 1, tzinfo=UTC)
_SECONDS: Final = 365 * 24 * 3600
_PAGE: Final = 100  # sessions
_MODELS: Final = ("claude-opus-4-1", "claude-sonnet-4-5", "gpt-5")
_WORDS: Final = (
    "fix", "the", "build", "test", "of", "importer", "why", "does", "fail", "add",
    "a", "page", "for", "sessions", "rename", "column", "explain", "error", "in",
)  # fmt: skip


def session_names() -> Iterator[str]:
    """Yield names like those of clients.

    Their order is neither that of the rows in a database nor that of the times.
    """
    draw = random.Random(2)
    while True:
        yield str(UUID(int=draw.getrandbits(128), version=4))


def fill(store: SessionStore, sessions: int) -> None:
    """Append sessions with a request, a call, its result, and an answer."""
    draw = random.Random(1)
    for number, name in zip(range(sessions), session_names(), strict=False):
        began = _FIRST_DAY + timedelta(seconds=draw.randrange(_SECONDS))
        call = f"c{number}"
        title = " ".join(draw.choices(_WORDS, k=8))
        session = store.session(user_id=_USER, session_id=name)
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


_FILTERS: Final = {
    "words of the title": OverviewFilter(text="importer fail"),
    "project": OverviewFilter(project="project-7"),
    "agent": OverviewFilter(agent="claude"),
    "model": OverviewFilter(model="gpt-5"),
    "ended": OverviewFilter(state="ended"),
    "failed": OverviewFilter(failed=True),
    "since and until": OverviewFilter(
        since=_FIRST_DAY + timedelta(days=100), until=_FIRST_DAY + timedelta(days=200)
    ),
}


def _lists() -> dict[str, Callable[[SessionStore], OverviewPage]]:
    """Return the lists to measure, by their names."""
    lists: dict[str, Callable[[SessionStore], OverviewPage]] = {}
    for sort in SORTS:
        lists[f"sort by {sort}"] = partial(_page, sort=sort, matching=EVERY_SESSION)
    for name, matching in _FILTERS.items():
        lists[f"filter: {name}"] = partial(_page, sort="last", matching=matching)
    of_words = _FILTERS["words of the title"]
    lists["filter: words, by title"] = partial(_page, sort="title", matching=of_words)
    lists["all sessions"] = SessionStore.overviews
    return lists


def _page(store: SessionStore, *, sort: Sort, matching: OverviewFilter) -> OverviewPage:
    return store.overviews(_USER, sort=sort, matching=matching, limit=_PAGE)


def measure(url: str, runs: int) -> None:
    """Print the CPU of each list, each in an opened store that has read nothing."""
    some_name = next(session_names())
    print(f"{'':28} {'median':>9}  {'worst':>9}")
    for name, listed in _lists().items():
        seconds: list[float] = []
        for _ in range(runs):
            with refold.open(url) as store:
                store.session(user_id=_USER, session_id=some_name).head()
                before = _cpu()
                page = listed(store)
                seconds.append(_cpu() - before)
        print(
            f"{name:28} {statistics.median(seconds):7.3f} s  {max(seconds):7.3f} s   "
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


def run(folder: Path, url: str | None, *, sessions: int, runs: int) -> None:
    """Fill a store, if it is empty, and measure lists of its sessions.

    folder: of the store's keys, and of the database without a URL.
    """
    with _home(folder):
        url = url or f"sqlite:///{folder / 'lists.db'}?synchronous=normal"
        with refold.open(url, make_key=True) as store:
            if not store.sessions(_USER, limit=1):
                before = _cpu()
                fill(store, sessions)
                print(f"{'append the sessions':28} {_cpu() - before:7.3f} s")
                before = _cpu()
                fold_all(store)
                print(f"{'store their overviews':28} {_cpu() - before:7.3f} s")
        measure(url, runs)


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Read the arguments, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5, help="of each list")
    parser.add_argument("--url", help="of the database")
    parser.add_argument("--keep", type=Path, help="the folder of the store")
    arguments = parser.parse_args()
    with TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        run(folder, arguments.url, sessions=arguments.sessions, runs=arguments.runs)


if __name__ == "__main__":
    main()
