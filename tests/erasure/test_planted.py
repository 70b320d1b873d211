"""Nothing is left of a user who was planted in every place of the inventory."""

from __future__ import annotations

import base64
import os
import zlib
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest
import sqlalchemy as sa

from refold.adapters import config, rule_cache
from refold.adapters.importers.follower import Follower
from refold.adapters.proxy.recorder import StoreRecorder
from refold.adapters.proxy.secret_file import NAME as SECRET_FILE, secret_in
from refold.adapters.proxy_lock import running_proxy
from refold.adapters.rule_cache import VARIABLE as CACHE
from refold.domain import inventory
from refold.domain.inventory import Place
from refold.redaction import engines
from refold.store import SessionStore
from refold.testing.event_log import user_inputs
from tests.erasure.conftest import WINDOW, fill
from tests.support.operations import log_of
from tests.support.postgres import Postgres
from tests.support.stores import open_at, prepare
from tests.support.wire import WireClient

USER = "user-7d1f40c2-planted"
SESSION = "session-9e03fc3b-planted"
CONTENT = "the quick brown planted value 5ac1"
FOLDER = "folder-e1d9-planted"
LABEL = "project-c77a-planted"
SECRET = "sk-ant-api03-" + "q7Rk9Zp2" * 11 + "-x0AAAAA"
OTHER = "other-55aa01"
MARKERS = (USER, SESSION, CONTENT, FOLDER, LABEL, SECRET)
LINE = '{"type":"user","uuid":"e-1","sessionId":"s-1","message":{"content":"hello"}}\n'
HOUR = 3_600_000_000
# It stays in the certificate, redacted, and without the names of the user.
REASON = f"{USER} asked for {SESSION} to go"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of compiled rules, which these tests fill."""
    folder = tmp_path / "cache"
    with monkeypatch.context() as patch:
        patch.setenv(CACHE, str(folder))
        rule_cache.use(fills=True)
        yield folder
    rule_cache.use(fills=False)


class Planting:
    """Plants a user step by step, and remembers which places were filled."""

    def __init__(self, store: SessionStore, beyond: Path) -> None:
        self.store = store
        self.log = log_of(store)
        self.beyond = beyond  # a folder for copies that Refold cannot reach
        self.filled: set[tuple[str, str]] = set()
        self.share_id = ""

    def plant(self) -> None:
        """Use every feature that stores data, then record what an erasure meets."""
        store = self.store
        fill(store, USER, SESSION)
        fill(store, OTHER, "session-of-other")
        session = store.session(user_id=USER, session_id=SESSION)
        session.append(user_inputs(f"{CONTENT} and {SECRET}"), idempotency_key=CONTENT)
        session.label(project=LABEL)
        assert store.search(USER, "planted")
        session.context(WINDOW)
        store.access_log.count()
        store.access_log.flush()
        store.user(USER).consent("training", reason=CONTENT)
        derived = session.stream._replace(stream="d" * 64)
        leases = self.log.leases
        assert leases.take_lease(derived, USER, clock=store.clock, period=HOUR)
        store.seal()
        store.keys.rotate_session(USER, session_id=SESSION)
        week = timedelta(days=7)
        new = store.shares.create(USER, session_id=SESSION, lasts=week, creator=CONTENT)
        self.share_id = new.share.share_id
        store.export_user(USER, self.beyond / FOLDER)
        self._capture()
        self._proxy()
        assert engines.fill_cache(store.writer.redactor.scanner.triggers)
        store.erasures.hold(USER, "a hold", CONTENT)
        self.look()
        store.erasures.release(USER, "a hold", CONTENT)
        store.session(user_id=USER, session_id="held").append(user_inputs(CONTENT))
        store.erase(USER, REASON, session_id="held", grace=timedelta(days=1))
        self.look()

    def _capture(self) -> None:
        transcript = self.beyond / FOLDER / "project" / "s-1.jsonl"
        transcript.parent.mkdir(parents=True)
        transcript.write_text(LINE)
        folder = transcript.parents[1]
        follower = Follower(
            self.store, "claude-code", user_id=USER, folder=folder, url="x"
        )
        follower.catch_up()

    def _proxy(self) -> None:
        secret_in(config.home() / SECRET_FILE)
        client = WireClient(StoreRecorder(self.store, user_id=USER), "proxied")
        with running_proxy():
            client.say(CONTENT, f"{CONTENT} and {SECRET}")

    def look(self) -> None:
        """Remember which places have data now."""
        for place in inventory.PLACES:
            if place.kind != "outside" and self._has_something(place):
                self.filled.add((place.kind, place.name))

    def _has_something(self, place: Place) -> bool:
        if place.kind == "file":
            return any(config.home().glob(place.pattern))
        if place.kind == "cache file":
            return any(Path(os.environ[CACHE]).glob(place.pattern))
        database: Any
        if place.kind == "table":
            database = self.log.recorder.database
            table = getattr(database.tables, place.name)
        else:
            database = self.log.keys.store
            table = database.tables[place.name]
        query = sa.select(sa.func.count()).select_from(table)
        if place.found_by == "user_id":
            query = query.where(table.c.user_id == USER)
        ((count,),) = database.read(None, query)
        return bool(count)


def forms(marker: str) -> Iterator[bytes]:
    """Yield the forms of a marker in a file: plain, UTF-16, hexadecimal, base64."""
    plain = marker.encode()
    yield plain
    yield marker.encode("utf-16-le")
    yield marker.encode("utf-16-be")
    yield plain.hex().encode()
    yield plain.hex().upper().encode()
    for offset in range(3):
        # Base64 depends on the position in a group of three; the ends may belong to
        # others.
        whole = base64.b64encode(b"\0" * offset + plain)
        yield whole[4:-4]
        yield whole[4:-4].replace(b"+", b"-").replace(b"/", b"_")


NEEDLES = {form: marker for marker in MARKERS for form in forms(marker)}


def unpacked(content: bytes) -> Iterator[bytes]:
    """Yield every zlib stream that begins anywhere in the bytes."""
    for header in (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda", b"\x1f\x8b\x08"):
        at = content.find(header)
        while at >= 0:
            try:
                text = zlib.decompressobj(47).decompress(content[at:], 1 << 20)
            except zlib.error:
                text = b""
            yield text
            at = content.find(header, at + 1)


def traces(roots: Iterable[Path], *leaving_out: str) -> dict[str, set[str]]:
    """Return the files whose content or name has a marker, with the markers."""
    markers_by_file: dict[str, set[str]] = {}
    for root in roots:
        for path in root.rglob("*"):
            if not path.is_file() or set(leaving_out) & set(path.parts):
                continue
            content = path.read_bytes()
            texts = [content, str(path.relative_to(root)).encode(), *unpacked(content)]
            markers = {
                marker
                for form, marker in NEEDLES.items()
                for text in texts
                if form in text
            }
            if markers:
                markers_by_file[path.name] = markers
    return markers_by_file


@pytest.mark.parametrize("marker", MARKERS)
def test_the_search_finds_a_marker_in_each_form(tmp_path: Path, marker: str) -> None:
    written = [b"x" + form for form in forms(marker)]
    written.append(zlib.compress(b"before " + marker.encode()))
    for number, content in enumerate(written):
        (tmp_path / str(number)).write_bytes(b"\0\x01 some bytes" + content + b"\xff")

    markers_by_file = traces([tmp_path])

    assert set(markers_by_file) == {str(number) for number in range(len(written))}
    assert all(marker in markers for markers in markers_by_file.values())


def files_with(text: str, roots: Iterable[Path], *leaving_out: str) -> list[str]:
    """Return the names of the files that contain a text."""
    names: list[str] = []
    for root in roots:
        for path in root.rglob("*"):
            if not path.is_file() or set(leaving_out) & set(path.parts):
                continue
            if text.encode() in path.read_bytes():
                names.append(path.name)
    return names


def check_every_place_was_filled(planting: Planting) -> None:
    """Assert that every registered place was planted."""
    places = [place for place in inventory.PLACES if place.kind != "outside"]
    assert {(place.kind, place.name) for place in places} == planting.filled


def test_nothing_of_a_planted_user_is_left_on_sqlite(
    tmp_path: Path, cache: Path
) -> None:
    database = tmp_path / "database"
    database.mkdir()
    beyond = tmp_path / "beyond"
    beyond.mkdir()
    roots = [database, config.home(), cache]
    url = f"sqlite:///{database / 'refold.db'}"
    with open_at(url, tmp_path, access_log="table") as store:
        planting = Planting(store, beyond)
        planting.plant()
        check_every_place_was_filled(planting)
        before = set().union(*traces(roots).values())
        assert files_with(planting.share_id, roots)

        erased = store.erase(USER, REASON, operator=USER, vacuum=True)

        assert traces(roots) == {}
        assert files_with(planting.share_id, roots) == []
        assert erased.certificate is not None
        assert erased.certificate.statement["shares"] == 1
        assert [copy["location"] for copy in erased.copies or ()] == [
            str(beyond / FOLDER)
        ]
    assert before >= {USER, SESSION, FOLDER}
    assert SECRET not in before
    assert traces(roots) == {}
    with open_at(url, tmp_path) as again:
        assert again.session(user_id=OTHER, session_id="session-of-other").events()


def test_nothing_of_a_planted_user_is_left_on_postgresql(
    tmp_path: Path, cache: Path
) -> None:
    beyond = tmp_path / "beyond"
    beyond.mkdir()
    keys = tmp_path / "keys"
    keys.mkdir()
    with Postgres.start() as server:
        (host,) = parse_qs(urlsplit(server.url).query)["host"]
        # The report names data in pg_wal as beyond reach.
        roots = [Path(host) / "data", config.home(), keys, cache]
        url = prepare(server.create_database("planted"), keys)
        with open_at(url, keys, access_log="table") as store:
            leave_uncompressed(url)
            planting = Planting(store, beyond)
            planting.plant()
            planting.filled.add(("file", "key store"))  # it is another file here
            check_every_place_was_filled(planting)
            run(url, "ANALYZE", "CHECKPOINT")
            before = set().union(*traces(roots, "pg_wal").values())
            assert files_with(planting.share_id, roots, "pg_wal")

            store.erase(USER, REASON, operator=USER, vacuum=True)

            run(url, "CHECKPOINT")
            assert traces(roots, "pg_wal") == {}
            assert files_with(planting.share_id, roots, "pg_wal") == []
        assert before >= {USER, SESSION, FOLDER}
        assert SECRET not in before
        run(url, "CHECKPOINT")
        assert traces(roots, "pg_wal") == {}


def leave_uncompressed(url: str) -> None:
    """Make the server write long values uncompressed, so that a search finds them."""
    query = """SELECT format('ALTER TABLE %s ALTER COLUMN %I SET STORAGE EXTERNAL',
                             attrelid::regclass, attname)
               FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid
               WHERE relnamespace = 'refold'::regnamespace AND relkind = 'r'
                 AND attnum > 0 AND atttypid IN ('text'::regtype, 'bytea'::regtype)"""
    with psycopg.connect(url, autocommit=True) as connection:
        statements = [row[0] for row in connection.execute(query).fetchall()]
    assert len(statements) > 30
    run(url, *statements)


def run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)
