"""The pages in a real Chromium: reading, navigation, decisions, hostile texts."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

import refold
from refold.adapters.server import run_pages
from refold.adapters.server.access_tokens import Verifier
from refold.adapters.server.app import COOKIE, Gate
from refold.store import Session, SessionStore
from tests.server.hostile import MARKDOWN_PAYLOADS, PAYLOADS, append_events_with
from tests.server.test_pages import page_paths
from tests.support.browsing import patient_context
from tests.support.talking import session_with_turns
from tests.support.waiting import PATIENCE_SEC, until

AXE = Path(__file__).parent / "vendored" / "axe.min.js"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SIZES: dict[str, Any] = {
    "wide": {"width": 1280, "height": 900},
    "narrow": {"width": 390, "height": 844},
}
# A foreign script that runs reports it; the policy reports each script that it stops.
WATCH = """
window.ran = () => { window.__ran = (window.__ran || 0) + 1; };
for (const name of ["alert", "confirm", "prompt"]) window[name] = window.ran;
window.__refused = [];
addEventListener("securitypolicyviolation", (one) =>
  window.__refused.push(`${one.violatedDirective} ${one.blockedURI} ${one.sample}`));
"""


UNFOLD = "document.querySelectorAll('details').forEach((one) => (one.open = true))"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start Chromium. Without Chromium the tests fail; none is skipped."""
    executables = [path for path in map(shutil.which, NAMES) if path]
    if not executables:
        pytest.fail(
            "there is no Chromium for the tests of the page: apt-get install chromium",
            pytrace=False,
        )
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=executables[0], args=["--no-sandbox"]
        )
        yield chromium
        chromium.close()


@pytest.fixture
def served(gate: Gate) -> Iterator[str]:
    """The address of a server on a port of this machine."""
    config = uvicorn.Config(
        gate,
        port=0,
        log_config=None,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started, "the server to start")
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(PATIENCE_SEC)


OpenPage = Callable[..., Page]

expect.set_options(timeout=PATIENCE_SEC * 1000)


@pytest.fixture
def open_page(browser: Browser, served: str, verifier: Verifier) -> Iterator[OpenPage]:
    """OpenPage pages as ada. Fails at the end if a foreign script ran or an error was
    logged.
    """
    contexts: list[BrowserContext] = []
    wrong: list[str] = []

    def open_page(path: str = "/", *, size: str = "wide", **options: Any) -> Page:
        context = patient_context(
            browser, viewport=SIZES[size], base_url=served, locale="en-GB", **options
        )
        contexts.append(context)
        context.add_init_script(WATCH)
        token = verifier.mint("ada", ("append", "read", "review", "erase"))
        context.add_cookies([{"name": COOKIE, "value": token, "url": served}])
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(f"error {error}"))
        page.on("dialog", lambda dialog: wrong.append(f"dialog {dialog.message}"))
        page.on(
            "console",
            lambda message: (
                wrong.append(f"{message.text} {message.location['url']}")
                if message.type == "error"
                else None
            ),
        )
        page.goto(path)
        return page

    yield open_page
    for context in contexts:
        for page in context.pages:
            assert page.evaluate("[window.__ran || 0, window.__refused]") == [0, []]
        context.close()
    assert wrong == []


def complete_page_paths(session: Session) -> list[str]:
    """Return the paths of complete pages, without those that load a part."""
    return [path for path in page_paths(session) if "live=1" not in path]


def page_width(page: Page) -> int:
    """Return the width of the page; it must not exceed the window's."""
    pixels: int = page.evaluate("document.documentElement.scrollWidth")
    return pixels


def accessibility_problems(page: Page) -> list[str]:
    """Return what axe-core reports, with all rules of WCAG 2.2 A and AA."""
    page.evaluate(AXE.read_text("utf-8"))
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
    results = page.evaluate(
        "(tags) => axe.run(document, {runOnly: {type: 'tag', values: tags}})", tags
    )
    return [
        f"{rule['id']}: {rule['help']}: {node['target']} {node['failureSummary']}"
        for rule in results["violations"]
        for node in rule["nodes"][:3]
    ]


def test_a_run_is_read_with_the_keyboard(
    open_page: OpenPage, store: SessionStore
) -> None:
    session = session_with_turns(store, turns=6)
    page = open_page("/run/run")
    focused = "document.activeElement.id"

    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("j")
    at = page.evaluate(focused)
    page.keyboard.press("k")

    assert (at, page.evaluate(focused)) == ("e3", "e2")
    shut = page.locator(".turn:not([open])")
    assert shut.count() > 0
    page.keyboard.press("a")
    assert shut.count() == 0
    page.keyboard.press("/")
    expect(page.locator("[data-search]")).to_be_focused()
    page.keyboard.type("j?")
    assert page.locator("[data-search]").input_value() == "j?"
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    page.locator(f"#e{session.head().seq}").focus()
    page.keyboard.press("c")
    page.wait_for_url(f"**/context?at={session.head().seq}")


def test_a_link_to_an_event_opens_its_turn(
    open_page: OpenPage, store: SessionStore
) -> None:
    session_with_turns(store, turns=10)

    page = open_page("/run/run?seq=20#e20")

    expect(page.locator("#e20")).to_be_in_viewport()
    page.goto("/?q=file+3")
    page.locator(".found a").first.click()
    expect(page.locator(":target")).to_be_in_viewport()


def test_the_slider_shows_the_context_at_each_seq(
    open_page: OpenPage, store: SessionStore
) -> None:
    session = session_with_turns(store, turns=6)
    page = open_page("/run/run/context?at=4")
    before = page.locator("#panel .sums").inner_text()

    page.locator("#at").fill(str(session.head().seq))
    page.wait_for_url(f"**at={session.head().seq}**")

    expect(page.locator("#panel .sums")).to_contain_text(f"at seq {session.head().seq}")
    assert before != page.locator("#panel .sums").inner_text()
    assert page.locator("#at-said").inner_text() == str(session.head().seq)
    page.locator(".opens > summary").first.click()
    expect(page.locator(".opens .listed li").first).to_be_visible()
    page.locator(".out > summary").first.click()
    expect(page.locator(".out .listed li").first).to_be_visible()
    page.locator("select[name=strategy]").select_option("keep_all")
    expect(page.locator("#panel .sums b")).to_have_text("keep_all")
    page.go_back()
    expect(page.locator("#panel .sums b")).to_have_text("turn_window")


def test_the_next_failure_is_one_key_or_one_link_away(
    open_page: OpenPage, store: SessionStore
) -> None:
    session_with_turns(store, turns=30)
    page = open_page("/run/run")
    failures = [f"e{seq}" for seq in (8, 16, 24)]

    for seq in failures:
        page.keyboard.press("f")
        assert page.evaluate("document.activeElement.id") == seq
        expect(page.locator(f"#{seq}")).to_be_visible()
    page.keyboard.press("F")
    assert page.evaluate("document.activeElement.id") == failures[1]
    page.goto("/run/run?after=200")
    page.locator("[data-failure=before]").click()
    page.wait_for_url("**seq=*#e*")
    expect(page.locator(":target.failed")).to_be_in_viewport()
    page.locator("[data-failure=after]").click()
    page.wait_for_url("**seq=*#e*")
    expect(page.locator(":target.failed")).to_be_in_viewport()


def test_links_and_texts_are_copied(open_page: OpenPage, store: SessionStore) -> None:
    session_with_turns(store, turns=1)
    page = open_page("/run/run", permissions=["clipboard-read", "clipboard-write"])
    copied = "navigator.clipboard.readText()"

    page.locator("#e2 .prose").hover()
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    link = page.evaluate(copied)
    page.locator("#e7 pre").hover()
    page.locator("#e7").get_by_role("button", name="Copy text").click()

    page.wait_for_function(f"async () => await {copied} === 'content of file 0'")
    assert link.endswith("/run/run?seq=2#e2")
    page.goto(link)
    expect(page.locator("#e2:target")).to_be_in_viewport()


def test_times_are_in_the_readers_zone(
    open_page: OpenPage, store: SessionStore
) -> None:
    session = session_with_turns(store, turns=1)
    at = next(iter(session.events(after=1, limit=1))).ts

    utc = open_page("/run/run", java_script_enabled=False)
    tokyo = open_page("/run/run", timezone_id="Asia/Tokyo")

    time_of_event = "#e2 .gutter time"
    local = at.astimezone(timezone(timedelta(hours=9)))
    assert utc.locator(time_of_event).inner_text() == f"{at:%H:%M:%S}"
    assert tokyo.locator(time_of_event).inner_text() == f"{local:%H:%M:%S}"
    assert tokyo.locator("[data-zone]").inner_text() == "Asia/Tokyo"
    assert utc.locator("[data-zone]").inner_text() == "UTC"


def test_every_page_works_without_javascript(
    open_page: OpenPage, store: SessionStore
) -> None:
    session = session_with_turns(store, turns=6)
    page = open_page("/", java_script_enabled=False)

    page.get_by_role("link", name="Question 0: what is in file 0?").click()
    page.locator(".turn > summary").nth(1).click()
    expect(page.locator("#e2")).to_be_visible()
    page.get_by_role("link", name="Context", exact=True).click()
    page.locator("#at").fill("12")
    page.get_by_role("button", name="Show").click()

    expect(page.locator(".sums")).to_contain_text("at seq 12")
    page.get_by_role("link", name="Verify").click()
    expect(page.locator(".verdict.good")).to_contain_text(
        f"{session.verify().events} events"
    )


def test_a_comparison_is_plotted(open_page: OpenPage, store: SessionStore) -> None:
    session_with_turns(store, turns=8)
    page = open_page("/run/run/compare")

    page.locator("select[name=a]").select_option("keep_all")
    page.locator("select[name=b]").select_option("last_turns")
    page.get_by_role("button", name="Compare").click()

    expect(page.locator(".plot canvas")).to_have_count(2)
    assert page.locator(".plot h2").all_inner_texts() == [
        "Tokens per request",
        "Cumulative cost in dollars",
    ]
    tokens, costs = (page.locator(".plot").nth(n).bounding_box() for n in (0, 1))
    assert tokens
    assert costs
    assert tokens["x"] + tokens["width"] <= costs["x"] or tokens["y"] < costs["y"]


def test_a_question_is_decided(open_page: OpenPage, store: SessionStore) -> None:
    session = session_with_turns(store, turns=1)
    session.append(refold.HumanReview(trigger="refund", question="Pay 120 EUR?"))
    page = open_page("/reviews")

    page.get_by_label("Reject").check()
    page.get_by_label("Note").fill("above the limit")
    page.get_by_role("button", name="Record the decision").click()

    expect(page.locator(".review")).to_have_count(0)
    (review,) = store.reviews.list("ada", open_only=False)
    assert review.decided
    assert review.decided.decision == "reject"
    assert review.decided.note == "above the limit"


def test_erasing_a_user_needs_a_preview_and_the_typed_name(
    open_page: OpenPage, store: SessionStore
) -> None:
    session_with_turns(store, turns=1)
    page = open_page("/erase")

    page.get_by_role("button", name="Preview").click()
    expect(page.locator("#plan")).to_have_text("1 session would be erased")
    page.get_by_label("Reason").fill("asked for it")
    page.get_by_role("button", name="Erase for good").click()  # the name is missing
    assert len(store.sessions("ada")) == 1
    page.get_by_label("Type the user's name").fill("ada")
    page.get_by_role("button", name="Erase for good").click()

    expect(page.locator(".verdict.good")).to_contain_text("Rows left: 0")
    assert store.sessions("ada") == []


def test_consent_is_changed_on_the_page(
    open_page: OpenPage, store: SessionStore
) -> None:
    session_with_turns(store, turns=1)
    page = open_page("/memory")

    page.get_by_role("button", name="Keep everything out of memory").click()

    expect(page.get_by_role("button", name="End the opt-out")).to_be_visible()
    assert store.user("ada").status().memory_opt_out


def test_new_events_appear_on_the_open_page(
    open_page: OpenPage, store: SessionStore
) -> None:
    session = session_with_turns(store, turns=2)
    page = open_page("/run/run")
    page.locator(".turn").last.locator("summary").first.click()  # the reader closed it

    session.append(refold.UserInput(text="And one more <b>thing</b>?"))
    call = refold.ToolCall(call_id="z", tool_name="deploy", arguments={"n": 1})
    expect(page.locator(".turn").last).to_contain_text("And one more <b>thing</b>?")
    session.append(call)
    expect(page.locator(".event.tool_call").last).to_contain_text("No result")
    session.append(refold.ToolResult(call_id="z", content="deployed"))
    expect(page.locator(".event.tool_call").last).to_contain_text("deployed")

    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
    assert f"e{session.head().seq}" in ids


def test_a_token_opens_the_page_and_logging_out_removes_it(
    browser: Browser, served: str, store: SessionStore, verifier: Verifier
) -> None:
    session_with_turns(store, turns=1)
    context = patient_context(browser, base_url=served, locale="zh-CN")
    page = context.new_page()

    page.goto("/run/run")
    page.locator("input[name=token]").fill(verifier.mint("ada", ("read",)))
    page.locator("button.main").click()

    expect(page.locator("h1")).to_have_text("run")
    assert page.evaluate("document.cookie") == ""
    assert "token" not in page.url
    expect(page.locator(".tabs a").first).to_have_text("时间线")
    page.get_by_role("link", name="English").click()
    expect(page.locator(".tabs a").first).to_have_text("Timeline")
    page.get_by_role("button", name="Log out").click()
    expect(page.locator("input[name=token]")).to_be_visible()
    page.goto("/run/run")
    expect(page.locator("input[name=token]")).to_be_visible()
    context.close()


@pytest.mark.load
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["wide", "narrow"])
def test_axe_finds_no_problem_in_any_page(
    scheme: str, size: str, open_page: OpenPage, store: SessionStore
) -> None:
    session = session_with_turns(store, turns=6)
    append_events_with(
        session, "plain words, of 3 lines\nthe second\n" + "third " * 400
    )
    for n in range(3):
        other = session_with_turns(store, f"s-{n}", turns=1)
        other.append(refold.Final(outcome="success", text="Done."))
        other.label(project="page")
    store.seal()
    page = open_page("/", size=size, color_scheme=scheme)

    kinds = {
        path.partition("?")[0]: path for path in complete_page_paths(session)
    }  # of each kind
    for path in (*kinds.values(), "/login", "/?q=file", "/run/run"):
        page.goto(path)
        page.evaluate(UNFOLD)

        assert accessibility_problems(page) == [], path
        assert page_width(page) <= SIZES[size]["width"], path
    page.goto("/run/run")
    page.keyboard.press("?")
    assert accessibility_problems(page) == []


def test_long_titles_names_and_days_fit_a_narrow_window(
    open_page: OpenPage, store: SessionStore
) -> None:
    unbroken = "refold/projections/context/" * 6
    for n in range(2):
        session = store.session(user_id="ada", session_id=f"{n}-{'session-name-' * 12}")
        day = datetime(2026, 2, 1 + n, tzinfo=UTC)
        session.append(refold.UserInput(text=unbroken), ts=day)
        session.label(project=unbroken, title=f"{n} {unbroken}")
    page = open_page("/", size="narrow")

    expect(page.locator("tr.day")).to_have_count(2)
    assert page_width(page) <= SIZES["narrow"]["width"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_files_of_a_run_fit_a_narrow_window(
    scheme: str, open_page: OpenPage, store: SessionStore
) -> None:
    session = store.session(user_id="ada", session_id="run")
    path = f"/home/ada/{'a-long-folder-' * 4}/project/src/importer.py"
    call = refold.ToolCall(
        call_id="c",
        tool_name="Write",
        arguments={"file_path": path, "content": "one\ntwo\n"},
    )
    result = refold.ToolResult(call_id="c", tool_name="Write", content="written")
    session.append([refold.UserInput(text="Write it."), call, result])

    page = open_page("/run/run/files", size="narrow", color_scheme=scheme)

    region = page.locator(".sideways")
    widths = region.evaluate("region => [region.clientWidth, region.scrollWidth]")
    assert widths[0] == widths[1]
    expect(page.get_by_text("+2 −0")).to_be_in_viewport()
    named = page.locator("td[data-name]").evaluate_all(
        "cells => cells.map(cell => getComputedStyle(cell, '::before').content)"
    )
    assert all(len(name) > 2 for name in named[:2])


def test_axe_finds_no_problem_in_an_error_page(
    browser: Browser, served: str, verifier: Verifier
) -> None:
    context = patient_context(browser, base_url=served)
    token = verifier.mint("ada", ("read",))
    context.add_cookies([{"name": COOKIE, "value": token, "url": served}])
    page = context.new_page()

    for path, status in (("/run/none", 404), ("/erase", 403), ("/?q=.", 422)):
        answered = page.goto(path)
        assert answered
        assert answered.status == status
        assert accessibility_problems(page) == []
    context.close()


@pytest.mark.load
def test_two_hundred_hostile_texts_run_nothing(
    open_page: OpenPage, store: SessionStore
) -> None:
    assert len(PAYLOADS) >= 200
    name = '"><img src=x onerror=ran()>/<script>ran()</script>'
    session = store.session(user_id="ada", session_id=name)
    for payload in PAYLOADS:
        append_events_with(session, payload)
        session.label(project=payload[:100])
    of = f"/run/{quote(name, safe='')}"
    page = open_page(of)
    after = seen = 0

    while after < session.head().seq:
        page.goto(f"{of}?after={after}")
        page.keyboard.press("a")
        for toggle in page.locator(".words:visible", has_text="read on").all()[:3]:
            toggle.click()
        seen += page.locator(".words").count()
        after += run_pages.LIMIT
    few = store.session(user_id="ada", session_id="few")
    for payload in PAYLOADS[::20]:
        append_events_with(few, payload)
    # Comparing strategies over this many events takes too long.
    rest = [path for path in complete_page_paths(session) if "/compare?" not in path]
    for path in (*rest, f"{of}/context?at=300", "/run/few/compare?a=keep_all&b=hybrid"):
        page.goto(path, timeout=PATIENCE_SEC * 1000)
        page.evaluate(UNFOLD)
        assert page.evaluate("[window.__ran || 0, window.__refused]") == [0, []], path

    assert seen > 2000
    assert page.locator("#bait").count() == 0


@pytest.mark.load
def test_three_hundred_texts_of_markdown_and_edits_run_and_load_nothing(
    open_page: OpenPage, served: str, store: SessionStore
) -> None:
    assert len(MARKDOWN_PAYLOADS) >= 300
    session = store.session(user_id="ada", session_id="markdown")
    for nth, payload in enumerate(MARKDOWN_PAYLOADS):
        edit = {"file_path": payload, "old_string": payload, "new_string": "new"}
        session.append(
            [
                refold.UserInput(text=payload),
                refold.ToolCall(call_id=f"c{nth}", tool_name="Edit", arguments=edit),
                refold.ToolResult(
                    call_id=f"c{nth}", content=f"diff --git a/x b/x\n-{payload}"
                ),
                refold.AgentResponse(text=payload),
            ]
        )
    page = open_page("/run/markdown")
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    after = shown = 0

    while after < session.head().seq:
        page.goto(f"/run/markdown?after={after}")
        page.evaluate(UNFOLD)
        shown += page.locator(".prose").count()
        links = page.evaluate(
            "[...document.querySelectorAll('main a')].map((one) => one.protocol)"
        )
        assert set(links) == {"http:"}
        assert page.evaluate("[window.__ran || 0, window.__refused]") == [0, []]
        after += run_pages.LIMIT

    assert shown > 2 * len(MARKDOWN_PAYLOADS) * 0.9
    assert [url for url in requested if not url.startswith(served)] == []
    assert page.locator(".prose img, .prose a, .diff a").count() == 0


@pytest.mark.load
def test_the_exported_page_works_offline_and_runs_no_foreign_script(
    browser: Browser, store: SessionStore, tmp_path: Path
) -> None:
    session = session_with_turns(store, turns=6)
    for payload in PAYLOADS[::25]:
        append_events_with(session, payload)
    file = tmp_path / "run.html"
    requested: list[str] = []
    wrong: list[str] = []
    file.write_text(run_pages.html_file(session), "utf-8")
    looks: tuple[tuple[Any, str], ...] = (("light", "wide"), ("dark", "narrow"))
    for scheme, size in looks:
        context = patient_context(browser, viewport=SIZES[size], color_scheme=scheme)
        context.add_init_script(WATCH)
        page = context.new_page()
        page.on("request", lambda request: requested.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text))
        page.goto(file.as_uri())

        moments = page.locator(".moment")
        assert page.locator(".moment:visible").count() == 1
        page.locator("#nth").fill("2")
        shown = page.locator(".moment:visible")
        assert shown.count() == 1
        assert shown.get_attribute("data-seq") == page.locator("#nth-said").inner_text()
        page.locator("#main").focus()
        page.keyboard.press("a")
        page.locator("#e1").focus()
        page.keyboard.press("j")
        assert page.evaluate("document.activeElement.id") == "e2"
        assert moments.count() == 7
        assert page.evaluate("[window.__ran || 0, window.__refused]") == [0, []]
        assert accessibility_problems(page) == []
        assert page_width(page) <= SIZES[size]["width"]
        context.close()
    assert set(requested) == {file.as_uri()}
    assert wrong == []
