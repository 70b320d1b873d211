"""Authentication comes before any loading, and no user reaches another user's data."""

from __future__ import annotations

import asyncio
import json
import random
import time
from itertools import product
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from starlette.testclient import TestClient

import refold
from refold.adapters.server.access_tokens import Verifier
from refold.adapters.server.app import COOKIE, Limits, application, csrf_of_token
from refold.store import SessionStore
from tests.server.conftest import ClientFor

ASKS = {"events": [{"type": "user_input", "payload": {"text": "mine alone"}}]}
READS = (
    "/v1/sessions",
    "/v1/sessions/{s}",
    "/v1/sessions/{s}/events",
    "/v1/sessions/{s}/events/tail",
    "/v1/sessions/{s}/state",
    "/v1/sessions/{s}/files",
    "/v1/sessions/{s}/context",
    "/v1/sessions/{s}/why",
    "/v1/sessions/{s}/compare?strategy=keep_all",
    "/v1/sessions/{s}/verify",
    "/v1/sessions/{s}/proof?seq=1",
    "/v1/sessions/{s}/reviews/1",
    "/v1/search?words=mine",
    "/v1/export",
    "/v1/costs",
    "/v1/memory",
    "/v1/settings/turns",
    "/v1/reviews",
    "/v1/erasures",
)
WRITES: tuple[tuple[str, str, object], ...] = (
    ("post", "/v1/sessions/{s}/events", ASKS),
    ("post", "/v1/sessions/{s}/compact", {}),
    ("post", "/v1/traces", {"resourceSpans": []}),
    ("put", "/v1/sessions/{s}/labels", {"a": "b"}),
    ("post", "/v1/sessions/{s}/reviews/1", {"decision": "accept"}),
    ("post", "/v1/sessions/{s}/context", {"fullContextTurns": 2}),
    ("put", "/v1/settings/turns", {"fullContextTurns": 2}),
    ("put", "/v1/memory/opt-out", {"memory_opt_out": True}),
    ("put", "/v1/memory/consent", {"scope": "training", "granted": True}),
    ("post", "/v1/erasures", {"reason": "not mine"}),
)


@pytest.fixture
def bobs_session_id(store: SessionStore) -> str:
    """Create a session of another user and return its id."""
    session = store.session(user_id="bob", session_id="his")
    session.append(refold.UserInput(text="nobody else reads this"))
    return "his"


def event_hashes(store: SessionStore, user: str) -> list[str]:
    """Return the hashes of all stored events of a user."""
    infos = store.sessions(user)
    sessions = [
        store.session(user_id=user, session_id=info.session_id) for info in infos
    ]
    return [each.hash for session in sessions for each in session.history.timeline()]


def test_500_attempts_at_another_users_sessions_are_refused(
    client_for: ClientFor, store: SessionStore, bobs_session_id: str
) -> None:
    eve = client_for("eve")
    eve.post("/v1/sessions/hers/events", json=ASKS)
    before = event_hashes(store, "bob")
    tries = 0

    names = (bobs_session_id, "hers", "none")
    for path, name, names_bob in product(READS, names, (False, True)):
        query = "user_id=bob" if names_bob else ""
        url = path.format(s=name) + ("&" if "?" in path else "?") + query
        for _ in range(6):
            if not names_bob and (name != bobs_session_id or "{s}" not in path):
                continue  # her own session
            answered = eve.get(url)
            tries += 1
            assert answered.status_code == 404, (url, answered.text)
            assert "nobody else" not in answered.text
            assert bobs_session_id not in answered.text.replace(
                f"'{bobs_session_id}'", ""
            )
    for (method, path, body), name in product(
        WRITES, (bobs_session_id, "hers", "none")
    ):
        for _ in range(9):
            url = path.format(s=name) + "?user_id=bob"
            answered = eve.request(method, url, json=body)
            tries += 1
            assert answered.status_code == 404, (url, answered.text)

    assert tries >= 500
    assert event_hashes(store, "bob") == before
    store.access_log.flush()
    denied = [
        record
        for record in store.access_log.records("eve")
        if record.status == "denied"
    ]
    assert len([record for record in denied if record.event == "foreign_user"]) >= 300


def test_an_admin_may_name_another_user_and_both_logs_record_it(
    client_for: ClientFor, store: SessionStore, bobs_session_id: str
) -> None:
    store.session(user_id="root", session_id="own").append(refold.UserInput(text="x"))
    admin = client_for("root", "read", "admin")

    read = admin.get(f"/v1/sessions/{bobs_session_id}/events?user_id=bob")
    written = admin.post(
        f"/v1/sessions/{bobs_session_id}/events?user_id=bob", json=ASKS
    )
    unnamed = admin.get(f"/v1/sessions/{bobs_session_id}/events?user_id=%00")

    assert read.json()["events"][0]["payload"]["text"] == "nobody else reads this"
    assert (written.status_code, unnamed.status_code) == (403, 404)
    store.access_log.flush()
    events = {
        user: {record.event for record in store.access_log.records(user)}
        for user in ("bob", "root")
    }
    assert "admin_named_user" in events["root"]
    assert {"named_by_admin", "session_load"} <= events["bob"]


@pytest.mark.parametrize("path", [*READS, "/", "/run/his", "/metrics", "/mcp"])
def test_every_path_needs_a_token(
    client_for: ClientFor, bobs_session_id: str, path: str
) -> None:
    anybody = client_for(None)

    answered = anybody.get(path.format(s=bobs_session_id))

    if answered.status_code == 303:
        assert answered.headers["location"].startswith("/login?next=")
    else:
        assert answered.status_code == 401
        assert answered.headers["www-authenticate"].startswith("Bearer")
    assert "nobody else" not in answered.text


def test_only_health_needs_no_token(client_for: ClientFor) -> None:
    anybody = client_for(None)

    assert anybody.get("/health").json() == {"status": "ok"}
    assert anybody.get("/health/ready").json() == {"status": "ok"}
    assert anybody.get("/v1/openapi.json").status_code == 401
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert anybody.get(path).status_code == 303


@pytest.mark.parametrize(
    ("scope", "method", "path", "body"),
    [
        ("read", "post", "/v1/sessions/s/events", ASKS),
        ("read", "post", "/v1/sessions/s/compact", {}),
        ("append", "post", "/v1/sessions/s/context", {}),
        ("read", "put", "/v1/settings/turns", {"fullContextTurns": 2}),
        ("append", "get", "/v1/settings/turns", None),
        ("append", "get", "/v1/sessions", None),
        ("append", "get", "/v1/sessions/s/events/tail", None),
        ("append", "post", "/v1/sessions/s/reviews/1", {"decision": "accept"}),
        ("review", "post", "/v1/erasures", {"reason": "x"}),
        ("admin", "get", "/v1/export", None),
        ("admin", "post", "/v1/erasures", {"reason": "x"}),
        ("read", "get", "/metrics", None),
    ],
)
def test_a_token_allows_what_its_scopes_say_and_no_more(
    client_for: ClientFor, scope: str, method: str, path: str, body: object
) -> None:
    answered = client_for("ada", scope).request(method, path, json=body)

    assert answered.status_code == 403
    assert answered.headers["content-type"] == "application/problem+json"


def test_1000_foreign_tokens_are_all_refused(
    client_for: ClientFor, verifier: Verifier, store: SessionStore
) -> None:
    client_for("ada").post("/v1/sessions/s/events", json=ASKS)
    rng = random.Random(7)
    client = client_for(None)
    good = verifier.mint("ada", ["read"])
    head, body, signature = good.split(".")
    now = int(time.time())
    others = b"k" * 32
    claims = {"sub": "ada", "scope": "read admin", "aud": "refold", "exp": now + 60}

    def forged_token(number: int) -> str:
        match number % 8:
            case 0:
                return jwt.encode(claims, others, "HS256")
            case 1:
                return jwt.encode(claims, None, "none")  # type: ignore[arg-type]  # no key
            case 2:
                place = rng.randrange(len(good))
                other = rng.choice("abcXYZ019-_.")
                changed = good[:place] + other + good[place + 1 :]
                return changed if changed != good else "."
            case 3:
                return f"{head}.{body}."
            case 4:
                swapped = verifier.mint(f"user{number}", ["read"]).split(".")
                return ".".join([swapped[0], swapped[1], signature])
            case 5:
                return verifier.mint("ada", ["read"], lifetime=-100.0 - number)
            case 6:
                return good[: rng.randrange(1, len(good))]
        return "".join(rng.choice("aZ09-_.") for _ in range(rng.randrange(1, 300)))

    let_in = 0
    for number in range(1_000):
        sent = {"Authorization": f"Bearer {forged_token(number)}"}
        let_in += client.get("/v1/sessions", headers=sent).status_code != 401

    assert let_in == 0
    shown = client.get("/v1/sessions", headers={"Authorization": f"Bearer {good}"})
    assert shown.json()["sessions"][0]["session_id"] == "s"


def test_a_form_without_its_token_changes_nothing(
    client_for: ClientFor, verifier: Verifier, store: SessionStore
) -> None:
    browser = client_for(None)
    token = verifier.mint("ada", ["append", "read"])
    browser.cookies.set(COOKIE, token)
    path = "/v1/sessions/s/events"
    right = {"X-CSRF-Token": csrf_of_token(token)}

    for headers in (
        {},
        {"X-CSRF-Token": csrf_of_token("another")},
        {"X-CSRF-Token": ""},
        {"Content-Type": "application/x-www-form-urlencoded"},
        right | {"Sec-Fetch-Site": "cross-site"},
    ):
        forged = browser.post(path, json=ASKS, headers=headers)
        assert forged.status_code == 403, headers
    assert store.sessions("ada") == []

    assert browser.post(path, json=ASKS, headers=right).status_code == 201
    assert browser.get(path).status_code == 200


def test_a_form_token_with_odd_characters_is_refused(
    client_for: ClientFor, verifier: Verifier
) -> None:
    browser = client_for(None)
    token = verifier.mint("ada", ["append", "read"])
    browser.cookies.set(COOKIE, token)

    wrong = [(b"X-CSRF-Token", "\xe4".encode())]
    by_header = browser.post("/memory", headers=wrong)
    by_field = browser.post("/memory", data={"csrf": "ä", "act": "opt_out"})

    assert (by_header.status_code, by_field.status_code) == (403, 403)


def test_another_site_cannot_make_a_browser_send_its_token(
    client_for: ClientFor, verifier: Verifier
) -> None:
    browser = client_for(None)
    form = {"token": verifier.mint("eve", ["append", "read"])}

    sites = ("cross-site", "same-site", "none")
    sent = [
        browser.post("/login", data=form, headers={"Sec-Fetch-Site": site})
        for site in sites
    ]

    assert [response.status_code for response in sent] == [403] * 3
    assert not any("set-cookie" in response.headers for response in sent)
    assert browser.post("/login", data=form).status_code == 303


def test_two_tokens_in_one_request_count_as_none(
    client_for: ClientFor, verifier: Verifier
) -> None:
    given = [f"Bearer {verifier.mint(user, ['read'])}" for user in ("ada", "bob")]
    headers = [("Authorization", value) for value in given]

    assert client_for(None).get("/v1/sessions", headers=headers).status_code == 401
    assert client_for(None).get("/v1/sessions", headers=headers[:1]).status_code == 200


@pytest.mark.parametrize("place", ["/run/a%2Fb?seq=5&type=tool_call", "/run/s%3Fx"])
def test_a_login_leads_to_the_requested_page(
    client_for: ClientFor, verifier: Verifier, place: str
) -> None:
    browser = client_for(None)

    sent = browser.get(place).headers["location"]
    (wanted,) = parse_qs(urlsplit(sent).query)["next"]
    token = verifier.mint("ada", ["read"])
    signed = browser.post("/login", data={"token": token, "next": wanted})

    assert signed.headers["location"] == place


def test_an_admin_who_names_a_user_is_recorded_once(
    client_for: ClientFor, store: SessionStore, bobs_session_id: str
) -> None:
    client_for("root", "read", "admin").get(
        f"/v1/sessions/{bobs_session_id}/proof?user_id=bob&seq=1"
    )

    store.access_log.flush()
    events = [record.event for record in store.access_log.records()]
    assert events.count("admin_named_user") == events.count("named_by_admin") == 1


SECRETS = (
    "sk-ant-api03-" + "Zq7x" * 20 + "AA",
    "AKIAZQ3DTOPSECRET99X",
    "bob@build.test",
)


def test_no_answer_log_or_metric_repeats_a_secret(
    client_for: ClientFor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ada = client_for("ada")
    admin = client_for("root", "admin", "read")
    texts: list[str] = []
    for secret in SECRETS:
        bodies = [
            {"events": [{"type": "user_input", "payload": {"text": secret}}]},
            {"events": [{"type": secret, "payload": {}}]},
            {"events": [{"type": "user_input", "payload": {secret: "x"}}]},
            {"events": [{"type": "user_input", "payload": {"text": [secret]}}]},
            {"events": [{"type": "tool_result", "payload": {"call_id": secret}}]},
            {"events": [{"type": "user_input", "payload": {}, secret: 1}]},
            {"events": [{"type": "user_input", "payload": {}, "ts": secret}]},
            {
                "events": [
                    {"type": "user_input", "payload": {}, "meta": {"usage": secret}}
                ]
            },
            {secret: secret},
            [secret],
        ]
        for body in bodies:
            texts.append(ada.post("/v1/sessions/s/events", json=body).text)
        texts.append(ada.post("/v1/sessions/s/events", content=f'{{"{secret}').text)
        texts.append(ada.post("/v1/erasures", json={"reason": "", secret: secret}).text)
        texts.append(ada.put("/v1/sessions/s/labels", json={secret: 1}).text)
        texts.append(ada.post("/v1/sessions/s/compact", json={"strategy": secret}).text)
        for query in (
            f"strategy={secret}",
            f"at={secret}",
            f"as={secret}",
            f"fullContextTurns={secret}",
            f"{secret}={secret}",
        ):
            texts.append(ada.get(f"/v1/sessions/s/context?{query}").text)
        for path in ("", "/events", "/events/tail", "/context"):
            texts.append(ada.get(f"/v1/sessions/{secret}{path}").text)
        named = {"reason": "asked", "session_id": secret}
        texts.append(ada.post("/v1/erasures", json=named).text)
        texts.append(ada.request(secret, "/v1/sessions").text)
        texts.append(ada.get("/v1/sessions/s/events").text)
        texts.append(ada.get("/v1/export").text)
        texts.append(ada.get(f"/v1/costs?by={secret}").text)
        headers = {"X-Request-ID": secret, "Idempotency-Key": secret}
        headers |= {"Expected-Seq": secret}
        given = ada.post("/v1/sessions/s/events", json=ASKS, headers=headers)
        texts.append(given.text + str(dict(given.headers)))
        bearer = {"Authorization": f"Bearer {secret}"}
        texts.append(ada.get("/v1/sessions", headers=bearer).text)
    texts.append(admin.get("/metrics").text)
    texts.append(caplog.text)

    for secret, text in product(SECRETS, texts):
        assert secret not in text, text


def test_the_answer_of_a_broken_handler_reveals_nothing_about_it(
    store: SessionStore,
    client_for: ClientFor,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    def fail(*_: object, **__: object) -> None:
        raise KeyError("sk-ant-secret")

    monkeypatch.setattr(store, "overviews", fail)

    answered = client_for("ada").get("/v1/sessions")

    assert answered.status_code == 500
    assert answered.json()["type"] == "urn:refold:problem:unexpected"
    assert "sk-ant-secret" not in answered.text + caplog.text
    assert "unexpected KeyError in" in caplog.text


def test_a_user_over_the_rate_waits_and_others_do_not(
    store: SessionStore, verifier: Verifier
) -> None:
    gate = application(store, verifier, Limits(per_second=0.001, burst=5))
    with TestClient(gate) as client:

        def get_statuses(user: str) -> list[int]:
            token = verifier.mint(user, ["read"])
            headers = {"Authorization": f"Bearer {token}"}
            return [
                client.get("/v1/sessions", headers=headers).status_code
                for _ in range(7)
            ]

        assert get_statuses("ada") == [200] * 5 + [429] * 2
        assert get_statuses("bob") == [200] * 5 + [429] * 2
        assert client.get("/health").status_code == 200


def test_an_endless_body_is_given_up(store: SessionStore, verifier: Verifier) -> None:
    gate = application(store, verifier, Limits(body_sec=0.05))
    token = verifier.mint("ada", ["append"])
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/sessions/s/events",
        "raw_path": b"/v1/sessions/s/events",
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {token}".encode())],
        "client": ("127.0.0.1", 1),
    }
    sent: list[dict[str, object]] = []
    parts = iter([{"type": "http.request", "body": b'{"ev', "more_body": True}])

    async def receive() -> dict[str, object]:
        for part in parts:
            return part
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    asyncio.run(gate(scope, receive, send))  # type: ignore[arg-type]  # as a server calls it

    assert sent[0]["status"] == 408
    assert store.sessions("ada") == []


def test_other_sites_are_refused_unless_they_are_configured(
    store: SessionStore, verifier: Verifier, ada: TestClient
) -> None:
    site = {"Origin": "https://app.test", "Access-Control-Request-Method": "POST"}
    named = application(store, verifier, Limits(origins=("https://app.test",)))

    with TestClient(named) as client:
        asked = client.options("/v1/sessions/s/events", headers=site)
        other = client.options(
            "/v1/sessions/s/events", headers=site | {"Origin": "https://evil.test"}
        )

    assert asked.headers["access-control-allow-origin"] == "https://app.test"
    assert "access-control-allow-origin" not in other.headers
    plain = ada.options("/v1/sessions/s/events", headers=site)
    assert "access-control-allow-origin" not in plain.headers


def test_every_answer_has_security_headers(ada: TestClient) -> None:
    for path in ("/health", "/v1/sessions", "/v1/nothing", "/v1/sessions/none"):
        headers = ada.get(path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"


def test_mcp_answers_about_its_caller_and_needs_a_token(
    client_for: ClientFor, verifier: Verifier, store: SessionStore, bobs_session_id: str
) -> None:
    store.session(user_id="ada", session_id="mine").append(refold.UserInput(text="hi"))
    accepts = {"Accept": "application/json, text/event-stream"}

    def call_tool(client: TestClient, tool: str, **arguments: object) -> str:
        ask = {"name": tool, "arguments": arguments}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": ask}
        return client.post("/mcp", json=body, headers=accepts).text

    ada = client_for("ada", "read")
    bob = client_for("bob", "read")
    assert "mine" in call_tool(ada, "sessions")
    assert "his" in call_tool(bob, "sessions")
    foreign = call_tool(ada, "events", session_id=bobs_session_id)
    assert "nobody else" not in foreign
    assert "no session" in foreign
    for tool in ("events", "context_at", "why", "verify", "search"):
        words = {"words": "nobody"} if tool == "search" else {}
        for name in (
            bobs_session_id,
            f"bob/{bobs_session_id}",
            f"../{bobs_session_id}",
            "none",
        ):
            tried = call_tool(ada, tool, session_id=name, **words)
            assert "nobody else" not in tried
            assert '"isError":true' in tried

    by_cookie = client_for(None)
    token = verifier.mint("ada", ["read"])
    by_cookie.cookies.set(COOKIE, token)
    by_cookie.headers["X-CSRF-Token"] = csrf_of_token(token)
    for client in (by_cookie, client_for("ada", "append")):
        assert json.loads(call_tool(client, "sessions"))["status"] == 403


def test_metrics_count_requests_without_naming_users(
    client_for: ClientFor, ada: TestClient
) -> None:
    ada.post("/v1/sessions/secret-project/events", json=ASKS)

    text = client_for("root", "admin").get("/metrics").text

    route = "/v1/sessions/{session_id}/events"
    line = f'refold_requests_total{{method="POST",route="{route}",status="201"}} 1.0'
    assert line in text
    assert "secret-project" not in text
    assert "ada" not in text
