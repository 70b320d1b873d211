"""What ``refold serve`` does where nothing is said: this machine, a token, a record."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from starlette.testclient import TestClient

import refold
from refold.adapters.server import Place, serve
from refold.adapters.server.access_tokens import Verifier
from refold.adapters.server.app import Limits, application
from refold.errors import InvalidConfiguration
from refold.store import SessionStore
from tests.server.test_tail import SESSION, served, text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "build.test"])  # noqa: S104  # it is refused
def test_others_are_served_only_if_their_tokens_can_be_verified(
    store: SessionStore, host: str
) -> None:
    with pytest.raises(InvalidConfiguration, match="REFOLD_JWKS"):
        serve(store, Place(host, 0, "ada"), print)


@pytest.mark.parametrize("place", [Place("127.0.0.1", 65_536, "ada")])
def test_a_port_that_is_none_is_refused(store: SessionStore, place: Place) -> None:
    with pytest.raises(InvalidConfiguration, match="a port is 0 to 65535"):
        serve(store, place, print)


def test_half_of_tls_is_refused(store: SessionStore) -> None:
    with pytest.raises(InvalidConfiguration, match="TLS needs both"):
        serve(store, Place("127.0.0.1", 0, "ada", certificate=Path("c.pem")), print)


def test_without_keys_a_token_for_its_user_is_printed_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "refold", "--db", f"sqlite:///{tmp_path}/new.db"]
    serves = [*command, "serve", "--port", "0", "--user", "ada"]
    with subprocess.Popen(serves, stderr=subprocess.PIPE, text=True) as process:
        try:
            told = iter(process.stderr or ())
            url = next(line for line in told if line.startswith("http")).strip()
            said = next(told)
            headers = {"Authorization": f"Bearer {said.rpartition(' ')[2].strip()}"}
            sent = httpx2.post(f"{url}{SESSION}", json=text(1), headers=headers)
            read = httpx2.get(f"{url}{SESSION}", headers=headers).json()
        finally:
            process.terminate()
        rest = "".join(told)

    assert said.startswith("token of ada for one day, shown only once: ")
    assert sent.status_code == 201
    assert read["events"][0]["user_id"] == "ada"
    assert "eyJ" not in rest
    assert process.returncode == 0


def test_uses_are_recorded_though_nobody_said_so(tmp_path: Path) -> None:
    db = tmp_path / "refold.db"
    with served(db) as server, server.client() as client:
        headers = {"X-Request-ID": "r-1"}
        assert client.post(SESSION, json=text(1), headers=headers).status_code == 201
        assert client.get(SESSION, headers=headers).status_code == 200
        assert client.get(f"{SESSION}?user_id=bob").status_code == 404
        server.process.terminate()
        server.process.wait()

    with refold.open(db) as store:
        found = list(store.access_log.records("ada"))

    events = {one.event: one for one in found}
    assert {"session_append_event", "session_load", "foreign_user"} <= set(events)
    appended, loaded = events["session_append_event"], events["session_load"]
    assert appended.request == loaded.request is not None
    assert events["foreign_user"].status == "denied"


@pytest.mark.parametrize("secure", [True, False])
def test_the_cookie_goes_over_tls_alone_where_there_is_tls(
    store: SessionStore, verifier: Verifier, secure: bool
) -> None:
    gate = application(store, verifier, Limits(secure=secure))
    with TestClient(gate, follow_redirects=False) as client:
        form = {"token": verifier.mint("ada", ["read"])}
        cookie = client.post("/login", data=form).headers["set-cookie"]

    assert {"HttpOnly", "SameSite=strict"} <= {one.strip() for one in cookie.split(";")}
    assert ("Secure" in cookie) is secure
