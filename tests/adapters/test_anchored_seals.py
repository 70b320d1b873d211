"""A change of the database cannot revoke a head that was published outside of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.adapters import config
from refold.adapters.seals import FileAnchor
from refold.adapters.sql.recorder import Recorder
from refold.domain.errors import SealBroken
from refold.domain.seals import SealsVerified
from refold.store import SessionStore
from tests.support.engines import one_engine
from tests.support.sealing import anchor_file, append_to_each, verified_seals
from tests.support.stores import open_at


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> str:
    """An empty store on SQLite, or on each engine where a test says so."""
    return one_engine(request)


def replace_line(path: Path, place: int, line: bytes) -> None:
    lines = path.read_bytes().splitlines()
    lines[place] = line
    path.write_bytes(b"".join(kept_line + b"\n" for kept_line in lines))


def test_an_anchor_that_names_another_tree_stops_the_sealer(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        append_to_each(store, "a")
        store.seal()
        append_to_each(store, "a")
        head = store.seal()
        assert head is not None
        other = head._replace(root=bytes(32)).to_json()
        replace_line(anchor_file(), 1, json.dumps(other).encode())
        append_to_each(store, "a")

        with pytest.raises(SealBroken, match="not in the database"):
            store.seal()
        verified = store.verify_seals()

    assert verified is not None
    assert {problem.code for problem in verified.problems} == {"anchor"}
    assert verified.tree_heads == 2


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b"\xff", b'{"size": "1"}'])
def test_an_anchor_with_other_contents_is_reported(
    store: SessionStore, line: bytes
) -> None:
    append_to_each(store, "a")
    store.seal()
    replace_line(anchor_file(), 0, line)

    with pytest.raises(SealBroken, match="not a tree head"):
        store.seal()
    verified = store.verify_seals()
    assert verified is not None
    assert "anchor" in {problem.code for problem in verified.problems}


def test_a_missing_anchor_is_reported_and_written_again(store: SessionStore) -> None:
    append_to_each(store, "a")
    store.seal()
    before = anchor_file().read_bytes()
    anchor_file().unlink()

    verified = store.verify_seals()
    store.seal()

    assert verified is not None
    assert [problem.code for problem in verified.problems] == ["anchor"]
    assert anchor_file().read_bytes() == before


def test_a_restored_backup_is_sealed_again_once_the_anchor_is_moved_away(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        append_to_each(store, "a")
        first = store.seal()
        append_to_each(store, "a")
        store.seal()
        tree: Any = store.seals
        tables = tree.tree._t
        gone = (
            tables.tree_heads.delete().where(tables.tree_heads.c.size == 2),
            tables.leaves.delete().where(tables.leaves.c.leaf == 1),
            tables.seals.delete().where(tables.seals.c.leaf == 1),
        )
        with tree.tree._database.writing() as connection:
            for statement in gone:
                connection.execute(statement)
    with open_at(store_url, tmp_path) as store:
        with pytest.raises(SealBroken, match="2 leaves"):
            store.seal()
        anchor_file().rename(tmp_path / "put-away")
        with pytest.raises(SealBroken, match="--accept-loss"):
            store.seal()

        store.seal(accept_loss=True)

        assert verified_seals(store) == SealsVerified(2, 2, 0, 2, 0, [])
        assert next(FileAnchor(anchor_file()).read()) == first


def test_a_head_with_a_foreign_signature_is_not_anchored(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        append_to_each(store, "a")
        store.seal()
        anchor_file().unlink()
        tree: Any = store.seals
        forged = tree.tree._t.tree_heads.update().values(sealed_at=1)
        with tree.tree._database.writing() as connection:
            connection.execute(forged)

        with pytest.raises(SealBroken, match="not signed"):
            store.seal()
        assert list((config.home() / "anchors").glob("*.jsonl")) == []


def test_anchored_events_are_on_disk_before_the_anchor(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    for owner, name in ((Recorder, "flush"), (FileAnchor, "add")):
        monkeypatch.setattr(owner, name, _recording(getattr(owner, name), name, done))
    append_to_each(store, "a")

    store.seal()

    assert done == ["flush", "add"]


def _recording(method: Callable[..., Any], name: str, done: list[str]) -> Any:
    def recording_call(*arguments: Any) -> Any:
        done.append(name)
        return method(*arguments)

    return recording_call


def test_an_anchor_that_cannot_be_written_is_reported(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REFOLD_ANCHOR", str(tmp_path / "file" / "anchor"))
    with open_at(store_url, tmp_path) as store:
        append_to_each(store, "a")
        with pytest.raises(refold.StoreUnavailable, match="anchor"):
            store.seal()
