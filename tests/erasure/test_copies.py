"""An erasure names every export with a copy of the erased data."""

from __future__ import annotations

import hashlib
import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from refold.adapters.importers.dataset import Dataset, Tables
from refold.adapters.log import EncryptedLog
from refold.domain.chain import length_prefixed
from refold.domain.erasure import ErasureScope
from refold.domain.errors import Erased, ExportFailed, SessionNotFound
from refold.store import SessionStore
from refold.store.exports import CopyRecords
from refold.testing.event_log import user_inputs
from tests.support.engines import BOTH
from tests.support.operations import log_of
from tests.support.stores import open_at

PATH_NAME = "ada-lovelace-9f31"


def fill(store: SessionStore, user_id: str = "ada", session_id: str = "s-1") -> None:
    store.session(user_id=user_id, session_id=session_id).append(user_inputs("hello"))


def record_rows(store: SessionStore) -> list[Any]:
    database = log_of(store).recorder.database
    return list(database.read(None, sa.select(database.tables.exports)))


@BOTH
def test_the_report_names_the_folder_and_the_certificate_its_hash(
    store: SessionStore, tmp_path: Path
) -> None:
    fill(store)
    out = tmp_path / PATH_NAME
    store.export_user("ada", out)

    done = store.erase("ada", "asked")

    assert done.copies is not None
    (copy,) = done.copies
    assert (copy["format"], copy["location"]) == ("folder", str(out))
    assert copy["machine"] == os.uname().nodename
    assert done.certificate is not None
    (certified,) = done.certificate.statement["copies"]
    assert certified["made_at"] == copy["made_at"]
    assert PATH_NAME not in json.dumps(done.certificate.to_json())
    salt = bytes.fromhex(done.salt)
    parts = [b"refold:location:1", salt, os.uname().nodename.encode()]
    whole = length_prefixed([*parts, str(out).encode()])
    assert certified["location_hash"] == hashlib.sha256(whole).hexdigest()
    assert record_rows(store) == []
    assert store.erase("ada", "asked").copies == ()


def test_a_record_is_unreadable_without_the_key(
    store: SessionStore, tmp_path: Path
) -> None:
    fill(store)

    store.export_user("ada", tmp_path / PATH_NAME)

    (row,) = record_rows(store)
    assert PATH_NAME.encode() not in bytes(row.body)
    assert b"folder" not in bytes(row.body)


def test_a_recorded_export_changes_neither_the_next_one_nor_verification(
    store: SessionStore, tmp_path: Path
) -> None:
    fill(store)
    first = store.export_user("ada", tmp_path / "first")

    second = store.export_user("ada", tmp_path / "second")

    assert first.manifest["counts"] == second.manifest["counts"]
    assert first.manifest["sessions"] == second.manifest["sessions"]
    assert [info.session_id for info, _ in store.verify()] == ["s-1"]


def test_an_export_that_fails_leaves_no_record(
    store: SessionStore, tmp_path: Path
) -> None:
    fill(store)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()

    with pytest.raises(ExportFailed):
        store.export_user("ada", tmp_path / "full")
    with pytest.raises(SessionNotFound):
        store.export_user("nobody", tmp_path / "out")

    assert record_rows(store) == []


def test_exports_of_other_users_are_not_named(
    store: SessionStore, tmp_path: Path
) -> None:
    fill(store)
    fill(store, "bob", "s-2")
    store.export_user("bob", tmp_path / "bobs")

    plan = store.erasures.plan("ada")
    done = store.erase("ada", "asked")

    assert (plan.copies, done.copies) == ([], [])
    assert len(record_rows(store)) == 1


@BOTH
def test_the_erasure_of_a_session_names_the_exports_that_have_it(
    store: SessionStore, tmp_path: Path
) -> None:
    fill(store)
    fill(store, session_id="s-2")
    store.export_user("ada", tmp_path / "whole")
    for name in ("s-1", "s-2"):
        CopyRecords(store.writer, "atif", name, sessions=(name,)).record("ada")

    done = store.erase("ada", "asked", session_id="s-1")

    locations = [str(copy["location"]) for copy in done.copies or ()]
    assert sorted(locations) == sorted([str(tmp_path / "whole"), "s-1"])
    assert len(record_rows(store)) == 3  # the user stays, and so do the copies


def test_a_deleted_session_is_certified_with_its_copies(
    store: SessionStore, store_url: str, tmp_path: Path
) -> None:
    fill(store)
    store.export_user("ada", tmp_path / "whole")

    store.session(user_id="ada", session_id="s-1").delete()
    store.close()

    with open_at(store_url, tmp_path) as again:
        (signed,) = again.erasures.certificates("ada")
        assert len(signed.statement["copies"]) == 1


@BOTH
def test_copies_are_named_at_the_end_of_a_grace_from_escrowed_keys(
    store: SessionStore, tmp_path: Path
) -> None:
    fill(store)
    store.export_user("ada", tmp_path / "out")
    scheduled = store.erase("ada", "asked", grace=timedelta(days=1))
    assert [copy["location"] for copy in scheduled.copies or ()] == [
        str(tmp_path / "out")
    ]

    done = store.erase("ada", "asked")

    assert done.certificate is not None
    assert done.copies == scheduled.copies
    assert len(done.certificate.statement["copies"]) == 1


@BOTH
def test_no_export_of_an_erased_user_is_recorded(
    store: SessionStore, tmp_path: Path
) -> None:
    fill(store)
    log = store.log
    job = log.erasures.new_job(ErasureScope("ada"), due_at=None, facts={})
    log.erasures.mark(log.erasures.begin(job))

    with pytest.raises(Erased):
        store.export_user("ada", tmp_path / "out")
    CopyRecords(store.writer, "events", "stdout").record("ada")

    assert record_rows(store) == []
    assert not (tmp_path / "out").exists()


def test_an_unreadable_record_is_reported(store: SessionStore, tmp_path: Path) -> None:
    fill(store)
    store.export_user("ada", tmp_path / "out")
    database = log_of(store).recorder.database
    database.run("ada", sa.update(database.tables.exports).values(body=b"x" * 60))

    done = store.erase("ada", "asked")

    (copy,) = done.copies or ()
    assert (copy["format"], copy["location"]) == ("", "")
    assert done.certificate is not None


def test_datasets_and_tables_are_named_with_their_place(
    store: SessionStore, tmp_path: Path
) -> None:
    fill(store)
    store.user("ada").consent("training")
    log = store.log
    assert isinstance(log, EncryptedLog)
    dataset = Dataset(store, out=tmp_path / "rows.jsonl")
    assert list(dataset.rows())
    Tables(log.recorder, store).write(tmp_path / "tables")

    done = store.erase("ada", "asked")

    named = {(copy["format"], copy["location"]) for copy in done.copies or ()}
    assert named == {
        ("dataset", str(tmp_path / "rows.jsonl")),
        ("parquet", str(tmp_path / "tables")),
    }
