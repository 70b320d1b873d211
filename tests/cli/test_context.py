"""``context`` shows the messages for a model, now or before any earlier event."""

from pathlib import Path
from typing import Any

import refold as refold_package
from tests.cli.conftest import Refold
from tests.cli.test_terminal import on_terminal, plain

SESSION = ("--user", "lin", "--session", "run")


def context(refold: Refold, *args: object) -> dict[str, Any]:
    printed: dict[str, Any] = refold("context", *SESSION, *args, "--json").json()
    return printed


def test_programs_get_the_view_as_json(refold: Refold, sample: Path) -> None:
    printed = context(refold)

    assert list(printed) == [
        "strategy",
        "fingerprint",
        "at",
        "tokens",
        "digest",
        "over_budget",
        "cuts",
        "system",
        "messages",
        "spans",
        "provenance",
        "request",
        "rules",
    ]
    assert (printed["strategy"], printed["at"]) == ("keep_all", 57)
    assert printed["spans"] == [{"kind": "raw", "first": 1, "last": 57}]
    assert printed["messages"][0]["role"] == "user"
    assert (printed["provenance"], printed["request"]) == ("assumed", None)


def test_people_see_the_omissions_of_a_context(refold: Refold, sample: Path) -> None:
    sound = {"type": "audio", "mimeType": "audio/wav", "data": "UklGRg=="}
    events = refold_package.events
    with refold_package.open(f"sqlite:///{sample}") as store:
        store.session(user_id="lin", session_id="heard").append(
            [
                events.ToolCall(call_id="c", tool_name="listen"),
                events.ToolResult(call_id="c", content=[sound]),
            ]
        )

    seen = refold("context", "--user", "lin", "--session", "heard").out

    assert "left out  audio of seq 2: the Messages API does not take it" in seen


def test_a_context_before_an_imported_answer_is_reconstructed(
    refold: Refold, sample: Path
) -> None:
    printed = context(refold, "--before-response", 1)
    seen = refold("context", *SESSION, "--before-response", 1).out

    assert printed["provenance"] == "reconstructed"
    assert printed["request"] == {
        "seq": printed["at"] + 1,
        "digest": printed["digest"],
        "same": True,
    }
    assert "reconstructed from a transcript" in seen
    assert "as sent" not in seen
    why = refold("why", *SESSION, "--at", printed["at"])
    assert "provenance  reconstructed from a transcript" in why.out


def test_an_earlier_context_is_reproducible(refold: Refold, sample: Path) -> None:
    first = context(refold, "--at", 14)
    again = context(refold, "--at", 14)
    rebuilt = context(refold, "--at", 14, "--as", "rebuilt")

    assert first == again == rebuilt
    assert first["at"] == 14


def test_a_recorded_request_is_shown_with_its_caller_messages(
    refold: Refold, sample: Path
) -> None:
    with refold_package.open(f"sqlite:///{sample}") as store:
        session = store.session(user_id="lin", session_id="run")
        view = session.context(system="Be brief.", evidence=["a fact"])
        receipt = session.record_request(view)

    printed = context(refold, "--at", receipt.last_seq)

    assert (printed["digest"], printed["system"]) == (view.digest, "Be brief.")
    assert printed["messages"] == view.messages
    assert "evidence" in {span["kind"] for span in printed["spans"]}


def test_a_context_can_be_selected_by_its_call(refold: Refold, sample: Path) -> None:
    """The 5th call is the only one of a response that begins at seq 12."""
    printed = context(refold, "--before-call", 5)

    assert printed == context(refold, "--at", 11)


def test_parallel_calls_share_the_context_of_their_response(
    refold: Refold, sample: Path
) -> None:
    """Calls 6 and 7 belong to one response with a text, which begins at seq 16."""
    assert context(refold, "--before-call", 6)["at"] == 15
    assert context(refold, "--before-call", 7)["at"] == 15


def test_a_context_can_be_selected_by_its_response(
    refold: Refold, sample: Path
) -> None:
    assert context(refold, "--before-response", 1)["at"] == 1
    assert context(refold, "--before-response", 3)["at"] == 8


def test_people_see_figures_and_messages(refold: Refold, sample: Path) -> None:
    out = refold("context", *SESSION, "--at", 6).out

    assert out.startswith("keep_all  at seq 6  ")
    assert "  raw      seq 1 to 6" in out
    assert "  calls Bash (toolu_" in out
    assert "    command: git log" in out


def test_people_see_the_hidden_parts(refold: Refold, sample: Path) -> None:
    out = refold("context", *SESSION, "--at", 14).out

    hidden = out.partition("replaced before storing")[2]
    assert "API_KEY×2  in seq 8" in hidden
    assert "URL_CREDENTIAL×2  in seq 1, 8" in hidden
    assert "STUDENT_ID" not in hidden


def test_a_context_without_hidden_parts_says_so(refold: Refold, tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "hello"}]}\n')
    refold("import", path, "--user", "lin", "--session", "run")

    out = refold("context", *SESSION).out

    assert "  nothing" in out


def test_people_see_the_events_that_the_client_left_out(
    refold: Refold, sample: Path
) -> None:
    events = refold_package.events
    with refold_package.open(f"sqlite:///{sample}") as store:
        store.session(user_id="lin", session_id="rewound").append(
            [
                events.UserInput(text="Try it with a cache."),
                events.AgentResponse(text="Done."),
                events.UserInput(text="Try it without."),
                events.ProviderEdit(reason="rewind", left_out=((1, 2),)),
            ]
        )

    seen = refold("context", "--user", "lin", "--session", "rewound").out
    before = refold("context", *SESSION).out

    assert "left out  seq 1 to 2: the client took these events out" in seen
    assert "left out" not in before


def test_a_span_is_listed_once(refold: Refold, sample: Path) -> None:
    strategy = ("--strategy", "turn_window:full_turns=2,cached_turns=2")
    refold("compact", *SESSION, *strategy, "--until-idle")

    seen = refold("context", *SESSION, *strategy).out

    spans = [line for line in seen.splitlines() if line.startswith("  summary ")]
    assert spans == ["  summary  seq 1 to 21", "  summary  seq 22 to 39"]


def test_a_terminal_says_how_to_see_the_rest_of_a_text(
    refold: Refold, sample: Path
) -> None:
    words = "\n".join(f"Line {number} of my request." for number in range(60))
    with refold_package.open(f"sqlite:///{sample}") as store:
        store.session(user_id="lin", session_id="long").append(
            refold_package.UserInput(text=words)
        )
    args = ("context", "--user", "lin", "--session", "long")

    cut = plain(on_terminal(*args, columns=80))
    full = plain(on_terminal(*args, "--full", columns=80))

    assert "Line 39 of my request." in cut
    assert "Line 40 of my request." not in cut
    assert "more characters (--full)" in cut
    assert "Line 59 of my request." in full
    assert "--full" not in full
