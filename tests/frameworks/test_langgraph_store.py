"""The store of LangGraph: its own store's results, redacted and erasable."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

import refold
from refold.adapters.frameworks.langgraph_store import SESSION, RefoldStore
from refold.domain.errors import Erased, InvalidConfiguration
from tests.frameworks.contract import MAIL, SECRET

MEMORIES = ("memories", "ada")


@pytest.fixture
def db(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[refold.SessionStore]:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    with refold.open(f"sqlite:///{tmp_path / 'r.db'}") as store:
        yield store


@pytest.fixture
def memory(db: refold.SessionStore) -> RefoldStore:
    return RefoldStore(db, user_id="ada")


labels = st.sampled_from(["a", "b", "c"])
namespaces = st.lists(labels, min_size=1, max_size=3).map(tuple)
keys = st.sampled_from(["k", "l"])
values = st.fixed_dictionaries(
    {"n": st.integers(-2, 2)},
    optional={"tag": st.sampled_from(["x", "y"]), "deep": st.lists(st.integers(0, 1))},
)
filters = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "n": st.integers(-2, 2)
        | st.sampled_from([{"$gt": 0}, {"$lte": 1, "$ne": 0}, {"$gte": -1}]),
        "tag": st.sampled_from(["x", {"$eq": "y"}]),
    },
)
conditions = st.builds(
    MatchCondition,
    match_type=st.sampled_from(["prefix", "suffix"]),
    path=st.lists(st.sampled_from(["a", "b", "*"]), max_size=2).map(tuple),
)
operations = (
    st.builds(PutOp, namespaces, keys, st.none() | values, st.none(), st.none())
    | st.builds(GetOp, namespaces, keys)
    | st.builds(
        SearchOp,
        st.just(()) | namespaces,
        filters,
        limit=st.integers(1, 4),
        offset=st.integers(0, 2),
        query=st.none(),
    )
    | st.builds(
        ListNamespacesOp,
        st.none() | st.lists(conditions, max_size=2).map(tuple),
        max_depth=st.none() | st.integers(1, 3),
        limit=st.integers(1, 4),
        offset=st.integers(0, 1),
    )
)


def plain(result: Any) -> Any:
    """Return a result without times.  A search without a query has no order."""
    if isinstance(result, list) and result and hasattr(result[0], "key"):
        return sorted(plain(item) for item in result)
    if hasattr(result, "key"):
        return [list(result.namespace), result.key, str(sorted(result.value.items()))]
    return result


def drop_empty_namespaces(store: InMemoryStore) -> None:
    """Remove the namespaces whose values were deleted, which the store lists."""
    for namespace in [name for name, stored in store._data.items() if not stored]:
        del store._data[namespace]


def without_pages(op: Op) -> Op:
    """Return a search without limit, since its order is the store's own."""
    if isinstance(op, SearchOp):
        return op._replace(limit=1_000, offset=0)
    return op


@settings(max_examples=30)
@given(batches=st.lists(st.lists(operations, min_size=1, max_size=4), max_size=6))
def test_results_equal_those_of_langgraphs_store(batches: list[list[Op]]) -> None:
    with refold.open("memory://") as db:
        ours = RefoldStore(db, user_id="ada")
        theirs = InMemoryStore()
        for batch in batches:
            batch = [without_pages(op) for op in batch]
            # Theirs lists a namespace whose last value was deleted.
            is_listing = [isinstance(op, ListNamespacesOp) for op in batch]
            results = zip(
                is_listing, ours.batch(batch), theirs.batch(batch), strict=True
            )
            for listing, our_result, their_result in results:
                if listing:
                    assert isinstance(their_result, list)
                    continue
                assert plain(our_result) == plain(their_result)


def test_a_value_is_read_by_another_process(memory: RefoldStore, db: Any) -> None:
    other = RefoldStore(db, user_id="ada")
    memory.put(MEMORIES, "likes", {"text": "green tea"})
    assert other.get(MEMORIES, "likes").value == {"text": "green tea"}

    memory.put(MEMORIES, "likes", {"text": "black tea"})
    item = other.get(MEMORIES, "likes")

    assert item.value == {"text": "black tea"}
    assert item.created_at < item.updated_at
    memory.delete(MEMORIES, "likes")
    assert other.get(MEMORIES, "likes") is None


def test_many_values_are_read_from_the_stored_state(
    memory: RefoldStore, db: refold.SessionStore
) -> None:
    for start in range(0, 300, 100):
        memory.batch(
            [PutOp(MEMORIES, f"k{n}", {"n": n}) for n in range(start, start + 100)]
        )
    memory.delete(MEMORIES, "k7")
    RefoldStore(db, user_id="ada").get(MEMORIES, "k0")  # stores the state
    memory.put(MEMORIES, "k9", {"n": -9})

    again = RefoldStore(db, user_id="ada")

    assert len(again.search(MEMORIES, limit=1_000)) == 299
    assert again.get(MEMORIES, "k9").value == {"n": -9}
    assert again.get(MEMORIES, "k7") is None


def test_a_query_ranks_the_values_with_its_words(memory: RefoldStore) -> None:
    memory.put(MEMORIES, "1", {"text": "the user likes green tea"})
    memory.put(MEMORIES, "2", {"text": "the user drinks tea, tea and more green tea"})
    memory.put(MEMORIES, "3", {"text": "the user has a dog"})
    memory.put(("other",), "4", {"text": "tea elsewhere"})
    memory.put(MEMORIES, "5", {"text": "hidden tea"}, index=False)
    memory.put(MEMORIES, "6", {"text": "tea of yesterday"})
    memory.put(MEMORIES, "6", {"text": "coffee of today"})

    hits = memory.search(MEMORIES, query='type:"green" tea')

    assert {item.key for item in hits} == {"1", "2"}
    scores = [item.score for item in hits]
    assert scores == sorted(scores, reverse=True)
    assert all(score is not None and score > 0 for score in scores)
    assert memory.search(MEMORIES, query="zebra") == []
    assert memory.search(MEMORIES, query='"":`…') == []
    long_query = " ".join(f"word{n}" for n in range(200)) + " 喜欢绿茶" * 99 + " tea"
    assert memory.search(MEMORIES, query=f"tea {long_query}")
    assert len(memory.search(MEMORIES, query=" ")) == 5


def test_personal_data_is_redacted_and_still_identifies_its_value(
    memory: RefoldStore, db: refold.SessionStore
) -> None:
    phone = "+1 (202) 555-0143"
    other_phone = "+1 (202) 555-0178"
    memory.put(("users", phone), MAIL, {"contact": MAIL, "key": SECRET})
    memory.put(("users", other_phone), MAIL, {"contact": "none"})

    item = memory.get(("users", phone), MAIL)

    assert (item.namespace, item.key) == (("users", phone), MAIL)
    assert MAIL not in str(item.value)
    assert SECRET not in str(item.value)
    assert memory.get(("users", other_phone), MAIL).value == {"contact": "none"}
    (hit,) = memory.search(("users", phone))
    assert hit.namespace == ("users", phone)
    assert len(memory.list_namespaces(prefix=("users", phone))) == 1
    assert len(memory.list_namespaces()) == 2
    session = db.session(user_id="ada", session_id=SESSION)
    stored = str([event.to_json() for event in session.events()])
    assert MAIL not in stored
    assert phone not in stored
    assert other_phone not in stored
    assert SECRET not in stored


def test_users_are_kept_apart_and_an_erasure_removes_all(
    memory: RefoldStore, db: refold.SessionStore
) -> None:
    RefoldStore(db, user_id="bob").put(MEMORIES, "k", {"text": "of bob"})
    memory.put(MEMORIES, "k", {"text": "of ada"})
    assert memory.get(MEMORIES, "k").value == {"text": "of ada"}

    db.erase("ada", reason="asked")

    with pytest.raises(Erased):
        RefoldStore(db, user_id="ada").get(MEMORIES, "k")
    assert RefoldStore(db, user_id="bob").get(MEMORIES, "k").value == {"text": "of bob"}


def test_asyncio(memory: RefoldStore) -> None:
    async def run() -> Any:
        await memory.aput(MEMORIES, "k", {"n": 1})
        return await memory.aget(MEMORIES, "k")

    assert asyncio.run(run()).value == {"n": 1}


def test_other_values_are_refused_and_nothing_is_written(memory: RefoldStore) -> None:
    with pytest.raises(InvalidNamespaceError):
        memory.put((), "k", {"n": 1})
    with pytest.raises((InvalidConfiguration, NotImplementedError)):
        memory.put(MEMORIES, "k", {"n": 1}, ttl=5)
    with pytest.raises(InvalidConfiguration):
        memory.batch([PutOp(MEMORIES, "j", {"n": 1}), PutOp(MEMORIES, "k", {}, ttl=5)])
    memory.put(MEMORIES, "k", {"n": 1})
    with pytest.raises(ValueError, match="operator"):
        memory.search(MEMORIES, filter={"n": {"$near": 1}})

    assert memory.get(MEMORIES, "j") is None
