"""An erasure removes its own leaves from the tree, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from refold import auditor
from refold.adapters.sql.tree import Tree
from refold.domain.seals import SealsVerified, TreeHead
from refold.store import SessionStore
from refold.testing.event_log import user_inputs
from tests.support.sealing import (
    anchor_file,
    append_to_each,
    paused_sealer,
    sealed_heads,
    verified_seals,
)
from tests.support.waiting import PATIENCE_SEC


@pytest.fixture
def paused(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Event, Event]]:
    """A sealer that stops in the middle, and the event that lets it continue."""
    with paused_sealer(store, monkeypatch) as events:
        yield events


def test_a_session_erased_during_sealing_has_no_leaf(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_to_each(store, "a", "b")
    add = Tree.add

    def adding(tree: Tree, *arguments: Any) -> bool:
        marked = tree._t.heads.update().where(tree._t.heads.c.session_id == "b")
        with tree._database.writing() as connection:
            connection.execute(marked.values(status="erased"))
        return add(tree, *arguments)

    monkeypatch.setattr(Tree, "add", adding)
    head = store.seal()

    assert head is not None
    assert head.size == 1


def checked(store: SessionStore, proof: Any) -> str:
    return auditor.check(proof, store.seals.public_key())


def test_an_erasure_leaves_every_proof_of_others_unchanged(store: SessionStore) -> None:
    append_to_each(store, "a", "b")
    store.session(user_id="bob", session_id="s").append(user_inputs("x", "y"))
    old = store.seal()
    append_to_each(store, "a")
    store.session(user_id="bob", session_id="s").append(user_inputs("z"))
    store.seal()
    assert old is not None
    bobs = store.seals.prove(
        store.session(user_id="bob", session_id="s").stream, 2, size=None
    )
    before = proofs_of_a(store, old)

    erased = store.erase("bob", "he asked")

    append_to_each(store, "a")
    store.seal()
    assert proofs_of_a(store, old) == before
    assert erased.certificate is not None
    said_of_leaves = erased.certificate.statement["tree"]["leaves"]
    assert verified_seals(store) == SealsVerified(
        3, 6, said_of_leaves["count"], 3, 0, []
    )
    assert said_of_leaves["count"] == 2
    assert checked(store, bobs).startswith("holds: ")
    assert "bob" not in anchor_file().read_text()


def proofs_of_a(store: SessionStore, old: TreeHead) -> list[Any]:
    """Return proofs of ada's events in two trees, and from one tree to the other."""
    stream = store.session(user_id="ada", session_id="a").stream
    proofs: list[Any] = [
        store.seals.prove(stream, 1, size=old.size),
        store.seals.prove(stream, 2, size=5),
        store.seals.prove_growth(old.size, 5),
    ]
    assert all(checked(store, proof).startswith("holds: ") for proof in proofs)
    return proofs


def test_erasing_one_session_removes_only_its_leaves(store: SessionStore) -> None:
    append_to_each(store, "a", "b")
    store.seal()

    store.erase("ada", "a slip", session_id="b")

    assert [name for name, _ in sealed_heads(store)] == ["a"]
    assert verified_seals(store) == SealsVerified(1, 2, 1, 1, 0, [])


def test_a_leaf_added_during_the_erasure_of_its_user_is_certified_too(
    store: SessionStore, paused: tuple[Event, Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on = paused
    forgetting = Event()
    forget = Tree.forget

    def forget_after_append(*arguments: Any) -> None:
        forgetting.set()
        forget(*arguments)

    monkeypatch.setattr(Tree, "forget", forget_after_append)
    append_to_each(store, "a")
    with ThreadPoolExecutor(2) as pool:
        sealing = pool.submit(store.seal)
        assert reached.wait(PATIENCE_SEC)
        erasing = pool.submit(store.erase, "ada", "she asked")
        assert forgetting.wait(PATIENCE_SEC)

        go_on.set()
        sealing.result(PATIENCE_SEC)
        erasing.result(PATIENCE_SEC)

    verified = store.verify_seals()
    assert verified is not None
    assert verified.problems == []
    assert verified.leaves == verified.erased
