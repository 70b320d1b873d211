"""Every form of every page is submitted with its fields empty and filled in."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import pytest
from playwright.sync_api import Browser, Locator, Page, Response, expect

import refold
from refold.adapters.server.access_tokens import Verifier
from refold.adapters.server.app import COOKIE
from refold.store import Session, SessionStore
from tests.server.test_browser import UNFOLD, browser, complete_page_paths, served
from tests.support.browsing import patient_context
from tests.support.talking import session_with_turns

__all__ = ["browser", "served"]  # fixtures

# The text that a person would write into the field of that name.
WORDS: Final = {
    "q": "file",
    "label": "project=page",
    "find": "fix",
    "project": "page",
    "since": "2026-01-01",
    "until": "2030-01-01",
    "agent": "worker",
    "seq": "5",
    "at": "3",
    "model": "claude-sonnet-5-5",
    "session": "run",
    "scope": "training",
    "full_turns": "6",
    "cached_turns": "2",
    "reason": "asked for it",
    "note": "above the limit",
    "tool": "read",
    "file": "a.py",
    "confirm": "bob",  # another user: nothing is erased
}
# Forms with required fields, and the sentence that the page then shows.
NEEDED: Final = {
    ("/login", "token"): "This token is not valid",
    ("/run/run/verify", "seq"): "seq is missing",
    ("/reviews", "decision"): "choose a decision",
    ("/memory", "scope"): "a consent's scope",
    ("/erase", "reason"): "give a reason",
    ("/erase", "confirm"): "type the user's name",
}
FORMS: Final = {
    "/ get agent failed find label model project since state until",
    "/ get q",
    "/logout post",
    "/erase get session",
    "/erase post confirm reason",
    "/login post token",
    "/memory post",
    "/memory post reason",
    "/memory post reason scope",
    "/reviews post decision note",
    "/run/run get agent failed file q redacted seq tool type",
    "/settings post cached_turns full_turns",
    "/run/run/compare get a b model",
    "/run/run/context get at strategy",
    "/run/run/verify get seq",
}
FULL: Final = ("append", "read", "review", "erase")  # scopes
SHOWN: Final = "input:not([type=hidden]), select"


class Form(NamedTuple):
    """A form of a page: the page's path, the method, and the field names."""

    page: str
    method: str
    names: tuple[str, ...]
    nth: int

    @property
    def title(self) -> str:
        """The form's entry in ``FORMS``."""
        place = "/logout" if self.is_logout else self.page.partition("?")[0]
        return " ".join((place, self.method, *self.names))

    @property
    def is_logout(self) -> bool:
        """Whether it is the logout form, which every page has."""
        return self.nth == 0 and not self.names


def store_with_every_form(store: SessionStore) -> Session:
    """Fill the store with sessions so that the pages show every form."""
    session = session_with_turns(store, turns=4)
    for number in range(4):
        other = session_with_turns(store, f"s-{number}", turns=1)
        other.append(refold.Final(outcome="success", text="Done."))
        other.label(project="page")
    questions = store.session(user_id="ada", session_id="questions")
    for number in range(12):
        questions.append(
            refold.HumanReview(trigger="refund", question=f"Pay {number} EUR?")
        )
    store.seal()
    return session


# For each form on a page: its method, and the names of the visible fields.
DESCRIBED: Final = """() => [...document.forms].map((form) => ({
    method: form.method,
    names: [...new Set([...form.elements]
        .filter((field) => field.name && field.type !== "hidden")
        .map((field) => field.name))].sort(),
}))"""


# For each field: its name, its kind, and what it has now.
STATES: Final = """(fields) => fields.map((field) => ({
    name: field.name,
    kind: field.type,
    value: field.value,
    checked: field.checked,
}))"""


def forms_of(page: Page, path: str) -> list[Form]:
    """Open the path and return its forms; forms that look the same count once."""
    page.goto(path)
    forms = {form.title: form for form in reversed(forms_of_open_page(page, path))}
    return list(forms.values())


def forms_of_open_page(page: Page, path: str) -> list[Form]:
    """Return the forms of the page that is open now."""
    return [
        Form(path, form["method"], tuple(form["names"]), nth)
        for nth, form in enumerate(page.evaluate(DESCRIBED))
        if form["method"] != "dialog"  # it closes the list of keys, and has no field
    ]


def located(page: Page, form: Form) -> Locator:
    """Find the form on the current page: a submission may have added others."""
    page.goto(form.page)
    page.evaluate(UNFOLD)
    present = {
        candidate.title: candidate
        for candidate in reversed(forms_of_open_page(page, form.page))
    }
    return page.locator("form").nth(present[form.title].nth)


def fillings(page: Page, form: Form, words: dict[str, str]) -> list[dict[str, str]]:
    """Return the fillings to try: none, each field alone, and all fields."""
    chosen: list[dict[str, str]] = [{}]
    together: dict[str, str] = {}
    place = located(page, form)
    for name in form.names:
        for value in values_of(place.locator(f"[name={name}]"), name, words):
            chosen.append({name: value})
            together[name] = value
    if len(form.names) > 1:
        chosen.append(together)
    return chosen


def values_of(fields: Locator, name: str, words: dict[str, str]) -> list[str]:
    """Return the values for fields of that name: each checkbox, or the last option."""
    kind = fields.first.evaluate("(field) => field.type")
    if kind in ("checkbox", "radio"):
        return [field.get_attribute("value") or "on" for field in fields.all()]
    if kind == "select-one":
        options = fields.locator("option").all()
        return [options[-1].evaluate("(option) => option.value")]
    return [words[name]]


def submit(page: Page, form: Form, filling: dict[str, str]) -> Response:
    """Fill in the form as a person does, press its button, and return the answer."""
    place = located(page, form)
    place.evaluate("(form) => { form.noValidate = true; }")
    shown = place.locator(SHOWN)
    # One answer of the browser for all fields; most need no change.
    for nth, state in enumerate(shown.evaluate_all(STATES)):
        fill(shown.nth(nth), state, filling.get(state["name"]))

    def is_page(answer: Response) -> bool:
        return answer.request.is_navigation_request() and answer.status != 303

    with page.expect_response(is_page) as answered:
        place.locator("button").first.click()
    return answered.value


def fill(field: Locator, state: dict[str, Any], value: str | None) -> None:
    """Put a value into a field in this state; None empties it."""
    kind = state["kind"]
    if kind in ("checkbox", "radio"):
        chosen = value is not None and state["value"] == value
        if state["checked"] != chosen:
            field.check(force=True) if chosen else field.uncheck(force=True)
    elif kind == "select-one":
        if value is not None:
            field.select_option(value)
    elif kind == "range" and value is None:
        return  # a slider always has a value
    elif state["value"] != (value or ""):
        field.fill(value or "")


def expected_refusals(form: Form, filling: dict[str, str]) -> list[str]:
    """Return the sentences for empty required fields; the page must show one."""
    place = form.page.partition("?")[0]
    return [
        sentence
        for (page, name), sentence in NEEDED.items()
        if page == place and name in form.names
        if name not in filling or name == "confirm"
    ]


@pytest.mark.load
def test_every_form_answers_with_a_page_whatever_is_left_empty(
    browser: Browser, served: str, store: SessionStore, verifier: Verifier
) -> None:
    session = store_with_every_form(store)
    words = {**WORDS, "token": verifier.mint("ada", FULL)}
    context = patient_context(browser, base_url=served, java_script_enabled=False)
    context.add_cookies([{"name": COOKIE, "value": words["token"], "url": served}])
    page = context.new_page()
    tried: set[str] = set()
    for path in ("/login", *complete_page_paths(session)):
        for form in forms_of(page, path):
            if form.title in tried or form.is_logout:
                continue
            tried.add(form.title)
            for filling in fillings(page, form, words):
                answer = submit(page, form, filling)
                check_answer(page, form, filling, answer)

    assert tried | {"/logout post"} == FORMS
    context.close()


def check_answer(
    page: Page, form: Form, filling: dict[str, str], answer: Response
) -> None:
    """Check that the answer shows the result, or explains in words what is wrong."""
    about = (form.title, filling, answer.status, answer.url)
    if "attachment" in answer.headers.get("content-disposition", ""):
        assert answer.status == 200, about
        return
    assert answer.headers["content-type"].startswith("text/html"), about
    expect(page.locator("h1")).to_have_count(1)
    sentences = expected_refusals(form, filling)
    if not sentences:
        assert answer.status == 200, about
        return
    assert answer.status in (401, 422), about
    words = page.locator("[role=alert]").inner_text()
    assert any(sentence in words for sentence in sentences), (about, words)


def test_the_run_page_is_searched_and_filtered_by_its_form(
    browser: Browser, served: str, store: SessionStore, verifier: Verifier
) -> None:
    session_with_turns(store, turns=2)
    context = patient_context(browser, base_url=served)
    token = verifier.mint("ada", ("read",))
    context.add_cookies([{"name": COOKIE, "value": token, "url": served}])
    page = context.new_page()
    show = page.get_by_role("button", name="Show", exact=True)

    page.goto("/run/run")
    page.get_by_placeholder("Search this run").fill("file 1")
    show.click()
    expect(page.locator(".found li").first).to_contain_text("file 1")

    page.goto("/run/run")
    page.locator(".kinds summary").click()
    page.get_by_label("Tool call").check()
    show.click()
    expect(page.locator("li.event.tool_call, .side .event.tool_call")).to_have_count(4)
    expect(page.locator(".event.user_input")).to_have_count(0)

    page.goto("/run/run")
    page.get_by_label("only failed").check()
    show.click()
    expect(page.locator(".event.tool_call")).to_have_count(2)
    expect(page.locator(".event.user_input")).to_have_count(0)

    page.goto("/run/run")
    page.get_by_label("tool", exact=True).fill("read")
    show.click()
    expect(page.locator(".event.tool_call")).to_have_count(2)
    expect(page.locator(".result.failed")).to_have_count(0)

    page.goto("/run/run")
    page.get_by_label("file", exact=True).fill("nowhere.py")
    show.click()
    expect(page.locator(".empty")).to_be_visible()

    page.goto("/run/run")
    page.get_by_label("only redacted").check()
    show.click()
    expect(page.locator(".event.agent_response")).to_have_count(2)
    expect(page.locator(".event.tool_call")).to_have_count(0)

    page.goto("/run/run")
    page.get_by_label("seq", exact=True).fill("9")
    show.click()
    expect(page.locator("#e9")).to_be_visible()
    context.close()


def test_the_page_of_sessions_is_searched_by_its_form(
    browser: Browser, served: str, store: SessionStore, verifier: Verifier
) -> None:
    session_with_turns(store, turns=60)
    hostile = "<img src=x onerror=alert(1)> quagga </mark><b>bold</b>"
    other = store.session(user_id="ada", session_id="other")
    other.append(refold.UserInput(text=hostile))
    context = patient_context(browser, base_url=served)
    token = verifier.mint("ada", ("read",))
    context.add_cookies([{"name": COOKIE, "value": token, "url": served}])
    page = context.new_page()
    show = page.get_by_role("button", name="Show", exact=True)
    search = page.get_by_role("button", name="Search", exact=True)
    words = page.get_by_placeholder("Search the events of all sessions")

    page.goto("/")
    show.click()  # empty
    expect(page.get_by_role("link", name="quagga")).to_be_visible()
    expect(page.locator(".found")).to_have_count(0)

    words.fill("quaggas bold")
    search.click()
    expect(page.locator(".found li")).to_have_count(1)
    expect(page.locator(".found mark.match")).to_have_text(["quagga", "bold"])
    expect(page.locator(".found .snippet")).to_have_text(hostile)
    expect(page.locator(".found img, .found b")).to_have_count(0)

    words.fill("file type:tool_result failed:no")
    search.click()
    expect(page.get_by_role("heading", name="60 events match")).to_be_visible()
    hits = page.locator(".found li:not(.more-of-run)")
    expect(hits).to_have_count(50)
    expect(page.locator(".found .more-of-run")).to_have_text("10 more in this session")
    page.get_by_role("link", name="Show more").click()
    expect(hits).to_have_count(60)
    expect(page.locator(".found .more-of-run")).to_have_count(0)
    expect(page.get_by_role("link", name="Show more")).to_have_count(0)

    words.fill("nothingmatches")
    search.click()
    expect(page.get_by_text("No event matches these words.")).to_be_visible()

    words.fill("type:nothing")
    search.click()
    expect(page.get_by_text("names no type of events")).to_be_visible()
    context.close()
