"""A user saves the turn numbers of turn_window, and every context uses them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect
from starlette.testclient import TestClient

import refold
from refold.adapters.server.access_tokens import Verifier
from refold.adapters.server.app import COOKIE, Limits, application
from refold.store import SessionStore
from refold.store.turn_settings import TurnSettings
from tests.server.conftest import ClientFor
from tests.server.test_browser import accessibility_problems, browser, served
from tests.support.browsing import patient_context

__all__ = ["browser", "served"]  # fixtures

SETTINGS = "/v1/settings/turns"


def session_with_turns(store: SessionStore, turns: int, user: str = "ada") -> None:
    session = store.session(user_id=user, session_id="s-1")
    for number in range(turns):
        session.append(refold.UserInput(text=f"question {number}"))
        session.append(refold.AgentResponse(text="an answer " * 20))


def compacted_turns(client: TestClient, body: Mapping[str, object]) -> int:
    """Compact, and return the turns that were compacted; 0 if none needed it."""
    answered = client.post("/v1/sessions/s-1/compact", json=body)
    assert answered.status_code == 200, answered.text
    summaries = answered.json()["summaries"]
    return sum(summary["payload"]["last_seq"] // 2 for summary in summaries)


def test_without_any_setting_the_defaults_apply(ada: TestClient) -> None:
    assert ada.get(SETTINGS).json() == {
        "fullContextTurns": 4,
        "cachedContextTurns": 3,
        "saved": {"fullContextTurns": None, "cachedContextTurns": None},
        "decided_by": {"fullContextTurns": "default", "cachedContextTurns": "default"},
    }


def test_saved_numbers_decide_when_turn_window_compacts(
    ada: TestClient, store: SessionStore
) -> None:
    session_with_turns(store, turns=4)
    before = compacted_turns(ada, {"strategy": "turn_window"})

    saved = ada.put(SETTINGS, json={"fullContextTurns": 2, "cachedContextTurns": 2})
    after = compacted_turns(ada, {"strategy": "turn_window"})

    assert saved.status_code == 200
    assert saved.json() == ada.get(SETTINGS).json()
    assert saved.json()["saved"] == {"fullContextTurns": 2, "cachedContextTurns": 2}
    assert (before, after) == (0, 2)
    session = store.session(user_id="ada", session_id="s-1")
    view = session.context("turn_window")
    assert view == session.context("turn_window:full_turns=2,cached_turns=2")


def test_saved_numbers_apply_to_their_user_only(
    client_for: ClientFor, store: SessionStore
) -> None:
    client_for("bob").put(
        SETTINGS, json={"fullContextTurns": 1, "cachedContextTurns": 1}
    )
    session_with_turns(store, turns=4)

    assert client_for("ada").get(SETTINGS).json()["fullContextTurns"] == 4
    assert compacted_turns(client_for("ada"), {"strategy": "turn_window"}) == 0


@pytest.fixture
def configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verifier: Verifier
) -> Iterator[TestClient]:
    """A client of a server whose settings file says 9 and 8 turns."""
    file = tmp_path / "refold.toml"
    file.write_text("[context.turn_window]\nfull_turns = 9\ncached_turns = 8\n")
    monkeypatch.setenv("REFOLD_CONFIG", str(file))
    monkeypatch.setenv("REFOLD_FULL_CONTEXT_TURNS", "5")
    with refold.open(tmp_path / "configured.db") as store:
        gate = application(store, verifier, Limits(per_second=1e6, burst=1e6))
        with TestClient(gate, raise_server_exceptions=False) as client:
            token = verifier.mint("ada", ("append", "read"))
            client.headers["Authorization"] = f"Bearer {token}"
            session_with_turns(store, turns=4)
            yield client


def test_a_request_overrides_the_environment_then_saved_numbers_then_the_file(
    configured: TestClient,
) -> None:
    file = configured.get(SETTINGS).json()
    configured.put(SETTINGS, json={"fullContextTurns": 6, "cachedContextTurns": 2})
    saved = configured.get(SETTINGS).json()

    assert (file["fullContextTurns"], file["cachedContextTurns"]) == (5, 8)
    assert file["decided_by"]["fullContextTurns"] == "environment"
    assert file["decided_by"]["cachedContextTurns"] == "file"
    assert (saved["fullContextTurns"], saved["cachedContextTurns"]) == (5, 2)
    assert saved["decided_by"]["cachedContextTurns"] == "saved"
    assert compacted_turns(configured, {"strategy": "turn_window"}) == 0
    # The request names A; B is the saved number.
    assert compacted_turns(configured, {"fullContextTurns": 2}) == 2


def test_null_and_absent_numbers_remove_the_saved_ones(ada: TestClient) -> None:
    ada.put(SETTINGS, json={"fullContextTurns": 7, "cachedContextTurns": 5})

    cached_only = ada.put(
        SETTINGS, json={"fullContextTurns": None, "cachedContextTurns": 5}
    )
    neither = ada.put(SETTINGS, json={})

    assert cached_only.json()["saved"] == {
        "fullContextTurns": None,
        "cachedContextTurns": 5,
    }
    assert neither.json()["saved"] == {
        "fullContextTurns": None,
        "cachedContextTurns": None,
    }


@pytest.mark.parametrize("number", [0, -1, 10_001, 1.5, "3", True])
def test_an_invalid_number_is_refused_by_name_and_nothing_is_saved(
    ada: TestClient, number: object
) -> None:
    ada.put(SETTINGS, json={"fullContextTurns": 6})

    refused = ada.put(SETTINGS, json={"fullContextTurns": number})

    assert refused.status_code == 422
    assert refused.json()["errors"][0]["name"] == "fullContextTurns"
    assert ada.get(SETTINGS).json()["saved"]["fullContextTurns"] == 6


def test_the_body_of_a_context_overrides_the_turns_for_that_request(
    ada: TestClient, store: SessionStore
) -> None:
    session_with_turns(store, turns=4)
    turns = {"fullContextTurns": 2, "cachedContextTurns": 2}
    compacted_turns(ada, turns)
    place = "/v1/sessions/s-1/context"

    by_body = ada.post(place, json=turns)
    usual = ada.post(place, json={})
    both = ada.post(place, json=turns | {"strategy": "hybrid"})
    file = ada.post(place, json={"strategy": "@policy.toml"})

    assert by_body.status_code == 200
    assert by_body.json() == ada.get(place, params=turns).json()
    assert {span["kind"] for span in by_body.json()["spans"]} == {"summary", "raw"}
    assert usual.json() == ada.get(place).json()
    earlier = ada.post(place, json={"at": 4, "as": "rebuilt"})
    assert earlier.json()["at"] == 4
    assert (both.status_code, file.status_code) == (422, 422)
    # None of these requests saved or recorded anything.
    assert ada.get(SETTINGS).json()["decided_by"]["fullContextTurns"] == "default"
    assert store.session(user_id="ada", session_id="s-1").head().seq == 8


def test_erasing_a_user_erases_the_saved_numbers(
    ada: TestClient, store: SessionStore
) -> None:
    ada.put(SETTINGS, json={"fullContextTurns": 6})

    store.erase("ada", "asked for it")

    assert ada.get(SETTINGS).status_code == 410
    assert ada.put(SETTINGS, json={"fullContextTurns": 6}).status_code == 410


def open_settings(browser: Browser, served: str, token: str, locale: str) -> Page:
    context = patient_context(browser, base_url=served, locale=locale)
    context.add_cookies([{"name": COOKIE, "value": token, "url": served}])
    page = context.new_page()
    page.goto("/settings")
    return page


@pytest.mark.parametrize(
    ("locale", "full", "cached", "save", "by_saved", "refusal"),
    [
        (
            "en-GB",
            "Turns that stay raw (A)",
            "Turns of one summary (B)",
            "Save",
            "saved here",
            "The request is not valid",
        ),
        (
            "zh-CN",
            "保持原文的轮次数（A）",
            "每段摘要的轮次数（B）",
            "保存",
            "在此处保存",
            "请求无效",
        ),
    ],
)
def test_the_form_saves_removes_and_refuses_numbers(
    browser: Browser,
    served: str,
    store: SessionStore,
    verifier: Verifier,
    locale: str,
    full: str,
    cached: str,
    save: str,
    by_saved: str,
    refusal: str,
) -> None:
    token = verifier.mint("ada", ("append", "read"))
    page = open_settings(browser, served, token, locale)
    button = page.get_by_role("button", name=save, exact=True)
    rows = page.locator("#turns ~ table tbody tr")

    page.get_by_label(full).fill("6")
    page.get_by_label(cached).fill("2")
    button.click()
    expect(rows.nth(0)).to_contain_text(by_saved)
    expect(page.get_by_label(full)).to_have_value("6")
    expect(rows.nth(1).locator("td").first).to_have_text("2")
    assert store.user("ada").saved_turns() == TurnSettings(6, 2)
    assert accessibility_problems(page) == []

    page.get_by_label(cached).fill("")
    button.click()
    expect(page.get_by_label(cached)).to_have_value("")
    expect(rows.nth(1).locator("td").first).to_have_text("3")
    assert store.user("ada").saved_turns() == TurnSettings(6, None)

    # The browser itself refuses 0; without that check, the server does.
    page.get_by_label(full).fill("0")
    button.click()
    assert page.get_by_label(full).evaluate("field => !field.validity.valid")
    for wrong in ("0", "10001"):
        page.goto("/settings")
        page.locator("main form").evaluate("form => { form.noValidate = true; }")
        page.get_by_label(full).fill(wrong)
        button.click()
        expect(page.locator("[role=alert]")).to_contain_text("10000")
        expect(page.locator("h1")).to_contain_text(refusal)
    assert store.user("ada").saved_turns() == TurnSettings(6, None)
    page.context.close()


def test_a_reader_sees_the_numbers_without_the_form(
    client_for: ClientFor, ada: TestClient
) -> None:
    ada.put(SETTINGS, json={"fullContextTurns": 6})
    reader = client_for("ada", "read")

    read = reader.get("/settings", headers={"Accept-Language": "en"})

    assert "saved here" in read.text
    assert read.text.count('method="post"') == 1  # to log out
    assert reader.post("/settings", data={"full_turns": "3"}).status_code == 403


def test_the_form_of_another_site_saves_nothing(
    client_for: ClientFor, verifier: Verifier, store: SessionStore
) -> None:
    client = client_for(None)
    client.cookies.set(COOKIE, verifier.mint("ada", ["append", "read"]))

    refused = client.post("/settings", data={"full_turns": "3"})

    assert refused.status_code == 403
    assert store.user("ada").saved_turns() == TurnSettings()


@pytest.mark.parametrize("text", ["-1", "1.5", "three", "٣", "1" * 30, "0"])
def test_a_text_that_is_no_number_of_turns_is_refused_on_the_page(
    ada: TestClient, store: SessionStore, text: str
) -> None:
    refused = ada.post("/settings", data={"full_turns": text, "cached_turns": "2"})

    assert refused.status_code == 422
    assert text not in refused.text or len(text) < 3
    assert store.user("ada").saved_turns() == TurnSettings()
