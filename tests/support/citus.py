"""A Citus cluster for the tests, if its binaries exist: a coordinator, two workers.

The machines are servers of this one, each in its own directory, and reach each other
through sockets there.  Refold does not install Citus: ``REFOLD_TEST_CITUS`` names the
folder of a PostgreSQL that has it (``initdb``, ``postgres``).
"""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg import sql

from tests.support.postgres import SETTINGS, Postgres, Server

VARIABLE: Final = "REFOLD_TEST_CITUS"
WORKERS: Final = 2
SHARDS: Final = 4
_SETTINGS: Final = {
    **SETTINGS,
    "shared_preload_libraries": "citus",
    "citus.enable_statistics_collection": "off",  # no statistics are sent
    "citus.node_conninfo": "sslmode=disable",
    "citus.shard_count": str(SHARDS),
    "max_prepared_transactions": "200",
}


def binaries() -> Path | None:
    """Return the folder of the binaries, if the environment names one."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else None


class Cluster(Postgres):
    """A cluster on which tests may create databases, and kill machines."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self._opened = ExitStack()
        self.machines: list[Server] = []
        for _ in range(1 + WORKERS):
            # Only users who can enter the directories can reach a machine; they are
            # trusted.
            machine = Server(folder, "x", {**_SETTINGS, **settings}, auth="trust")
            self._opened.callback(machine.close)
            self.machines.append(machine)
        super().__init__(self._url(self.machines[0]))

    @staticmethod
    def _url(machine: Server, database: str = "postgres") -> str:
        return f"postgresql://postgres:x@/{database}?host={machine.directory}"

    def create_database(self, name: str, *, like: str = "template1") -> str:
        """Create an empty database on all machines; Citus cannot copy one."""
        assert like == "template1"
        coordinator, *workers = self.machines
        for machine in self.machines:
            self._run(machine, "postgres", "CREATE DATABASE {}", name)
            self._run(machine, name, "CREATE EXTENSION citus")
        with psycopg.connect(self._url(coordinator, name), autocommit=True) as server:
            server.execute(
                "SELECT citus_set_coordinator_host(%s, 5432)", (coordinator.directory,)
            )
            for worker in workers:
                server.execute("SELECT citus_add_node(%s, 5432)", (worker.directory,))
        return self.url_of(name)

    def url_of(self, name: str) -> str:
        """Return the URL of a database at the coordinator."""
        return self._url(self.machines[0], name)

    def drop_database(self, name: str) -> None:
        """Drop a database on all machines, and disconnect its clients."""
        for machine in self.machines:
            drop = "DROP DATABASE IF EXISTS {} WITH (FORCE)"
            self._run(machine, "postgres", drop, name)

    def _run(self, machine: Server, database: str, statement: str, *names: str) -> None:
        query = sql.SQL(statement).format(*map(sql.Identifier, names))  # type: ignore[arg-type, unused-ignore]  # no user's text
        with psycopg.connect(self._url(machine, database), autocommit=True) as server:
            server.execute(query)

    def kill(self, number: int) -> None:
        """End a machine like a crash; number 0 is the coordinator."""
        self.machines[number].halt(signal.SIGQUIT)

    def start_again(self, number: int) -> None:
        """Start a killed machine."""
        self.machines[number].run()

    def stop(self) -> None:
        """Stop all machines and remove their directories."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
