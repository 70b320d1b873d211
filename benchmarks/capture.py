"""The cost of following a coding agent's transcripts.

``make bench-capture``: CPU of this process.  Targets: at most 2 ms for an entry, 0.5 %
of a core while nothing happens, no memory that grows with the captured entries, and 60
ms for a hook of the client in addition to the start of Python.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from statistics import median
from time import monotonic, process_time
from uuid import uuid4

import refold
from refold.adapters.capture_hook import MODULE
from refold.adapters.importers.follower import Follower

TEXT = "The quick fox reads the budget of the third quarter and finds nothing in it. "
ENTRIES = 3
FILES = 2_000
ROUNDS = 400
IDLE_SEC = 20
ENTRY_MS = 2.0
IDLE_SHARE = 0.005
GROWTH_MB = 8.0
HOOK_MS = 60.0
HOOKS = 10


def line(number: int) -> bytes:
    """An answer, a call or a result, of 1.8 KB as the sample's are on average."""
    content = [{"type": "text", "text": f"{number}: {TEXT * 20}"}]
    entry = {"type": ("user", "assistant")[number % 2], "uuid": str(uuid4())}
    message = {"role": entry["type"], "content": content}
    about = {"sessionId": "s", "timestamp": "2026-03-01T10:00:00.000Z"}
    return json.dumps({**entry, **about, "message": message}).encode() + b"\n"


def measured(folder: Path) -> dict[str, float]:
    """The measured costs, by name."""
    kept = folder / "projects"
    for number in range(FILES):  # the files of a month
        path = kept / f"p-{number % 20}" / f"{uuid4()}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    # The engine that ``auto`` chooses in the end: nothing is compiled during a
    # measurement.
    policy = refold.Policy.parse("version = 1\n").with_engine("vectorscan")
    url = f"sqlite:///{folder}/captured.db"
    store = refold.open(url, policy=policy)
    follower = Follower(store, "claude-code", user_id="ada", folder=kept, url=url)
    costs: list[float] = []
    with store, follower.alone():
        for turn in range(ROUNDS):
            if turn == ROUNDS // 2:
                before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            with (kept / "p-0" / f"s-{turn // 50}.jsonl").open("ab") as file:
                file.writelines(line(turn * ENTRIES + part) for part in range(ENTRIES))
            began = process_time()
            follower.look(whole=turn % 20 == 0)  # as often as for that many files
            costs.append((process_time() - began) / ENTRIES)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        stop = threading.Event()
        threading.Timer(IDLE_SEC, stop.set).start()
        began = process_time()
        since = monotonic()
        follower.run(stop)
        idle = (process_time() - began) / (monotonic() - since)
        hook = [sys.executable, "-P", "-m", MODULE, "claude-code", "--user", "ada"]
        # The follower has the lock, so that the hook starts no process.
        hook += ["--folder", str(kept), "--db", url]
        hook_ms = median(map(cpu_ms, [hook] * HOOKS))
        python_ms = median(map(cpu_ms, [[sys.executable, "-c", "pass"]] * HOOKS))
    return {
        "ms an entry": sum(costs[ROUNDS // 4 :]) / (ROUNDS * 0.75) * 1000,
        "share while idle": idle,
        "MB grown": grown / 1024,
        "ms a hook": hook_ms - python_ms,
    }


def cpu_ms(command: list[str]) -> float:
    """Return the CPU that a process takes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    user = after.ru_utime - before.ru_utime
    system = after.ru_stime - before.ru_stime
    return (user + system) * 1000


def main() -> int:
    """Measure, print each cost, and exit with 1 if a target is missed."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["REFOLD_HOME"] = f"{folder}/home"
        figures = measured(Path(folder))
    missed = 0
    limits = (ENTRY_MS, IDLE_SHARE, GROWTH_MB, HOOK_MS)
    for (name, value), limit in zip(figures.items(), limits, strict=True):
        if value > limit:
            missed += 1
        sys.stdout.write(f"{name}: {value:.4g} (at most {limit:g})\n")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
