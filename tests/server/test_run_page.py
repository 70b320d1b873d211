"""The page of a run leads to what people look for: totals, failures, tools, files."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any

import pytest
from starlette.testclient import TestClient

import refold
from refold.adapters.display.values import duration, path_end
from refold.adapters.server import run_pages
from refold.domain.envelope import Envelope
from refold.domain.ids import StreamId
from refold.store import Session, SessionStore
from tests.server.conftest import ClientFor
from tests.server.test_pages import ParsedPage, page_text
from tests.support.talking import session_with_turns


def with_edits(store: SessionStore) -> Session:
    """Create a session of ada with edits of two files; one edit fails."""
    session = store.session(user_id="ada", session_id="edits")
    session.append(refold.UserInput(text="Fix the test."))
    for nth, (path, status) in enumerate(
        [("/src/a.py", "ok"), ("/src/b.py", "error"), ("/src/a.py", "ok")]
    ):
        arguments = {"file_path": path, "old_string": "x", "new_string": "y"}
        session.append(
            [
                refold.ToolCall(
                    call_id=f"c{nth}", tool_name="Edit", arguments=arguments
                ),
                refold.ToolResult(call_id=f"c{nth}", content="done", status=status),
            ]
        )
    call = refold.ToolCall(
        call_id="d", tool_name="Bash", arguments={"command": "pytest"}
    )
    session.append([call, refold.ToolResult(call_id="d", content="1 passed")])
    session.append(refold.AgentError(code="overloaded", message="try again"))
    return session


def totals_of(html: str) -> dict[str, str]:
    """Return the totals in the head of a page, by their names."""
    pairs = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", html)
    return {name: re.sub("<[^>]*>", "", value).strip() for name, value in pairs}


def seqs_shown(html: str) -> list[int]:
    """Return the seqs of the main stream that a page shows."""
    return sorted(int(seq) for seq in re.findall(r'id="e(\d+)"', html))


def test_the_head_has_the_totals_of_the_run(
    ada: TestClient, store: SessionStore
) -> None:
    with_edits(store)
    session_with_turns(store)

    read = page_text(ada, "/run/edits")
    totals = totals_of(read)
    priced = totals_of(page_text(ada, "/run/run"))

    assert "Fix the test." in read[: read.index('class="totals"')]
    counts = {name: totals[name] for name in ("Turns", "Calls", "Failures")}
    assert counts == {"Turns": "1", "Calls": "4", "Failures": "2"}
    assert totals["Files changed"] == "1"
    assert totals["State"] == "live"
    assert 'href="/run/edits/files"' in read
    assert 'href="/run/edits?failed=true"' in read
    assert re.fullmatch(r"\$0\.0\d+", priced["Cost"])
    assert priced["Tokens"] == "4,400"
    assert priced["Model"] == "claude-sonnet-5-5"


def test_a_rejected_edit_is_marked_and_is_no_failure(
    ada: TestClient, store: SessionStore
) -> None:
    session = store.session(user_id="ada", session_id="run")
    session.append(refold.UserInput(text="Fix it."))
    arguments = {"file_path": "/a.py", "old_string": "x", "new_string": "y"}
    call = refold.ToolCall(call_id="c", tool_name="Edit", arguments=arguments)
    words = "The user doesn't want to proceed with this tool use. STOP"
    result = refold.ToolResult(call_id="c", content=words, status="error")
    session.append([call, result])

    html = page_text(ada, "/run/run")

    assert totals_of(html)["Failures"] == "0"
    assert totals_of(html)["Files changed"] == "0"
    assert 'class="event tool_call rejected"' in html
    assert "rejected by the user" in html
    assert 'class="result failed"' not in html
    path = page_text(ada, "/run/run/files?path=/a.py")
    assert 'class="use rejected"' in path


def test_a_cost_without_all_output_tokens_is_marked_as_too_low(
    ada: TestClient, store: SessionStore
) -> None:
    session = store.session(user_id="ada", session_id="run")
    session.append(refold.UserInput(text="Explain."))
    session.append(
        refold.AgentResponse(
            text="word " * 20, usage={"input_tokens": 1_000_000, "output_tokens": 2}
        ),
        meta={"model": "claude-haiku-4-5"},
    )

    html = page_text(ada, "/run/run")
    totals = totals_of(html)
    (listed,) = ada.get("/v1/sessions").json()["sessions"]

    assert totals["Tokens"] == "≥ 1,000,002"
    assert totals["Cost"].startswith("≥ $1.00")
    assert '<span class="cost">≥ $1.00</span>' in html
    assert "≥ 2 out" in html
    assert "≥ </span>1.00</td>" in page_text(ada, "/")
    assert listed["undercounted"] == 1


def test_each_page_of_a_run_has_its_title(ada: TestClient, store: SessionStore) -> None:
    session = with_edits(store)
    session.label(title="Repair of the tests")

    for place in (
        "",
        "/context",
        "/compare",
        "/files",
        "/verify",
        "/files?path=/src/a.py",
    ):
        html = page_text(ada, f"/run/edits{place}")
        assert html.count('<p class="run-title">Repair of the tests</p>') == 1, place
    assert ">Repair of the tests</span>" in page_text(ada, "/?q=pytest")


def test_the_head_states_the_state_once(ada: TestClient, store: SessionStore) -> None:
    with_edits(store)

    html = page_text(ada, "/run/edits")

    facts = html[html.index('class="facts"') : html.index('class="totals"')]
    assert 'class="state' not in facts
    assert totals_of(html)["State"] == "live"


def test_the_line_of_a_turn_has_no_marks_of_markdown(
    ada: TestClient, store: SessionStore
) -> None:
    session = store.session(user_id="ada", session_id="run")
    session.append(refold.UserInput(text="## Task\n\nRaise **total** with 2**3**2."))
    session.append(refold.AgentResponse(text="**Done.** It is `__init__`."))

    html = page_text(ada, "/run/run")

    assert "<b>Task Raise total with 2**3**2.</b>" in html
    assert '<span class="answer">Done. It is `__init__`.</span>' in html


def test_only_words_of_a_person_are_the_title_of_a_turn(
    ada: TestClient, store: SessionStore
) -> None:
    session = store.session(user_id="ada", session_id="asks")
    session.append(
        refold.UserInput(text="<system-reminder>Be brief.</system-reminder>")
    )
    reminder = "<system-reminder>Mind the file.</system-reminder>\n"
    session.append(refold.UserInput(text=f"{reminder}Make tea."))
    session.append(refold.UserInput(text="[Request interrupted by user]"))

    html = unescape(page_text(ada, "/run/asks"))

    assert re.findall(r"<b>(.*?)</b>", html) == ["Make tea."]
    assert "<i>from the client: <system-reminder>Be brief." in html
    assert "<i>from the client: [Request interrupted by user]</i>" in html


def test_an_ended_run_is_marked_as_ended(ada: TestClient, store: SessionStore) -> None:
    with_edits(store).end()

    assert totals_of(page_text(ada, "/run/edits"))["State"] == "ended"


def test_the_totals_of_a_long_run_are_counted_when_asked(
    ada: TestClient, store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_edits(store)
    monkeypatch.setattr(run_pages, "_MOST_COUNTED", 5)

    asked = page_text(ada, "/run/edits")
    (link,) = (link for link in ParsedPage(asked).links if "sure=1" in link)

    assert "Files changed" not in asked
    assert f'hx-get="{link}" hx-trigger="load" hx-select=".totals"' in unescape(asked)
    assert "Files changed" in page_text(ada, f"/run/edits{link}")
    assert "Files changed" in page_text(ada, "/run/edits")


def test_the_totals_of_a_very_long_run_are_counted_only_when_asked(
    ada: TestClient, store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_edits(store)
    monkeypatch.setattr(run_pages, "_MOST_COUNTED", 5)
    monkeypatch.setattr(run_pages, "MOST_READ", 6)

    asked = page_text(ada, "/run/edits")

    assert "sure=1" in asked
    assert 'hx-trigger="load"' not in asked


def test_the_head_of_a_long_run_reads_no_events_that_its_overview_includes(
    ada: TestClient, store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = store.session(user_id="ada", session_id="long")
    for number in range(20):
        session.append([refold.UserInput(text=f"Say {number}.{n}") for n in range(100)])
    store.overviews("ada")
    session.append(refold.UserInput(text="And now?"))
    reads: list[int] = []
    read = store.log.read

    def counted_read(stream: StreamId, **options: Any) -> list[Envelope]:
        events = read(stream, **options)
        reads.append(len(events))
        return events

    monkeypatch.setattr(store.log, "read", counted_read)

    totals = totals_of(page_text(ada, "/run/long"))

    assert totals["Turns"] == "2,001"
    assert 0 < sum(reads) < 200


@pytest.mark.parametrize(
    ("query", "seqs"),
    [
        ("failed=true", [4, 5, 10]),
        ("tool=Edit", [2, 3, 4, 5, 6, 7]),
        ("tool=bash", [8, 9]),
        ("file=a.py", [2, 3, 6, 7]),
        ("file=/src/b.py", [4, 5]),
        ("file=src/b.py&failed=true", [4, 5]),
        ("file=a.py&failed=true", []),
        ("tool=edit&type=error", []),
        ("failed=true&type=error", [10]),
        ("tool=&file=+&failed=", list(range(1, 11))),
    ],
)
def test_a_run_is_filtered_by_failure_tool_and_file(
    ada: TestClient, store: SessionStore, query: str, seqs: list[int]
) -> None:
    with_edits(store)

    assert seqs_shown(page_text(ada, f"/run/edits?{query}")) == seqs


def test_a_link_leads_from_failure_to_failure(
    ada: TestClient, store: SessionStore
) -> None:
    with_edits(store)

    def led_to(query: str) -> str:
        answered = ada.get(f"/run/edits/failure?{query}")
        assert answered.status_code == 303
        return answered.headers["location"]

    assert led_to("") == "/run/edits?seq=5#e5"
    assert led_to("after=5") == "/run/edits?seq=10#e10"
    assert led_to("before=10") == "/run/edits?seq=5#e5"
    assert led_to("after=10") == "/run/edits?seq=10&missed=after"
    assert led_to("before=5") == "/run/edits?seq=5&missed=before"
    assert "No failure after this place." in page_text(ada, led_to("after=10"))
    assert "No failure before this place." in page_text(ada, led_to("before=5"))


def test_a_search_for_a_failure_ends_after_a_number_of_events(
    ada: TestClient, store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_with_turns(store, turns=3).append(refold.AgentError(code="x", message="y"))
    monkeypatch.setattr(run_pages, "_SCANNED", 1)

    first = ada.get("/run/run/failure").headers["location"]
    further = ada.get("/run/run/failure?after=7").headers["location"]

    assert first == "/run/run?seq=7&missed=more"
    assert "search on from here" in page_text(ada, first)
    assert further == "/run/run?seq=8#e8"


@pytest.mark.parametrize("path", ["failure", "media?seq=1"])
def test_other_users_learn_nothing(
    client_for: ClientFor, store: SessionStore, path: str
) -> None:
    with_edits(store)

    assert client_for("bob").get(f"/run/edits/{path}").status_code == 404


def spread_over_time(envelopes: list[Envelope], seconds: list[float]) -> list[Envelope]:
    """Return the events with times that many seconds after a beginning."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        envelope.model_copy(update={"ts": begin + timedelta(seconds=second)})
        for envelope, second in zip(envelopes, seconds, strict=True)
    ]


def test_the_durations_of_a_turn_are_those_of_its_calls_and_requests(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="slow")
    session.append(
        [
            refold.UserInput(text="Go"),
            refold.AgentResponse(text="I run two."),
            refold.ToolCall(call_id="a", tool_name="build", arguments={}),
            refold.ToolCall(call_id="b", tool_name="test", arguments={}),
            refold.ToolResult(call_id="a", content="ok"),
            refold.ToolResult(call_id="b", content="ok", duration_ms=1000.0),
            refold.AgentResponse(text="Done."),
        ],
        meta={"model": "claude-sonnet-5-5"},
    )
    events = spread_over_time(list(session.events()), [0, 2, 2, 2, 5, 6, 10])

    (turn,) = run_pages.turns(events)

    waterfall = turn.waterfall
    assert waterfall is not None
    assert waterfall.milliseconds == 10_000
    assert [(bar.label, bar.start, bar.width) for bar in waterfall.bars] == [
        ("claude-sonnet-5-5", 0, 200),
        ("build", 200, 300),
        ("test", 500, 100),
        ("claude-sonnet-5-5", 600, 400),
    ]
    assert [bar.anchor for bar in waterfall.bars] == ["e2", "e3", "e4", "e7"]


def test_events_of_one_moment_have_no_durations(store: SessionStore) -> None:
    events = list(with_edits(store).events())

    (turn,) = run_pages.turns(spread_over_time(events, [0.0] * len(events)))

    assert turn.waterfall is None


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [
        (0, "0 ms"),
        (350, "350 ms"),
        (2_340, "2.3 s"),
        (65_000, "1 min 5 s"),
        (7_380_000, "2 h 3 min"),
        (200_000_000, "2 d 7 h"),
    ],
)
def test_a_duration_has_its_largest_units(milliseconds: float, words: str) -> None:
    assert duration(milliseconds) == words


def test_erasing_is_not_in_the_main_menu(
    client_for: ClientFor, ada: TestClient, store: SessionStore
) -> None:
    session_with_turns(store, turns=1)

    run = page_text(ada, "/run/run")
    menu = run[run.index("<nav") : run.index("</nav>")]
    reader = page_text(client_for("ada", "read"), "/run/run")

    assert "/erase" not in menu
    assert 'href="/erase?session=run"' in run
    assert 'href="/erase"' in page_text(ada, "/settings")
    assert "/erase" not in reader


def test_a_filtered_page_shows_no_sums_of_whole_turns(
    ada: TestClient, store: SessionStore
) -> None:
    session_with_turns(store)

    whole = page_text(ada, "/run/run")
    filtered = page_text(ada, "/run/run?type=agent_response")

    assert 'class="usage"' in whole
    assert 'class="usage"' not in filtered
    assert 'class="cost"' not in filtered


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/home/ada/work/cli", "…/work/cli"),
        ("/home/ada/work/cli/", "…/work/cli"),
        ("C:\\Users\\ada\\cli", "…\\ada\\cli"),
        ("/work/cli", "/work/cli"),
        ("work/of/cli", "work/of/cli"),
        ("refold", "refold"),
        ("", ""),
    ],
)
def test_the_end_of_a_path(path: str, shown: str) -> None:
    assert path_end(path) == shown
