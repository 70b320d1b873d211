"""On a terminal, output fits the width and has colors; piped output has neither."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.cells import cell_len

from refold.adapters.cli import main, output
from tests.support import warm
from tests.support.stores import ROOT

ADA = ("--user", "ada")
LOG = ("log", "--user", "lin", "--session", "run")
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


def on_terminal(*args: str, columns: int = 100) -> str:
    """Return what ``refold`` writes to a terminal of that width."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("4H", 40, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("COLUMNS", None)
    process = subprocess.Popen([_program(), *args], stdout=follower, env=environment)
    os.close(follower)
    written = b"".join(iter(lambda: _read_all(leader), b""))
    os.close(leader)
    assert process.wait() == 0
    return written.decode().replace("\r\n", "\n")


def _program() -> Path:
    return warm.shim(Path.cwd() / "bin") / "refold"


def _read_all(leader: int) -> bytes:
    try:
        return os.read(leader, 65_536)
    except OSError:  # the other end is closed
        return b""


def plain(text: str) -> str:
    return _STYLE.sub("", text)


@pytest.fixture(autouse=True)
def _sample_in_environment(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sample.parent)
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.mark.parametrize(
    "args",
    [
        LOG,
        (*LOG, "--verbosity", "compact"),
        ("context", *LOG[1:]),
        ("sessions",),
        ("search", "--user", "lin", "nightly importer report"),
    ],
)
def test_lines_fit_the_terminal(args: tuple[str, ...]) -> None:
    lines = plain(on_terminal(*args, columns=80)).splitlines()

    assert [line for line in lines if cell_len(line) > 80] == []


def test_a_long_text_is_cut_and_says_how_much_is_missing() -> None:
    written = plain(on_terminal(*LOG))

    assert re.search(r"… [0-9,]+ more characters", written)
    assert "2026-03-15 INFO importer.nightly: report mailed" not in written


def test_marks_and_types_have_colours() -> None:
    written = on_terminal(*LOG, "--limit", "8")

    assert re.search(r"\x1b\[[0-9;]*41m redacted EMAIL, URL_CREDENTIAL", written)
    assert re.search(r"\x1b\[1;36muser_input", written)


def test_a_search_marks_its_words_and_says_how_many_more_events_match() -> None:
    written = on_terminal("search", "--user", "lin", "importer", "--limit", "2")

    assert len(re.findall(r"\x1b\[1;33m(?i:importer)\x1b\[0m", written)) >= 2
    assert re.search(r"\n2 of \d+ events; --limit 20 shows more\n$", plain(written))


def test_no_color_means_no_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    codes = _STYLE.findall(on_terminal(*LOG, "--limit", "8"))

    assert not any(re.search(r"[\[;](3|4|9|10)[0-7]\b", code) for code in codes)


def test_piped_output_has_neither_cuts_nor_colours(sample: Path) -> None:
    written = subprocess.run(
        [_program(), *LOG],
        env={**os.environ, "COLUMNS": "40"},
        capture_output=True,
        text=True,
    ).stdout

    assert "\x1b" not in written
    assert "more character" not in written
    assert max(map(len, written.splitlines())) > 200


def test_a_long_import_shows_its_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "long.jsonl"
    turns = ", ".join(['{"role": "user", "content": "go on"}'] * 12)
    path.write_text(f'{{"messages": [{turns}]}}\n')
    leader, follower = pty.openpty()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(output, "_LONG", 10)

    with open(follower, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        code = main(["--db", f"sqlite:///{tmp_path}/new.db", "import", str(path), *ADA])
    written = b"".join(iter(lambda: _read_all(leader), b"")).decode()
    os.close(leader)

    assert code == 0
    assert "12/12" in plain(written)


@pytest.mark.parametrize("closed", ["1", "0"])
def test_a_closed_stream_is_no_error(closed: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -m refold redact {closed}>&-"

    ran = subprocess.run(
        ["sh", "-c", command], input=b"", capture_output=True, check=False, cwd=ROOT
    )

    assert b"unexpected" not in ran.stderr
    assert ran.returncode in (0, 1)


def test_an_unbuffered_stdout_that_fills_up_is_an_error(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("word " * 100_000)
    command = f"ulimit -f 100; {sys.executable} -m refold redact {text} > {text}.out"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}

    ran = subprocess.run(
        ["sh", "-c", f"trap '' XFSZ; {command}"],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )

    assert ran.returncode == 1, ran.stderr
    assert ran.stderr.startswith(b"refold: ")
