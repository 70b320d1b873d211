"""The files of a run on pages and by HTTP: diffs in order, links, hostile texts."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect
from starlette.testclient import TestClient

import refold
from refold.adapters.server import file_pages
from refold.store import Session, SessionStore
from tests.server.conftest import ClientFor
from tests.server.hostile import PAYLOADS
from tests.server.test_browser import (
    SIZES,
    UNFOLD,
    OpenPage,
    accessibility_problems,
    browser,
    open_page,
    page_width,
    served,
)
from tests.server.test_pages import page_text

__all__ = ["browser", "open_page", "served"]  # fixtures

PATH = "/work/src/app.py"


def call(session: Session, tool: str, arguments: dict[str, Any], result: str) -> int:
    """Append a call with its result; return the seq of the call."""
    head = session.append(refold.UserInput(text="next")).last_seq
    call_id = f"c{head}"
    called = refold.ToolCall(call_id=call_id, tool_name=tool, arguments=arguments)
    seq = session.append(called).last_seq
    session.append(refold.ToolResult(call_id=call_id, content=result))
    return seq


def session_with_files(
    store: SessionStore,
    name: str = "run",
    path: str = PATH,
    old: str = "return n",
    new: str = "return n + 1",
) -> Session:
    """Create a session of ada that writes, edits, reads, and formats a file."""
    session = store.session(user_id="ada", session_id=name)
    session.append(refold.UserInput(text="Fix the total."))
    text = f"import os\n{old}\n"
    call(session, "Write", {"file_path": path, "content": text}, "written")
    edit = {"file_path": path, "old_string": old, "new_string": new}
    call(session, "Edit", edit, "edited")
    shown = enumerate(text.replace(old, new).split("\n"), start=1)
    lines = "\n".join(f"{number:>6}→{line}" for number, line in shown)
    call(session, "Read", {"file_path": path}, lines)
    call(session, "Bash", {"command": "make fmt"}, "done")
    return session


def file_path(session: Session, path: str = PATH) -> str:
    """Return the path of the page of a file."""
    name = quote(session.session_id, safe="")
    return f"/run/{name}/files?path={quote(path, safe='')}"


def test_the_files_of_a_run_are_listed(ada: TestClient, store: SessionStore) -> None:
    session_with_files(store)

    page = unescape(page_text(ada, "/run/run/files"))

    assert PATH in page
    assert "+3 −1" in page
    assert 'aria-current="page">Files<' in page


def test_the_page_of_a_file_shows_its_diffs_in_order(
    ada: TestClient, store: SessionStore
) -> None:
    session = session_with_files(store)

    page = page_text(ada, file_path(session))

    removed = page.index("<del>-return n</del>")
    added = page.index("<ins>+return n + 1</ins>")
    assert page.index("<ins>+import os</ins>") < removed < added
    assert "shows what the edits yield" in page
    assert "make fmt" in page
    assert 'href="/run/run?seq=5#e5"' in page  # the message that asked for the edit


def test_files_of_others_and_unknown_files_are_not_found(
    ada: TestClient, client_for: ClientFor, store: SessionStore
) -> None:
    session = session_with_files(store)
    bob = client_for("bob")

    for client, path in (
        (ada, "/run/run/files?path=other.py"),
        (bob, "/run/run/files"),
        (bob, file_path(session)),
    ):
        assert client.get(path).status_code == 404
    assert ada.get("/v1/sessions/run/files?path=other.py").status_code == 404
    assert bob.get("/v1/sessions/run/files").status_code == 404


def test_http_lists_files_and_shows_one(ada: TestClient, store: SessionStore) -> None:
    session_with_files(store)

    (listed,) = ada.get("/v1/sessions/run/files").json()["files"]
    file = ada.get("/v1/sessions/run/files", params={"path": PATH}).json()

    assert (listed["path"], listed["reads"], listed["edits"]) == (PATH, 1, 2)
    kinds = [entry["kind"] for entry in file["entries"]]
    assert kinds == ["write", "edit", "read", "unknown"]
    assert file["entries"][2]["agrees"] is True
    assert file["lines"][1]["text"] == "return n + 1"
    assert file["unknown_since"]["reason"] == "command"


def test_a_long_run_is_read_after_a_confirmation(
    ada: TestClient, store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_with_files(store)
    monkeypatch.setattr(file_pages, "MOST_READ", 3)

    asked = page_text(ada, "/run/run/files")
    shown = page_text(ada, "/run/run/files?sure=1")

    assert PATH not in asked
    assert "sure=1" in asked
    assert PATH in shown


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", ["wide", "narrow"])
def test_pages_of_files_are_accessible_at_each_size(
    scheme: str, size: str, open_page: OpenPage, store: SessionStore
) -> None:
    session = session_with_files(store, new="return n + 1  # " + "long " * 200)
    page = open_page("/run/run/files", size=size, color_scheme=scheme)

    for path in ("/run/run/files", "/run/run/files?q=none", file_path(session)):
        page.goto(path)
        page.evaluate(UNFOLD)

        assert accessibility_problems(page) == [], path
        assert page_width(page) <= SIZES[size]["width"], path


def test_the_form_finds_files_by_a_part_of_their_path(
    open_page: OpenPage, store: SessionStore
) -> None:
    session = session_with_files(store)
    call(session, "Write", {"file_path": "/work/b.txt", "content": "b\n"}, "written")
    page = open_page("/run/run/files")
    field = page.locator("input[name=q]")

    field.fill("src/")
    page.locator(".filter button").click()
    expect(page.locator("table.files tbody tr")).to_have_count(1)
    page.locator("input[name=q]").fill("")
    page.locator(".filter button").click()
    expect(page.locator("table.files tbody tr")).to_have_count(2)
    page.locator("input[name=q]").fill("nowhere")
    page.locator(".filter button").click()
    expect(page.locator(".empty")).to_be_visible()


@pytest.mark.load
def test_hostile_names_and_diffs_of_files_run_nothing(
    open_page: OpenPage, store: SessionStore
) -> None:
    session = store.session(user_id="ada", session_id="run")
    paths: list[str] = []
    for number, payload in enumerate(PAYLOADS):
        path = f"/work/{number}/{payload}"
        paths.append(path)
        write = {"file_path": path, "content": f"{payload}\n"}
        call(session, "Write", write, "written")
    edited = "/work/all.html"
    write = {"file_path": edited, "content": "\n".join(PAYLOADS)}
    call(session, "Write", write, "written")
    for payload in PAYLOADS[:40]:
        edit = {"file_path": edited, "old_string": payload, "new_string": payload * 2}
        call(session, "Edit", edit, "edited")
    command = {"command": f"rm all.html {PAYLOADS[1]}"}
    call(session, "Bash", command, "done")
    page = open_page("/run/run/files")
    rows = page.locator("table.files tbody tr").count()

    page.goto(file_path(session, edited))
    for link in page.locator("main a").all()[:3]:
        link.focus()
    for path in (f"/run/run/files?q={quote(PAYLOADS[3])}",):
        page.goto(path)

    assert rows > len(PAYLOADS) / 2


def test_diffs_of_a_file_show_the_numbers_of_its_lines(
    ada: TestClient, store: SessionStore
) -> None:
    session = session_with_files(store)

    page = page_text(ada, file_path(session))

    assert "@@" not in page
    assert re.search(r'<span class="place">⋯ [1-9]\d*</span>', page)


@pytest.mark.parametrize("day", ["9999-12-31", "0001-01-01"])
def test_sessions_until_any_day_are_listed(ada: TestClient, day: str) -> None:
    assert ada.get("/", params={"until": day}).status_code == 200
