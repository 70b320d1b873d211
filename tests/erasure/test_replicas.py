"""A replica is read-only; a restored database brings no erased user back."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

import refold
from refold.domain.errors import ShareNotFound
from refold.opener import _database
from refold.store import SessionStore
from refold.testing.event_log import user_inputs
from tests.erasure.conftest import WINDOW, fill
from tests.support.nested import problems_of
from tests.support.pages import blocks
from tests.support.postgres import Postgres
from tests.support.stores import open_at
from tests.support.waiting import until

PAGE = "docs/how-to/replicate-and-restore.md"


def query_value(url: str, query: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query.encode()).fetchone()


def store_url_at(server: Postgres) -> str:
    """Return the URL of the store's database on that server."""
    return server.url.replace("/postgres?", "/agents?")


def wait_for_replay(primary: str, replica: str) -> None:
    """Wait until the replica has replayed everything that the primary has written."""
    (upto,) = query_value(primary, "SELECT pg_current_wal_lsn()")
    behind = f"SELECT pg_last_wal_replay_lsn() < '{upto}'::pg_lsn"
    until(lambda: query_value(replica, behind) != (True,), "the replica to catch up")


def problems(store: SessionStore) -> list[str]:
    return [problem.code for problem in problems_of(store.verify())]


def test_a_replica_reads_everything_and_refuses_writes(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    primary = own_postgres.create_database("agents")
    with (
        open_at(primary, tmp_path) as store,
        own_postgres.base_backup("standby") as replica,
    ):
        fill(store, "ada", "one")
        replica.run()
        wait_for_replay(primary, store_url_at(replica))

        with refold.open(store_url_at(replica)) as reading:
            session = reading.session(user_id="ada", session_id="one")
            there = store.session(user_id="ada", session_id="one")
            assert session.events() == there.events()
            assert session.context(WINDOW).digest == there.context(WINDOW).digest
            assert problems(reading) == []
            with pytest.raises(refold.StoreUnavailable, match="connect to the primary"):
                session.append(user_inputs("here"))
            there.append(user_inputs("later"))
            wait_for_replay(primary, store_url_at(replica))
            assert session.events() == there.events()
            store.erase("ada", "she asked")
            with pytest.raises(refold.Erased):
                session.events()


def test_a_replica_shows_shared_runs_and_shares_none(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    primary = own_postgres.create_database("agents")
    with (
        open_at(primary, tmp_path) as store,
        own_postgres.base_backup("standby") as replica,
    ):
        fill(store, "ada", "one")
        day = timedelta(days=1)
        new = store.shares.create("ada", session_id="one", lasts=day)
        token = new.token
        replica.run()
        wait_for_replay(primary, store_url_at(replica))

        with refold.open(store_url_at(replica)) as reading:
            assert reading.shares.open(token, lambda _, share: share) == new.share
            assert reading.shares.list("ada") == [new.share]
            with pytest.raises(refold.StoreUnavailable, match="connect to the primary"):
                reading.shares.create("ada", session_id="one", lasts=day)
            with pytest.raises(refold.StoreUnavailable, match="connect to the primary"):
                reading.shares.revoke("ada", new.share.share_id)
            store.shares.revoke("ada", new.share.share_id)
            wait_for_replay(primary, store_url_at(replica))
            with pytest.raises(ShareNotFound):
                reading.shares.open(token, lambda _, share: share)


def test_the_page_shows_how_far_a_replica_is_behind(
    own_postgres: Postgres, tmp_path: Path
) -> None:
    on_primary, on_replica = (b.text for b in blocks(PAGE) if b.language == "sql")
    primary = own_postgres.create_database("agents")
    with (
        open_at(primary, tmp_path) as store,
        own_postgres.base_backup("standby") as replica,
    ):
        replica.run()
        store.session(user_id="ada", session_id="s").append(user_inputs("there"))
        wait_for_replay(primary, store_url_at(replica))
        query_value(store_url_at(replica), "SELECT pg_wal_replay_pause()")
        store.session(user_id="ada", session_id="s").append(
            user_inputs("not there yet")
        )

        assert query_value(primary, on_primary)[1] > 0
        assert query_value(store_url_at(replica), on_replica)[0] is not None
        query_value(store_url_at(replica), "SELECT pg_wal_replay_resume()")
        # The primary's own processes keep writing a little, and the replica reports its
        # position after it has replayed: the distance is 0 at times.
        until(lambda: query_value(primary, on_primary)[1] == 0, "the distance to be 0")


def test_a_restore_to_an_earlier_point_leaves_erased_users_unreadable(
    tmp_path: Path,
) -> None:
    command = "mkdir -p ../archive && cp %p ../archive/%f"  # next to the data
    with Postgres.start(archive_mode="on", archive_command=command) as server:
        archive = f"{server.url.partition('host=')[2]}/archive"
        primary = server.create_database("agents")
        restored = server.base_backup(
            "recovery",
            restore_command=f"cp {archive}/%f %p",
            recovery_target_name="before",
            recovery_target_action="promote",
        )
        with restored, open_at(primary, tmp_path, make_key=True) as store:
            fill(store, "ada", "one")
            fill(store, "bob", "bobs")
            query_value(primary, "SELECT pg_create_restore_point('before')")
            store.erase("ada", "she asked")
            store.session(user_id="bob", session_id="bobs").append(user_inputs("lost"))
            (segment,) = query_value(primary, "SELECT pg_walfile_name(pg_switch_wal())")
            archived = f"SELECT last_archived_wal >= '{segment}' FROM pg_stat_archiver"
            until(
                lambda: query_value(primary, archived) == (True,),
                f"{segment} in the archive",
            )

            restored.run()
            recovering = "SELECT pg_is_in_recovery()"
            until(
                lambda: query_value(store_url_at(restored), recovering) == (False,),
                "the end of the recovery",
            )

            rows = _database(store_url_at(restored))
            heads = rows.tables.heads
            assert rows.read(None, heads.select().where(heads.c.user_id == "ada"))
            rows.close()
            with refold.open(store_url_at(restored)) as back:
                with pytest.raises(refold.Erased):
                    back.session(user_id="ada", session_id="one").events()
                with pytest.raises(refold.Erased):
                    back.session(user_id="ada", session_id="one").append(
                        user_inputs("x")
                    )
                bob = back.session(user_id="bob", session_id="bobs")
                assert bob.append(user_inputs("goes on")).last_seq == len(bob.events())
                (again,) = back.erasures.complete()
                assert set(again.left.values()) == {0}
                assert not [
                    s for s in back.sessions(internal=True) if s.user_id == "ada"
                ]
