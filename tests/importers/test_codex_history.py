"""Contexts of a Codex rollout equal what Codex sent, also after edits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import refold
from refold.adapters import importers
from refold.adapters.importers.follower import Follower
from refold.domain.envelope import Envelope
from refold.projections.context.render import OPENING
from refold.store import Session, SessionStore
from refold.store.session.imports import extend
from tests.importers.samples import Entry, write_lines
from tests.importers.test_codex import META, framed

# A message of the history: its role and its text.
Message: TypeAlias = tuple[str, str]


def message(role: str, text: str) -> Entry:
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text}]
    return {"type": "message", "role": role, "content": content}


def message_entry(role: str, text: str) -> Entry:
    return framed("response_item", **message(role, text))


def compacted(*replacement: Message, summary: str = "SUMMARY") -> Entry:
    items = [message(role, text) for role, text in replacement]
    more = {"replacement_history": items} if items else {}
    return framed("compacted", message=summary, **more)


def rolled_back(turns: int) -> Entry:
    return framed("event_msg", type="thread_rolled_back", num_turns=turns)


def context_messages(session: Session, at: int | None = None) -> list[Message]:
    """The texts of a context, in its order."""
    shown: list[Message] = []
    for part in session.context("keep_all", at=at).messages:
        for block in part["content"]:
            if block["type"] == "text" and block["text"] != OPENING:
                shown.append((part["role"], block["text"]))
    return shown


def contexts(session: Session) -> list[list[Message]]:
    """The texts of the context before each response, and those at the end."""
    before = [
        context_messages(session, at=event.seq - 1)
        for event in session.events()
        if event.type == "agent_response"
        and event.seq > 1
        and not is_replacement(event)
    ]
    return [*before, context_messages(session)]


def is_replacement(event: Envelope) -> bool:
    """Whether a compaction recorded the event, and no response of the model did."""
    return (event.meta.source or {}).get("replacement") is True


@pytest.fixture
def store() -> Iterator[SessionStore]:
    with refold.open("memory://") as opened:
        yield opened


def imported(store: SessionStore, folder: Path, *lines: Entry) -> Session:
    path = write_lines(folder, [META, *lines], "rollout.jsonl")
    store.import_transcript(path, user_id="ada", session_id="s")
    return store.session(user_id="ada", session_id="s")


OLD_ANSWER = ("assistant", "old answer")
OLD = [message_entry("user", "old question"), message_entry("assistant", "old answer")]
NEW = [message_entry("user", "new question"), message_entry("assistant", "new answer")]


def test_a_replacement_replaces_the_history(
    store: SessionStore, tmp_path: Path
) -> None:
    session = imported(store, tmp_path, *OLD, compacted(("user", "SUMMARY")), *NEW)

    assert contexts(session) == [
        [("user", "old question")],
        [("user", "SUMMARY"), ("user", "new question")],
        [("user", "SUMMARY"), ("user", "new question"), ("assistant", "new answer")],
    ]


def test_inputs_that_a_replacement_repeats_stay_where_they_are(
    store: SessionStore, tmp_path: Path
) -> None:
    replacement = ("user", "old question"), ("user", "SUMMARY")
    session = imported(store, tmp_path, *OLD, compacted(*replacement), *NEW[:1])

    assert context_messages(session) == [*replacement, ("user", "new question")]
    inputs = [e for e in session.events() if e.type == "user_input"]
    assert len(inputs) == 3


def test_an_old_compaction_keeps_the_inputs_and_its_summary(
    store: SessionStore, tmp_path: Path
) -> None:
    context = message_entry("user", "<environment_context>\n  <cwd>/w</cwd>")
    session = imported(store, tmp_path, context, *OLD, compacted(), *NEW[:1])

    assert context_messages(session) == [
        ("user", "old question"),
        ("user", "SUMMARY"),
        ("user", "new question"),
    ]


def test_turns_that_the_user_took_back_are_left_out(
    store: SessionStore, tmp_path: Path
) -> None:
    context = message_entry("user", "<environment_context>\n  <cwd>/w</cwd>")
    undone = [
        context,
        message_entry("user", "undone"),
        message_entry("assistant", "undone answer"),
    ]
    session = imported(store, tmp_path, *OLD, *undone, rolled_back(1), *NEW)

    assert contexts(session)[2:] == [
        [
            ("user", "old question"),
            ("assistant", "old answer"),
            ("user", "new question"),
        ],
        [
            ("user", "old question"),
            ("assistant", "old answer"),
            ("user", "new question"),
            ("assistant", "new answer"),
        ],
    ]
    left_out = {
        event.seq
        for event in session.why("keep_all").unshown
        if event.why == "left_out"
    }
    texts = [event.payload.payload().get("text") for event in session.events()]
    assert [texts[seq - 1] for seq in sorted(left_out)][1:] == [
        "undone",
        "undone answer",
    ]


def test_a_withdrawn_call_is_removed_with_its_result(
    store: SessionStore, tmp_path: Path
) -> None:
    call = framed(
        "response_item", type="function_call", call_id="c", name="f", arguments="{}"
    )
    output = framed(
        "response_item", type="function_call_output", call_id="c", output="done"
    )
    turn = [message_entry("user", "undone"), call, output]
    session = imported(store, tmp_path, *OLD, *turn, rolled_back(1), *NEW)

    messages = session.context("keep_all").messages
    assert "tool_use" not in json.dumps(messages)
    assert [e.type for e in session.events()].count("tool_result") == 1


def test_a_rollback_behind_a_compaction_brings_the_old_history_back(
    store: SessionStore, tmp_path: Path
) -> None:
    turn = [message_entry("user", "undone"), compacted(("user", "SUMMARY"))]
    session = imported(store, tmp_path, *OLD, *turn, rolled_back(1), *NEW[:1])

    assert context_messages(session) == [
        ("user", "old question"),
        ("assistant", "old answer"),
        ("user", "new question"),
    ]


Step: TypeAlias = tuple[str, Any]
TEXTS = st.sampled_from(["a", "b", "c"])
STEPS = st.one_of(
    st.tuples(st.just("user"), TEXTS),
    st.tuples(st.just("user"), TEXTS),
    st.tuples(st.just("assistant"), TEXTS),
    st.tuples(st.just("assistant"), TEXTS),
    st.tuples(st.just("back"), st.integers(0, 3)),
    # Which of the messages stay, and where new ones are added among them.
    st.tuples(
        st.just("compact"),
        st.tuples(st.lists(st.booleans(), max_size=8), st.sets(st.integers(0, 4))),
    ),
)


def replacement_of(history: list[Message], how: Any) -> list[Message]:
    stay, places = how
    replacement: list[Message] = []
    for place, (keeps, part) in enumerate(zip(stay, history, strict=False)):
        if place in places:
            replacement.append(("user", f"summary {place}"))
        if keeps:
            replacement.append(part)
    return replacement or [("user", "summary")]


def history_of(steps: list[Step]) -> list[Message]:
    """Return what Codex sends after these steps, without rolled-back turns."""
    standing: list[Step] = []
    for kind, value in steps:
        if kind != "back":
            standing.append((kind, value))
            continue
        turns = [at for at, step in enumerate(standing) if step[0] == "user"]
        if value and turns:
            del standing[turns[max(0, len(turns) - value)] :]
    history: list[Message] = []
    for kind, value in standing:
        if kind == "compact":
            history = list(value)
        else:
            history.append((kind, value))
    return history


def played(steps: list[Step]) -> list[Step]:
    """The steps, with the replacement of each compaction."""
    done: list[Step] = []
    for kind, value in steps:
        if kind == "compact":
            value = replacement_of(history_of(done), value)
        done.append((kind, value))
    return done


def lines_of(steps: list[Step]) -> Iterator[Entry]:
    for kind, value in steps:
        if kind == "compact":
            yield compacted(*value)
        elif kind == "back":
            yield rolled_back(value)
        else:
            yield message_entry(kind, value)


def expected(steps: list[Step]) -> list[list[Message]]:
    before = [
        history_of(steps[:at])
        for at, (kind, _) in enumerate(steps)
        if kind == "assistant" and at
    ]
    return [*before, history_of(steps)]


def with_roles_joined(views: list[list[Message]]) -> list[list[Message]]:
    """The views, with the texts of one role as one: responses of a run merge."""
    joined: list[list[Message]] = []
    for view in views:
        parts: list[Message] = []
        for role, text in view:
            if parts and parts[-1][0] == role:
                parts[-1] = (role, parts[-1][1] + text)
            else:
                parts.append((role, text))
        joined.append(parts)
    return joined


def followed(
    store: SessionStore, folder: Path, lines: list[Entry], cuts: set[int]
) -> Session:
    """Returns the session of a file that grew while it was captured."""
    with TemporaryDirectory(dir=folder) as directory:
        follower = Follower(store, "codex", user_id="ada", folder=Path(directory))
        file = Path(directory, "2026", "rollout-run.jsonl")
        file.parent.mkdir()
        with follower.alone():
            for end in sorted({*cuts, len(lines)}):
                file.write_text(
                    "".join(json.dumps(entry) + "\n" for entry in lines[:end])
                )
                follower.look()
            assert follower.refused == 0
        again = Follower(store, "codex", user_id="ada", folder=Path(directory))
        again.state.forget()
        with again.alone():
            assert again.look() == 0
    return store.session(user_id="ada", session_id="run-1")


def test_a_capture_records_a_replacement_as_an_import_does(
    store: SessionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    replacement = ("user", "old question"), ("user", "SUMMARY"), OLD_ANSWER
    lines = [*OLD, compacted(*replacement), *NEW, rolled_back(1), *NEW]
    ours = imported(store, tmp_path, *lines)

    theirs = followed(store, tmp_path, [META, *lines], {2, 4, 5})

    types = ("user_input", "agent_response", "provider_edit")
    kinds = [
        [(e.type, is_replacement(e)) for e in session.events() if e.type in types]
        for session in (ours, theirs)
    ]
    assert kinds[0] == kinds[1]
    assert contexts(theirs) == contexts(ours)
    assert context_messages(theirs)[:4] == [*replacement, ("user", "new question")]

    path = write_lines(tmp_path, [META, *lines], "again.jsonl")
    added = store.import_transcript(path, user_id="ada", session_id="run-1")
    assert [result.events for result in added] == [0]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(STEPS, min_size=1, max_size=12), data=st.data())
def test_every_context_equals_what_codex_sent_however_the_file_grew(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[Step],
    data: st.DataObject,
) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    steps = played([("user", "first"), *steps])
    lines = [META, *lines_of(steps)]
    cuts = data.draw(st.sets(st.integers(2, len(lines))))
    with refold.open("memory://") as store:
        whole = store.session(user_id="ada", session_id="whole")
        grown = store.session(user_id="ada", session_id="grown")
        for session, ends in ((whole, [len(lines)]), (grown, [*cuts, len(lines)])):
            for end in sorted(ends):
                path = write_lines(tmp_path, lines[:end], "r.jsonl")
                (transcript,) = importers.read(path)
                extend(session, transcript.drafts, where="r.jsonl")
            again = extend(session, transcript.drafts, where="r.jsonl")
            assert again.events == 0
        captured = followed(store, tmp_path, lines, cuts)
        views = [contexts(whole), contexts(grown), contexts(captured)]
        counts = [len(list(each.events())) for each in (whole, grown)]
        assert [proof for _, proof in store.verify() if proof.problems] == []

    assert with_roles_joined(views[0]) == with_roles_joined(expected(steps))
    assert views[1] == views[0]
    assert views[2] == views[0]
    assert counts[0] == counts[1]
