"""A client that writes transcripts under disturbances, and a check of the capture.

python -m tests.support.capturing COUNT [SEED]

runs that many random writes, kills, rotations, rewrites and sweeps, and prints every
difference.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import refold
from refold.adapters.importers.follower import status
from tests.support import warm
from tests.support.waiting import until

USER = "ada"
SECRET = "ghp_" + "9fK2mQ7xR4tW8bN3vC6zJ1hL5pD0sGyEaUiO"[:36]
NOTES = "notes"
NOTE = b'{"type":"queue-operation","operation":"dequeue","sessionId":"notes"}\n'
_PATIENCE_SEC = 120


class Client:
    """Writes entries of Claude Code into files of a folder, complete or torn."""

    def __init__(self, home: Path, seed: int) -> None:
        self.home = home
        self._random = random.Random(seed)
        self.folder = home / "projects"
        self.database = f"sqlite:///{home / 'captured.db'}"
        self.written: dict[str, list[str]] = {}  # ids of complete entries, by session
        self.notes = 0  # equal lines, in a session without other lines
        self._torn: dict[Path, bytes] = {}
        self._process: warm.Process | None = None
        (self.folder / "work").mkdir(parents=True)
        self._notes = self.folder / "work" / f"{NOTES}.jsonl"
        self._command = ["refold", "--db", self.database, "capture", "claude-code"]
        self._command += ["--user", USER, "--folder", str(self.folder)]

    def run(self, count: int) -> Counter[str]:
        """Do that many things at random, and wait until everything is captured."""
        done: Counter[str] = Counter()
        acts: dict[Callable[[], None], int] = {
            self.write: 50,
            self.tear: 14,
            self.rotate: 8,
            self.rewrite: 8,
            self.rewrite_in_place: 4,
            self.kill: 10,
            self.sweep: 6,
            self.repeat: 10,
            self.glue: 10,
            self.catch_up: 6,
        }
        self.start()
        for act in self._random.choices([*acts], [*acts.values()], k=count):
            act()
            done[act.__name__] += 1
        for path in [*self._torn]:
            self._finish(path)
        self.settle()
        self.stop()
        return done

    def start(self) -> None:
        self._process = warm.Process(self._command, environment=os.environ)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.communicate()
            self._process = None

    def write(self) -> None:
        path = self._finish(self._file())
        with path.open("ab") as file:
            for _ in range(self._random.randrange(1, 6)):
                file.write(self._entry(path))

    def tear(self) -> None:
        """Write the beginning of a line; its end follows later."""
        path = self._finish(self._file())
        line = self._entry(path)
        cut = self._random.randrange(1, len(line))
        with path.open("ab") as file:
            file.write(line[:cut])
        self._torn[path] = line[cut:]

    def rotate(self) -> None:
        """Move a file aside; later entries go to a new file of the same name."""
        path = self._finish(self._file())
        if path.exists():
            path.rename(path.with_name(f"{path.name}.{self._random.getrandbits(40)}"))

    def rewrite(self) -> None:
        """Replace a file by a copy without some of its lines."""
        path = self._finish(self._file())
        if path.exists():
            self.settle()  # a line that was never read is lost with the old file
            lines = path.read_bytes().splitlines(keepends=True)
            new = path.with_suffix(".new")
            new.write_bytes(b"".join(lines[self._random.randrange(len(lines)) :]))
            new.replace(path)

    def rewrite_in_place(self) -> None:
        """Truncate a file, and write its lines again in another order."""
        path = self._finish(self._file())
        if path.exists():
            self.settle()
            lines = path.read_bytes().splitlines(keepends=True)
            self._random.shuffle(lines)
            path.write_bytes(b"".join(lines))

    def kill(self) -> None:
        """Kill the capturing process at a random moment, and start it again."""
        time.sleep(self._random.random() * 0.05)  # a random moment, not a wait
        self.stop()
        self.start()

    def sweep(self) -> None:
        """Remove a file right after a write, while a process follows it."""
        path = self._finish(self._file())
        if path.exists():
            self.settle()
            with path.open("ab") as file:
                file.write(self._entry(path))
            path.unlink()
            self.settle(gone=path)

    def repeat(self) -> None:
        """Write equal lines without an id; nothing else happens to them."""
        with self._notes.open("ab") as file:
            for _ in range(self._random.randrange(1, 4)):
                file.write(NOTE)
                self.notes += 1

    def glue(self) -> None:
        """Write entries without a line end between them."""
        path = self._finish(self._file())
        entries = [self._entry(path) for _ in range(self._random.randrange(2, 4))]
        with path.open("ab") as file:
            file.write(b"".join(entry.rstrip() for entry in entries) + b"\n")

    def catch_up(self) -> None:
        """Run a capture, which leaves the work to a follower or does it."""
        process = warm.Process([*self._command, "--once"], environment=os.environ)
        printed = process.communicate()
        assert process.returncode == 0, printed

    def settle(self, gone: Path | None = None) -> None:
        """Wait until everything is read, and the state of ``gone`` is removed."""
        until(
            lambda: not self._is_behind(gone),
            "the capture to catch up",
            state=self._stuck,
            seconds=_PATIENCE_SEC,
        )

    def _stuck(self) -> str:
        """Describe a process that does not catch up, with its output and state."""
        process = self._process
        self._process = None
        output = "nothing runs"
        if process is not None:
            process.send_signal(signal.SIGKILL)
            output = f"{process.communicate()} {process.returncode}"
        states = [file.read_text() for file in self._state_files()]
        files = [(str(file), file.stat()) for file in self.folder.rglob("*.jsonl*")]
        return f"the capture does not catch up: {output} {states} {files} {self._torn}"

    def _state_files(self) -> list[Path]:
        """Return the files in which the capture stores its state."""
        return list((self.home / "home" / "capture").glob("*.json"))

    def _is_behind(self, gone: Path | None) -> bool:
        """Whether a file is not read to its end, or the state of ``gone`` remains."""
        state_files = self._state_files()
        if not state_files or self._process is None:
            return True
        state = json.loads(state_files[0].read_text())
        if state["pid"] != self._process.pid:  # it has not looked yet
            return True
        places = state["files"]
        if gone is not None and str(gone) in {p["path"] for p in places.values()}:
            return True
        for path in self.folder.rglob("*.jsonl*"):
            info = path.stat()
            if not info.st_size or path in self._torn:
                continue
            # By inode: a file of the same name may be another by now.
            place = places.get(f"{info.st_dev}:{info.st_ino}", {})
            if place.get("at") != info.st_size:
                return True
        return False

    def _file(self) -> Path:
        name = UUID(int=self._random.randrange(1, 5))
        return self.folder / "work" / f"{name}.jsonl"

    def _finish(self, path: Path) -> Path:
        if path in self._torn:
            with path.open("ab") as file:
                file.write(self._torn.pop(path))
        return path

    def _entry(self, path: Path) -> bytes:
        session = path.name.partition(".")[0]
        uuid = UUID(int=self._random.getrandbits(128))
        self.written.setdefault(session, []).append(str(uuid))
        text = f"entry {uuid}: use {SECRET} " + "word " * self._random.randrange(80)
        kind = self._random.choice(("user", "assistant"))
        content: Any = text if kind == "user" else [{"type": "text", "text": text}]
        entry = {
            "type": kind,
            "uuid": str(uuid),
            "sessionId": session,
            "timestamp": "2026-03-01T10:00:00.000Z",
            "message": {"role": kind, "content": content},
        }
        return json.dumps(entry).encode() + b"\n"


def differences(client: Client) -> Iterator[str]:
    """Yield each difference between the written and the captured entries."""
    with refold.open(client.database) as store:
        for session_id, ids in client.written.items():
            session = store.session(user_id=USER, session_id=session_id)
            counts = Counter(str(item.value["uuid"]) for item in session.native.read())
            for uuid in ids:
                if counts[uuid] != 1:
                    yield f"{session_id}: entry {uuid} is there {counts[uuid]} times"
            strange = counts.keys() - set(ids)
            if strange:
                yield f"{session_id}: {len(strange)} entries that nobody wrote"
            yield from map(str, session.verify().problems)
        notes = store.session(user_id=USER, session_id=NOTES)
        count = 0
        if client.notes:
            count = len(list(notes.native.read()))
        if count != client.notes:
            yield f"of {client.notes} equal lines, {count} are there"
    for path in client.home.rglob("*"):
        is_of_capture = path.is_file() and client.folder not in path.parents
        if is_of_capture and SECRET.encode() in path.read_bytes():
            yield f"{path.name} holds the secret"
    yield from (f"refused: {capture}" for capture in status() if capture["refused"])


if __name__ == "__main__":
    number = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        os.environ["REFOLD_HOME"] = str(Path(folder) / "home")
        soaked = Client(Path(folder), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
        done = soaked.run(number)
        problems = [*differences(soaked)]
        report = problems[:20] or ["nothing lost, nothing doubled"]
        entries = sum(map(len, soaked.written.values())) + soaked.notes
        sys.stdout.write("\n".join([f"{dict(done)}, {entries} entries", *report, ""]))
        sys.exit(bool(problems))
