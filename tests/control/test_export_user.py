"""An export of a user is complete or does not exist, and can be verified."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest

import refold
from refold.domain.canonical import digest
from refold.domain.errors import ExportFailed, InvalidConfiguration
from refold.store import SessionStore
from refold.store.exports import Files, check_export
from tests.support.operations import LONG, WINDOW, fill
from tests.support.talking import talk


@pytest.fixture
def filled(store: SessionStore) -> SessionStore:
    """Ada has data of every kind, consent and a hold; bob has a session."""
    fill(store, rounds=6)
    store.user("ada").consent("declarative_memory", reason="asked")
    store.erasures.hold("ada", "case 7", "a lawsuit")
    talk(store.session(user_id="bob", session_id="bobs"), 3)
    return store


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_every_event_of_the_user_is_exported_and_none_of_others(
    filled: SessionStore, tmp_path: Path
) -> None:
    out = filled.export_user("ada", tmp_path / "out").path

    manifest = json.loads((out / "manifest.json").read_text("utf-8"))
    for listed in manifest["sessions"]:
        session = filled.session(user_id="ada", session_id=listed["session_id"])
        files = {
            streamed["stream"]: out / streamed["file"] for streamed in listed["streams"]
        }
        assert set(files) == set(session.history.streams())
        for name, file in files.items():
            events = (
                session.events() if name == "main" else session.history.derived(name)
            )
            assert lines(file) == [envelope.to_json() for envelope in events]
    assert [item["session_id"] for item in manifest["sessions"]] == [
        info.session_id for info in filled.sessions("ada", internal=True)
    ]
    everything = b"".join(file.read_bytes() for file in out.rglob("*.*"))
    assert b"bobs" not in everything


def test_texts_consent_holds_views_and_certificates_are_exported(
    filled: SessionStore, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    counts: Any = filled.export_user("ada", out).manifest["counts"]

    (blob,) = (out / "blobs").iterdir()
    assert blob.read_text("utf-8") == LONG
    about = json.loads((out / "user.json").read_text("utf-8"))
    assert about["declarative_memory"] is True
    assert [hold["name"] for hold in about["holds"]] == ["case 7"]
    (certificate,) = lines(out / "certificates.jsonl")
    assert certificate["certificate"]["act"] == "legal hold"
    assert list(out.rglob("views.json"))
    assert (counts["sessions"], counts["blobs"], counts["certificates"]) == (3, 1, 1)


def test_only_its_owner_can_read_an_export(
    filled: SessionStore, tmp_path: Path
) -> None:
    out = filled.export_user("ada", tmp_path / "out").path

    modes = {path.stat().st_mode & 0o077 for path in [out, *out.rglob("*")]}

    assert modes == {0}


def test_an_export_verifies(filled: SessionStore, tmp_path: Path) -> None:
    filled.export_user("ada", tmp_path / "out")

    checked = check_export(tmp_path / "out")

    assert checked.problems == []
    assert checked.user_id == "ada"


def _manifest(out: Path) -> Any:
    return json.loads((out / "manifest.json").read_text("utf-8"))


def _events(out: Path) -> Path:
    return max(out.rglob("events.jsonl"), key=lambda path: path.stat().st_size)


def _flip_a_byte(out: Path) -> None:
    data = bytearray(_events(out).read_bytes())
    data[len(data) // 2] ^= 1
    _events(out).write_bytes(data)


def _remove_an_event(out: Path) -> None:
    next((out / "blobs").iterdir()).unlink()


def _add_an_event(out: Path) -> None:
    (out / "sessions" / "more.jsonl").write_text("{}\n")


def _change_the_count(out: Path) -> None:
    manifest = _manifest(out)
    manifest["counts"]["events"] += 1
    (out / "manifest.json").write_bytes(orjson.dumps(manifest))


def _exchange_two_events(out: Path) -> None:
    """Exchange two events, and make the manifest fit."""
    rows = _events(out).read_bytes().splitlines(keepends=True)
    rows[1], rows[2] = rows[2], rows[1]
    _resign(out, b"".join(rows))


def _cut_the_last_event(out: Path) -> None:
    """Remove the last event, and make the manifest fit."""
    rows = _events(out).read_bytes().splitlines(keepends=True)
    _resign(out, b"".join(rows[:-1]))


def _resign(out: Path, data: bytes) -> None:
    path = _events(out)
    path.write_bytes(data)
    manifest = _manifest(out)
    del manifest["digest"]
    for file in manifest["files"]:
        if file["path"] == path.relative_to(out).as_posix():
            file["bytes"] = len(data)
            file["sha256"] = sha256(data).hexdigest()
    manifest["digest"] = digest(manifest)
    (out / "manifest.json").write_bytes(orjson.dumps(manifest))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export that tests copy and change; no store is needed after it was written."""
    with refold.open("memory://") as store:
        fill(store, rounds=6)
        return store.export_user("ada", tmp_path_factory.mktemp("made") / "out").path


@pytest.mark.parametrize(
    "tamper",
    [
        _flip_a_byte,
        _remove_an_event,
        _add_an_event,
        _change_the_count,
        _exchange_two_events,
        _cut_the_last_event,
    ],
)
def test_a_changed_export_fails_its_check(
    exported: Path, tmp_path: Path, tamper: Callable[[Path], None]
) -> None:
    out = shutil.copytree(exported, tmp_path / "out")

    tamper(out)

    assert len(check_export(out).problems) == 1


def test_a_folder_without_a_manifest_is_no_export(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="no manifest"):
        check_export(tmp_path)


@pytest.mark.parametrize("when", ["at the first event", "at the manifest"])
@pytest.mark.parametrize("scope", ["the user", "a session"])
def test_an_erasure_during_an_export_ends_it_and_leaves_nothing(
    store: SessionStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    when: str,
    scope: str,
) -> None:
    talk(store.session(user_id="ada", session_id="one"), 3)
    talk(store.session(user_id="ada", session_id="two"), 3)
    before = sorted(tmp_path.iterdir())
    opened = Files.writing

    def interrupted(self: Files, path: str) -> Any:
        if path.endswith("events.jsonl" if "event" in when else "manifest.json"):
            monkeypatch.undo()
            _erase(store, scope)
        return opened(self, path)

    monkeypatch.setattr(Files, "writing", interrupted)

    with pytest.raises(refold.Erased):
        store.export_user("ada", tmp_path / "out")

    assert not (tmp_path / "out").exists()
    assert sorted(tmp_path.iterdir()) == before


def _erase(store: SessionStore, scope: str) -> None:
    session = None if scope == "the user" else "two"
    erasing = threading.Thread(
        target=lambda: store.erase("ada", "asked", session_id=session)
    )
    erasing.start()
    erasing.join()


def test_erased_and_unknown_users_cannot_be_exported(
    filled: SessionStore, tmp_path: Path
) -> None:
    filled.erasures.release("ada", "case 7", "over")
    filled.erase("ada", "asked")

    with pytest.raises(refold.Erased):
        filled.export_user("ada", tmp_path / "out")
    with pytest.raises(refold.SessionNotFound):
        filled.export_user("nobody", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_export_overwrites_nothing(filled: SessionStore, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")

    with pytest.raises(ExportFailed, match="exists already"):
        filled.export_user("ada", tmp_path / "out")

    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_a_full_disk_leaves_no_partial_export(
    filled: SessionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(tmp_path.iterdir())

    def raise_disk_full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("refold.store.exports.os.fsync", raise_disk_full)

    with pytest.raises(refold.errors.ExportFailed, match="free space"):
        filled.export_user("ada", tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


def test_a_concurrent_append_is_exported_completely_or_not_at_all(
    store: SessionStore, tmp_path: Path
) -> None:
    session = store.session(user_id="ada", session_id="s")
    talk(session, 20)
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            session.append([refold.UserInput(text="a"), refold.UserInput(text="b")])
            session.compact(WINDOW)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for number in range(3):
            store.export_user("ada", tmp_path / f"out-{number}")
    finally:
        done.set()
        writing.join()

    for number in range(3):
        assert check_export(tmp_path / f"out-{number}").problems == []


def test_a_long_session_is_read_in_parts(
    store: SessionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(store.session(user_id="ada", session_id="s"), 120)
    read = type(store.log).read
    most = 0

    def counted_read(*args: Any, **named: Any) -> Any:
        nonlocal most
        page = read(*args, **named)
        most = max(most, len(page))
        return page

    monkeypatch.setattr(type(store.log), "read", counted_read)

    store.export_user("ada", tmp_path / "out")

    assert 0 < most <= 100


@pytest.fixture(autouse=True)
def _no_rest(tmp_path: Path) -> Iterator[None]:
    yield
    assert not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize(
    "odd",
    [
        {"files": None},
        {"files": [{"path": 5}]},
        {"sessions": {"a": 1}},
        {"sessions": [{"streams": [{"file": "../../etc/passwd"}]}]},
        {"files": [{"path": "../../etc/passwd", "bytes": 1, "sha256": ""}]},
        {"counts": None, "user_id": None, "files": [], "sessions": [{}]},
    ],
)
def test_a_manifest_of_another_shape_is_a_problem_and_no_crash(
    memory: SessionStore, tmp_path: Path, odd: dict[str, Any]
) -> None:
    talk(memory.session(user_id="ada", session_id="s"), 1)
    out = memory.export_user("ada", tmp_path / "out").path
    manifest = {**_manifest(out), **odd}
    del manifest["digest"]
    manifest["digest"] = digest(manifest)
    (out / "manifest.json").write_bytes(orjson.dumps(manifest))

    assert check_export(out).problems


@pytest.mark.parametrize("text", [b"", b"\xff", b"[]", b"{}", b'{"format": 1}'])
def test_an_invalid_manifest_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(text)

    with pytest.raises(InvalidConfiguration):
        check_export(tmp_path)
