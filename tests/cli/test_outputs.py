"""A command checks its output before it acts, and always reports what it did.

Each runs as a real process: with a path in a missing folder, a directory, an existing
file, a full disk, a closed stdout, and a pipe whose reader has gone.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import refold as package
from refold.adapters.cli.files import Destination, write_lines
from refold.domain import errors
from refold.domain.inventory import Place, places
from refold.store.erasure import Eraser
from tests.cli.conftest import SAMPLE, Refold

LIN = ("--user", "lin")
ERASE = ("erase", *LIN, "--reason", "lin asked", "--yes")
FULL = Path("/dev/full")


class Process:
    """A finished command that ran in a process of its own."""

    def __init__(self, args: tuple[object, ...], stdout: str, folder: Path) -> None:
        command = [sys.executable, "-m", "refold", *map(str, args)]
        options: dict[str, Any] = {"cwd": folder, "stderr": subprocess.PIPE}
        if stdout == "full":
            with FULL.open("wb") as full:
                ran = subprocess.run(command, stdout=full, check=False, **options)
        elif stdout == "broken pipe":
            reader, writer = os.pipe()
            os.close(reader)
            ran = subprocess.run(command, stdout=writer, check=False, **options)
            os.close(writer)
        else:
            closed = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
            ran = subprocess.run(closed, check=False, **options)
        self.code = ran.returncode
        self.err = ran.stderr.decode()


LOST = {"full": 1, "broken pipe": 141, "closed": 1}


@pytest.fixture(autouse=True)
def _lin_has_a_session(sample: Path) -> None:
    """Put lin's session into refold.db, in the working directory."""


def session_exists(refold: Refold) -> bool:
    """Whether lin's session can still be read."""
    return refold("log", *LIN, "--session", "run").code == 0


def file_names(folder: Path) -> set[str]:
    """Return the names of all files of a test, except those that SQLite creates."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
    return {name for name in names if not name.endswith(("-wal", "-shm"))}


@pytest.mark.parametrize("out", ["missing/c.json", "folder", "there.json"])
def test_an_output_that_cannot_be_written_stops_an_erasure_before_it_begins(
    refold: Refold, tmp_path: Path, out: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "there.json").write_text("an earlier certificate")
    before = file_names(tmp_path)

    ran = refold(*ERASE, "--out", out)

    assert ran.code != 0
    assert out.partition("/")[0] in ran.err
    assert session_exists(refold)
    assert file_names(tmp_path) == before
    assert (tmp_path / "there.json").read_text() == "an earlier certificate"


@pytest.mark.parametrize("kind", ["store", "key store", "write-ahead log", "anchor"])
def test_no_output_replaces_a_file_of_a_store(
    refold: Refold, sample: Path, tmp_path: Path, kind: str
) -> None:
    assert refold("seal").code == 0
    reader = sqlite3.connect(sample)
    with closing(reader), closing(sqlite3.connect(sample)) as writer:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM events").fetchone()
        writer.execute("CREATE TABLE a_write_that_stays_in_the_log (n)")
        file = {
            "store": sample,
            "key store": next((tmp_path / "home" / "keys").glob("*.db")),
            "write-ahead log": tmp_path / "refold.db-wal",
            "anchor": next((tmp_path / "home" / "anchors").iterdir()),
        }[kind]
        before = file.read_bytes()
        ran = refold("view", *LIN, "--session", "run", "--html", file)

        assert ran.code == 2
        assert "name another file" in ran.err
        assert file.read_bytes() == before
    assert session_exists(refold)


def test_no_output_replaces_the_master_key_or_a_named_anchor(
    refold: Refold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anchor = tmp_path / "anchor.jsonl"
    anchor.write_text("{}")
    monkeypatch.setenv("REFOLD_ANCHOR", str(anchor))
    (tmp_path / "link.html").symlink_to(anchor)
    key = (tmp_path / "home" / "master.key").read_bytes()

    for out in ("home/master.key", "anchor.jsonl", "link.html"):
        ran = refold("view", *LIN, "--session", "run", "--html", out)

        assert ran.code == 2
        assert "name another file" in ran.err
    assert anchor.read_text() == "{}"
    assert (tmp_path / "home" / "master.key").read_bytes() == key


@pytest.mark.parametrize("place", places("file"), ids=lambda place: place.name)
def test_no_output_replaces_a_registered_file_in_the_home(
    refold: Refold, tmp_path: Path, place: Place
) -> None:
    file = tmp_path / "home" / place.pattern.replace("*", "a-file")
    file.parent.mkdir(exist_ok=True)
    file.touch(0o600)
    before = file.read_bytes()

    ran = refold("view", *LIN, "--session", "run", "--html", file)

    assert ran.code == 2
    assert "name another file" in ran.err
    assert file.read_bytes() == before


def test_a_folder_without_rights_stops_an_erasure_before_it_begins(
    refold: Refold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The superuser, who runs tests in containers, has every right.
    def deny_access(path: Any, *_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("refold.adapters.cli.files.os.open", deny_access)
    ran = refold(*ERASE, "--out", "c.json")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))

    assert ran.code == 1
    assert "permission denied" in ran.err
    assert session_exists(refold)


def test_a_certificate_that_a_full_disk_refuses_is_printed_with_its_salt(
    refold: Refold,
) -> None:
    ran = refold(*ERASE, "--out", FULL)

    assert ran.code == 1
    assert "no space left" in ran.err
    assert "salt" in ran.out
    (line,) = [line for line in ran.out.splitlines() if line.startswith("{")]
    assert json.loads(line)["certificate"]["act"] == "erased"
    assert FULL.is_char_device()
    assert not session_exists(refold)


def test_json_of_an_erasure_says_that_the_certificate_was_not_written(
    refold: Refold,
) -> None:
    ran = refold(*ERASE, "--out", FULL, "--json")

    result = ran.json()
    assert ran.code == 1
    assert len(result["salt"]) == 64
    assert "no space left" in result["unwritten"]


@pytest.mark.parametrize("way", ["--dry-run", "--due", "--list", "--grace=1d"])
def test_an_output_option_that_would_write_nothing_is_refused(
    refold: Refold, way: str
) -> None:
    ran = refold(*ERASE, way, "--out", "c.json")

    assert ran.code == 2
    assert not Path("c.json").exists()
    assert session_exists(refold)


def test_a_refused_erasure_leaves_no_file(refold: Refold) -> None:
    refold("hold", *LIN, "--name", "case-17", "--reason", "a court asked")

    assert refold(*ERASE, "--out", "c.json").code == 1

    assert not Path("c.json").exists()


@pytest.mark.parametrize("stdout", LOST)
@pytest.mark.parametrize("as_json", [False, True])
def test_the_salt_goes_to_stderr_if_stdout_is_full(
    refold: Refold, tmp_path: Path, stdout: str, as_json: bool
) -> None:
    ran = Process((*ERASE, *(["--json"] if as_json else [])), stdout, tmp_path)

    assert ran.code == LOST[stdout]
    assert "salt" in ran.err
    if as_json:
        lines = [line for line in ran.err.splitlines() if line.startswith("{")]
        assert len(json.loads(lines[-1])["salt"]) == 64
    assert not session_exists(refold)


def test_an_erasure_needs_a_stream_to_print_the_salt_on(
    refold: Refold, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "refold", *ERASE]
    closed = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *command]

    ran = subprocess.run(closed, cwd=tmp_path, check=False)

    assert ran.returncode == 2
    assert session_exists(refold)


def add_two_pending_erasures(folder: Path) -> None:
    """Hold two users whose erasures are past their grace."""
    with package.open(f"sqlite:///{folder / 'refold.db'}") as store:
        for user in ("ada", "bob"):
            session = store.session(user_id=user, session_id="s")
            session.append(package.UserInput(text="x"))
            store.erase(user, "asked", grace=timedelta(days=1))
    execute_sql(folder, "UPDATE erasures SET due_at = 1")


def execute_sql(folder: Path, statement: str) -> None:
    """Change rows of the store directly, for example to move a time."""
    with closing(sqlite3.connect(folder / "refold.db")) as connection:
        connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize("stdout", LOST)
def test_a_closed_stdout_stops_no_scheduled_erasure(
    refold: Refold, tmp_path: Path, stdout: str
) -> None:
    add_two_pending_erasures(tmp_path)

    ran = Process(("erase", "--due"), stdout, tmp_path)

    assert ran.code == LOST[stdout]
    assert ran.err.count("salt") == 2
    assert refold("erase", "--list", "--json").json()["unfinished"] == []


COMMANDS = {
    "freeze": (("freeze", *LIN, "--reason", "x"), "frozen"),
    "hold": (("hold", *LIN, "--name", "n", "--reason", "x"), "held: certificate"),
    "keys": (("keys", "rotate", *LIN), "sessions"),
    "master": (("keys", "rotate", "--master"), "wrapped"),
    "reconcile": (("keys", "reconcile"), "destroyed"),
    "seal": (("seal",), "leaf"),
    "repair": (("repair", "--apply"), "1 session"),
    "recheck": (("redact", "--recheck", "--apply"), "findings in 57 events"),
    "retain": (("retain", "--preset", "seed"), "erased"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_report_that_stdout_refuses_goes_to_stderr(tmp_path: Path, name: str) -> None:
    args, message = COMMANDS[name]

    ran = Process(args, "full", tmp_path)

    assert ran.code == 1, ran.err
    assert message in ran.err


OUTPUTS = {
    "events": ("export", "--out"),
    "of user": ("export", *LIN, "--out"),
    "atif": ("export", "--format", "atif", "--out"),
    "otlp": ("export", "--format", "otlp", "--out"),
    "dataset": ("export", "--format", "dataset", "--out"),
    "context": ("export", "--format", "anthropic", *LIN, "--session", "run", "--out"),
    "public key": ("prove", "--public-key", "--out"),
    "share": ("share", *LIN, "--session", "run", "--yes", "--out"),
    "page": ("view", *LIN, "--session", "run", "--html"),
}


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("place", ["missing/x.jsonl", "folder.jsonl"])
def test_no_command_starts_its_work_if_it_cannot_write_its_output(
    refold: Refold, tmp_path: Path, name: str, place: str
) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    before = file_names(tmp_path)
    records = refold("log", *LIN, "--session", "_user", "--json").out

    ran = refold(*OUTPUTS[name], place)

    assert ran.code == 1
    assert place.partition("/")[0] in ran.err
    assert file_names(tmp_path) == before
    assert refold("log", *LIN, "--session", "_user", "--json").out == records


@pytest.mark.parametrize("name", sorted(set(OUTPUTS) - {"of user"}))
def test_a_full_disk_leaves_no_partial_output(
    refold: Refold, tmp_path: Path, name: str
) -> None:
    if name == "dataset":
        refold("consent", *LIN, "--grant", "training")
    full = tmp_path / "full.jsonl"
    full.symlink_to(FULL)
    before = file_names(tmp_path)

    ran = refold(*OUTPUTS[name], full)

    assert ran.code == 1
    assert "no space left" in ran.err
    assert FULL.is_char_device()
    assert file_names(tmp_path) == before


@pytest.mark.parametrize("name", sorted(set(OUTPUTS) - {"public key"}))
def test_an_output_with_data_of_a_user_is_named_by_their_erasure(
    refold: Refold, tmp_path: Path, name: str
) -> None:
    if name == "dataset":
        refold("consent", *LIN, "--grant", "training")
    out = tmp_path / ("folder" if name == "of user" else "file.jsonl")

    assert refold(*OUTPUTS[name], out).code == 0

    plan = refold("erase", *LIN, "--dry-run", "--json").json()
    assert [copy["location"] for copy in plan["copies"]] == [str(out)]


def test_an_output_is_written_through_a_link_and_keeps_the_link(tmp_path: Path) -> None:
    target = tmp_path / "target"
    link = tmp_path / "link"
    target.write_text("before")
    link.symlink_to(target)

    write_lines(link, [b"after"])

    assert link.is_symlink()
    assert target.read_text() == "after\n"


def test_an_output_that_appears_during_the_command_is_not_replaced(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c.json"
    path.touch()
    with Destination(path, overwrite=False) as destination:
        destination.write(b"certificate")
        destination.commit()
    assert path.read_bytes() == b"certificate"

    with pytest.raises(errors.InvalidConfiguration, match="exists already"):
        Destination(path, overwrite=False)


def test_a_search_that_fails_after_the_erasure_does_not_lose_the_salt(
    refold: Refold, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise errors.StoreUnavailable("the disk is full", remedy="make room")

    monkeypatch.setattr(Eraser, "_clean_and_search", fail)

    ran = refold(*ERASE)

    assert ran.code == 1
    assert "salt" in ran.out
    assert "the disk is full" in ran.out


def test_a_retention_that_fails_prints_its_finished_certificates(
    refold: Refold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refold("import", SAMPLE, "--user", "ada", "--session", "run")
    execute_sql(tmp_path, "UPDATE heads SET updated_at = 1")
    run = Eraser.run
    results: list[object] = []

    def erase_once(eraser: Eraser, *args: Any, **options: Any) -> object:
        if results:
            raise errors.StoreUnavailable("the database is gone", remedy="start it")
        results.append(run(eraser, *args, **options))
        return results[-1]

    monkeypatch.setattr(Eraser, "run", erase_once)
    policy = tmp_path / "policy.toml"
    policy.write_text('sessions = "1s"\n')

    ran = refold("retain", "--policy", policy, "--json")

    assert ran.code == 1
    assert "the database is gone" in ran.err
    (certificate,) = json.loads(ran.out)["certificates"]
    assert len(certificate["salt"]) == 64


def test_a_master_key_that_another_store_needs_is_not_dropped(
    refold: Refold, tmp_path: Path
) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    with package.open(other) as store:
        session = store.session(user_id="ada", session_id="s")
        session.append(package.UserInput(text="still readable"))
    assert refold("keys", "rotate", "--master").code == 0

    refused = refold("keys", "rotate", "--master", "--drop-older")

    assert refused.code == 1
    assert "previous master key" in refused.err
    assert refold("--db", other, "log", "--user", "ada", "--session", "s").code == 0
    assert refold("--db", other, "keys", "rotate", "--master").code == 0
    assert refold("keys", "rotate", "--master", "--drop-older").code == 0
    assert refold("--db", other, "log", "--user", "ada", "--session", "s").code == 0


def test_replacing_a_master_key_needs_an_existing_store(
    refold: Refold, tmp_path: Path
) -> None:
    before = (tmp_path / "home" / "master.key").read_text()

    ran = refold("--db", "sqlite:///none.db", "keys", "rotate", "--master")

    assert ran.code == 1
    assert (tmp_path / "home" / "master.key").read_text() == before
