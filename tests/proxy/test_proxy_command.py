"""``refold proxy`` records agents that run elsewhere, at an address that stays."""

import os
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from tests.proxy.conftest import Machine
from tests.proxy.test_run import HTTP_AGENT
from tests.support.provider import Provider, answer
from tests.support.waiting import PATIENCE_SEC


@contextmanager
def running(
    machine: Machine, *args: object
) -> Iterator[tuple[dict[str, str], subprocess.Popen[str]]]:
    """Run ``refold proxy``; returns the variables that it prints."""
    command = machine.command("proxy", "--user", "ada", "--port", 0, *args)
    with subprocess.Popen(
        command,
        env=machine.environment,
        cwd=machine.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        variables: dict[str, str] = {}
        try:
            while "OLLAMA_API_BASE" not in variables:
                word, assignment = shlex.split(process.stdout.readline())
                assert word == "export"
                name, _, value = assignment.partition("=")
                variables[name] = value
            yield variables, process
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_agent_with_the_printed_variables_is_recorded(
    machine: Machine, provider: Provider, number: signal.Signals
) -> None:
    provider.reply(answer("It works."))
    upstream = f"anthropic={provider.url}"
    with running(machine, "--upstream", upstream) as (variables, process):
        agent = subprocess.run(
            [sys.executable, "-c", HTTP_AGENT, "Hello there"],
            env=machine.environment | variables,
            capture_output=True,
            text=True,
            check=True,
        )
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE_SEC)

    assert agent.stdout == "It works.\n"
    assert process.returncode == 0, err
    (session,) = machine.session_ids()
    assert f"recorded 1 request in session {session}" in err


def test_the_secret_stays_and_only_its_owner_can_read_it(machine: Machine) -> None:
    first = machine.json("proxy", "--variables")
    second = machine.json("proxy", "--variables")

    path = machine.folder / "home" / "proxy.secret"
    address = urlsplit(first["ANTHROPIC_BASE_URL"])
    assert first == second
    assert address.netloc == "127.0.0.1:8766"
    assert address.path == f"/{path.read_text()}/anthropic"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_secret_may_be_in_another_file(machine: Machine) -> None:
    path = machine.folder / "secret"
    path.write_text("0123456789abcdef0123456789abcdef\n")
    path.chmod(0o600)

    variables = machine.json("proxy", "--variables", "--secret-file", path)

    assert "/0123456789abcdef0123456789abcdef/" in variables["OPENAI_BASE_URL"]


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 40, b"a/b" * 20])
def test_a_file_without_a_secret_is_an_error(machine: Machine, content: bytes) -> None:
    path = machine.folder / "secret"
    path.write_bytes(content)
    path.chmod(0o600)

    ran = machine.refold("proxy", "--variables", "--secret-file", path)

    assert ran.returncode == 2
    assert str(path) in ran.stderr


def test_a_port_in_use_is_an_error(machine: Machine) -> None:
    with running(machine) as (variables, _):
        port = urlsplit(variables["OPENAI_BASE_URL"]).port
        ran = machine.refold("proxy", "--port", port)

    assert ran.returncode == 2
    assert f"port {port} (another program uses it)" in ran.stderr


def test_the_variables_of_no_port_are_an_error(machine: Machine) -> None:
    ran = machine.refold("proxy", "--variables", "--port", 0)

    assert ran.returncode == 2
    assert not os.path.exists(machine.folder / "agent.db")
