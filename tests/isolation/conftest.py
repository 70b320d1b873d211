"""A database whose roles are set up, and somebody in each role."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest

from tests.support import roles
from tests.support.postgres import Postgres
from tests.support.roles import Walled


class Made(NamedTuple):
    """The name of an empty store that is copied, and users by their role."""

    name: str
    users: Mapping[str, str]


@pytest.fixture(scope="session")
def made_walled(postgres: Postgres, _made_postgres: str) -> Iterator[Made]:
    """Made once: its roles are the server's, its rights are copied with it."""
    name = _new_name()
    roles.set_up(postgres, postgres.create_database(name, like=_made_postgres))
    with roles.users(postgres) as users:
        yield Made(name, users)
    postgres.drop_database(name)


@pytest.fixture
def walled(made_walled: Made, postgres: Postgres) -> Iterator[Walled]:
    """An empty store on PostgreSQL whose roles are set up."""
    name = _new_name()
    url = postgres.create_database(name, like=made_walled.name)
    yield roles.walled(url, made_walled.users)
    postgres.drop_database(name)


def _new_name() -> str:
    return f"walled_{uuid.uuid4().hex[:12]}"
