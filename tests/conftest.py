"""Fixtures of every test: a clean environment, databases, and stores on them."""

import atexit
import gc
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from refold.adapters.keys.master import MasterKeyFile
from refold.adapters.rule_cache import VARIABLE as CACHE
from refold.projections import models
from refold.store import Session, SessionStore
from tests.support.citus import VARIABLE as CITUS, binaries
from tests.support.messages_api import MessagesApi
from tests.support.postgres import VARIABLE, Postgres, PostgresUnavailable
from tests.support.stores import open_at

# Machines differ in speed; a slow one is not a failure.  A run draws the same examples
# each time, so that only a change can make it fail; --hypothesis-profile=thorough draws
# many others, and shrinks failures, which can take minutes.
_DRAWN = (Phase.explicit, Phase.reuse, Phase.generate)
settings.register_profile(
    "refold", deadline=None, max_examples=20, phases=_DRAWN, derandomize=True
)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile("refold")

# A file system in memory makes the hundreds of stores of a run in a tenth of the time.
# No test can show what a power cut would destroy; processes are killed all the same.
_MEMORY = Path("/dev/shm")  # noqa: S108  # pytest makes its own directories there
_ROOM = 4 << 30

# How many new objects start a pass of the garbage collector, and how many passes of a
# generation start one of the next.
_GARBAGE = (20_000, 10, 5)

# They run in a separate environment, which has the frameworks.
collect_ignore = [] if find_spec("langgraph") else ["frameworks"]
# The folder of Citus, which the project neither has nor installs: the summary says so.
if binaries() is None:
    collect_ignore.append("citus")

_shared = pytest.StashKey[Postgres]()
_handed = pytest.StashKey[dict[str, str]]()


def _work_in_memory() -> None:
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK):
        return
    if shutil.disk_usage(_MEMORY).free >= _ROOM:
        os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)


_work_in_memory()
# No test reads or writes the cache of the person who runs it.
os.environ[CACHE] = "off"


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand one server to all workers of a parallel run, or the reason for none."""
    node.workerinput.update(_hand_out(node.config))


def _hand_out(config: pytest.Config) -> dict[str, str]:
    if _handed not in config.stash:
        try:
            config.stash[_shared] = Postgres.from_environment() or Postgres.start()
            config.stash[_handed] = {"postgres": config.stash[_shared].url}
        except PostgresUnavailable as error:
            config.stash[_handed] = {"no_postgres": str(error)}
    return config.stash[_handed]


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name binary parameters by their argument.

    Compressed data has the time in it, but the ids of a test must be the same in all
    workers of a parallel run, which would stop otherwise.
    """
    if isinstance(val, bytes) and not (val.isascii() and val.decode().isprintable()):
        return argname
    return None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector away from the modules of the tests.

    They live until the run ends, and a pass over their million objects takes half a
    second.  For the same reason, tests have fewer passes than other programs.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries report what lives when Python ends
        gc.set_threshold(*_GARBAGE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List tests that did not run for lack of something outside of the project."""
    if binaries() is None:
        folder = Path(__file__).parent / "citus"
        names = ", ".join(sorted(path.stem for path in folder.glob("test_*.py")))
        terminalreporter.section("not run")
        terminalreporter.write_line(
            f"tests/citus ({names}): {CITUS} names no folder with a PostgreSQL that "
            "has Citus (docs/how-to/citus.md)"
        )


def pytest_unconfigure(config: pytest.Config) -> None:
    if _shared in config.stash:
        config.stash[_shared].stop()


@pytest.fixture(autouse=True, scope="module")
def _collect_garbage() -> Iterator[None]:
    """Collect what the tests of a module left behind.

    So a file or a socket that one of them left open is reported in its own module.
    """
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def _clean_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    # Not by monkeypatch, which would restore the settings of a module's fixture: the
    # next fixture of a session would create its store with those keys.
    for name in _ours():
        del os.environ[name]
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    yield
    for name in _ours():
        del os.environ[name]


def _ours() -> list[str]:
    """The settings of Refold that are in the environment now."""
    shared = (VARIABLE, CITUS, CACHE)
    return [
        name for name in os.environ if name.startswith("REFOLD_") and name not in shared
    ]


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """The server of all tests of a run: create databases, but do not break it."""
    handed: dict[str, str] = getattr(request.config, "workerinput", {})
    if "postgres" in handed:
        server = Postgres(handed["postgres"])
    elif "no_postgres" in handed:
        pytest.fail(handed["no_postgres"], pytrace=False)
    else:
        server = Postgres.from_environment() or _started()
    with server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """A server for one test, to crash and restart.  It takes about a second."""
    MasterKeyFile().create()
    with _started() as server:
        yield server


def _started() -> Postgres:
    """Start a server or fail: a test is never skipped for want of PostgreSQL."""
    try:
        return Postgres.start()
    except PostgresUnavailable as error:
        reason = str(error)
    pytest.fail(reason, pytrace=False)


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """An empty database on the shared server, dropped after the test."""
    MasterKeyFile().create()
    name = _new_name()
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A database file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'refold.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest) -> str:
    """An empty database on each engine in turn: one promise, two runs."""
    kind = {"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param]
    url: str = request.getfixturevalue(kind)
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    """An empty database with the tables of a store, on each engine in turn.

    It is a copy, because creating the tables takes most of a test's time.
    """
    kind = {"sqlite": "_sqlite_store", "postgresql": "_postgres_store"}[request.param]
    url: str = request.getfixturevalue(kind)
    return url


@pytest.fixture
def _sqlite_store(_made_sqlite: Path, sqlite_url: str, tmp_path: Path) -> str:
    shutil.copyfile(_made_sqlite, tmp_path / "refold.db")
    return sqlite_url


@pytest.fixture
def _postgres_store(_made_postgres: str, postgres: Postgres) -> Iterator[str]:
    MasterKeyFile().create()
    name = _new_name()
    yield postgres.create_database(name, like=_made_postgres)
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def _made_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "refold.db"
    _make_store(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def _made_postgres(postgres: Postgres) -> Iterator[str]:
    name = _new_name()
    _make_store(postgres.create_database(name))
    yield name
    postgres.drop_database(name)


def _make_store(url: str) -> None:
    # Imported here, because it takes longer than most tests.
    from sqlalchemy import make_url

    from refold.adapters.sql.postgres import PostgresDatabase
    from refold.adapters.sql.schema import migrate
    from refold.adapters.sql.sqlite import SqliteDatabase

    dialect = SqliteDatabase if url.startswith("sqlite") else PostgresDatabase
    opened = dialect(make_url(url))
    migrate(opened)
    opened.close()


def _new_name() -> str:
    return f"test_{uuid.uuid4().hex[:12]}"


@pytest.fixture
def store(store_url: str, tmp_path: Path) -> Iterator[SessionStore]:
    """An empty store on each engine in turn."""
    with open_at(store_url, tmp_path) as store:
        yield store


@pytest.fixture
def session(store: SessionStore) -> Session:
    """A session of that store, without events."""
    return store.session(user_id="ada", session_id="s-1")


@pytest.fixture
def api() -> Iterator[MessagesApi]:
    """A server that speaks the Messages API."""
    with MessagesApi() as api:
        yield api


@pytest.fixture
def packaged_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """No models are known except those that Refold ships, during and after the test."""
    monkeypatch.setattr(models, "_registered", {})
