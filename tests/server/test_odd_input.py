"""Odd values of parameters and form fields are answered with a page in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from starlette.testclient import TestClient

from refold.adapters.server.access_tokens import SCOPES, verifier_of
from refold.adapters.server.app import COOKIE, application, csrf_of_token
from tests.server.conftest import QUICK
from tests.support.stores import open_at
from tests.support.talking import session_with_turns

# Percent-encoded query values: empty, no text, no number, of another kind.
ODD: Final = (
    "",
    "+",
    "%00",
    "a%00b",
    "%ff%fe",
    "%ed%a0%80",
    "x" * 5_000,
    "9" * 5_000,
    "18446744073709551616",
    "-1",
    "1.5",
    "NaN",
    "true",
    "%F0%9F%98%80",
    "%22%27%3B--",
    "=",
    "a%3Db",
    "%00%3D%00",
    "..%2F..%2Fetc",
    "%25*",
    "%0d%0aX:1",
    "@x.toml",
    "_user",
)
PAGES: Final = {
    "/": ("q", "label", "after", "user", "lang"),
    "/login": ("next",),
    "/run/run": (
        "after",
        "before",
        "seq",
        "type",
        "agent",
        "redacted",
        "q",
        "live",
        "user",
        "lang",
        "unknown",
    ),
    "/run/run/event": ("seq",),
    "/run/run/context": ("at", "strategy", "sure"),
    "/run/run/compare?b=keep_all": ("a", "model"),
    "/run/run/compare?a=keep_all": ("b",),
    "/run/run/verify": ("whole", "sure"),
    "/run/run/proof": ("seq",),
    "/memory": ("every",),
    "/reviews": ("every",),
    "/erase?dry=1": ("session",),
    "/erase": ("dry",),
}
# For each form: the values that a person would fill in, and the fields under test.
FORMS: Final = {
    "/memory": ({"act": "grant", "scope": "x"}, ("act", "scope", "reason")),
    "/settings": ({"full_turns": "3"}, ("full_turns", "cached_turns")),
    "/memory?": ({"act": "forget"}, ("item", "reason")),
    "/reviews": (
        {"seq": "1", "decision": "accept", "session": "run"},
        ("seq", "decision", "session", "note"),
    ),
    "/erase": (
        {"reason": "asked", "confirm": "nobody"},
        ("session", "reason", "confirm"),
    ),
    "/login": ({"token": "none"}, ("token", "next")),
}


@pytest.fixture
def browser(empty_url: str, tmp_path: Path) -> Iterator[TestClient]:
    """A browser in which ada is logged in."""
    verifier = verifier_of()
    token = verifier.mint("ada", SCOPES)
    with open_at(empty_url, tmp_path) as store:
        session_with_turns(store, turns=2)
        gate = application(store, verifier, QUICK)
        with TestClient(
            gate, raise_server_exceptions=False, follow_redirects=False
        ) as client:
            client.cookies.set(COOKIE, token)
            client.headers["X-CSRF-Token"] = csrf_of_token(token)
            yield client


@pytest.mark.parametrize("page", PAGES)
def test_no_parameter_of_a_page_makes_it_fail(browser: TestClient, page: str) -> None:
    sign = "&" if "?" in page else "?"
    for name in PAGES[page]:
        for value in ODD:
            field = f"{name}={value}"
            for query in (field, f"{field}&{field}", name):
                answered = browser.get(f"{page}{sign}{query}")

                about = (page, query[:60], answered.status_code)
                assert answered.status_code in (200, 303, 404, 422), about
                kind = answered.headers["content-type"]
                assert kind.startswith("text/html"), about
                if answered.status_code == 422:
                    assert 'role="alert"' in answered.text, about


@pytest.mark.parametrize("form", FORMS)
def test_no_form_field_makes_a_page_fail(browser: TestClient, form: str) -> None:
    filled, names = FORMS[form]
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    for name in names:
        others = [f"{key}={value}" for key, value in filled.items() if key != name]
        for value in ODD:
            for times in (1, 2):
                body = "&".join([*others, *[f"{name}={value}"] * times])
                answered = browser.post(form, content=body, headers=kind)

                about = (form, body[:80], answered.status_code)
                assert answered.status_code in (200, 303, 401, 404, 409, 422), about
                if answered.status_code != 303:
                    assert answered.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("part", ["", "/event?seq=1", "/context", "/verify"])
def test_no_session_name_makes_its_page_fail(browser: TestClient, part: str) -> None:
    for value in ODD[1:]:
        answered = browser.get(f"/run/{value}{part}")

        assert answered.status_code in (200, 404, 422), (value[:60], part)


def test_an_invalid_label_is_explained(browser: TestClient) -> None:
    answered = browser.get("/?label=refold")
    program = browser.get("/v1/sessions?label=refold")

    assert answered.status_code == program.status_code == 422
    assert "write a label as NAME=VALUE" in answered.text
    assert "write a label as NAME=VALUE" in program.json()["detail"]


def test_an_unknown_type_is_explained(browser: TestClient) -> None:
    wrong = browser.get("/v1/sessions/run/events?type=user_inputs")
    empty = browser.get("/v1/sessions/run/events?type=")

    assert wrong.status_code == empty.status_code == 422
    assert "names no type of events" in wrong.json()["detail"]
