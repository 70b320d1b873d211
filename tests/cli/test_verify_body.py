"""``refold verify --body`` names the requests that had exactly these bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

import refold as api
from refold.adapters.proxy.recorder import StoreRecorder
from tests.cli.conftest import Refold
from tests.support.wire import WireClient, reply, user


@pytest.fixture
def bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The bodies of two recorded requests."""
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("REFOLD_DB", f"sqlite:///{tmp_path / 'agent.db'}")
    files = []
    with api.open(f"sqlite:///{tmp_path / 'agent.db'}") as store:
        client = WireClient(StoreRecorder(store, user_id="ada"))
        for number in range(2):
            client.messages.append(user(f"Question {number}."))
            exchange = client.exchange()
            client.recorder.begin(exchange)
            client.recorder.finish(exchange, reply("Yes."))
            file = tmp_path / f"body-{number}.json"
            file.write_bytes(exchange.body)
            files.append(file)
    return files


def test_names_the_request_that_had_a_body(refold: Refold, bodies: list[Path]) -> None:
    first, second = (refold("verify", "--body", file, "--json") for file in bodies)

    assert (first.code, second.code) == (0, 0)
    assert first.json()["requests"] == 2
    (match,) = first.json()["matches"]
    assert match == {"user_id": "ada", "session_id": "s-1", "seq": 3}
    place = ("--session", "s-1", "--request", match["seq"])
    checked = refold("verify", "--body", bodies[0], *place)
    assert checked.code == 0
    assert "ada / s-1 seq 3: the body had exactly these" in checked.out
    assert refold("verify", "--body", bodies[1], *place).code == 1


def test_refuses_a_body_with_another_byte(refold: Refold, bodies: list[Path]) -> None:
    bodies[0].write_bytes(bodies[0].read_bytes() + b" ")

    checked = refold("verify", "--body", bodies[0])

    assert checked.code == 1
    assert "no body had exactly these" in checked.out
    assert "2 requests" in checked.out


def test_an_event_that_is_no_request_is_an_error(
    refold: Refold, bodies: list[Path]
) -> None:
    place = ("--session", "s-1", "--request", 2)

    checked = refold("verify", "--body", bodies[0], *place)

    assert checked.code != 0
    assert "seq 2 is no request that the proxy recorded" in checked.err
    assert refold("verify", "--body", bodies[0], "--request", 2).code == 2
    assert refold("verify", "--request", 2).code == 2
