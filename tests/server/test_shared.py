"""A link shows one run to everybody who has it, and nothing else of the server."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from playwright.sync_api import Browser
from starlette.testclient import TestClient

import refold
from refold.adapters.server.access_tokens import Verifier
from refold.adapters.server.app import COOKIE, Limits, application
from refold.store import SessionStore
from refold.store.shares import NewShare
from tests.server.conftest import ClientFor
from tests.server.hostile import MARKDOWN_PAYLOADS, PAYLOADS, append_events_with
from tests.server.test_browser import (
    SIZES,
    WATCH,
    accessibility_problems,
    browser,
    page_width,
    served,
)
from tests.support.browsing import patient_context
from tests.support.talking import session_with_turns

__all__ = ["browser", "served"]  # fixtures
DAY = timedelta(days=1)


def shared(store: SessionStore, user: str = "ada", session: str = "s") -> NewShare:
    """Share a session for a day."""
    return store.shares.create(user, session_id=session, lasts=DAY)


@pytest.fixture
def link(store: SessionStore) -> str:
    """The path of a link to a run of ada, after which she and bob wrote more."""
    session = store.session(user_id="ada", session_id="s")
    session.append(refold.UserInput(text="fix the build"))
    session.append(refold.AgentResponse(text="It is fixed."))
    path = f"/shared/{shared(store).token}"
    session.append(refold.UserInput(text="a later secret of ada"))
    session.append(refold.AgentResponse(text="a later answer"))
    session.compact("turn_window:full_turns=1,cached_turns=1")
    other = store.session(user_id="bob", session_id="his")
    other.append(refold.UserInput(text="of bob alone"))
    return path


@pytest.fixture
def anybody(client_for: ClientFor) -> TestClient:
    """A client without a token."""
    return client_for(None)


def test_a_link_needs_no_token_and_shows_the_run_as_it_was(
    anybody: TestClient, link: str
) -> None:
    page = anybody.get(link)

    assert page.status_code == 200
    assert "fix the build" in page.text
    assert "It is fixed." in page.text
    assert "This link expires on" in page.text
    assert "2 events" in page.text
    assert "later" not in page.text
    assert "bob" not in page.text
    assert "ada" not in re.sub(r"<(style|script)>.*?</\\1>", "", page.text, flags=re.S)


def test_the_page_of_a_link_has_no_way_into_the_server(
    anybody: TestClient, link: str
) -> None:
    page = anybody.get(link)

    addresses = re.findall(r"(?:href|src|action)=\"([^\"]*)\"", page.text)
    assert all(address.startswith("#") for address in addresses), addresses
    forms = re.findall("<form[^>]*>", page.text)
    assert forms == ['<form method="dialog">']  # the button that closes the help
    assert "set-cookie" not in page.headers
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "connect-src" not in policy
    for part in ("base-uri", "form-action", "frame-ancestors"):
        assert f"{part} 'none'" in policy
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["x-robots-tag"] == "noindex"
    assert page.headers["referrer-policy"] == "no-referrer"


def test_a_link_has_the_language_of_its_reader(anybody: TestClient, link: str) -> None:
    page = anybody.get(link, headers={"Accept-Language": "zh-CN"})

    assert "此链接于" in page.text


def test_every_link_that_shows_nothing_shows_the_same_page(
    anybody: TestClient, link: str, store: SessionStore
) -> None:
    session = store.session(user_id="ada", session_id="other")
    session.append(refold.UserInput(text="hello"))
    revoked = shared(store)
    store.shares.revoke("ada", revoked.share.share_id)
    erased = shared(store, session="other")
    store.erase("ada", "asked", session_id="other")
    paths = [
        f"/shared/{revoked.token}",
        f"/shared/{erased.token}",
        link[:-1],
        f"{link}A",
        f"{link}/events",
        "/shared/",
        "/shared/none",
        "/shared/%00",
        "/shared/..%2Fv1%2Fsessions",
        f"/shared/{'A' * 9_000}",
    ]

    pages = [anybody.get(path) for path in paths]

    assert {page.status_code for page in pages} == {404}
    assert len({page.content for page in pages}) == 1
    assert 'href="' not in pages[0].text
    assert pages[0].headers["cache-control"] == "no-store"
    assert pages[0].headers["x-robots-tag"] == "noindex"


def test_a_link_opens_nothing_else_and_takes_no_form(
    anybody: TestClient, link: str
) -> None:
    anybody.get(link)
    token = link.removeprefix("/shared/")

    assert anybody.get("/run/s").status_code == 303
    assert anybody.get("/v1/sessions").status_code == 401
    bearer = {"Authorization": f"Bearer {token}"}
    assert anybody.get("/v1/sessions", headers=bearer).status_code == 401
    assert anybody.post(link).status_code == 401
    assert anybody.put(link).status_code == 401


def test_a_reader_who_is_logged_in_sees_the_same(
    anybody: TestClient, client_for: ClientFor, link: str, verifier: Verifier
) -> None:
    expected = anybody.get(link).content
    anybody.cookies.set(COOKIE, verifier.mint("bob", ("read",)))

    assert anybody.get(link).content == expected
    assert client_for("bob").get(link).content == expected


def test_requests_of_an_address_for_links_are_limited(
    store: SessionStore, verifier: Verifier, link: str
) -> None:
    gate = application(store, verifier, Limits(per_second=0.001, burst=3))
    with TestClient(gate) as client:
        answers = [client.get(link).status_code for _ in range(4)]

    assert answers == [200, 200, 200, 429]


def test_no_log_or_metric_has_the_token_of_a_link(
    anybody: TestClient,
    client_for: ClientFor,
    link: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    anybody.get(link)
    anybody.get(link[:-4])

    metrics = client_for("root", "admin").get("/metrics").text

    assert 'route="/shared/{token:path}"' in metrics
    assert link[8:30] not in metrics + caplog.text


@pytest.mark.parametrize("size", SIZES)
def test_the_page_of_a_link_works_in_a_browser(
    browser: Browser,  # the fixture
    served: str,  # the fixture
    store: SessionStore,
    size: str,
) -> None:
    session_with_turns(store)
    new = shared(store, session="run")
    reader = patient_context(browser, viewport=SIZES[size], base_url=served)
    reader.add_init_script(WATCH)
    page = reader.new_page()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))

    for path, status in ((f"/shared/{new.token}", 200), ("/shared/none", 404)):
        answer = page.goto(path)
        assert answer is not None
        assert answer.status == status
        page.wait_for_load_state("networkidle")
        assert accessibility_problems(page) == []
        assert page_width(page) <= SIZES[size]["width"]
        assert page.evaluate("[window.__ran || 0, window.__refused]") == [0, []]
    assert all("/shared/" in url or url.endswith("/favicon.ico") for url in requested)
    reader.close()


def test_hostile_texts_of_a_shared_run_do_nothing(
    browser: Browser,  # the fixture
    served: str,  # the fixture
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="hostile")
    for payload in (*PAYLOADS[::20], *MARKDOWN_PAYLOADS[::20]):
        append_events_with(session, payload)
    new = shared(store, session="hostile")
    reader = patient_context(browser, base_url=served)
    reader.add_init_script(WATCH)
    page = reader.new_page()

    page.goto(f"/shared/{new.token}")

    assert page.evaluate("[window.__ran || 0, window.__refused]") == [0, []]
    reader.close()
