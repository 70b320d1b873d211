"""A killed recorder loses and doubles nothing, because the client repeats requests."""

from __future__ import annotations

import json
import time
from random import Random
from signal import SIGKILL
from typing import Any

from refold.store import SessionStore
from tests.support import warm
from tests.support.wire import (
    WireClient,
    agent,
    call,
    check_contexts,
    result,
    stored_texts,
    user,
)

USER = "ada"
_TURNS = 12


class KilledRecorder:
    """A recorder in a process of its own, which is killed at random moments."""

    def __init__(self, url: str, random: Random) -> None:
        self._url = url
        self._random = random
        self.kills = 0
        self.recorded: list[str] = []
        self._process = self._start()

    def _start(self) -> warm.Process:
        process = warm.module("tests.support.wire_recorder", self._url, USER)
        assert process.stdout.readline() == "ready\n", process.communicate()
        return process

    def record(self, act: dict[str, Any]) -> bool:
        """Record an act; returns False if the process was killed before it answered."""
        dies = self._random.random() < 0.4
        self._process.stdin.write(json.dumps(act) + "\n")
        self._process.stdin.flush()
        if not dies:
            assert self._process.stdout.readline().strip() == act["id"]
            self.recorded.append(act["id"])
            return True
        time.sleep(self._random.random() * 0.02)  # the moment of the kill
        self._process.send_signal(SIGKILL)
        self.kills += 1
        self._process.communicate()
        self._process = self._start()
        return False

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def turn(client: WireClient, recorder: KilledRecorder, answer: list[Any]) -> None:
    """Send the client's messages until a request and its answer passed."""
    while True:
        exchange = client.exchange()
        begun = {
            "act": "begin",
            "id": exchange.exchange_id,
            "body": exchange.body.decode(),
            "headers": dict(exchange.headers),
        }
        if not recorder.record(begun):
            continue  # the connection broke: the client repeats the request
        finished = {"act": "finish", "id": exchange.exchange_id, "answer": answer}
        recorder.record(finished)
        # The client has the answer, whether the proxy could record it or not.
        client.messages.append(agent(*answer))
        return


def test_kills_lose_and_double_nothing(store: SessionStore, store_url: str) -> None:
    random = Random(39)
    recorder = KilledRecorder(store_url, random)
    client = WireClient(None)
    for number in range(_TURNS):
        client.messages.append(user(f"ask {number} ada{number}@example.org"))
        turn(client, recorder, [f"look {number}", call(f"c{number}", number=number)])
        client.messages.append(user(result(f"c{number}", f"output {number}")))
        turn(client, recorder, [f"answer {number}"])
        if number == _TURNS // 2:
            client.messages[:] = [user(f"summary {number}"), agent("Understood.")]
    recorder.close()

    assert recorder.kills >= _TURNS // 2
    contexts = check_contexts(store, client, USER)
    assert contexts >= 2 * _TURNS
    counts = stored_texts(store, USER)
    assert set(counts.values()) == {1}
    for number in range(_TURNS):
        assert counts[f"ask {number} [REDACTED:EMAIL]"] == 1
        assert counts[f"look {number}"] == 1
    # The last answer may have been lost with the process: no request repeats it.
    for number in range(_TURNS - 1):
        is_repeated = number != _TURNS // 2
        assert counts[f"answer {number}"] == 1 or not is_repeated
