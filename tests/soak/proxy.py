"""``make soak-proxy``: random kills of a client, of the proxy, and of the store.

A client talks to a model through ``refold proxy``.  The client, the proxy, and the
store are killed at random moments.  PostgreSQL crashes and recovers.  With SQLite,
another process that writes to the file is killed.  Afterwards, the log must have each
message of the client once, and every context must equal what the provider received.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Final

import refold
from refold.adapters.proxy.recorder import body_mac
from refold.domain.envelope import Envelope
from refold.store import Session, SessionStore
from tests.soak.proxy_client import MAIL, SECRET, SESSION, conversation
from tests.soak.summary import summarize
from tests.support import warm
from tests.support.environment import environment_variables
from tests.support.postgres import Postgres
from tests.support.provider import Provider, Reply, Seen, answer
from tests.support.wire import flat, redacted

USER: Final = "ada"
_KILLS: Final = {"client": 3, "proxy": 4, "store": 3}
# A kill comes up to this long after an answer, to hit each moment of the next one.
_LONGEST_SEC: Final = 0.15
_WRITER: Final = """
import refold, sys
with refold.open(sys.argv[1]) as store:
    session = store.session(user_id="bob", session_id="other")
    print("writes", flush=True)
    while True:
        session.append(refold.UserInput(text="another"))
"""


class Trial:
    """A client, a proxy, a provider, and a store."""

    def __init__(
        self, seed: int, folder: Path, provider: Provider, server: Postgres | None
    ) -> None:
        self._random = Random(seed)
        self._provider = provider
        self._server = server
        self.client_folder = folder / "client"
        self.home = folder / "home"
        for place in (self.client_folder, self.home):
            place.mkdir(parents=True)
        if server is None:
            self.url = f"sqlite:///{self.home / 'refold.db'}"
        else:
            self.url = server.create_database(f"proxy{seed}")
        self._port = _free_port()
        self._address = ""
        self._proxy: warm.Process | None = None
        self._client: warm.Process | None = None
        self.acts = Counter[str]()

    def run(self, kills: int) -> None:
        """Let the client talk while this number of processes is killed."""
        self._start_proxy()
        turns = 0
        for _ in range(kills):
            turns += self._random.randint(1, 2)
            self._start_client(turns + 1)
            self._wait_for_answers(turns)
            time.sleep(self._random.random() * _LONGEST_SEC)  # the moment of the kill
            (victim,) = self._random.choices([*_KILLS], [*_KILLS.values()])
            self.acts[f"kills of the {victim}"] += 1
            if victim == "client":
                self._kill_client()
            elif victim == "proxy":
                self._kill_proxy()
                self._start_proxy()
            else:
                self._kill_store()
            self._end_client()
        # The last requests repeat the whole conversation.
        self._start_client(turns + 3)
        self._end_client()
        assert self._proxy is not None
        self._proxy.send_signal(signal.SIGINT)
        self._proxy.communicate()
        self._proxy = None

    def close(self) -> None:
        """End all processes."""
        for process in (self._proxy, self._client):
            if process is not None:
                process.send_signal(signal.SIGKILL)
                process.communicate()

    def _start_proxy(self) -> None:
        arguments = ["--port", str(self._port), "--user", USER]
        arguments += ["--upstream", f"anthropic={self._provider.url}"]
        command = ["refold", "--db", self.url, "--make-key", "proxy", *arguments]
        self._proxy = warm.Process(command, environment=os.environ)
        for line in self._proxy.stdout:
            name, _, value = line.removeprefix("export ").strip().partition("=")
            if name == "ANTHROPIC_BASE_URL":
                self._address = value
                return
        raise AssertionError(self._proxy.communicate())

    def _kill_proxy(self) -> None:
        assert self._proxy is not None
        self._proxy.send_signal(signal.SIGKILL)
        self._proxy.communicate()

    def _start_client(self, turns: int) -> None:
        self._client = warm.module(
            "tests.soak.proxy_client", self._address, self.client_folder, turns
        )

    def _wait_for_answers(self, turns: int) -> None:
        """Wait until the client has this number of answers, or ends."""
        assert self._client is not None
        while len(conversation(self.client_folder)) < 2 * turns:
            if not self._client.stdout.readline():
                return

    def _kill_client(self) -> None:
        assert self._client is not None
        self._client.send_signal(signal.SIGKILL)

    def _end_client(self) -> None:
        assert self._client is not None
        _, complaints = self._client.communicate()
        assert self._client.returncode in (0, -signal.SIGKILL), complaints
        self._client = None

    def _kill_store(self) -> None:
        if self._server is not None:
            self._server.restart(immediate=True)
            return
        writer = warm.Process(["-c", self.url], code=_WRITER, environment=os.environ)
        writer.stdout.readline()
        time.sleep(self._random.random() * _LONGEST_SEC)  # the moment of the kill
        writer.send_signal(signal.SIGKILL)
        writer.communicate()


def history(
    seed: int, folder: Path, *, kills: int, server: Postgres | None = None
) -> tuple[list[str], Counter[str]]:
    """Run one history; returns the problems after it, and counts of its acts."""
    numbers = iter(range(1, 1_000_000))

    def reply(_: Seen) -> Reply:
        return answer(f"answer {next(numbers)} to {MAIL}")

    folder.mkdir(parents=True, exist_ok=True)
    home = folder / "home"
    keys = f"sqlite:///{home / 'keys.db'}"
    variables = {"REFOLD_HOME": str(home), "REFOLD_KEYS": keys}
    with environment_variables(variables), Provider(reply) as provider:
        trial = Trial(seed, folder, provider, server)
        try:
            trial.run(kills)
        finally:
            trial.close()
        with refold.open(trial.url) as store:
            wrong = [*_problems(store, trial, provider.requests)]
    places = [trial.home]
    if server is not None:
        places.append(Path(server.url.partition("host=")[2]))
    wrong += _secrets(places)
    return [f"seed {seed}: {line}" for line in wrong], trial.acts


def _problems(store: SessionStore, trial: Trial, received: list[Seen]) -> Iterator[str]:
    """Yield everything that is wrong in the log."""
    session = store.session(user_id=USER, session_id=SESSION)
    messages = conversation(trial.client_folder)
    expected = redacted(store, USER, messages)
    if flat(session.context().messages) != flat(expected):
        yield "the context is not the conversation of the client"
    events = session.events()
    texts = Counter[str]()
    for event in events:
        if event.type in ("user_input", "agent_response"):
            texts[str(event.payload.payload()["text"])] += 1
    for message in expected:
        text = message["content"][0]["text"]
        if texts[text] != 1:
            yield f"{text!r} was acknowledged and is there {texts[text]} times"
    for text, count in texts.items():
        if count > 1:
            yield f"{text!r} is there {count} times"
    requests = [event for event in events if event.type == "request"]
    yield from _requests(store, trial, session, requests, received)
    for _, verified in store.verify():
        for problem in verified.problems:
            yield f"verify: {problem}"
    trial.acts["answers"] += len(messages) // 2


def _requests(
    store: SessionStore,
    trial: Trial,
    session: Session,
    requests: list[Envelope],
    received: list[Seen],
) -> Iterator[str]:
    """Compare each recorded request with what the provider received."""
    macs: dict[str, list[Seen]] = {}
    for seen in received:
        macs.setdefault(body_mac(session, seen.body), []).append(seen)
    for event in requests:
        wire: Mapping[str, Any] = (event.meta.model_extra or {})["wire"]
        arrived = macs.get(str(wire["mac"]))
        if not arrived:
            trial.acts["requests recorded and not sent"] += 1
            continue
        trial.acts["requests compared"] += 1
        body = arrived.pop()
        view = session.context(at=event.seq)
        sent = redacted(store, USER, body.json["messages"])
        if flat(view.messages) != flat(sent):
            yield f"the context of seq {event.seq} is not what the provider received"
    # The store was down, or the proxy was killed.  The next request has their content.
    gaps = sum(len(arrived) for arrived in macs.values())
    trial.acts["requests sent and not recorded"] += gaps


def _secrets(places: list[Path]) -> Iterator[str]:
    """Yield the files that have a planted secret."""
    for place in places:
        for file in place.rglob("*"):
            if not file.is_file():
                continue
            content = file.read_bytes()
            for secret in (SECRET, MAIL):
                if secret.encode() in content:
                    yield f"{file.name} has a planted secret"


def _free_port() -> int:
    """Return a port that a proxy can use again after each kill."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def main(arguments: list[str] | None = None) -> int:
    """Run histories on both engines; 1 if anything is wrong after one."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.proxy")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    begin = monotonic()
    counts = Counter[str]()
    wrong: list[str] = []
    seed = options.seed
    left = options.kills
    with (
        tempfile.TemporaryDirectory(prefix="refold-proxy-") as folder,
        Postgres.start() as server,
    ):
        while left > 0:
            kills = min(left, 10)
            left -= kills
            problems, acts = history(
                seed,
                Path(folder) / str(seed),
                kills=kills,
                server=server if seed % 2 else None,
            )
            wrong += problems
            counts += acts
            seed += 1
    return summarize(f"{options.kills} kills", monotonic() - begin, counts, wrong)


if __name__ == "__main__":
    sys.exit(main())
