"""The pages show the contents of the store, to its owner alone, as plain text."""

from __future__ import annotations

import base64
import json
import re
import tomllib
from collections import Counter
from hashlib import sha256
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

import refold
from refold import auditor
from refold.adapters.cli import main
from refold.adapters.server import run_pages
from refold.adapters.server.access_tokens import Verifier
from refold.adapters.server.app import COOKIE, POLICY, Gate, Limits, application
from refold.adapters.server.refusals import PROBLEM
from refold.domain.envelope import Draft, Envelope
from refold.domain.errors import CorruptEvent
from refold.domain.events import EVENT_CLASSES, CompactionNote
from refold.domain.ids import StreamId
from refold.store import Session, SessionStore, checkpoints
from refold.store.appends import Order
from refold.store.proofs.explanations import BECAUSE, LEFT_OUT
from tests.server.conftest import ClientFor
from tests.server.hostile import MARKDOWN, PAYLOADS, append_events_with
from tests.support.talking import TURNS_SPEC, session_with_turns

SECRET = "sk-ant-api03-" + "Zx9Qk2" * 12
# The hostile texts in each session whose strategies are compared.
PAYLOADS_TO_COMPARE = 16
# Attributes of our pages that may load a file.
LOADS = {"script": "src", "link": "href", "img": "src"}


class ParsedPage(HTMLParser):
    """A page as a browser parses it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.attributes: set[tuple[str, str]] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.text = ""
        self._raw = ""
        self.inline: list[tuple[str, str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        values = {name: value or "" for name, value in attrs}
        self.attributes |= {(tag, name) for name in values}
        if "id" in values:
            self.ids.append(values["id"])
        self.links += [values[name] for name in ("href", "action") if name in values]
        if LOADS.get(tag) in values:
            self.loads.append(values[LOADS[tag]])
        if tag in ("script", "style"):
            self._raw = (
                f"{tag} {values.get('type', '')} {values.get('src', '')}".strip()
            )

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._raw = ""

    def handle_data(self, data: str) -> None:
        if self._raw:
            self.inline.append((self._raw, data))
        else:
            self.text += data


def page_text(client: TestClient, path: str, status: int = 200) -> str:
    """Request a page, check its status and its policy, and return its text."""
    answered = client.get(path, headers={"Accept-Language": "en"})
    assert answered.status_code == status, (path, answered.text[:500])
    assert answered.headers["content-security-policy"] == POLICY
    return answered.text


def page_paths(session: Session) -> list[str]:
    """Return the path of every page; pages about a session are about this one."""
    of = f"/run/{quote(session.session_id, safe='')}"
    return [
        "/",
        "/?q=file",
        "/memory?every=1",
        "/reviews?every=1",
        "/settings",
        "/erase?dry=1",
        of,
        f"{of}?q=file",
        f"{of}?redacted=1",
        f"{of}?type=tool_call",
        f"{of}?agent=worker",
        f"{of}?seq=5",
        f"{of}?live=1",
        f"{of}/event?seq=2",
        f"{of}/context",
        f"{of}/context?at=3&strategy=keep_all",
        f"{of}/files",
        f"{of}/compare",
        f"{of}/compare?a=keep_all&b=last_turns",
        f"{of}/verify",
        f"{of}/verify?whole=1",
    ]


def test_a_run_is_shown_as_turns_with_each_call_next_to_its_result(
    ada: TestClient, store: SessionStore
) -> None:
    session_with_turns(store)

    read = page_text(ada, "/run/run")

    turns = read.split('<details class="turn')[1:]
    assert (
        len(turns) == 5
    )  # the prompt, which comes before the first input, and four turns
    turn = turns[2]
    assert "Question 1: what is in file 1?" in turn
    assert "2 calls side by side" in turn
    listed = turn[turn.index('<ol class="events">') :]
    call = listed.index(">read<")
    result = listed.index("content of file 1")
    assert call < result < listed.index(">list<")
    assert "1 failed" in turn
    assert "in 1,000" in unescape(turn) or "1,000 in" in turn
    assert "$0.00" in turn
    assert "EMAIL" in turn


def test_an_edit_is_shown_as_a_diff_and_a_command_with_its_exit_code(
    ada: TestClient, store: SessionStore
) -> None:
    session = store.session(user_id="ada", session_id="edits")
    arguments = {"file_path": "a.py", "old_string": "x = 1\n", "new_string": "x = 2\n"}
    tasks = [{"content": "Fix it", "status": "in_progress"}]
    session.append(
        [
            refold.UserInput(text="Fix it."),
            refold.ToolCall(call_id="e", tool_name="Edit", arguments=arguments),
            refold.ToolResult(call_id="e", content="done"),
            refold.ToolCall(
                call_id="c", tool_name="Bash", arguments={"command": "make test"}
            ),
            refold.ToolResult(call_id="c", content="Exit code 2\nno", status="error"),
            refold.ToolCall(
                call_id="t", tool_name="TodoWrite", arguments={"todos": tasks}
            ),
            refold.ToolResult(call_id="t", content="ok"),
        ]
    )

    for path in ("/run/edits", "/run/edits/event?seq=2"):
        html = page_text(ada, path)
        assert html.index("<del>-x = 1\n</del>") < html.index("<ins>+x = 2\n</ins>")
    read = page_text(ada, "/run/edits")
    chinese = page_text(ada, "/run/edits?lang=zh")

    assert "exit 2" in read
    assert '<li class="in_progress">' in read
    assert ">Tool call</span>" in read
    assert ">工具调用</span>" in chinese


def test_a_placeholder_is_marked(ada: TestClient, store: SessionStore) -> None:
    session_with_turns(store, turns=1)

    read = page_text(ada, "/run/run")

    assert '<mark class="chip">[REDACTED:EMAIL]</mark>' in read
    assert "@b.example" not in read


def test_a_summary_is_shown_where_it_was_decided(
    ada: TestClient, store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_with_turns(store, turns=12)
    derived = session.history.derived(session.history.streams()[1])
    decided = {
        entry.seq: int(getattr(entry.payload, "decided_at_seq", 0)) for entry in derived
    }

    for whole in (256, 12):  # a short derived stream and a long one
        monkeypatch.setattr(run_pages, "_WHOLE", whole)
        shown = Counter[str]()
        for first in range(0, session.head().seq, 20):
            run_page = run_pages.read_page(session, after=first, limit=20)
            here = {
                event.envelope.seq: event.envelope
                for turn in run_page.turns
                for event in turn.all_events
                if event.envelope.stream != "main"
            }
            for seq in here:
                assert run_page.first <= decided[seq] <= run_page.last
                shown[f"{whole} {seq}"] += 1
        assert {name for name in shown if name.startswith(f"{whole} ")} == {
            f"{whole} {seq}" for seq in decided
        }


@pytest.mark.parametrize("whole", [256, 12, 2])
def test_a_page_leaves_out_entries_that_a_rebuild_replaced(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    session = session_with_turns(store, turns=12)
    name = session.history.streams()[1]
    replaced = session.history.derived(name)
    note = Draft(CompactionNote(phase="rebuilt", decided_at_seq=session.head().seq))
    stream = session.stream._replace(stream=name)
    session.writer.append(Order(stream, (note,), expected_seq=replaced[-1].seq))
    monkeypatch.setattr(run_pages, "_WHOLE", whole)

    shown: list[str] = []
    for first in range(0, session.head().seq, 20):
        page_of_run = run_pages.read_page(session, after=first, limit=20)
        for turn in page_of_run.turns:
            shown += [
                event.envelope.type
                for event in turn.all_events
                if event.envelope.stream != "main"
            ]

    assert shown == ["compaction"]


def test_a_page_ends_where_no_call_is_open(store: SessionStore) -> None:
    session = session_with_turns(store, turns=10)
    seen: list[int] = []

    after = 0
    more = True
    while more:
        run_page = run_pages.read_page(session, after=after, limit=5)
        after = run_page.last
        more = run_page.more
        calls = [
            event
            for turn in run_page.turns
            for event in turn.all_events
            if event.envelope.type == "tool_call"
        ]
        assert all(call.result for call in calls)
        seen += sorted(seq for turn in run_page.turns for seq in turn.seqs)

    assert seen == [*range(1, session.head().seq + 1)]


def test_pages_go_back_the_way_they_came(ada: TestClient, store: SessionStore) -> None:
    session = session_with_turns(store, turns=20)
    first = ParsedPage(page_text(ada, "/run/run"))
    following = next(link for link in first.links if "after=" in link)

    second = ParsedPage(page_text(ada, f"/run/run{following}"))
    back = next(link for link in second.links if "before=" in link)
    again = ParsedPage(page_text(ada, f"/run/run{back}"))

    shown = [anchor for anchor in first.ids if anchor.startswith("e")]
    assert len(shown) >= run_pages.LIMIT
    assert set(shown) == {anchor for anchor in again.ids if anchor.startswith("e")}
    last = {anchor for anchor in second.ids if anchor.startswith("e")}
    assert f"e{session.head().seq}" in last
    assert not last & set(shown)


def test_a_page_of_a_long_run_reads_only_what_it_shows(
    ada: TestClient, store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_with_turns(store, turns=3)
    for n in range(20):
        session.append([refold.UserInput(text=f"{n}.{m}") for m in range(200)])
    read = store.log.read
    rows_read: Counter[str] = Counter()

    def counted_read(stream: StreamId, **options: Any) -> list[Envelope]:
        rows = read(stream, **options)
        rows_read[stream.stream] += len(rows)
        return rows

    monkeypatch.setattr(
        type(store.log), "read", lambda _, *a, **k: counted_read(*a, **k)
    )
    for path in ("/run/run", "/run/run?seq=2000", "/run/run?before=3000"):
        rows_read.clear()
        page_text(ada, path)

        assert run_pages.LIMIT <= rows_read["main"] <= 2 * run_pages.LIMIT, path


def test_sessions_are_filtered_by_agent_and_model(
    ada: TestClient, store: SessionStore
) -> None:
    for name, agent, model in (("a", "coder", "m-1"), ("b", "tester", "m-2")):
        session = store.session(user_id="ada", session_id=name)
        answer = refold.AgentResponse(text="Done.")
        session.append(answer, agent=agent, meta={"model": model})

    def shown(query: str) -> list[str]:
        read = page_text(ada, f"/?{query}")
        return re.findall(r'class="about"><a href="/run/(\w)', read)

    assert sorted(shown("")) == ["a", "b"]
    assert shown("agent=coder") == ["a"]
    assert shown("model=m-2") == ["b"]
    assert shown("agent=coder&model=m-2") == []


def test_a_filter_shows_only_matching_events(
    ada: TestClient, store: SessionStore
) -> None:
    session = session_with_turns(store)
    session.append(refold.AgentError(code="down", message="nobody answered"))

    def types_shown(query: str) -> set[str]:
        read = page_text(ada, f"/run/run?{query}")
        types_shown = re.findall(r'<(?:li|div) class="event (\w+)', read)
        if 'class="result' in read:
            types_shown.append("tool_result")
        return set(types_shown)

    assert types_shown("type=error") == {"error"}
    assert types_shown("type=error&type=planner") == {"error"}
    assert types_shown("type=tool_call") == {"tool_call", "tool_result"}
    assert types_shown("agent=worker") == {"agent_response", "tool_call", "tool_result"}
    assert types_shown("redacted=1") == {"agent_response"}
    assert types_shown("agent=nobody") == set()


def test_a_link_to_an_event_opens_its_turn(
    ada: TestClient, store: SessionStore
) -> None:
    session = session_with_turns(store, turns=30)
    seq = session.head().seq - 10

    read = page_text(ada, f"/run/run?seq={seq}")

    turn = read.rindex("<details", 0, read.index(f'id="e{seq}"'))
    opened = read.rindex('<details class="turn', 0, read.index(f'id="e{seq}"'))
    assert re.match(r'<details class="turn[^>]* open>', read[opened:])
    assert turn >= opened


def test_the_context_is_shown_as_it_was_sent_and_why(
    ada: TestClient, store: SessionStore
) -> None:
    session = session_with_turns(store, turns=6)
    sent = [event for event in session.events() if event.type == "request"][-1]
    view = session.context(at=sent.seq)

    read = page_text(ada, f"/run/run/context?at={sent.seq}")

    text = ParsedPage(read).text
    assert f"{view.tokens:,} tok" in text
    assert view.digest[:12] in text
    assert f"sent as request seq {sent.seq}" in " ".join(text.split())
    assert "recorded when it was sent" in text
    unrecorded = ParsedPage(
        page_text(ada, f"/run/run/context?at={session.head().seq}")
    ).text
    assert "assumed: no request is recorded here" in unrecorded
    in_chinese = ParsedPage(
        page_text(ada, f"/run/run/context?at={sent.seq}&lang=zh")
    ).text
    assert "发送时已记录" in in_chinese
    assert "proved" in text
    assert BECAUSE["summary"] in text
    assert LEFT_OUT["compacted"] in text
    assert LEFT_OUT["type"] in text
    assert "The 7 events it was made from" in text
    assert "Answer briefly." in text
    newest = view.messages[-1]["content"][-1]["text"]
    assert newest in text


def test_htmx_gets_the_panel_and_a_history_request_the_page(
    ada: TestClient, store: SessionStore
) -> None:
    session_with_turns(store)
    of = "/run/run/context?at=9"
    asks = {"HX-Request": "true"}

    panel = ada.get(of, headers=asks)
    whole = ada.get(of, headers=asks | {"HX-History-Restore-Request": "true"})

    assert "<html" not in panel.text
    assert 'class="two"' in panel.text
    assert "<html" in whole.text
    assert panel.headers["vary"] == "HX-Request"


def test_a_long_session_shows_one_context_that_starts_from_a_checkpoint(
    ada: TestClient, store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_with_turns(store, turns=20)
    monkeypatch.setattr(checkpoints, "SPACING", 8)
    monkeypatch.setattr("refold.store.contexts.SPACING", 8)
    monkeypatch.setattr(run_pages, "MANY", 10)
    monkeypatch.setattr(run_pages, "MOST_READ", 40)
    strategy = session.history.streams()[1]
    named = run_pages.chosen(session, strategy)
    end = session.head().seq
    of = f"/run/run/context?at={end - 1}&strategy={strategy}"
    asked = ParsedPage(page_text(ada, of)).text
    view = session.context(named, at=end - 1)

    read = page_text(ada, of)
    explained = page_text(ada, f"{of}&sure=1")

    assert "takes a while" in asked
    assert view.digest[:12] not in asked
    assert view.digest[:12] in read
    assert "without the causes of its parts" in read
    assert "content of file 19" in ParsedPage(read).text
    assert BECAUSE["summary"] not in read
    assert BECAUSE["summary"] in explained


def test_a_strategy_is_named_by_spec_or_fingerprint_and_never_by_file(
    ada: TestClient, store: SessionStore, tmp_path: Path
) -> None:
    session = session_with_turns(store, turns=6)
    (tmp_path / "own.toml").write_text('name = "keep_all"')

    raw = page_text(ada, "/run/run/context?strategy=keep_all")
    compacted = page_text(
        ada, f"/run/run/context?strategy={session.history.streams()[1]}"
    )
    page_text(ada, f"/run/run/context?strategy=@{tmp_path}/own.toml", 422)
    page_text(ada, f"/run/run/compare?a=keep_all&b=@{tmp_path}/own.toml", 422)

    assert "<b>keep_all</b>" in raw
    assert "<b>turn_window</b>" in compacted


def test_a_comparison_plots_tokens_and_dollars_of_both_strategies(
    ada: TestClient, store: SessionStore
) -> None:
    session = session_with_turns(store, turns=8)
    first, second = session.proofs.compare(["keep_all", TURNS_SPEC]).outcomes

    read = page_text(ada, f"/run/run/compare?a=keep_all&b={quote(TURNS_SPEC)}")

    (plot,) = [text for kind, text in ParsedPage(read).inline if "json" in kind]
    keep_all, compared = json.loads(plot)
    assert keep_all["tokens"] == [sent.tokens for sent in first.sent]
    assert compared["tokens"] == [sent.tokens for sent in second.sent]
    assert keep_all["dollars"][-1] == pytest.approx(first.cost, abs=1e-5)
    assert f"{second.tokens_total:,}" in read


def test_a_proof_is_downloaded_and_verifies(
    ada: TestClient, store: SessionStore
) -> None:
    session_with_turns(store)
    page_text(ada, "/run/run/proof?seq=3", 404)  # no seal yet
    store.seal()

    read = page_text(ada, "/run/run/verify?whole=1")
    proof = ada.get("/run/run/proof?seq=3")

    assert "Everything is as it was written" in read
    assert "BEGIN PUBLIC KEY" in read
    assert "attachment" in proof.headers["content-disposition"]
    heads = [head.to_json() for head in store.seals.heads()]
    assert auditor.check(proof.json(), store.seals.public_key(), heads)


def test_the_page_reports_damage(
    ada: TestClient, store: SessionStore, tmp_path: Path
) -> None:
    import sqlite3

    session_with_turns(store)
    with sqlite3.connect(tmp_path / "refold.db") as raw:
        names = raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for (name,) in names.fetchall():
            raw.execute(f"DROP TRIGGER {name}")
        like = "type = 'table' AND name LIKE '%event%'"
        tables = raw.execute(f"SELECT name FROM sqlite_master WHERE {like}")
        (table,) = tables.fetchone()
        raw.execute(f"DELETE FROM {table} WHERE seq = 4")

    read = page_text(ada, "/run/run/verify")

    assert "problem" in read
    assert 'class="verdict bad"' in read


def test_changing_consent_needs_the_scope_append(
    ada: TestClient, client_for: ClientFor, store: SessionStore
) -> None:
    session_with_turns(store)
    reader = client_for("ada", "read")

    granted = {"act": "grant", "scope": "training", "reason": "asked"}
    assert ada.post("/memory", data={"act": "opt_out"}).status_code == 303
    assert ada.post("/memory", data=granted).status_code == 303
    assert ada.post("/memory", data={"act": "dance"}).status_code == 422
    assert reader.post("/memory", data={"act": "opt_in"}).status_code == 403

    status = store.user("ada").status()
    assert status.memory_opt_out
    assert status.allows("training")
    assert page_text(reader, "/memory").count('method="post"') == 1  # to log out
    assert "opted out" in page_text(reader, "/memory")


def test_memory_names_its_evidence(ada: TestClient, store: SessionStore) -> None:
    for n in range(4):
        session_with_turns(store, f"s-{n}", turns=1).append(
            refold.Final(outcome="success")
        )
    learned = store.memory.of("ada").items[0]

    read = page_text(ada, "/memory?every=1")

    place = learned.evidence[0]
    assert f'href="/run/{place.session_id}?seq={place.seqs[0]}#e' in read
    forgotten = {"act": "forget", "item": learned.memory_id}
    assert ada.post("/memory", data=forgotten).status_code == 303
    assert learned.memory_id not in page_text(ada, "/memory?every=1")


def test_a_question_is_decided_once_and_needs_the_scope_review(
    ada: TestClient, client_for: ClientFor, store: SessionStore
) -> None:
    session = session_with_turns(store)
    seq = session.append(
        refold.HumanReview(trigger="refund", severity="high", question="Pay 120 EUR?")
    ).last_seq
    answer = {"session": "run", "seq": seq, "decision": "reject", "note": "too much"}

    reader = client_for("ada", "read")
    assert "Pay 120 EUR?" in page_text(reader, "/reviews")
    assert page_text(reader, "/reviews").count('method="post"') == 1  # to log out
    assert reader.post("/reviews", data=answer).status_code == 403
    assert ada.post("/reviews", data=answer | {"decision": "maybe"}).status_code == 422
    assert ada.post("/reviews", data=answer).status_code == 303
    again = ada.post("/reviews", data=answer)

    assert again.status_code == 409
    assert f"decided at seq {seq + 1}" in again.text
    (decided,) = store.reviews.list("ada", open_only=False)
    assert decided.decided
    assert (decided.decided.decision, decided.decided.by) == ("reject", "ada")
    assert "too much" in page_text(ada, "/reviews?every=1")


def test_erasing_shows_a_preview_and_needs_the_typed_name(
    ada: TestClient, client_for: ClientFor, store: SessionStore
) -> None:
    session_with_turns(store)
    session_with_turns(store, "other")
    rest = {"reason": "asked", "session": ""}

    page_text(client_for("ada", "read"), "/erase?dry=1", 403)
    assert "2 sessions would be erased" in page_text(ada, "/erase?dry=1")
    assert "1 session would be erased" in page_text(ada, "/erase?dry=1&session=other")
    for wrong in ({"confirm": "eve"}, {}, {"confirm": "ada", "reason": " "}):
        assert ada.post("/erase", data=rest | wrong).status_code == 422
    assert len(store.sessions("ada")) == 2
    partial = ada.post("/erase", data=rest | {"confirm": "ada", "session": "other"})
    assert [info.session_id for info in store.sessions("ada")] == ["run"]
    complete = ada.post("/erase", data=rest | {"confirm": "ada"})

    assert "certificate_id" in partial.text
    assert "Rows left: 0." in complete.text
    assert "Beyond Refold" in complete.text
    assert '"signature"' in unescape(complete.text)
    assert store.sessions("ada") == []
    page_text(ada, "/run/run", 410)


def test_the_page_of_an_erasure_names_exports_with_copies(
    ada: TestClient, store: SessionStore, tmp_path: Path
) -> None:
    session_with_turns(store)
    store.export_user("ada", tmp_path / "ada-export")

    plan = page_text(ada, "/erase?dry=1")
    done = ada.post("/erase", data={"reason": "asked", "confirm": "ada"}).text

    for text in (plan, done):
        assert f"(folder) at {tmp_path / 'ada-export'}: Refold cannot." in text


def test_the_page_does_not_offer_to_erase_a_user_on_hold(
    ada: TestClient, store: SessionStore
) -> None:
    session_with_turns(store)
    store.erasures.hold("ada", "case-7", "a court asked")

    read = page_text(ada, "/erase?dry=1")

    assert "case-7" in read
    assert 'name="confirm"' not in read
    refused = ada.post("/erase", data={"reason": "r", "confirm": "ada"})
    assert refused.status_code == 409


def test_a_foreign_form_changes_nothing(
    gate: Gate, client_for: ClientFor, store: SessionStore, verifier: Verifier
) -> None:
    session_with_turns(store)
    browser = client_for(None)
    browser.cookies.set(COOKIE, verifier.mint("ada", ("read", "append")))

    read = page_text(browser, "/memory")
    (token,) = set(re.findall(r'name="csrf" value="([0-9a-f]+)"', read))
    forged = browser.post("/memory", data={"act": "opt_out", "csrf": "0" * 64})
    plain = browser.post("/memory", data={"act": "opt_out"})
    own = browser.post("/memory", data={"act": "opt_out", "csrf": token})

    assert (forged.status_code, plain.status_code, own.status_code) == (403, 403, 303)
    assert token not in browser.get("/memory").headers.values()
    assert json.loads(re.findall(r"hx-headers='([^']*)'", read)[0]) == {
        "X-CSRF-Token": token
    }


def test_login_exchanges_a_token_for_a_cookie_and_logout_removes_it(
    client_for: ClientFor, store: SessionStore, verifier: Verifier
) -> None:
    session_with_turns(store)
    browser = client_for(None)
    redirect = browser.get("/run/run?seq=3")
    form = page_text(browser, redirect.headers["location"])

    wrong = browser.post("/login", data={"token": "no", "next": "/run/run"})
    token = verifier.mint("ada", ("read",))
    right = browser.post("/login", data={"token": token, "next": "/run/run"})

    assert form.count('method="post"') == 1
    assert 'name="next" value="/run/run?seq=3"' in form
    assert wrong.status_code == 401
    assert "not valid" in wrong.text
    assert right.headers["location"] == "/run/run"
    set_ = right.headers["set-cookie"].lower()
    assert "httponly" in set_
    assert "samesite=strict" in set_
    csrf = re.findall(r'name="csrf" value="(\w+)"', page_text(browser, "/run/run"))[0]
    browser.post("/logout", data={"csrf": csrf})
    assert browser.get("/run/run").status_code == 303


def test_only_an_admin_sees_another_users_pages_and_both_are_informed(
    client_for: ClientFor, store: SessionStore
) -> None:
    session = session_with_turns(store)
    eve = client_for("eve")
    root = client_for("root", "read", "erase", "admin")
    store.session(user_id="eve", session_id="own").append(refold.UserInput(text="x"))
    tries = 0

    for path in page_paths(session):
        for user in ("?user=ada", ""):
            if "?" in path and user:
                url = path.replace("?", f"{user}&", 1)
            else:
                url = path + user
            if not user and not path.startswith("/run/"):
                continue  # She has no sessions herself.
            tries += 1
            assert "Question" not in page_text(eve, url, 404), url
    own = {"act": "opt_out"}
    assert eve.post("/memory?user=ada", data=own).status_code == 404
    decided = {"session": "run", "seq": 1, "decision": "accept"}
    assert eve.post("/reviews?user=ada", data=decided).status_code == 404
    erased = {"reason": "r", "confirm": "ada"}
    assert eve.post("/erase?user=ada", data=erased).status_code == 404

    read = page_text(root, "/run/run?user=ada")
    assert "Question 1" in read
    assert "You are viewing" in read
    inside = [link for link in ParsedPage(read).links if link.startswith("/run/")]
    assert inside
    assert all("user=ada" in link for link in inside)
    assert tries > 25
    store.access_log.flush()
    events = Counter(record.event for record in store.access_log.records("eve"))
    assert events["foreign_user"] >= tries // 2
    assert "named_by_admin" in {
        record.event for record in store.access_log.records("ada")
    }


@pytest.mark.parametrize("name", ["a/b c", "ünï/码", "100%", "x?y#z&q=1", '"><b>'])
def test_a_session_of_any_name_has_its_pages(
    name: str, ada: TestClient, store: SessionStore
) -> None:
    session = session_with_turns(store, name, turns=2)
    (listed,) = [
        link
        for link in ParsedPage(page_text(ada, "/")).links
        if link.startswith("/run/")
    ]

    for path in page_paths(session):
        page_text(ada, path)
    read = ParsedPage(page_text(ada, listed))

    assert name in read.text
    for link in read.links:
        path = link.partition("#")[0]
        if path.partition("?")[0].endswith("/failure"):  # leads to another page
            path = ada.get(path).headers["location"].partition("#")[0]
        if path.startswith("/run/"):
            page_text(ada, path)


def test_recorded_text_adds_no_tags_or_attributes_to_a_page(
    ada: TestClient, store: SessionStore
) -> None:
    plain = session_with_turns(store, "plain", turns=2)
    append_events_with(plain, "plain words")
    plain.append(refold.UserInput(text=MARKDOWN))
    usual = [ParsedPage(page_text(ada, path)) for path in page_paths(plain)]
    known_attributes = set().union(*(usual_page.attributes for usual_page in usual))
    # The page of a long run loads its totals.
    for name in ("hx-get", "hx-select", "hx-swap", "hx-trigger"):
        known_attributes.add(("p", name))
    tags = set().union(*(usual_page.tags for usual_page in usual))
    hostile = store.session(user_id="ada", session_id="<img src=x onerror=ran()>")

    for payload in PAYLOADS:
        append_events_with(hostile, payload)
    read: list[ParsedPage] = []
    after = 0
    while after < hostile.head().seq:
        of = f"/run/{quote(hostile.session_id, safe='')}"
        read.append(ParsedPage(page_text(ada, f"{of}?after={after}")))
        after += run_pages.LIMIT
    for path in page_paths(hostile):
        # The time of a comparison grows with the square of the events.
        if "/compare?" not in path:
            read.append(ParsedPage(page_text(ada, path)))
    for start in range(0, len(PAYLOADS), PAYLOADS_TO_COMPARE):
        part = store.session(user_id="ada", session_id=f"{hostile.session_id}{start}")
        for payload in PAYLOADS[start : start + PAYLOADS_TO_COMPARE]:
            append_events_with(part, payload)
        compared = [path for path in page_paths(part) if "/compare?" in path]
        read += [ParsedPage(page_text(ada, path)) for path in compared]

    assert len(PAYLOADS) >= 200
    assert sum("ran()" in page_read.text for page_read in read) > 20
    for page_read in read:
        assert set(page_read.tags) <= tags
        assert page_read.attributes <= known_attributes
        assert not [x for x in page_read.links if not re.match(r"[/?#]", x)]
        assert [x for x in page_read.loads if not x.startswith("/static/")] == []
        assert not re.search(
            "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page_read.text
        )


def test_no_page_has_an_inline_script_or_style(
    ada: TestClient, store: SessionStore
) -> None:
    session = session_with_turns(store)
    session.append(refold.HumanReview(trigger="t", question="q?"))

    for path in page_paths(session):
        read = ParsedPage(page_text(ada, path))
        assert [kind for kind, _ in read.inline if "json" not in kind] == []
        assert not [name for _, name in read.attributes if name.startswith("on")]
        assert not [name for _, name in read.attributes if name == "style"]
        assert [
            element_id for element_id, times in Counter(read.ids).items() if times > 1
        ] == []


def test_no_page_contains_a_planted_secret(
    ada: TestClient, store: SessionStore
) -> None:
    session = session_with_turns(store, turns=2)
    append_events_with(session, f"the key is {SECRET}, card 4111 1111 1111 1111")
    session.append(refold.HumanReview(trigger="t", question=f"is {SECRET} right?"))

    pages = [page_text(ada, path) for path in page_paths(session)]
    pages.append(run_pages.html_file(session))

    assert not [html for html in pages if SECRET in html or "4111 1111" in html]


def test_a_refusal_does_not_repeat_the_request(ada: TestClient) -> None:
    for path in (f"/run/x?after={SECRET}", f"/run/x?seq={SECRET}", f"/run/{SECRET}"):
        status = 404 if path.endswith(SECRET) and "?" not in path else 422
        assert SECRET not in page_text(ada, path, status)


def test_errors_are_pages(ada: TestClient, store: SessionStore) -> None:
    session_with_turns(store).end()

    for path, status in (
        ("/run/none", 404),
        ("/run/run/event?seq=999", 404),
        ("/run/run?before=-1", 422),
        ("/run/run/context?strategy=none_such", 422),
        ("/run/run/compare?a=keep_all&b=last_turns&model=none-such", 422),
        ("/?q=...", 422),
    ):
        read = page_text(ada, path, status)
        assert "<html" in read, path
    assert 'class="state closed"' in page_text(ada, "/")


def test_sessions_are_listed_by_label_and_by_page(
    ada: TestClient, store: SessionStore
) -> None:
    for n in range(60):
        session = store.session(user_id="ada", session_id=f"s-{n:02}")
        session.append(refold.UserInput(text=f"number {n}"))
        if n % 10 == 0:
            session.label(project="tens")

    first = page_text(ada, "/")
    after = next(link for link in ParsedPage(first).links if "after=" in link)
    second = page_text(ada, f"/{after}")
    tens = page_text(ada, "/?label=project=tens")
    results = page_text(ada, "/?q=number+7")

    # The newest event comes first.
    assert ">s-59<" in first
    assert ">s-09<" not in first
    assert ">s-09<" in second
    assert ">s-10<" not in second
    assert re.findall(r">(s-\d\d)<", tens) == [f"s-{n}0" for n in range(5, -1, -1)]
    assert 'href="/run/s-07?seq=1#e1"' in results


def test_a_list_shows_the_end_of_a_long_folder_and_the_whole_one_as_its_title(
    ada: TestClient, store: SessionStore
) -> None:
    folder = "/home/ada/a-rather-long-folder/work/cli"
    session = store.session(user_id="ada", session_id="s")
    session.append(refold.UserInput(text="hello"))
    session.label(project=folder)

    listed = page_text(ada, "/")

    assert ">…/work/cli<" in listed
    assert f'title="{folder}"' in listed


def test_an_empty_list_without_a_filter_names_the_user(ada: TestClient) -> None:
    assert "User ada has no sessions." in page_text(ada, "/")
    assert "No session matches." in page_text(ada, "/?failed=1")


def test_parts_of_a_found_event_are_separate_words(
    ada: TestClient, store: SessionStore
) -> None:
    session = store.session(user_id="ada", session_id="s")
    session.append(refold.UserInput(text="brew tea"))
    session.label(title="Tea")

    found = page_text(ada, "/?q=brew")

    assert re.search(r"Tea</span>\s+<span", found)


def test_a_page_of_hits_leads_to_the_other_hits_of_a_session(
    ada: TestClient, store: SessionStore
) -> None:
    for name, count in (("short", 16), ("long", 45)):
        session = store.session(user_id="ada", session_id=name)
        session.append([refold.UserInput(text="brew tea")] * count)

    found = page_text(ada, "/?q=brew&most=10")
    in_run = page_text(ada, "/run/long?q=brew")
    further = page_text(ada, "/run/long?q=brew&most=40")

    places = re.findall(r'<span class="where">(\w+)</span>', found)
    assert places == ["long"] * 5 + ["short"] * 5
    link = re.search(r'<a href="(/run/long\?q=brew)">40 more in this session', found)
    assert link is not None
    assert "11 more in this session" in found
    assert in_run.count('class="where"') == 20
    assert 'href="?q=brew&amp;most=40"' in in_run
    assert "more in this session" not in in_run
    assert further.count('class="where"') == 40


def test_a_page_is_in_the_requested_language(
    ada: TestClient, store: SessionStore
) -> None:
    session_with_turns(store)

    english = ada.get("/run/run", headers={"Accept-Language": "fr, en;q=0.5"}).text
    chinese = ada.get("/run/run", headers={"Accept-Language": "zh-CN,zh;q=0.9"}).text
    chosen = ada.get("/run/run?lang=zh")
    remembered = ada.get("/", headers={"Accept-Language": "en"})

    assert '<html lang="en">' in english
    assert "时间线" in chinese
    assert '<html lang="zh-Hans">' in chinese
    assert "时间线" in chosen.text
    assert "httponly" in chosen.headers["set-cookie"].lower()
    assert "会话" in remembered.text


def _keys(lang: str) -> dict[str, str]:
    file = run_pages.FOLDER / "texts" / f"{lang}.toml"
    tables = tomllib.loads(file.read_text("utf-8"))
    return {f"{table}.{key}": s for table in tables for key, s in tables[table].items()}


def test_both_languages_have_the_same_texts_with_the_same_figures() -> None:
    english = _keys("en")
    chinese = _keys("zh")

    assert english.keys() == chinese.keys()
    figures = re.compile(r"\{\w+\}")
    for key, text in english.items():
        assert set(figures.findall(chinese[key])) == set(figures.findall(text)), key
    assert {
        k.split(".")[1]: v for k, v in english.items() if k.startswith("because.")
    } == BECAUSE
    assert {
        k.split(".")[1]: v for k, v in english.items() if k.startswith("left_out.")
    } == LEFT_OUT


def test_templates_use_every_text_and_no_others() -> None:
    folder = run_pages.FOLDER / "templates"
    texts = [path.read_text("utf-8") for path in folder.rglob("*.html")]
    there = {key.removesuffix("_one") for key in _keys("en")}

    named: set[str] = set()
    begun: set[str] = set()
    for text in texts:
        named |= set(re.findall(r"\bt\('([\w.-]+)'[,)]", text))
        begun |= set(re.findall(r"\bt\('([\w.-]+\.)'", text))
    assert named <= there
    unsaid = {key for key in there - named if not key.startswith(tuple(begun))}
    assert unsaid == set()
    assert {"proof.", "kind.", "because.", "left_out.", "status."} <= begun


def test_vendored_files_are_those_of_their_packages() -> None:
    for folder in (run_pages.FOLDER / "static", Path(__file__).parent / "vendored"):
        listing = (folder / "VENDORED.md").read_text("utf-8")
        digests = dict(re.findall(r"\| `([\w.]+)` \| `([0-9a-f]{64})` \|", listing))

        assert digests
        for name, digest in digests.items():
            assert sha256((folder / name).read_bytes()).hexdigest() == digest
            assert (folder / f"{name.partition('.')[0]}.LICENSE").exists()


def test_every_type_of_event_can_be_chosen(
    ada: TestClient, store: SessionStore
) -> None:
    session_with_turns(store, turns=1)

    kinds = set(re.findall(r'name="type" value="(\w+)"', page_text(ada, "/run/run")))

    derived = {"summary", "compaction"}
    of_users = {"consent", "forget"}
    assert kinds == EVENT_CLASSES.keys() - derived - of_users


def test_a_truncated_event_can_be_shown_in_full(
    ada: TestClient, store: SessionStore
) -> None:
    session = store.session(user_id="ada", session_id="long")
    lines = "\n".join(f"line {n}" for n in range(40_000))
    session.append(refold.UserInput(text=lines))

    short = page_text(ada, "/run/long")
    whole = page_text(ada, "/run/long/event?seq=1")

    assert "line 39999" not in short or "refold:" in short
    assert "line 20000" not in short
    assert len(short) < 60_000
    assert "line 20000" in whole


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("seq=abc", "Invalid filter: seq must be a whole number"),
        ("seq=-1", "Invalid filter: seq must be at least 0"),
        ("before=99999999999999999", "before must be at most 9007199254740992"),
        ("redacted=perhaps", "Invalid filter: redacted must be true or false"),
        ("seq=x&after=y", "after must be a whole number; seq must be a whole number"),
    ],
)
def test_a_wrong_filter_is_explained_in_words(
    ada: TestClient, store: SessionStore, query: str, words: str
) -> None:
    session_with_turns(store, turns=1)

    read = page_text(ada, f"/run/run?{query}", 422)

    assert words in unescape(ParsedPage(read).text)
    assert "openapi" not in read


@pytest.mark.parametrize(
    "query",
    ["seq=", "seq=+", "seq=%20&q=&type=&agent=&before=&after=&redacted=&live=", "&&"],
)
def test_an_empty_field_counts_as_absent(
    ada: TestClient, store: SessionStore, query: str
) -> None:
    session_with_turns(store, turns=1)

    assert page_text(ada, f"/run/run?{query}") == page_text(ada, "/run/run")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/no/such/page", 404),
        ("GET", "/logout", 405),
        ("DELETE", "/memory", 405),
        ("GET", "/run/none", 404),
        ("POST", "/memory", 422),
        ("GET", "/memory?user=bob", 404),
    ],
)
def test_an_error_of_a_page_is_a_page(
    ada: TestClient, method: str, path: str, status: int
) -> None:
    answered = ada.request(method, path)

    assert answered.status_code == status
    assert answered.headers["content-type"].startswith("text/html")
    assert "<h1>" in answered.text
    assert "urn:refold" not in answered.text


def test_a_refusal_of_the_gate_is_a_page_for_people_and_json_for_programs(
    store: SessionStore, verifier: Verifier
) -> None:
    gate = application(store, verifier, Limits(per_second=0.001, burst=7))
    with TestClient(gate, follow_redirects=False) as browser:
        ended = browser.post("/memory", data={"act": "opt_out"})
        unsigned = browser.get("/v1/sessions")
        browser.cookies.set(COOKIE, verifier.mint("ada", ["append", "read"]))
        forged = browser.post("/memory", data={"act": "opt_out"})
        large = browser.post("/memory", data={"csrf": "x" * 300_000})
        for _ in range(7):
            browser.get("/login")
        often = browser.get("/memory")
        too_often = browser.get("/v1/sessions")

    pages = [ended, forged, large, often]
    assert [answer.status_code for answer in pages] == [401, 403, 413, 429]
    for answer in pages:
        assert answer.headers["content-type"].startswith("text/html")
        assert "<h1>" in answer.text
    assert often.headers["retry-after"] == "1"
    programs = [unsigned, too_often]
    assert [answer.status_code for answer in programs] == [401, 429]
    for answer in programs:
        assert answer.headers["content-type"] == PROBLEM


def test_the_page_of_a_failure_reveals_nothing_about_it(
    ada: TestClient, store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("sk-ant-secret")

    monkeypatch.setattr(store, "search_with_total", fail)

    read = page_text(ada, "/?q=word", 500)

    assert "Something went wrong on the server" in read
    assert "sk-ant-secret" not in read


def test_htmx_gets_only_the_words_of_a_refusal(
    ada: TestClient, store: SessionStore
) -> None:
    session_with_turns(store, turns=1)

    read = ada.get("/run/run/context?at=x", headers={"HX-Request": "true"})

    assert read.status_code == 422
    assert "at must be a whole number" in read.text
    assert "<html" not in read.text


# --- the exported page ----------------------------------------------------------------


def test_an_exported_page_loads_nothing_and_runs_only_its_own_script(
    store: SessionStore,
) -> None:
    session = session_with_turns(store, turns=5)
    append_events_with(session, PAYLOADS[1])

    html = run_pages.html_file(session)
    read = ParsedPage(html)

    assert read.loads == []
    assert not [link for link in read.links if not link.startswith("#")]
    policy = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    for kind, text in read.inline:
        digest = base64.b64encode(sha256(text.encode()).digest()).decode()
        assert f"{kind}-src &#39;sha256-{digest}&#39;" in policy[0] or (
            f"{kind}-src 'sha256-{digest}'" in unescape(policy[0])
        )
    requests = [event.seq for event in session.events() if event.type == "request"]
    assert [
        anchor for anchor in read.ids if anchor.startswith("c") and anchor[1:].isdigit()
    ] == [f"c{seq}" for seq in (*requests, session.head().seq)]
    ids = set(read.ids)
    assert {f"e{seq}" for seq in range(1, session.head().seq + 1)} <= ids
    assert [link for link in read.links if link[1:] and link[1:] not in ids] == []


def test_an_exported_page_of_a_long_run_lists_what_it_leaves_out(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_with_turns(store, turns=9)
    monkeypatch.setattr(run_pages, "_FILE_EVENTS", 40)
    monkeypatch.setattr(run_pages, "_MOMENTS", 2)

    text = " ".join(ParsedPage(run_pages.html_file(session)).text.split())

    assert re.search(r"This file shows the first \d+ of 73 events\.", text)
    assert "It shows the context at 2 of" in text


def test_view_writes_the_complete_file_or_none(
    tmp_path: Path, store: SessionStore, capsys: pytest.CaptureFixture[str]
) -> None:
    session_with_turns(store)
    url = f"sqlite:///{tmp_path / 'refold.db'}"
    out = tmp_path / "run.html"
    of = ["--db", url, "view", "--user", "ada", "--html", str(out)]

    assert main([*of, "--session", "none"]) == 1
    assert not out.exists()
    assert main([*of, "--session", "run", "--lang", "zh", "--json"]) == 0

    printed = json.loads(capsys.readouterr().out)
    assert printed["bytes"] == out.stat().st_size
    assert out.stat().st_mode & 0o077 == 0
    assert "时间线" in out.read_text("utf-8")
    assert [path.name for path in tmp_path.glob(".*.html*")] == []


def test_a_long_line_is_wrapped_and_cut() -> None:
    cut = run_pages.cut("x" * 100_000)

    assert len(cut.shown) == 1_200
    assert len(cut.rest) == 12_000
    assert cut.left == 100_000 - 1_200 - 12_000
    assert run_pages.cut("x" * 1_212).rest == ""
    assert run_pages.cut("x" * 100_000, whole=True).shown == "x" * 100_000


@pytest.mark.parametrize("place", [1_200, 13_200])
def test_a_text_is_never_cut_inside_a_placeholder(place: int) -> None:
    placeholder = "[REDACTED:EMAIL]"
    start = place - 5

    cut = run_pages.cut("x" * start + placeholder + "x" * 20_000)

    assert (cut.shown + cut.rest).count(f">{placeholder}</mark>") == 1


def test_a_filter_by_redaction_shows_the_result_of_a_call(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="run")
    session.append(
        [
            refold.UserInput(text="Hi"),
            refold.ToolCall(
                call_id="c", tool_name="mail", arguments={"to": "ada@example.com"}
            ),
            refold.ToolResult(call_id="c", content="sent"),
        ]
    )

    page = run_pages.read_page(session, wanted=run_pages.EventFilter(redacted=True))

    (turn,) = page.turns
    assert [event.envelope.type for event in turn.all_events] == [
        "tool_call",
        "tool_result",
    ]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("until=9999-12-31", 200),
        ("until=0001-01-01", 200),
        ("sort=title&after=5", 422),
        ("sort=last&after=row1.1~s", 422),
    ],
)
def test_odd_filters_of_the_list_are_no_bugs(
    store: SessionStore, ada: TestClient, query: str, status: int
) -> None:
    store.session(user_id="ada", session_id="s").append(refold.UserInput(text="hi"))

    assert ada.get(f"/?{query}").status_code == status


@pytest.mark.parametrize(("count", "rest"), [(10, "."), (12, ", ….")])
def test_the_page_of_sessions_shows_that_further_ones_cannot_be_read(
    ada: TestClient,
    store: SessionStore,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    rest: str,
) -> None:
    for number in range(count):
        session = store.session(user_id="ada", session_id=f"s{number:02}")
        session.append(refold.UserInput(text="tea"))

    def damaged(stream: StreamId, **_: object) -> None:
        raise CorruptEvent(stream.session_id, seq=1, reason="damaged")

    monkeypatch.setattr(store.log, "read", damaged)

    named = ", ".join(f"s{number:02}" for number in range(10))
    assert (
        f"{count} sessions cannot be read; their titles and totals may be out of date: "
        f"{named}{rest}"
    ) in page_text(ada, "/")
    listed = ada.get("/v1/sessions").json()
    assert listed["unreadable_total"] == len(listed["unreadable"]) == count
