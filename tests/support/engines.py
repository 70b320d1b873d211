"""The engines of a test: races, crashes and contracts run on both, others on one."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest

BOTH = pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)


def one_engine(request: pytest.FixtureRequest) -> str:
    """The empty store of a test: on SQLite, unless the test is marked ``BOTH``."""
    kind = getattr(request, "param", "sqlite")
    place = {"sqlite": "_sqlite_store", "postgresql": "_postgres_store"}[kind]
    url: str = request.getfixturevalue(place)
    return url


def on_any(test: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a test for the ``store_url`` of the module that collects it."""
    copy = FunctionType(
        test.__code__, test.__globals__, test.__name__, test.__defaults__
    )
    copy.__dict__.update(test.__dict__)
    copy.__annotations__ = test.__annotations__
    marks = getattr(test, "pytestmark", [])
    marks_kept = [mark for mark in marks if mark.args[:1] != ("store_url",)]
    copy.pytestmark = marks_kept  # type: ignore[attr-defined]  # pytest's
    return copy
