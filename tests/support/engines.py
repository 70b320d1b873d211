"""Which tests cross engines: races, crashes and contracts; all others run on one."""

from __future__ import annotations

import pytest

BOTH = pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)


def one_engine(request: pytest.FixtureRequest) -> str:
    """The empty store of a test: on SQLite, where it is not one of ``BOTH``."""
    kind = getattr(request, "param", "sqlite")
    place = {"sqlite": "_sqlite_store", "postgresql": "_postgres_store"}[kind]
    url: str = request.getfixturevalue(place)
    return url
