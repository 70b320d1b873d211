"""Invalid values in a key store are reported, and break nothing else."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

import refold
from refold.adapters.sql.key_tables import KeyTables
from refold.domain.errors import KeyUnavailable, RefoldError
from refold.opener import reconcile_keys
from refold.testing.event_log import user_inputs

JUNK = (None, "", "x", b"", b"\xff\x00", 7, -(2**40), 1.5, "9" * 400)
COLUMNS = [
    (table.name, column.name)
    for table in KeyTables(schema=False).metadata.sorted_tables
    for column in table.columns
]


@pytest.fixture
def store_and_key_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Path]:
    """A store with keys of erased and held users, and of re-encrypted sessions."""
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    keys = tmp_path / "keys.db"
    monkeypatch.setenv("REFOLD_KEYS", f"sqlite:///{keys}")
    url = f"sqlite:///{tmp_path / 'refold.db'}"
    with refold.open(url) as store:
        for user in ("ada", "eve"):
            for name in ("s-1", "s-2"):
                store.session(user_id=user, session_id=name).append(
                    user_inputs("hello")
                )
        store.erase("eve", "made up")
        store.erase("ada", "made up", session_id="s-2")
        store.seal()
    return url, keys


def _is_accepted(keys: Path, table: str, column: str, value: Any) -> bool:
    """Write the value, and return whether the table accepts it."""
    engine = create_engine(f"sqlite:///{keys}", poolclass=NullPool)
    try:
        with engine.begin() as connection:
            query = f"UPDATE OR IGNORE {table} SET {column}=:value"
            return connection.execute(text(query), {"value": value}).rowcount > 0
    except Exception:  # the column accepts no NULL
        return False


USES: Any = (
    lambda store: list(store.verify()),
    lambda store: store.verify_seals(),
    lambda store: store.session(user_id="ada", session_id="s-1").append(
        user_inputs("again")
    ),
    lambda store: store.session(user_id="new", session_id="s-9").append(
        user_inputs("new")
    ),
    lambda store: store.seal(),
    lambda store: store.keys.status(),
    lambda store: store.keys.rotate_user("ada"),
    lambda store: store.keys.rotate_master(),
    lambda store: store.erase("ada", "made up"),
)


def _use(url: str, use: Any) -> None:
    with refold.open(url) as store:
        use(store)


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_any_value_in_a_column_raises_only_refold_errors(
    store_and_key_file: tuple[str, Path], table: str, column: str
) -> None:
    url, keys = store_and_key_file
    whole = keys.read_bytes()

    for value in JUNK:
        keys.write_bytes(whole)
        if _is_accepted(keys, table, column, value):
            for use in USES:
                with suppress(RefoldError):
                    _use(url, use)
            with suppress(RefoldError):
                reconcile_keys(url)


@pytest.mark.parametrize("value", ["x", b"\xff", "", 1.5])
def test_a_generation_that_is_no_number_makes_the_keys_unavailable(
    store_and_key_file: tuple[str, Path], value: Any
) -> None:
    url, keys = store_and_key_file
    engine = create_engine(f"sqlite:///{keys}", poolclass=NullPool)
    with engine.begin() as connection:
        query = "UPDATE settings SET value=:value WHERE name='generation'"
        connection.execute(text(query), {"value": value})

    with pytest.raises(KeyUnavailable):
        refold.open(url)
