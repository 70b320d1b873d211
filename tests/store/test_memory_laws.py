"""Memory computed at once, incrementally or concurrently is the same, byte for byte."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import orjson
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import refold
from refold.domain.events import Event, Verdict
from refold.store import SessionStore
from tests.support.stores import open_at

NAMES = ("s-0", "s-1", "s-2", "s-3")
TOOLS = st.sampled_from(["search", "book", "verify_total"])
LAW = settings(
    max_examples=6,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


class Step(NamedTuple):
    """Events appended to one session; ``looked``: memory is computed afterwards."""

    name: str
    events: Sequence[Event]
    looked: bool


@st.composite
def events(draw: st.DrawFn) -> list[Event]:
    call_id = uuid4().hex
    tool = draw(TOOLS)
    content = draw(st.sampled_from(["done", "Error: not found", "Error: timed out"]))
    called: list[Event] = [
        refold.ToolCall(call_id=call_id, tool_name=tool),
        refold.ToolResult(
            call_id=call_id,
            content=content,
            untrusted=draw(st.sampled_from([False] * 4 + [True])),
        ),
    ]
    judged: list[Event] = [
        refold.Final(outcome=draw(st.sampled_from(["success", "failure"]))),
        refold.Reflection(pass_=draw(st.booleans())),
        refold.Aggregate(results=(Verdict(item_id="1", verdict="incorrect"),)),
    ]
    return [*called, *draw(st.lists(st.sampled_from(judged), max_size=1))]


STEPS = st.lists(
    st.builds(Step, st.sampled_from(NAMES), events(), st.booleans()), max_size=12
)


def memory_bytes(store: SessionStore, user: str) -> bytes:
    """Return everything that memory contains, as bytes."""
    memory = store.memory.of(user)
    whole: dict[str, Any] = {
        "items": [item.to_json() for item in memory.items],
        "means": memory.means,
        "effort": memory.effort,
        "sessions": memory.sessions,
    }
    return orjson.dumps(whole, option=orjson.OPT_SORT_KEYS)


def replay_steps(store: SessionStore, user: str, steps: Sequence[Step]) -> None:
    for step in steps:
        store.session(user_id=user, session_id=step.name).append(list(step.events))
        if step.looked:
            store.memory.of(user)


def recomputed(store: SessionStore, user: str) -> bytes:
    for info in store.sessions(user, internal=True):
        store.log.drop_views(user, info.session_id)
    return memory_bytes(store, user)


@pytest.fixture
def store(store_url: str, tmp_path: Path) -> Any:
    with open_at(store_url, tmp_path) as opened:
        yield opened


@LAW
@given(STEPS)
def test_incremental_memory_equals_recomputed_memory(
    store: SessionStore, steps: list[Step]
) -> None:
    user = uuid4().hex
    replay_steps(store, user, steps)

    assert memory_bytes(store, user) == recomputed(store, user)


@LAW
@given(STEPS)
@pytest.mark.each_engine
def test_concurrent_readers_compute_the_same_memory(
    store: SessionStore, steps: list[Step]
) -> None:
    user = uuid4().hex
    with ThreadPoolExecutor(3) as pool:
        looking = [pool.submit(memory_bytes, store, user) for _ in range(2)]
        replay_steps(store, user, steps)
        looking += [pool.submit(memory_bytes, store, user) for _ in range(3)]
        answers = [future.result() for future in looking][2:]

    assert set(answers) == {recomputed(store, user)}


@LAW
@given(STEPS, st.sampled_from(NAMES))
def test_memory_after_an_erasure_equals_memory_without_the_session(
    store: SessionStore, steps: list[Step], name: str
) -> None:
    user = uuid4().hex
    other = uuid4().hex
    store.session(user_id=user, session_id="stays").append(refold.UserInput(text="hi"))
    store.session(user_id=other, session_id="stays").append(refold.UserInput(text="hi"))
    replay_steps(store, user, steps)
    if any(step.name == name for step in steps):
        store.erase(user, "asked for", session_id=name)
    # Times differ; everything else must look as if the session had never existed.
    replay_steps(store, other, [step for step in steps if step.name != name])

    assert _timeless(store, user) == _timeless(store, other)
    assert "search" not in store.memory.advice(other, tools=[]).text


def _timeless(store: SessionStore, user: str) -> list[Any]:
    items: list[Any] = orjson.loads(memory_bytes(store, user))["items"]
    for item in items:
        for name in ("created_at", "updated_at", "expires_at", "user_id"):
            del item[name]
        item["provenance"]["sessions"].sort(key=lambda evidence: evidence["session_id"])
    return items


def test_several_threads_compute_the_same_advice(store: SessionStore) -> None:
    for number in range(4):
        session = store.session(user_id="ada", session_id=f"s-{number}")
        session.append(refold.ToolCall(call_id="c", tool_name="search"))
        session.append(refold.ToolResult(call_id="c", content="done"))
        session.append(refold.Final(outcome="success"))
    now = timedelta(0)
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(lambda _: store.memory.advice("ada", fresh=now), range(8))
        )

    assert {advice.text for advice in answers} == {store.memory.advice("ada").text}
    assert store.memory.advice("ada").items
