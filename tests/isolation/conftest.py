"""A database with roles, and a user in each role."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest

from tests.support import roles
from tests.support.postgres import Postgres
from tests.support.roles import Walled


class Template(NamedTuple):
    """The name of an empty store that is copied, and users by their role."""

    name: str
    users: Mapping[str, str]


@pytest.fixture(scope="session")
def walled_template(postgres: Postgres, _made_postgres: str) -> Iterator[Template]:
    """Created once: its roles belong to the server, its rights are copied with it."""
    name = _new_name()
    roles.set_up(postgres, postgres.create_database(name, like=_made_postgres))
    with roles.users(postgres) as users:
        yield Template(name, users)
    postgres.drop_database(name)


@pytest.fixture
def walled(walled_template: Template, postgres: Postgres) -> Iterator[Walled]:
    """An empty store on PostgreSQL whose roles are set up."""
    name = _new_name()
    url = postgres.create_database(name, like=walled_template.name)
    yield roles.walled(url, walled_template.users)
    postgres.drop_database(name)


def _new_name() -> str:
    return f"walled_{uuid.uuid4().hex[:12]}"
