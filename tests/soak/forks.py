"""``make soak-forks``: random families of processes that fork with a store open.

Each history is a new SQLite store and a process that opens it.  The process and its
children append (also in threads), fork (also in C), close and reopen the store, and end
with or without closing it.  Unrelated programs open and close the file concurrently.
At the end, the store must have each acknowledged event exactly once.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import select
import signal
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import monotonic

import refold
from refold.store import SessionStore
from tests.soak.summary import summarize
from tests.support.forked import open_elsewhere

STUCK_SEC = 60.0
_STEPS = 8
_DEEPEST = 3
_CHILDREN = 2
_ACTS = {
    "append": 6,
    "look": 3,
    "fork": 3,
    "fork in C": 1,
    "reopen": 1,
    "thread": 2,
    "share": 2,
}
_INHERITED = "was open when this process was forked"


@dataclass
class Member:
    """One process of a history.

    ledger:    the descriptor of the file to which all processes write their notes.
    name:      its place in the family; ``0.1`` is the second child of the first.
    hooks_ran: whether Python's hooks ran after every fork of its line, as in no fork in
               C.
    """

    url: str
    ledger: int
    random: Random
    name: str = "0"
    depth: int = 0
    hooks_ran: bool = True
    children: list[int] = field(default_factory=list)
    count: int = 0

    def run(self) -> None:
        """Open the store, and take some steps with it."""
        self.run_with(refold.open(self.url))

    def run_with(self, store: SessionStore) -> None:
        """Take some random steps with an open store.

        At the end, it may close the store, and may wait for its children.
        """
        threads: list[threading.Thread] = []
        for _ in range(self.random.randint(2, _STEPS)):
            (act,) = self.random.choices(list(_ACTS), list(_ACTS.values()))
            self.note("act", act)
            try:
                match act:
                    case "append":
                        self.append(store, self.name)
                    case "share":
                        self.append(store, "shared")
                    case "look":
                        open_elsewhere(self.url)
                    case "thread" if not self.hooks_ran:
                        # After a fork in C, Python's own locks are as they were in the
                        # parent, and a new thread may wait for them forever.
                        pass
                    case "thread":
                        thread = threading.Thread(
                            target=self.append_some, args=(store, len(threads))
                        )
                        thread.start()
                        threads.append(thread)
                    case "reopen":
                        for thread in threads:
                            thread.join()
                        store.close()
                        store = refold.open(self.url)
                    case "fork in C":
                        # A thread may hold a lock of Python that nobody would release
                        # in the child.
                        for thread in threads:
                            thread.join()
                        self.fork(store, in_c=True)
                    case _:
                        self.fork(store, in_c=False)
            except refold.RefoldError as error:
                self.refused(error)
        for thread in threads:
            thread.join()
        if self.random.random() < 0.5:
            store.close()
        if self.random.random() < 0.5:
            for child in self.children:
                os.waitpid(child, 0)

    def append(self, store: SessionStore, session_id: str) -> None:
        """Append an event, and note it once it is acknowledged."""
        self.count += 1
        text = f"{self.name} {self.count}"
        session = store.session(user_id=f"user {session_id}", session_id=session_id)
        session.append(refold.UserInput(text=text))
        self.note("wrote", text)

    def append_some(self, store: SessionStore, number: int) -> None:
        """Append a few events to a session of this thread's own."""
        session_id = f"{self.name} thread {number}"
        session = store.session(user_id=f"user {session_id}", session_id=session_id)
        for place in range(10):
            try:
                session.append(refold.UserInput(text=f"{session_id} {place}"))
            except refold.RefoldError as error:
                self.refused(error)
                return
            self.note("wrote", f"{session_id} {place}")

    def fork(self, store: SessionStore, *, in_c: bool) -> None:
        """Fork a child, unless the family is large enough."""
        if self.depth >= _DEEPEST or len(self.children) >= _CHILDREN:
            return
        seed = self.random.random()
        child = ctypes.PyDLL(None).fork() if in_c else os.fork()
        if child:
            self.children.append(child)
            return
        member = Member(
            url=self.url,
            ledger=self.ledger,
            random=Random(seed),
            name=f"{self.name}.{len(self.children)}",
            depth=self.depth + 1,
            hooks_ran=self.hooks_ran and not in_c,
        )
        end_of(member, store)

    def refused(self, error: refold.RefoldError) -> None:
        """Note a refusal, which is right only after a fork in C.

        After such a fork, an inherited store is refused, and so is a closed one.
        """
        is_known = any(words in str(error) for words in (_INHERITED, "was closed"))
        is_right = is_known and not self.hooks_ran
        self.note("refused" if is_right else "wrong", f"{self.name}: {error}")

    def note(self, kind: str, text: str) -> None:
        """Write a line to the ledger that all processes share."""
        line = f"{kind} {text}".replace("\n", " ")
        os.write(self.ledger, f"{line}\n".encode())


def end_of(member: Member, store: SessionStore | None) -> None:
    """Run a member, and end its process without returning to its parent's frames.

    store: the inherited store; None opens one.
    """
    try:
        if store is None:
            member.run()
        else:
            member.run_with(store)
    except BaseException as error:  # the ledger has it
        member.note("wrong", f"{member.name}: {type(error).__name__}: {error}")
    finally:
        os._exit(0)


def history(seed: int, folder: Path) -> tuple[list[str], Counter[str]]:
    """Run the history of a seed; returns its problems, and counts of its acts."""
    folder.mkdir()
    refold.redact("")  # compiled once here, not in each process
    os.environ["REFOLD_HOME"] = str(folder / "home")
    url = f"sqlite:///{folder / 'refold.db'}"
    ledger = os.open(folder / "ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    alive, held_by_all = os.pipe()
    root = os.fork()
    if not root:
        os.setpgid(0, 0)
        os.close(alive)
        end_of(Member(url, ledger, Random(seed)), None)
    os.close(held_by_all)
    os.close(ledger)
    ended, _, _ = select.select([alive], [], [], STUCK_SEC)
    os.close(alive)
    wrong = []
    if not ended:
        wrong.append(f"seed {seed}: a process was stuck for {STUCK_SEC:.0f} s")
        os.killpg(root, signal.SIGKILL)
    os.waitpid(root, 0)
    lines = (folder / "ledger").read_text().splitlines()
    wrong += [f"seed {seed}: {line}" for line in lines if line.startswith("wrong")]
    acknowledged = [
        line.removeprefix("wrote ") for line in lines if line.startswith("wrote ")
    ]
    wrong += [f"seed {seed}: {event}" for event in missing(url, acknowledged)]
    acts = Counter(line.removeprefix("act ") for line in lines if line[:4] == "act ")
    acts["acknowledged"] = len(acknowledged)
    acts["refused"] = sum(line.startswith("refused") for line in lines)
    return wrong, acts


def missing(url: str, acknowledged: list[str]) -> list[str]:
    """Return acknowledged events that are missing or repeated, and other problems."""
    stored: Counter[str] = Counter()
    wrong: list[str] = []
    with refold.open(url) as store:
        for info in store.sessions():
            session = store.session(user_id=info.user_id, session_id=info.session_id)
            for event in session.events():
                stored[str(event.payload.payload()["text"])] += 1
        for _, verified in store.verify():
            wrong += [f"verify: {problem}" for problem in verified.problems]
    for text in acknowledged:
        if stored[text] != 1:
            wrong.append(f"{text!r} was acknowledged and is there {stored[text]} times")
    return wrong


def main(arguments: list[str] | None = None) -> int:
    """Run histories; 1 if anything is wrong after one."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.forks")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    begin = monotonic()
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="refold-forks-") as folder:
        for seed in range(options.seed, options.seed + options.count):
            problems, acts = history(seed, Path(folder) / str(seed))
            wrong += problems
            counts += acts
    return summarize(f"{options.count} histories", monotonic() - begin, counts, wrong)


if __name__ == "__main__":
    sys.exit(main())
