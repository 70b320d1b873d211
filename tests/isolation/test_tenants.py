"""Tenants have their own databases, key stores and master keys, and share nothing."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

import refold
from refold.adapters.keys.master import LocalMasterKey
from refold.store import SessionStore
from tests.isolation.conftest import Template
from tests.support.postgres import Postgres
from tests.support.roles import as_user

SECRET = "the plan of acme"


class Tenant(NamedTuple):
    """The location of one tenant's store, and its keys."""

    url: str
    keys: str
    master: LocalMasterKey
    anchor: Path

    def open(self) -> SessionStore:
        return refold.open(
            self.url, keys=self.keys, master=self.master, anchor=self.anchor
        )


def tenant(name: str, url: str, folder: Path) -> Tenant:
    master = LocalMasterKey(os.urandom(32), origin=name)
    keys = folder / f"{name}-keys.db"
    anchor = folder / f"{name}-anchor.jsonl"
    return Tenant(url, f"sqlite:///{keys}", master, anchor)


@pytest.fixture(params=["sqlite", "postgresql"])
def two_tenants(
    request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Path
) -> Iterator[tuple[Tenant, Tenant]]:
    """Two tenants, each with an ada who has a session s-1."""
    names = [f"{name}_{uuid.uuid4().hex[:12]}" for name in ("acme", "blue")]
    urls = [f"sqlite:///{tmp_path / name}.db" for name in names]
    if request.param == "postgresql":
        urls = [postgres.create_database(name) for name in names]
    acme, blue = (
        tenant(name, url, tmp_path) for name, url in zip(names, urls, strict=True)
    )
    with acme.open() as store:
        store.session(user_id="ada", session_id="s-1").append(
            refold.UserInput(text=SECRET)
        )
    with blue.open() as store:
        store.session(user_id="ada", session_id="s-1").append(
            refold.UserInput(text="hello")
        )
    yield acme, blue
    for name in names:
        postgres.drop_database(name)


def texts(store: SessionStore) -> list[object]:
    events = store.session(user_id="ada", session_id="s-1").events()
    return [event.payload.model_dump()["text"] for event in events]


def test_the_same_names_are_different_users_in_each_tenant(
    two_tenants: tuple[Tenant, Tenant],
) -> None:
    acme, blue = two_tenants
    with acme.open() as hers, blue.open() as his:
        assert texts(hers) == [SECRET]
        assert texts(his) == ["hello"]
        his.session(user_id="ada", session_id="s-2").append(
            refold.UserInput(text="only here")
        )

        assert [info.session_id for info in hers.sessions()] == ["s-1"]


def test_an_erasure_affects_one_tenant(two_tenants: tuple[Tenant, Tenant]) -> None:
    acme, blue = two_tenants
    with blue.open() as store:
        store.erase("ada", "asked for")

    with acme.open() as store:
        assert texts(store) == [SECRET]
        assert [proof.problems for _, proof in store.verify()] == [[]]


@pytest.mark.parametrize("swapped", ["keys", "master"])
def test_mixed_credentials_of_tenants_open_nothing(
    two_tenants: tuple[Tenant, Tenant], swapped: str
) -> None:
    acme, blue = two_tenants
    mixed = acme._replace(**{swapped: getattr(blue, swapped)})

    with pytest.raises(refold.KeyUnavailable), mixed.open() as store:
        texts(store)


def test_a_tenants_role_cannot_use_another_database(
    walled_template: Template, postgres: Postgres, tmp_path: Path
) -> None:
    names = [f"{name}_{uuid.uuid4().hex[:12]}" for name in ("acme", "blue")]
    urls = [postgres.create_database(name, like=walled_template.name) for name in names]
    login = names[0] + "_app"
    with psycopg.connect(postgres.url, autocommit=True) as server:
        server.execute(f"CREATE ROLE {login} LOGIN PASSWORD 'x' IN ROLE refold_app")
        for name in names:
            server.execute(f"REVOKE CONNECT ON DATABASE {name} FROM PUBLIC")
        server.execute(f"GRANT CONNECT ON DATABASE {names[0]} TO {login}")
        try:
            with tenant("acme", as_user(urls[0], login), tmp_path).open() as store:
                store.session(user_id="ada", session_id="s-1").append(
                    refold.UserInput(text=SECRET)
                )
                assert texts(store) == [SECRET]

            with pytest.raises(psycopg.OperationalError, match="permission denied"):
                psycopg.connect(as_user(urls[1], login))
        finally:
            for name in names:
                postgres.drop_database(name)
            server.execute(f"DROP ROLE {login}")
