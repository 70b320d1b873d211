"""The defaults of ``refold serve``: this machine only, a token, recorded uses."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx2
import pytest
import uvicorn
from starlette.testclient import TestClient

import refold
from refold.adapters.server import ServerOptions, checked_origin, serve, uvicorn_config
from refold.adapters.server.access_tokens import Verifier
from refold.adapters.server.app import Limits, application, rate_key
from refold.errors import InvalidConfiguration
from refold.store import SessionStore
from tests.server.test_tail import SESSION, input_body, served
from tests.support.waiting import PATIENCE_SEC, until


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "build.test"])  # noqa: S104  # it is refused
def test_other_machines_are_served_only_if_tokens_can_be_verified(
    store: SessionStore, host: str
) -> None:
    with pytest.raises(InvalidConfiguration, match="REFOLD_JWKS"):
        serve(store, ServerOptions(host, 0, "ada"), print)


@pytest.mark.parametrize("place", [ServerOptions("127.0.0.1", 65_536, "ada")])
def test_an_invalid_port_is_refused(store: SessionStore, place: ServerOptions) -> None:
    with pytest.raises(InvalidConfiguration, match="a port is 0 to 65535"):
        serve(store, place, print)


def test_an_address_of_no_local_interface_is_refused(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("s" * 64)
    monkeypatch.setenv("REFOLD_TOKEN_SECRET_FILE", str(secret))
    elsewhere = "203.0.113.7"  # reserved for documentation

    with pytest.raises(InvalidConfiguration, match=r"no address of 'nowhere\.invalid'"):
        serve(store, ServerOptions("nowhere.invalid", 0, "ada"), print)
    with pytest.raises(InvalidConfiguration, match=f"{elsewhere} port 0 cannot be"):
        serve(store, ServerOptions(elsewhere, 0, "ada"), print)


def test_a_port_in_use_is_refused(store: SessionStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        with pytest.raises(InvalidConfiguration, match=r"\(address already in use\)"):
            serve(store, ServerOptions("127.0.0.1", port, "ada"), print)


def test_files_that_tls_cannot_use_are_named(
    store: SessionStore, tmp_path: Path
) -> None:
    good = tmp_path / "words.pem"
    missing = tmp_path / "missing.pem"
    good.write_text("no certificate")

    for certificate, key, words in (
        (missing, good, f"--tls-certificate {missing}: No such file"),
        (good, missing, f"--tls-key {missing}: No such file"),
        (good, good, "are not a certificate and key in PEM"),
    ):
        place = ServerOptions("127.0.0.1", 0, "ada", certificate=certificate, key=key)
        with pytest.raises(InvalidConfiguration, match=re.escape(words)):
            serve(store, place, print)


_STARTING: Final = """
import sys, time
import refold
from refold.adapters.server import ServerOptions, app, serve

def never_ready(*_):
    print("starting", flush=True)
    time.sleep(600)

app.application = never_ready
with refold.open(sys.argv[1]) as store:
    serve(store, ServerOptions("127.0.0.1", 0, "ada"), print)
print("ended")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_that_is_still_starting(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", _STARTING, f"sqlite:///{tmp_path}/refold.db"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "starting\n"

        process.send_signal(number)

        assert process.communicate(timeout=PATIENCE_SEC)[0] == "ended\n"
    assert process.returncode == 0


def test_a_page_after_the_warm_up_loads_no_module_and_compiles_no_template() -> None:
    program = """
import sys
from refold.adapters.server.run_pages import _pages, cut_prose, warm_up
warm_up()
before = set(sys.modules)
cached = len(_pages().cache)
cut_prose("**See** <https://example.org>, `code`, and | a | table |")
for name in ("sessions.html", "run.html", "parts/event.html", "parts/found.html"):
    _pages().get_template(name)
print(sorted(set(sys.modules) - before), len(_pages().cache) - cached)
"""

    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert ran.stdout == "[] 0\n"


def test_tls_needs_both_certificate_and_key(store: SessionStore) -> None:
    with pytest.raises(InvalidConfiguration, match="TLS needs both"):
        serve(
            store,
            ServerOptions("127.0.0.1", 0, "ada", certificate=Path("c.pem")),
            print,
        )


@pytest.mark.parametrize(
    ("origin", "sent"),
    [
        ("https://App.Example.com", "https://app.example.com"),
        ("https://app.test:443", "https://app.test"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://[::1]:8443", "http://[::1]:8443"),
        ("http://app.test:443", "http://app.test:443"),
    ],
)
def test_an_origin_is_compared_as_browsers_send_it(origin: str, sent: str) -> None:
    assert checked_origin(origin) == sent


@pytest.mark.parametrize(
    "origin",
    [
        "javascript:x",
        "data:text/html,x",
        "file:///x",
        "ftp://app.test",
        "null",
        "*",
        "https://*",
        "https://*.app.test",
        "app.test",
        "//app.test",
        "",
        "https://app.test/",
        "https://app.test/a",
        "https://app.test?a=b",
        "https://app.test#a",
        "https://ada:pw@app.test",
        "https://app.test:",
        "https://app.test:0",
        "https://app.test:65536",
        "https://app.test:+1",
        "https://[::1",
        "https://[nothing]",
        "https://",
        " https://app.test",
        "https://app.test\n",
        "https://b\u00fccher.test",
        "https:/app.test",
    ],
)
def test_an_origin_that_no_browser_sends_is_refused(
    store: SessionStore, origin: str
) -> None:
    place = ServerOptions("127.0.0.1", 0, "ada", origins=("https://app.test", origin))

    with pytest.raises(InvalidConfiguration, match="an origin is http"):
        serve(store, place, print)


@pytest.mark.parametrize(
    "proxy", ["*", "localhost", "", "10.0.0.1/8", "0.0.0.0/0", "::/0", "10.0.0.1,::1"]
)
def test_a_trusted_proxy_must_be_an_address_and_not_everybody(
    store: SessionStore, proxy: str
) -> None:
    place = ServerOptions("127.0.0.1", 0, "ada", proxies=(proxy,))

    with pytest.raises(InvalidConfiguration, match="prox"):
        serve(store, place, print)


# Headers that proxies add; a client can add them as well.
FORGED = (
    "X-Forwarded-For",
    "Forwarded",
    "X-Real-IP",
    "True-Client-IP",
    "CF-Connecting-IP",
    "Client-IP",
    "X-Client-IP",
    "Host",
)


@contextmanager
def running(
    store: SessionStore, verifier: Verifier, place: ServerOptions
) -> Iterator[str]:
    """Run a real server that allows five requests without a token."""
    gate = application(store, verifier, Limits(per_second=0.0001, burst=5))
    server = uvicorn.Server(uvicorn_config(gate, place))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started, "the server to start")
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(PATIENCE_SEC)


@pytest.mark.parametrize("header", FORGED)
def test_a_client_cannot_choose_the_address_that_it_is_counted_by(
    store: SessionStore,
    verifier: Verifier,
    monkeypatch: pytest.MonkeyPatch,
    header: str,
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    with running(store, verifier, ServerOptions("127.0.0.1", 0, "ada")) as url:
        answers = [
            httpx2.get(
                f"{url}/v1/sessions",
                headers={header: _header_value(header, number)},
                timeout=PATIENCE_SEC,
            )
            for number in range(7)
        ]

    assert [answer.status_code for answer in answers] == [401] * 5 + [429] * 2


def _header_value(header: str, number: int) -> str:
    address = f"203.0.113.{number}"
    return f"for={address};proto=https" if header == "Forwarded" else address


def test_clients_behind_a_trusted_proxy_have_separate_rates(
    store: SessionStore, verifier: Verifier
) -> None:
    place = ServerOptions("127.0.0.1", 0, "ada", proxies=("127.0.0.0/8",))
    with running(store, verifier, place) as url:

        def statuses(forwarded: str) -> list[int]:
            headers = {"X-Forwarded-For": forwarded}
            return [
                httpx2.get(
                    f"{url}/v1/sessions", headers=headers, timeout=PATIENCE_SEC
                ).status_code
                for _ in range(6)
            ]

        first = statuses("203.0.113.1")
        forged = statuses(
            "198.51.100.9, 203.0.113.1"
        )  # the proxy added the last address
        second = statuses("203.0.113.2")

    assert first == [401] * 5 + [429]
    assert forged == [429] * 6
    assert second == [401] * 5 + [429]


@pytest.mark.parametrize(("proxies", "secure"), [((), False), (("127.0.0.1",), True)])
def test_only_a_trusted_proxy_says_that_a_browser_uses_tls(
    store: SessionStore, verifier: Verifier, proxies: tuple[str, ...], secure: bool
) -> None:
    place = ServerOptions("127.0.0.1", 0, "ada", proxies=proxies)
    form = {"token": verifier.mint("ada", ["read"])}
    headers = {"X-Forwarded-Proto": "https"}
    with running(store, verifier, place) as url:
        answered = httpx2.post(
            f"{url}/login", data=form, headers=headers, timeout=PATIENCE_SEC
        )

    assert ("Secure" in answered.headers["set-cookie"]) is secure


def test_redirects_never_contain_the_host_of_the_request(
    store: SessionStore, verifier: Verifier
) -> None:
    headers = {"Host": "evil.test", "X-Forwarded-Host": "evil.test"}
    with running(store, verifier, ServerOptions("127.0.0.1", 0, "ada")) as url:
        answers = [
            httpx2.get(f"{url}{path}", headers=headers, timeout=PATIENCE_SEC)
            for path in ("/", "/login", "/static/", "/static/page.css/")
        ]

    for answer in answers:
        assert "evil" not in answer.headers.get("location", "") + answer.text


@pytest.mark.parametrize(
    ("address", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("", "no address", True),
    ],
)
def test_a_client_is_counted_by_its_address_or_its_ipv6_network(
    address: str, other: str, same: bool
) -> None:
    assert (rate_key(address) == rate_key(other)) is same


def test_without_keys_a_token_for_its_user_is_printed_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "refold", "--db", f"sqlite:///{tmp_path}/new.db"]
    serves = [*command, "serve", "--port", "0", "--user", "ada"]
    with subprocess.Popen(serves, stderr=subprocess.PIPE, text=True) as process:
        try:
            lines = iter(process.stderr or ())
            url = next(line for line in lines if line.startswith("http")).strip()
            announced = next(lines)
            headers = {
                "Authorization": f"Bearer {announced.rpartition(' ')[2].strip()}"
            }
            with httpx2.Client(headers=headers, timeout=PATIENCE_SEC) as client:
                sent = client.post(f"{url}{SESSION}", json=input_body(1))
                read = client.get(f"{url}{SESSION}").json()
        finally:
            process.terminate()
        rest = "".join(lines)

    assert announced.startswith("token of ada for one day, shown only once: ")
    assert "has no sessions" not in rest
    assert sent.status_code == 201
    assert read["events"][0]["user_id"] == "ada"
    assert "eyJ" not in rest
    assert process.returncode == 0


def test_a_token_of_a_user_without_sessions_comes_with_a_user_who_has_some(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with refold.open(url) as store:
        session = store.session(user_id="ada lovelace", session_id="s")
        session.append(refold.UserInput(text="hello"))
    command = [sys.executable, "-m", "refold", "--db", url]
    serves = [*command, "serve", "--port", "0", "--user", "bob"]
    with subprocess.Popen(serves, stderr=subprocess.PIPE, text=True) as process:
        try:
            lines = iter(process.stderr or ())
            next(line for line in lines if line.startswith("token of bob"))
            advice = next(lines)
        finally:
            process.terminate()

    assert advice == (
        "user 'bob' has no sessions in this store: --user 'ada lovelace' prints a "
        "token of ada lovelace\n"
    )


def test_uses_are_recorded_without_any_setting(tmp_path: Path) -> None:
    db = tmp_path / "refold.db"
    with served(db) as server, server.client() as client:
        headers = {"X-Request-ID": "r-1"}
        assert (
            client.post(SESSION, json=input_body(1), headers=headers).status_code == 201
        )
        assert client.get(SESSION, headers=headers).status_code == 200
        assert client.get(f"{SESSION}?user_id=bob").status_code == 404
        server.process.terminate()
        server.process.wait()

    with refold.open(db) as store:
        records = list(store.access_log.records("ada"))

    events = {record.event: record for record in records}
    assert {"session_append_event", "session_load", "foreign_user"} <= set(events)
    appended = events["session_append_event"]
    loaded = events["session_load"]
    assert appended.request == loaded.request is not None
    assert events["foreign_user"].status == "denied"


@pytest.mark.parametrize("secure", [True, False])
def test_the_cookie_is_sent_over_tls_alone_if_there_is_tls(
    store: SessionStore, verifier: Verifier, secure: bool
) -> None:
    gate = application(store, verifier, Limits(secure=secure))
    with TestClient(gate, follow_redirects=False) as client:
        form = {"token": verifier.mint("ada", ["read"])}
        cookie = client.post("/login", data=form).headers["set-cookie"]

    assert {"HttpOnly", "SameSite=strict"} <= {
        attribute.strip() for attribute in cookie.split(";")
    }
    assert ("Secure" in cookie) is secure
