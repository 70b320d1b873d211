"""Exported Parquet equals the log, leaves out erased users, and needs little memory."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tracemalloc
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import refold
from refold.adapters.importers import dataset
from refold.adapters.importers.dataset import Tables
from refold.adapters.sql import recorder as rows
from refold.adapters.sql.recorder import Recorder
from refold.domain.erasure import ErasureScope
from refold.domain.errors import ExportFailed, InvalidConfiguration, KeyUnavailable
from refold.domain.events import Attachment
from refold.opener import open_recorder
from refold.store import SessionStore
from refold.store.erasure import Eraser, ErasureRequest
from refold.store.exports import check_export
from tests.support import warm
from tests.support.exporter import STEPS
from tests.support.operations import fill, log_of
from tests.support.stores import prepare
from tests.support.talking import talk

METADATA = (
    "user_id",
    "session_id",
    "stream",
    "seq",
    "type",
    "ts",
    "token_estimate",
    "schema_version",
    "event_id",
    "hash",
)
TEXTS = ("payload", "meta", "redaction")
KINDS = pytest.mark.parametrize("columns", ["metadata", "all"])
Rows = dict[tuple[str, str, str, int], dict[str, Any]]


@pytest.fixture
def filled(store: SessionStore) -> SessionStore:
    """Fill a store: ada has summaries, a fork and consent; bob and eve talk."""
    fill(store, rounds=6)
    store.user("ada").consent("training")
    for user in ("bob", "eve"):
        talk(store.session(user_id=user, session_id="s"), 2)
    return store


def tables(store: SessionStore, columns: str = "all", **how: Any) -> Tables:
    """Return an unwritten export of the store."""
    return Tables(log_of(store).recorder, store if columns == "all" else None, **how)


def rows_by_place(rows: list[dict[str, Any]]) -> Rows:
    """Return rows by place, and check that each place has one row."""
    names = ("user_id", "session_id", "stream", "seq")
    by_place: Any = {tuple(row[name] for name in names): row for row in rows}
    assert len(by_place) == len(rows)
    return by_place  # type: ignore[no-any-return]  # a dict of rows


def exported(out: Path) -> Rows:
    """Return the rows of an export, with values in the form of the log."""
    rows = []
    for file in out.glob("*.parquet"):
        for row in pq.read_table(file).to_pylist():
            texts = {name: json.loads(row[name]) for name in TEXTS if name in row}
            rows.append({**row, "event_id": str(row["event_id"]), **texts})
    return rows_by_place(rows)


def logged(store: SessionStore) -> Rows:
    """Return the log's envelopes as JSON, with times in UTC like those of rows."""
    rows: list[dict[str, Any]] = []
    for info in store.sessions(internal=True):
        name = {"user_id": info.user_id, "session_id": info.session_id}
        for envelope in store.session(**name).history.timeline():
            row: Any = envelope.to_json()
            ts = datetime.fromisoformat(row["ts"]).replace(tzinfo=None)
            rows.append({**row, "ts": ts})
    return rows_by_place(rows)


def with_columns(rows: Rows, *names: str) -> Rows:
    """Return the rows with only these columns."""
    return {key: {name: row[name] for name in names} for key, row in rows.items()}


@pytest.mark.each_engine
def test_an_export_of_all_columns_equals_the_log(
    filled: SessionStore, tmp_path: Path
) -> None:
    before = logged(filled)

    tables(filled, buckets=3).write(tmp_path / "out")

    names = (*METADATA, *TEXTS, "request_id", "agent")
    written = exported(tmp_path / "out")
    after = logged(filled)
    assert with_columns(written, *names) == with_columns(
        {key: after[key] for key in written}, *names
    )
    assert before.keys() <= written.keys()
    assert {key[2] for key in before} > {"main"}


@pytest.mark.each_engine
def test_metadata_needs_no_key(store_url: str, tmp_path: Path) -> None:
    with refold.open(prepare(store_url, tmp_path)) as store:
        fill(store, rounds=6)
        before = logged(store)
    shutil.rmtree(tmp_path / "home")
    (tmp_path / "keys.db").unlink(missing_ok=True)
    with pytest.raises((KeyUnavailable, InvalidConfiguration)):
        refold.open(store_url)

    recorder, _ = open_recorder(store_url)
    Tables(recorder).write(tmp_path / "out")
    recorder.close()

    written = exported(tmp_path / "out")
    assert with_columns(written, *METADATA) == with_columns(before, *METADATA)
    assert {*next(iter(written.values()))} == {*METADATA, "export_id"}
    assert not (tmp_path / "home").exists()


def test_a_row_names_its_origin(filled: SessionStore, tmp_path: Path) -> None:
    session = filled.session(user_id="bob", session_id="s")
    session.append(refold.UserInput(text="Write to bob@example.com."))
    export = tables(filled)

    export.write(tmp_path / "out")

    row = exported(tmp_path / "out")["bob", "s", "main", session.events()[-1].seq]
    assert (row["export_id"], row["user_epoch"]) == (export.export_id, 1)
    assert row["redacted_count"] == 1
    assert row["rules"] == row["redaction"]["rules"]
    assert "bob@example.com" not in str(row)


@KINDS
@pytest.mark.each_engine
def test_no_file_has_an_erased_user(
    filled: SessionStore, tmp_path: Path, columns: str
) -> None:
    filled.erase("bob", "asked")
    filled.erase("ada", "asked", session_id="fork")

    manifest = tables(filled, columns).write(tmp_path / "out").manifest

    written = exported(tmp_path / "out")
    assert {key[0] for key in written} == {"ada", "eve"}
    assert "fork" not in {key[1] for key in written}
    assert "bob" not in str(manifest)


@KINDS
@pytest.mark.parametrize("session_id", [None, "s"])
@pytest.mark.each_engine
def test_a_user_erased_during_the_export_is_left_out(
    filled: SessionStore,
    tmp_path: Path,
    columns: str,
    session_id: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bob is erased when his rows are already in the file and eve's follow."""
    log = log_of(filled)
    owner: Any = log.recorder if columns == "metadata" else log
    name = "plain" if columns == "metadata" else "read"
    original = getattr(owner, name)
    begun = list[str]()

    def read(stream: Any, **options: Any) -> Any:
        if stream.user_id == "eve" and not begun:
            begun.append("erasing")
            filled.erase("bob", "asked", session_id=session_id)
        return original(stream, **options)

    monkeypatch.setattr(owner, name, read)

    manifest: Any = tables(filled, columns, buckets=1).write(tmp_path / "out").manifest

    written = exported(tmp_path / "out")
    assert begun
    assert {key[:2] for key in written} >= {
        ("ada", "s-1"),
        ("ada", "fork"),
        ("eve", "s"),
    }
    assert ("bob", "s") not in {key[:2] for key in written}
    assert {*manifest["users"]} == {key[0] for key in written}
    assert check_export(tmp_path / "out").problems == []


def test_a_user_under_erasure_is_left_out_of_all_columns(
    filled: SessionStore, tmp_path: Path
) -> None:
    """His erasure would not find copies that are recorded only later."""
    writer = filled.session(user_id="bob", session_id="s").writer
    Eraser(writer).begin(ErasureRequest(ErasureScope("bob"), "asked", ""))

    manifest: Any = tables(filled).write(tmp_path / "out").manifest

    assert {*manifest["users"]} == {"ada", "eve"}


@pytest.mark.each_engine
def test_an_export_during_writes_has_every_earlier_event(
    filled: SessionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = logged(filled)
    log = log_of(filled)
    original = log.read

    def read(stream: Any, **options: Any) -> Any:
        talk(filled.session(user_id="bob", session_id="s"), 1)
        talk(filled.session(user_id="new", session_id="s"), 1)
        return original(stream, **options)

    monkeypatch.setattr(log, "read", read)

    tables(filled).write(tmp_path / "out")

    written = exported(tmp_path / "out")
    assert with_columns(before, "hash").items() <= with_columns(written, "hash").items()
    monkeypatch.undo()
    assert (
        with_columns(written, "hash").items()
        <= with_columns(logged(filled), "hash").items()
    )


def test_an_erasure_names_exports_of_all_columns_and_their_rows(
    filled: SessionStore, tmp_path: Path
) -> None:
    export = tables(filled)
    export.write(tmp_path / "all")
    tables(filled, "metadata").write(tmp_path / "metadata")
    written = exported(tmp_path / "all")

    (planned,) = filled.erasures.plan("ada", session_id="fork").exports or []
    assert planned["export"] == export.export_id
    named: Any = planned["rows"]
    of_fork = {key for key, row in written.items() if row["session_subject"] in named}
    assert of_fork == {key for key in written if key[:2] == ("ada", "fork")}

    erased = filled.erase("ada", "asked")

    assert erased.certificate is not None
    (certified,) = erased.certificate.statement["exports"]
    assert certified["export"] == export.export_id
    of_ada = {
        key for key, row in written.items() if row["user_subject"] in certified["rows"]
    }
    assert of_ada == {key for key in written if key[0] == "ada"}


def test_a_readmitted_user_has_another_epoch(
    filled: SessionStore, tmp_path: Path
) -> None:
    first: Any = tables(filled).write(tmp_path / "first").manifest
    filled.erase("bob", "asked")
    filled.erasures.readmit("bob", "is back")
    talk(filled.session(user_id="bob", session_id="s"), 1)

    second: Any = tables(filled).write(tmp_path / "second").manifest

    assert first["users"]["bob"]["epoch"] == 1
    assert second["users"]["bob"] == {**first["users"]["bob"], "epoch": 2}
    assert first["generation"] < second["generation"]


def test_a_frozen_user_is_exported_as_metadata_only(
    filled: SessionStore, tmp_path: Path
) -> None:
    filled.erasures.freeze("bob", "a lawsuit")

    whole: Any = tables(filled).write(tmp_path / "all").manifest
    metadata: Any = tables(filled, "metadata").write(tmp_path / "metadata").manifest

    assert (whole["counts"]["left"], metadata["counts"]["left"]) == (1, 0)
    assert {*metadata["users"]} - {*whole["users"]} == {"bob"}
    assert {key[0] for key in exported(tmp_path / "all")} == {"ada", "eve"}


def test_each_user_is_in_one_file_which_the_manifest_names(
    store: SessionStore, tmp_path: Path
) -> None:
    names = {f"u{number}" for number in range(12)}
    for name in names:
        talk(store.session(user_id=name, session_id="s"), 1)

    first: Any = tables(store, buckets=4).write(tmp_path / "first").manifest
    again: Any = tables(store, "metadata", buckets=4).write(tmp_path / "again").manifest

    there = {
        name: {
            file.name
            for file in (tmp_path / "first").glob("*.parquet")
            if name in pq.read_table(file)["user_id"].to_pylist()
        }
        for name in names
    }
    assert there == {name: {first["users"][name]["file"]} for name in names}
    assert 1 < len(first["files"]) <= 4
    files = [
        {name: entry["file"] for name, entry in m["users"].items()}
        for m in (first, again)
    ]
    assert files[0] == files[1]


def test_an_export_verifies(filled: SessionStore, tmp_path: Path) -> None:
    tables(filled).write(tmp_path / "out")
    assert check_export(tmp_path / "out").problems == []

    file = next((tmp_path / "out").glob("*.parquet"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)

    (problem,) = check_export(tmp_path / "out").problems
    assert problem.path == file.name


def test_only_its_owner_can_read_an_export(
    filled: SessionStore, tmp_path: Path
) -> None:
    tables(filled, "metadata").write(tmp_path / "out")

    out = tmp_path / "out"
    assert {path.stat().st_mode & 0o077 for path in (out, *out.iterdir())} == {0}


def test_an_export_overwrites_nothing(filled: SessionStore, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")

    with pytest.raises(ExportFailed, match="exists already"):
        tables(filled).write(tmp_path / "out")

    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_an_export_that_fails_leaves_nothing(
    filled: SessionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "place").mkdir()
    monkeypatch.setattr("refold.store.exports.Files.finish", _raise_disk_full)

    with pytest.raises(refold.errors.ExportFailed, match="free space"):
        tables(filled).write(tmp_path / "place" / "out")

    assert list((tmp_path / "place").iterdir()) == []


def _raise_disk_full(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.each_engine
def test_a_killed_export_leaves_no_folder_of_its_name(
    store_url: str, tmp_path: Path, step: str
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with refold.open(prepare(store_url, tmp_path)) as store:
        talk(store.session(user_id="ada", session_id="s"), 2)

    process = warm.module("tests.support.exporter", store_url, str(place / "out"), step)
    process.communicate()

    assert process.returncode == -signal.SIGKILL
    assert all(path.name.startswith(".out.") for path in place.iterdir())
    with refold.open(store_url) as store:
        tables(store).write(place / "out")
    assert check_export(place / "out").problems == []


def _peak_bytes(work: Callable[[], object]) -> int:
    """Return the peak memory of the work, in Python and in Arrow."""
    before = pa.default_memory_pool()
    pool = None
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] + (pool.max_memory() or 0)
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)


@KINDS
def test_more_events_take_no_more_memory(
    store: SessionStore, tmp_path: Path, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "_GROUP_BYTES", 100_000)
    monkeypatch.setattr(rows, "_ROWS", 100)
    session = store.session(user_id="ada", session_id="s")

    def filled(count: int) -> int:
        for number in range(0, count, 100):
            texts = [f"{number + more} " + "why " * 200 for more in range(100)]
            session.append([refold.UserInput(text=text) for text in texts])
        export = tables(store, columns)
        return _peak_bytes(lambda: export.write(tmp_path / f"{count}"))

    filled(100)  # what is loaded and created once
    few = filled(400)
    more = 2_000

    many = filled(more)

    # A row alone takes at least 700 bytes; the rest is the end of such small groups.
    assert (many - few) / more < 100


def test_long_events_make_short_groups(store: SessionStore, tmp_path: Path) -> None:
    session = store.session(user_id="ada", session_id="s")
    for _ in range(12):
        parts = [Attachment(text="why " * 15_000) for _ in range(16)]
        session.append(refold.UserInput(text="look", attachments=tuple(parts)))

    tables(store).write(tmp_path / "out")

    (file,) = (tmp_path / "out").glob("*.parquet")
    read = pq.ParquetFile(file)
    sizes = [
        read.read_row_group(group).num_rows for group in range(read.num_row_groups)
    ]
    assert sizes == [9, 3]


def test_a_missing_extra_is_named(
    filled: SessionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(InvalidConfiguration, match=r"'refold\[parquet\]'"):
        tables(filled).write(tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_metadata_is_read_page_by_page(
    filled: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder: Recorder = log_of(filled).recorder
    session = filled.session(user_id="ada", session_id="s-1").stream
    whole = [*recorder.plain(session)]

    for size in (1, 7, len(whole), len(whole) + 1):
        monkeypatch.setattr(rows, "_ROWS", size)
        assert [*recorder.plain(session)] == whole
    assert [row[2:4] for row in whole] == sorted(row[2:4] for row in whole)
