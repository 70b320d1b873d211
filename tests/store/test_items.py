"""Framework items are stored once, redacted like events, and read back unchanged."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import refold
from refold import InvalidEvent, StaleSession
from refold.domain.errors import Erased, OnHold
from refold.domain.ids import StreamId
from refold.domain.ports import Duplicate
from refold.events import Format, Native
from refold.projections.items import changed_texts, skeleton, whole, without_bytes
from tests.support.stores import prepare
from tests.support.waiting import PATIENCE_SEC

SECRET = "ghp_0123456789abcdefghijABCDEFGHIJ012345"
SIGNED = (
    "ErUBCkYIBRgCIkDDbw4j0k2g6Ff3l8hVtQz0m7qXpN9aYc5RkTzWvUe1sLdHxGiJbKoPqRsTuVwXyZ0A="
)


def view(_: str, value: Any, calls: Mapping[str, Any]) -> Iterator[refold.Draft | Any]:
    for block in value["content"]:
        match block:
            case {"type": "text", "text": text} if value["role"] == "user":
                yield refold.UserInput(text=text)
            case {"type": "text", "text": text}:
                yield refold.AgentResponse(text=text)
            case {"type": "thinking"}:
                thinking = refold.events.Thinking(**block)
                yield refold.AgentResponse(text="", thinking=(thinking,))
            case {"type": "tool_use", "id": call, "name": name, "input": arguments}:
                yield refold.ToolCall(call_id=call, tool_name=name, arguments=arguments)
            case {"type": "tool_result", "id": call, "content": content}:
                if call in calls:
                    yield refold.ToolResult(call_id=call, content=content)


CHAT = Format(
    "chat", view, lambda value: str(value.get("role", "")), lambda v: v.get("id")
)
PLAIN = Format("plain", id=lambda value: value["id"])


def message(role: str, *blocks: Any, name: str | None = None) -> dict[str, Any]:
    value = {"role": role, "content": [*blocks], "extra": {"n": 1, "f": 1.0, "b": True}}
    return value if name is None else {"id": name, **value}


def user_message(
    text: str, role: str = "user", name: str | None = None
) -> dict[str, Any]:
    return message(role, {"type": "text", "text": text}, name=name)


@pytest.fixture
def url(store_url: str, tmp_path: Path) -> str:
    return prepare(store_url, tmp_path)


@pytest.fixture
def store(url: str) -> Iterator[refold.SessionStore]:
    with refold.open(url) as opened:
        yield opened


@pytest.fixture
def session(store: refold.SessionStore) -> refold.Session:
    return store.session(user_id="ada", session_id="s")


def test_the_value_of_a_placeholder_is_found_among_other_brackets() -> None:
    many = [f"[EMAIL_{number}]" for number in range(2, 60)]
    before = "a@b.org, " * 58 + "[EMAIL_1] or bo [x]"
    after = ", ".join(many) + ", [~EMAIL_1] or [姓名_已脱敏] [x]"

    texts = dict(changed_texts(before, after))
    nowhere = dict(changed_texts("a, " * 300, "[A], " * 60 + "[~B] end"))

    assert texts["bo"] == "[姓名_已脱敏]"
    assert texts["a@b.org"] in many
    assert len(nowhere) == 1


def text_of(event: Any) -> str:
    return str(event.payload.text)


def values(session: refold.Session, **how: Any) -> list[Any]:
    return [item.value for item in session.native.read(**how)]


def test_an_item_becomes_events_and_is_read_back_unchanged(
    session: refold.Session,
) -> None:
    call = {
        "type": "tool_use",
        "id": "c1",
        "name": "ls",
        "input": {"path": "/srv/data"},
    }
    items = [
        user_message("List what is there, please, all of it."),
        message("assistant", {"type": "text", "text": "I look."}, call),
        message("user", {"type": "tool_result", "id": "c1", "content": ["a", "b"]}),
        message("title"),
    ]

    session.native.append(CHAT, items)

    assert values(session) == items
    assert json.dumps(values(session)[1], sort_keys=True) == json.dumps(
        items[1], sort_keys=True
    )  # 1, 1.0 and true keep their types
    assert [event.type for event in session.events()] == [
        "user_input",
        "agent_response",
        "tool_call",
        "tool_result",
        "item",
    ]
    assert session.verify().problems == []
    assert "item" not in str(session.context().messages)


def test_an_item_stores_no_text_that_its_events_store(session: refold.Session) -> None:
    text = "The budget of the third quarter is what we talk about."
    session.native.append(CHAT, [user_message(text)])

    (event,) = session.events()
    assert text not in json.dumps(event.meta.native)


def test_findings_are_removed_from_item_and_event(
    session: refold.Session,
) -> None:
    session.native.append(
        CHAT, [user_message(f"My key is {SECRET} and bob@example.org mine.")]
    )

    (event,) = session.events()
    (value,) = values(session)
    text = value["content"][0]["text"]
    assert text_of(event) == text
    assert "[REDACTED:EMAIL]" in text
    assert SECRET not in text
    assert event.redaction["n"] == 2


def test_findings_in_an_event_are_removed_from_its_item(
    session: refold.Session,
) -> None:
    def joined(_: str, value: Any, __: Any) -> Iterator[Any]:
        yield refold.UserInput(text="password: " + value["word"])

    session.native.append(Format("odd", joined), [{"word": "hunter2xyz9", "n": 1}])

    (event,) = session.events()
    (value,) = values(session)
    assert "hunter2xyz9" not in str(event.to_json())
    assert "hunter2xyz9" not in str(value)
    assert value["n"] == 1


@pytest.mark.each_engine
def test_a_known_item_is_skipped_and_new_ones_are_added(
    session: refold.Session,
) -> None:
    first = [user_message("one", name="a"), user_message("two", name="b")]
    receipt = session.native.append(CHAT, first)

    again = session.native.append(CHAT, first)
    more = session.native.append(
        CHAT, [*first, user_message("three", name="c"), first[0]]
    )

    assert again.duplicate
    assert (again.first_seq, again.last_seq) == (1, 2)
    assert again.hash == receipt.hash
    assert (more.first_seq, more.last_seq, more.duplicate) == (3, 3, False)
    assert [value["id"] for value in values(session)] == ["a", "b", "c"]
    assert session.verify().problems == []


def test_appending_few_new_items_reads_no_receipts(
    session: refold.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.native.append(CHAT, [user_message("one", name="a")])
    asked = list[Sequence[str]]()
    original = session.writer.log.known

    def counted_find(stream: StreamId, keys: Sequence[str]) -> dict[str, Duplicate]:
        asked.append(keys)
        return original(stream, keys)

    monkeypatch.setattr(session.writer.log, "known", counted_find)

    session.native.append(
        CHAT, [user_message("two", name="b"), user_message("two", name="b")]
    )
    session.native.append(CHAT, [user_message("three", name="c")])
    assert asked == []

    again = session.native.append(
        CHAT, [user_message("two", name="b"), user_message("4", name="d")]
    )

    assert (again.first_seq, again.last_seq) == (4, 4)
    assert [value["id"] for value in values(session)] == ["a", "b", "c", "d"]


def test_known_items_are_reported_before_a_stale_seq(session: refold.Session) -> None:
    session.native.append(CHAT, [user_message("one", name="a")], expected_seq=0)

    assert session.native.append(
        CHAT, [user_message("one", name="a")], expected_seq=0
    ).duplicate
    with pytest.raises(StaleSession):
        session.native.append(CHAT, [user_message("two", name="b")], expected_seq=0)


@pytest.mark.each_engine
def test_two_writers_of_one_item_write_it_once(url: str) -> None:
    with refold.open(url) as store, refold.open(url) as other_store:
        sessions = [
            s.session(user_id="ada", session_id="s") for s in (store, other_store)
        ]
        sessions[0].append(refold.UserInput(text="hello"))
        at_once = threading.Barrier(2)

        def write(session: refold.Session) -> None:
            for number in range(20):
                at_once.wait(PATIENCE_SEC)
                session.native.append(CHAT, [user_message("x", name=str(number))])

        threads = [
            threading.Thread(target=write, args=(session,)) for session in sessions
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert [v["id"] for v in values(sessions[0])] == [str(n) for n in range(20)]
        assert sessions[0].verify().problems == []


@pytest.mark.each_engine
def test_an_item_that_another_writer_adds_concurrently_is_a_duplicate(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refold.open(url) as store, refold.open(url) as other_store:
        first, second = (
            store.session(user_id="ada", session_id="s")
            for store in (store, other_store)
        )
        items = [user_message("x", name="1")]
        original = store.log.known

        def find_late(stream: StreamId, keys: Sequence[str]) -> dict[str, Duplicate]:
            receipts = original(stream, keys)
            second.native.append(CHAT, items)
            return receipts

        monkeypatch.setattr(store.log, "known", find_late)

        assert first.native.append(CHAT, items).duplicate
        assert [value["id"] for value in values(first)] == ["1"]


def test_an_item_is_stored_in_full_if_its_view_fails(session: refold.Session) -> None:
    odd = {"role": "user", "content": "not blocks"}
    orphan = message("user", {"type": "tool_result", "id": "gone", "content": "x"})

    session.native.append(CHAT, [odd, orphan, {"no": "role"}])

    assert [event.type for event in session.events()] == ["item"] * 3
    assert values(session) == [odd, orphan, {"no": "role"}]


@pytest.mark.each_engine
def test_an_item_over_the_limits_is_read_back_in_full(session: refold.Session) -> None:
    long = user_message("A line of text that is long. " * 5_000)
    wide = message("user") | {"cells": [f"cell {n}" for n in range(150_000)]}
    call = {
        "type": "tool_use",
        "id": "c",
        "name": "t",
        "input": {"cells": wide["cells"]},
    }
    items = [long, wide, message("assistant", call)]

    session.native.append(CHAT, items)

    assert values(session) == items
    assert session.verify().problems == []


def test_text_that_utf8_cannot_hold_is_replaced_with_a_warning(
    session: refold.Session,
) -> None:
    value = {"id": "n\ud800", "text": "a\ud800b", "k\udfff": float("nan"), "n": 2**70}
    clean = {"id": "n\ufffd", "text": "a\ufffdb", "k\ufffd": "nan", "n": str(2**70)}

    session.native.append(PLAIN, [value])
    session.native.append(PLAIN, [value, {"id": "m", "text": "fine", "n": None}])

    (item, fine) = session.native.read()
    assert (item.value, item.id) == (clean, "n\ufffd")
    assert [warning.code for warning in item.events[0].meta.warnings] == ["repaired"]
    assert fine.value["n"] is None
    assert not fine.events[0].meta.warnings
    assert session.native.would_store(PLAIN, [value]) == [clean]


def test_bytes_are_stored_only_if_the_caller_asks(session: refold.Session) -> None:
    item = {"role": "user", "content": [], "state": {"raw": [b"\0\xff" * 100]}}
    with pytest.raises(InvalidEvent, match="opaque"):
        session.native.append(CHAT, [item])

    session.native.append(CHAT, [item], opaque="keep")

    assert values(session) == [item]
    assert session.events()[0].redaction["types"] == {"UNSCANNED": 1}


@pytest.mark.each_engine
def test_many_bytes_are_stored_unchanged(session: refold.Session) -> None:
    data = bytes(range(256)) * (20 << 12)  # 20 MiB
    with pytest.raises(InvalidEvent, match="opaque"):
        session.native.put_bytes(data)

    session.native.put_bytes(data, opaque="keep")

    assert values(session) == [data]
    assert session.verify().problems == []


@pytest.mark.each_engine
def test_redacting_an_item_again_keeps_its_bytes(url: str) -> None:
    item = user_message("Call the office of Quux-7-cabin at noon.") | {
        "raw": b"\0\xff" * 100
    }
    with refold.open(url) as before:
        session = before.session(user_id="ada", session_id="s")
        session.native.append(CHAT, [item], opaque="keep")

    rules = refold.redaction.Registered()
    rules.register("Quux-7-cabin", "SECRET")
    with refold.open(url, registered=rules) as after:
        assert [
            report.applied.events for report in after.reredact("ada") if report.applied
        ] == [1]
        session = after.session(user_id="ada", session_id="s")

        (value,) = values(session)
        (event,) = session.events(limit=1)
        assert value["raw"] == item["raw"]
        assert "Quux-7-cabin" not in str(value)
        assert value["content"][0]["text"] == text_of(event)
        assert session.verify().problems == []


@pytest.mark.parametrize("has_secret", [False, True])
def test_a_signed_block_stays_or_is_removed_completely(
    session: refold.Session, *, has_secret: bool
) -> None:
    text = f"I use {SECRET} here." if has_secret else "I think about it for a while."
    block = {"type": "thinking", "thinking": text, "signature": SIGNED}
    entry = {
        "type": "assistant",
        "uuid": "u-1",
        "message": {"content": [block, {"type": "text", "text": "Done, I think."}]},
    }

    session.native.append(Format("claude-code"), [entry])

    blocks = values(session)[0]["message"]["content"]
    assert (block in blocks) is not has_secret
    assert blocks[-1] == {"type": "text", "text": "Done, I think."}


def test_a_result_that_names_its_tool_is_redacted_by_that_tools_rules(
    session: refold.Session,
) -> None:
    def named(kind: str, value: Any, calls: Any) -> Iterator[Any]:
        if kind == "call":
            yield refold.ToolCall(call_id="c1", tool_name="ls", arguments={})
        else:
            name = value["first"] + value["last"]
            yield refold.ToolResult(call_id="c1", tool_name=name, content="done")

    odd = Format("odd", named, lambda value: str(value["kind"]))
    session.native.append(odd, [{"kind": "call"}])
    session.native.append(
        odd, [{"kind": "result", "first": SECRET[:10], "last": SECRET[10:]}]
    )

    assert SECRET not in str([event.payload for event in session.events()])


def test_an_id_stays_next_to_a_finding(session: refold.Session) -> None:
    entry = {"uuid": "u-1", "message": {"id": "m 1", "text": f"It is {SECRET}."}}
    session.native.append(Format("claude-code"), [entry])

    (value,) = values(session)
    assert (value["uuid"], value["message"]["id"]) == ("u-1", "m 1")
    assert SECRET not in str(value)


def test_an_id_that_looks_like_a_secret_always_gets_the_same_name(
    session: refold.Session,
) -> None:
    for _ in range(2):
        session.native.append(
            Format("claude-code"), [{"uuid": SECRET, "parentUuid": "a"}]
        )

    ids = {value["uuid"] for value in values(session)}
    assert len(ids) == 1
    assert next(iter(ids)).startswith("redacted_")


def test_the_announced_form_is_the_stored_form(session: refold.Session) -> None:
    items = [
        user_message(f"Mail bob@example.org the key {SECRET}, now."),
        {"a": {"$ref": "0/x"}},
    ]

    would = session.native.would_store(CHAT, items)
    session.native.append(CHAT, items)

    assert values(session) == would
    assert session.native.would_store(CHAT, would) == would


def test_the_newest_items_of_a_kind_are_read_from_the_end(
    session: refold.Session,
) -> None:
    session.native.append(CHAT, [user_message(str(n), "user") for n in range(100)])
    blocks = [{"type": "text", "text": f"part {n}"} for n in range(90)]
    session.native.append(CHAT, [message("assistant", *blocks)])
    session.native.append(CHAT, [user_message(str(n)) for n in range(3)])

    assert values(session, newest=1, kind="assistant") == [
        message("assistant", *blocks)
    ]
    assert values(session, newest=2) == [user_message("1"), user_message("2")]
    assert len(values(session, newest=1_000)) == 104
    assert values(session, kind="user", after=99, newest=9)[0] == user_message("99")


def test_a_stored_fold_reads_only_new_events(session: refold.Session) -> None:
    seen: list[int] = []

    def step(state: Any, item: Any) -> Any:
        seen.append(item.seq)
        return {"n": state["n"] + 1, "last": item.seq}

    session.native.append(CHAT, [user_message(str(n)) for n in range(70)])
    assert session.native.fold("count", step=step, start={"n": 0}) == {
        "n": 70,
        "last": 70,
    }
    session.native.append(CHAT, [user_message("more")])
    seen.clear()

    assert session.native.fold("count", step=step, start={"n": 0}) == {
        "n": 71,
        "last": 71,
    }
    assert seen == [71]
    assert session.native.fold("count", step=step, start={"n": 0}, version=2)["n"] == 71


def test_a_follower_gets_events_at_once_and_ends_with_the_session(
    session: refold.Session,
) -> None:
    session.append(refold.UserInput(text="0"))
    seen: list[int] = []

    def follow() -> None:
        seen.extend(event.seq for event in session.history.follow(every=60))

    async def follow_async() -> list[int]:
        return [event.seq async for event in session.history.follow_async(every=60)]

    thread = threading.Thread(target=follow)
    thread.start()
    with asyncio.Runner() as runner:
        task = runner.get_loop().create_task(follow_async())
        for number in range(5):
            runner.run(session.append_async(refold.UserInput(text=str(number))))
        session.end()
        seen_async = runner.run(_result(task))
    thread.join(PATIENCE_SEC)

    assert seen == seen_async == [*range(1, 8)]


async def _result(task: asyncio.Task[list[int]]) -> list[int]:
    return await asyncio.wait_for(task, 30)


def test_a_session_is_found_by_a_name_that_is_stored_nowhere(
    store: refold.SessionStore, tmp_path: Path
) -> None:
    name = "threads/bob@example.org/1"
    session = store.named(name, user_id="ada", labels={"framework": "chat"})
    session.native.append(CHAT, [user_message("hello")])

    (info,) = store.sessions("ada", label={"name": name, "framework": "chat"})
    assert info.session_id == session.session_id
    assert store.named(name, user_id="ada").session_id == session.session_id
    assert store.named(name, user_id="bob").session_id != session.session_id
    assert "bob@" not in str([event.to_json() for event in session.events()])
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert b"bob@example" not in path.read_bytes()


@pytest.mark.each_engine
def test_a_deleted_session_is_unreadable_and_can_begin_again(
    store: refold.SessionStore,
) -> None:
    session = store.named("thread", user_id="ada")
    session.native.append(CHAT, [user_message("hello", name="a")])

    session.delete()

    with pytest.raises(Erased):
        session.events()
    again = store.named("thread", user_id="ada")
    assert not again.native.append(CHAT, [user_message("hello", name="a")]).duplicate
    store.upkeep.background.wait_idle()
    assert store.erasures.pending() == []
    assert values(again) == [user_message("hello", name="a")]
    assert [proof.problems for _, proof in store.verify()] == [[]]


def test_no_session_of_a_user_on_hold_can_be_deleted(
    store: refold.SessionStore,
) -> None:
    session = store.named("thread", user_id="ada")
    session.native.append(CHAT, [user_message("hello")])
    store.erasures.hold("ada", "case-1", "an enquiry")

    with pytest.raises(OnHold):
        session.delete()
    assert values(session) == [user_message("hello")]


def test_an_erased_user_has_no_session_of_any_name(store: refold.SessionStore) -> None:
    store.named("thread", user_id="ada").native.append(CHAT, [user_message("hello")])
    store.erase("ada", "asked")

    with pytest.raises(Erased):
        store.named("thread", user_id="ada")


def test_drafts_of_items_and_events_are_written_by_one_append(
    session: refold.Session,
) -> None:
    native = Native(CHAT, "user", "a", user_message("hello", name="a"))
    session.append([refold.Draft(native=native, key="a"), refold.UserInput(text="and")])
    session.append(
        [refold.Draft(native=native, key="a"), refold.UserInput(text="more")]
    )

    assert [text_of(event) for event in session.events()] == [
        "hello",
        "and",
        "more",
    ]
    with pytest.raises(InvalidEvent, match="keys"):
        session.append(refold.Draft(native=native), idempotency_key="x")
    with pytest.raises(InvalidEvent, match="native"):
        session.append(refold.Draft())


@pytest.mark.parametrize("seal", [False, True])
def test_a_removed_receipt_of_an_item_is_noticed(url: str, *, seal: bool) -> None:
    with refold.open(url) as store:
        session = store.session(user_id="ada", session_id="s")
        session.native.append(
            CHAT, [user_message("one", name="a"), user_message("two", name="b")]
        )
        if seal:
            store.seal()
        log: Any = store.log
        database = log.recorder.database
        database.change("ada", lambda c: c.execute(database.tables.receipts.delete()))

        codes = {problem.code for problem in session.verify().problems}
        assert codes == {"receipt"} | ({"seal"} if seal else set())


@pytest.mark.parametrize(
    "item",
    [
        {"schema": {"$ref": "#/definitions/address", "title": "where they live"}},
        {"$text": "a key that Refold uses too", "more": [1, 2]},
        {"$literal": {"$ref": "#/definitions/address", "title": "where"}},
    ],
)
def test_a_reserved_key_of_an_item_is_restored_if_an_event_has_its_object(
    item: dict[str, Any],
) -> None:
    value = without_bytes(item, [])
    payloads = [{"content": part} for part in (item, *_parts(item), *_parts(value))]

    native = {"value": skeleton(value, payloads, most=100_000)}

    assert whole(native, payloads, lambda _digest: None) == item


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts | st.binary()
names = texts | st.sampled_from(["$ref", "$bytes", "$text", "$literal"])
trees = st.recursive(
    scalars | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4)
    ),
    max_leaves=12,
)


@given(trees, st.data())
def test_any_item_is_restored_from_its_skeleton_and_events(
    tree: Any, data: Any
) -> None:
    contents: list[bytes] = []
    value = json.loads(json.dumps(without_bytes(tree, contents)))
    parts = [value, *_parts(value)]
    payloads = [
        {"text": data.draw(st.sampled_from(parts)), "other": data.draw(texts)}
        for _ in range(data.draw(st.integers(0, 3)))
    ]
    most = data.draw(st.sampled_from([10, 100_000]))

    left = skeleton(value, payloads, most=most)

    blobs = {str(index): content for index, content in enumerate(contents)}
    native = {"value": left, "bytes": [*blobs]}
    again = whole(native, payloads, blobs.get)
    assert repr(again) == repr(tree)


def _parts(value: Any) -> Iterator[Any]:
    if not isinstance(value, dict | list):
        return
    for part in value.values() if isinstance(value, dict) else value:
        yield part
        if isinstance(part, dict | list):
            with suppress(RecursionError):
                yield from _parts(part)


def test_an_item_that_is_nested_too_deeply_is_refused(session: refold.Session) -> None:
    value: object = "x"
    for _ in range(3_000):
        value = {"a": value}
    item = {"type": "user", "uuid": "u-1", "more": value}

    with pytest.raises(InvalidEvent, match="nested too deeply: flatten it"):
        session.native.append(CHAT, [item])
