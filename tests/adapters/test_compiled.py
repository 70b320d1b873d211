"""SQLite stores share the statements that SQLAlchemy compiled, and no data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler, SQLiteDDLCompiler

import refold
from tests.support.nested import problems_of


def _texts_of_used_store(path: Path | str, text: str) -> list[str]:
    """Use most operations of a new store, and return its texts."""
    with refold.open(path) as store:
        session = store.session(user_id="ada", session_id="s-1")
        session.append(refold.UserInput(text=text))
        session.context("turn_window")
        payloads = [envelope.payload for envelope in session.events()]
        assert not problems_of(store.verify())
    return [p.text for p in payloads if isinstance(p, refold.UserInput)]


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_second_store_compiles_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    compiled: list[str] = []
    for kind in (SQLiteCompiler, SQLiteDDLCompiler):

        def counting_init(
            self: Any, *args: Any, begin: Any = kind.__init__, **options: Any
        ) -> None:
            begin(self, *args, **options)
            compiled.append(str(self))

        monkeypatch.setattr(kind, "__init__", counting_init)
    first, second = (
        "memory://" if in_memory else tmp_path / f"{name}.db" for name in "ab"
    )

    assert _texts_of_used_store(first, "one") == ["one"]
    compiled.clear()
    assert _texts_of_used_store(second, "two") == ["two"]

    assert compiled == []
