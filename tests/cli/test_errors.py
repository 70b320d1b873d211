"""An error is one sentence on stderr and an exit code, never a traceback."""

import io
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from refold.adapters.cli import output
from tests.cli.conftest import ROOT, SAMPLE, Refold
from tests.support import warm

LOG = ("log", "--user", "lin", "--session", "run")
CONTEXT = ("context", "--user", "lin", "--session", "run")
COMPACT = ("compact", "--user", "lin", "--session", "run")


SECRET = "Winter2024xyz"


@pytest.mark.parametrize(
    "args",
    [
        (SECRET,),
        (*LOG, "--limit", SECRET),
        (*LOG, SECRET),
        ("log", "--user", "lin", "--session", SECRET),
        ("log", "--user", SECRET, "--session", "run"),
        (*CONTEXT, "--strategy", SECRET),
        (*CONTEXT, "--strategy", f"turn_window:{SECRET}=1"),
        (*CONTEXT, "--strategy", f"turn_window:full_turns='{SECRET}'"),
        (*CONTEXT, "--strategy", f"turn_window:full_turns={SECRET}"),
        (*CONTEXT, "--as", SECRET),
        ("redact", "--format", SECRET),
        ("redact", f"--engine={SECRET}"),
        (f"--token={SECRET}", "sessions"),
        (f"-p{SECRET}", "sessions"),
        ("--db", f"postgresql://lin:{SECRET}@127.0.0.1:1/none", "sessions"),
        ("--db", f"mysql://lin:{SECRET}@host/none", "sessions"),
        ("--db", SECRET, "sessions"),
        ("erase", "--user", SECRET, "--reason", "x", "--yes"),
        ("why", "--user", "lin", "--session", "run", SECRET),
        ("prove", "--user", "lin", "--session", "run", "--seq", SECRET),
    ],
)
def test_errors_do_not_repeat_arguments(
    refold: Refold, sample: Path, args: tuple[str, ...]
) -> None:
    ran = refold(*args)

    assert ran.code
    assert SECRET not in ran.err
    assert ran.err.startswith("refold: ")


def test_a_misspelt_command_has_a_suggestion(refold: Refold) -> None:
    ran = refold("sesions")

    assert ran.code == 2
    assert "No such command 'sesions' (did you mean sessions?)" in ran.err
    assert "see `refold --help`" in ran.err


@pytest.mark.parametrize(
    "args",
    [
        ("log",),
        ("log", "--user", "lin"),
        ("import", "--user", "lin"),
        (*LOG, "--limit", "many"),
        (*LOG, "--after", "-1"),
        (*LOG, "--verbosity", "loud"),
        (*LOG, "unexpected"),
        (*CONTEXT, "--as", "guessed"),
        (*CONTEXT, "--at", "5", "--before-call", "2"),
        (*CONTEXT, "--strategy", "no_such_strategy"),
        (*CONTEXT, "--strategy", "turn_window:full_turns=0"),
        (*CONTEXT, "--strategy", "turn_window:no_such=1"),
        (*COMPACT, "--strategy", "@missing.toml"),
        (*COMPACT, "--strategy", "turn_window", "--summarizer", "anthropic"),
        COMPACT[:3],
        ("redact", "--format", "xml"),
        ("no-such-command",),
        ("sessions", "--user", ""),
        ("import", SAMPLE, "--user", "lin", "--session", "_reserved"),
        ("import", SAMPLE, "--user", "x" * 201),
        ("--db", "mysql://host/db", "sessions"),
        ("--db", "not a url", "sessions"),
    ],
)
def test_wrong_arguments_and_configuration_exit_with_2(
    refold: Refold, sample: Path, args: tuple[object, ...]
) -> None:
    ran = refold(*args)

    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("refold: ")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    "args",
    [
        ("log", "--user", "lin", "--session", "no-such"),
        ("log", "--user", "nobody", "--session", "run"),
        ("context", "--user", "lin", "--session", "no-such"),
        (*COMPACT[:3], "--session", "no-such", "--strategy", "turn_window"),
        ("verify", "--user", "nobody"),
        ("verify", "--session", "no-such"),
        ("export", "--user", "lin", "--session", "no-such"),
        (*CONTEXT, "--at", "9999"),
        (*CONTEXT, "--before-call", "9999"),
        (*CONTEXT, "--before-response", "9999"),
        ("redact", "no-such-file"),
        ("redact", "."),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_missing_things_exit_with_1(
    refold: Refold, sample: Path, args: tuple[str, ...], as_json: bool
) -> None:
    ran = refold(*args, *["--json"] * as_json)

    assert ran.code == 1
    assert ran.out == ""
    assert ran.err.startswith("refold: ")
    assert ran.err.count("\n") == 1


def test_without_a_command_the_help_is_shown_with_exit_code_2(refold: Refold) -> None:
    ran = refold()

    assert ran.code == 2
    assert "Look:" in ran.err


def test_the_store_may_come_before_or_after_the_command(
    refold: Refold, sample: Path
) -> None:
    url = f"sqlite:///{sample}"
    before = refold("--db", url, "sessions", "--json")

    behind = refold("--db", "sqlite:///no-such.db", "sessions", "--db", url, "--json")

    assert before.json() == behind.json() != []


def test_the_password_of_a_url_is_not_repeated(refold: Refold) -> None:
    ran = refold("--db", "postgresql://u:Tiger-7-Lamp@127.0.0.1:1/db", "sessions")

    assert ran.code in (1, 2)
    assert "Tiger" not in ran.err


def test_a_database_of_another_program_is_refused(
    refold: Refold, tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "refold.db") as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()

    ran = refold("import", SAMPLE, "--user", "lin")

    assert ran.code == 1
    assert "another program" in ran.err


def test_a_file_that_is_no_database_is_an_error(refold: Refold, tmp_path: Path) -> None:
    (tmp_path / "refold.db").write_text("Dear all, this is a letter.\n" * 100)

    ran = refold("sessions")

    assert ran.code == 1
    assert ran.err.count("\n") == 1


def test_a_database_in_a_missing_directory_is_an_error(refold: Refold) -> None:
    ran = refold(
        "--db", "sqlite:///no/such/directory/x.db", "import", SAMPLE, "--user", "l"
    )

    assert ran.code == 1
    assert ran.err.count("\n") == 1


def test_a_wrong_master_key_is_reported(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_MASTER_KEY", "00" * 32)

    ran = refold(*LOG)

    assert ran.code == 1
    assert "REFOLD_MASTER_KEY" in ran.err


def test_a_server_that_is_down_is_an_error(
    refold: Refold, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("REFOLD_KEYS", f"sqlite:///{tmp_path / 'keys.db'}")

    ran = refold("--db", "postgresql://nobody@127.0.0.1:1/none", "sessions")

    assert ran.code == 1
    assert ran.err.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any file")
def test_a_read_only_database_is_an_error(refold: Refold, sample: Path) -> None:
    sample.chmod(0o400)

    ran = refold("import", SAMPLE, "--user", "ada")

    assert ran.code == 1
    assert ran.err.count("\n") == 1


def test_a_very_narrow_terminal_is_no_error(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))

    ran = refold(*LOG)

    assert (ran.code, ran.err) == (0, "")
    assert len(written.getvalue()) > 1000


def test_an_unexpected_error_is_reported_without_its_message(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("sk-secret")

    monkeypatch.setattr(output, "write_line", fail)

    ran = refold(*LOG, "--json")

    assert ran.code == 1
    assert "unexpected KeyError" in ran.err
    assert "sk-secret" not in ran.err
    assert ran.err.count("\n") == 1


def test_an_unexpected_error_can_be_traced(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr(output, "write_line", fail)
    monkeypatch.setenv("REFOLD_DEBUG", "1")

    with pytest.raises(KeyError, match="lost"):
        refold(*LOG, "--json")


def test_a_closed_pipe_ends_the_command_quietly(sample: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    program = warm.shim(sample.parent / "bin") / "refold"

    ran = subprocess.run(
        [program, "--db", f"sqlite:///{sample}", *LOG, "--json"],
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)

    assert (ran.returncode, ran.stderr) == (141, b"")


# A shell starts background processes with interrupts ignored.
HEARS_INTERRUPTS = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from refold.adapters.cli import main
raise SystemExit(main(["redact"]))
"""


def test_an_interrupt_ends_the_command_quietly() -> None:
    process = warm.code(HEARS_INTERRUPTS, cwd=ROOT, environment=os.environ)
    process.stdin.write("more than a pipe holds\n" * 20_000)  # it must read
    process.stdin.flush()

    process.send_signal(signal.SIGINT)
    _, err = process.communicate()

    assert (process.returncode, err) == (130, "")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("import", "", "--user", "ada"),
            "the value is empty; a variable of the shell may not be set",
        ),
        (
            ("capture", "claude-code", "--user", "ada", "--once", "--folder", ""),
            "the value of --folder is empty; a variable of the shell may not be set",
        ),
        (
            ("sessions", "--db="),
            "the value of --db is empty; a variable of the shell may not be set",
        ),
        (
            (*LOG, "--limit", "x"),
            "'--limit': this is not a whole number: see `refold log --help`",
        ),
        (
            (*LOG, "--limit", "-1"),
            "'--limit': this is less than 0: see `refold log --help`",
        ),
        (
            (*LOG, "--verbosity", "x"),
            "'--verbosity': 'x' is not one of 'default', 'compact', 'quiet': "
            "see `refold log --help`",
        ),
        (
            ("verify", "--jobs", "9" * 30),
            "--jobs is at most 500",
        ),
        (
            (*LOG, "--limit"),
            "'--limit' requires an argument: see `refold log --help`",
        ),
    ],
)
def test_an_invalid_value_is_explained_in_plain_words(
    refold: Refold, sample: Path, args: tuple[str, ...], message: str
) -> None:
    ran = refold(*args)

    assert ran.code == 2
    assert message in ran.err


def test_a_missing_input_file_is_reported_with_its_path(
    refold: Refold, tmp_path: Path
) -> None:
    missing = tmp_path / "missing.json"

    ran = refold("replay", missing)

    assert ran.code == 1
    assert ran.err == (
        f"refold: {missing}: no such file or directory: check the path\n"
    )


def test_a_folder_in_place_of_the_database_is_reported(
    refold: Refold, tmp_path: Path
) -> None:
    ran = refold("--db", f"sqlite:///{tmp_path}", "sessions")

    assert (ran.code, ran.err) == (
        1,
        f"refold: {tmp_path} is a folder: name a file in it\n",
    )
