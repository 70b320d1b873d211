"""The container files keep the house's rules, and what they run works on PostgreSQL.

No container engine is needed: the commands run here, with the environment that
`compose.yaml` gives them.
"""

from __future__ import annotations

import base64
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import environ
from pathlib import Path
from typing import Any, Final

import jwt
import pytest
import yaml

from tests.support.postgres import Postgres
from tests.support.waiting import PATIENCE_SEC, until
from tests.support.warm import ROOT

SECRET: Final = "a secret of the tests, of 32 bytes or more"
COMPOSE: Final[dict[str, Any]] = yaml.safe_load(
    (ROOT / "compose.yaml").read_text("utf-8")
)
SERVICES: Final[dict[str, Any]] = COMPOSE["services"]
DOCKERFILE: Final = re.sub(
    r"\\\n\s*", "", (ROOT / "Dockerfile").read_text("utf-8")
).splitlines()


def instructions(name: str) -> list[str]:
    """The arguments of an instruction, wherever the Dockerfile has it."""
    return [
        line.partition(" ")[2] for line in DOCKERFILE if line.partition(" ")[0] == name
    ]


def test_the_image_runs_as_a_user_without_rights() -> None:
    *_, user = instructions("USER")

    assert user not in ("0", "root")
    assert f"--uid 10001 --home-dir /var/lib/{user}" in "\n".join(DOCKERFILE)
    assert DOCKERFILE.index(f"USER {user}") < DOCKERFILE.index('ENTRYPOINT ["refold"]')


def test_the_image_has_pinned_parts_a_health_check_and_no_secrets() -> None:
    bases = [base.split()[0] for base in instructions("FROM")]

    assert all(re.fullmatch(r"python:\d+\.\d+-slim-\w+", base) for base in bases)
    assert len(instructions("HEALTHCHECK")) == 1
    assert instructions("ADD") == []
    assert not re.search(r"(KEY|SECRET|PASSWORD)=", "\n".join(DOCKERFILE))
    installs = [run for run in instructions("RUN") if "pip install" in run]
    assert all("--require-hashes" in run or run.endswith(" .") for run in installs)


def test_each_copied_file_exists_and_is_in_the_build_context() -> None:
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    copies = [line for line in instructions("COPY") if not line.startswith("--from")]

    sources = {name for line in copies for name in line.split()[:-1]}

    assert sources == allowed
    assert all((ROOT / source).exists() for source in sources)


def test_the_lock_of_the_image_has_the_versions_of_the_tests() -> None:
    def pinned(name: str) -> dict[str, str]:
        text = (ROOT / "requirements" / name).read_text("utf-8")
        return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE))

    image = pinned("image.txt")
    tested = pinned("frameworks.txt")

    assert {"fastapi", "mcp", "opentelemetry-proto", "psycopg"} <= set(image)
    assert {
        name: version for name, version in image.items() if version != tested[name]
    } == {}


@pytest.mark.parametrize("name", ["server", "worker"])
def test_a_service_is_confined_and_gets_its_secrets_from_outside(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["depends_on"]["postgres"]["condition"] == "service_healthy"
    secrets = {
        key: value
        for key, value in service["environment"].items()
        if "KEY" in key or "SECRET" in key or "://" in value
    }
    assert set(secrets) == {
        "REFOLD_DB",
        "REFOLD_KEYS",
        "REFOLD_MASTER_KEY",
        "REFOLD_TOKEN_SECRET",
    }
    assert all("${" in value for value in secrets.values())


def test_the_databases_of_the_services_are_created() -> None:
    environment = SERVICES["server"]["environment"]
    keys = environment["REFOLD_KEYS"].rpartition("/")[2]

    assert COMPOSE["configs"]["databases"]["content"] == f"CREATE DATABASE {keys};"
    assert (
        SERVICES["postgres"]["environment"]["POSTGRES_DB"]
        == (environment["REFOLD_DB"].rpartition("/")[2])
    )
    check = SERVICES["postgres"]["healthcheck"]["test"]
    assert check[check.index("--host") + 1] == "127.0.0.1"


@pytest.fixture
def environment(
    postgres: Postgres, postgres_url: str, tmp_path: Path
) -> Iterator[dict[str, str]]:
    """The environment of a service, on the server of the tests."""
    keys = f"{postgres_url.rpartition('/')[2].partition('?')[0]}_keys"
    url = postgres.create_database(keys)
    home = tmp_path / "container"
    home.mkdir()
    yield {
        "PATH": environ["PATH"],
        "REFOLD_DB": postgres_url,
        "REFOLD_HOME": str(home),
        "REFOLD_CACHE": "off",
        "REFOLD_KEYS": url,
        "REFOLD_MASTER_KEY": base64.b64encode(bytes(range(32))).decode(),
        "REFOLD_TOKEN_SECRET": SECRET,
    }
    postgres.drop_database(keys)


@contextmanager
def running(
    service: str, environment: Mapping[str, str], port: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command of a service on this port, until the end of the block."""
    ports = {"8765": str(port), "9321": str(port)}
    command = [ports.get(word, word) for word in SERVICES[service]["command"]]
    program = str(Path(sys.executable).with_name("refold"))
    folder = environment["REFOLD_HOME"]
    process = subprocess.Popen([program, *command], env=environment, cwd=folder)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def is_listening(port: int) -> bool:
    with socket.socket() as connecting:
        return connecting.connect_ex(("127.0.0.1", port)) == 0


def is_healthy(service: str, port: int) -> bool:
    """Run the health check of a service, as the engine would."""
    if service == "server":
        words = instructions("HEALTHCHECK")[0].partition("CMD ")[2]
        check = yaml.safe_load(words)
    else:
        check = SERVICES[service]["healthcheck"]["test"][1:]
    python, option, code = check
    assert (python, option) == ("python", "-c")
    code = re.sub(r":(8765|9321)/", f":{port}/", code)
    ran = subprocess.run(
        [sys.executable, option, code], capture_output=True, check=False
    )
    return ran.returncode == 0


@pytest.mark.load
def test_server_and_worker_start_answer_their_checks_and_end(
    environment: dict[str, str],
) -> None:
    server_port = free_port()
    worker_port = free_port()
    assert not is_healthy("server", server_port)

    with (
        running("server", environment, server_port) as server,
        running("worker", environment, worker_port) as worker,
    ):
        until(lambda: is_listening(server_port), "the server")
        until(lambda: is_listening(worker_port), "the health of the worker")
        assert is_healthy("server", server_port)
        assert is_healthy("worker", worker_port)
        assert _append(server_port) == 201
        for process in (server, worker):
            process.send_signal(signal.SIGTERM)
        assert [server.wait(PATIENCE_SEC), worker.wait(PATIENCE_SEC)] == [0, 0]


def _append(port: int) -> int:
    claims = {
        "sub": "ada",
        "aud": "refold",
        "exp": int(time.time()) + 60,
        "scope": "append",
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/sessions/s-1/events",
        data=b'{"events": [{"type": "user_input", "payload": {"text": "Hello."}}]}',
        headers={
            "Authorization": f"Bearer {jwt.encode(claims, SECRET, 'HS256')}",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request) as response:  # noqa: S310  # http, to this test
        status: int = response.status
        return status
