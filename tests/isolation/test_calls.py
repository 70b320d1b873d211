"""No public call reaches a session of another user, or reveals that it exists.

Each method of a store and of a session is listed here with a way to misuse it; a new
method fails until it is listed.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import refold
from refold.events import Format
from refold.store import Session, SessionStore
from refold.store.erasure import Erasures, Keys
from refold.store.memory.memories import Memories
from refold.store.proofs.access_log import AccessLog
from refold.store.reviews import Reviews
from refold.store.session.delegation import Delegation
from refold.store.session.former import FormerNames
from refold.store.session.history import SessionHistory
from refold.store.session.memory import SessionMemory
from refold.store.session.native import NativeItems
from refold.store.session.part import SessionPart
from refold.store.session.proofs import SessionProofs
from refold.store.session.reviews import SessionReviews
from refold.store.session.strategies import SessionStrategies
from refold.store.session.vault import SessionVault
from refold.store.shares import Shares
from tests.support.operations import LONG
from tests.support.postgres import Postgres
from tests.support.statements import Traced
from tests.support.stores import open_at
from tests.support.talking import talk

WINDOW: Final = "turn_window:full_turns=2,cached_turns=1"
SHA: Final = hashlib.sha256(LONG.encode()).hexdigest()
HERS: Final = "s-1"
# Of the same length, so that only existence can make a difference.
NOWHERE: Final = "s-0"
NOTES: Final = Format("notes")
MARK: Final = "a word of hers"


async def _first_of(session: Session) -> Any:
    return await anext(session.history.follow_async())


def public_names(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


# Methods that only read: bob uses the name of a session of ada's, or of none.
LOOKS: Final[dict[str, Callable[[Session], Any]]] = {
    "strategies.activate": lambda session: session.strategies.activate(WINDOW),
    "memory.advice": lambda session: session.memory.advice(WINDOW),
    "at": lambda session: session.at(1),
    "attempt": lambda session: session.attempt("x").__enter__(),
    "history.blob": lambda session: session.history.blob(SHA),
    "strategies.catch_up": lambda session: session.strategies.catch_up(),
    "compact": lambda session: session.compact(WINDOW),
    "strategies.compactor": lambda session: session.strategies.compactor(WINDOW).step(),
    "proofs.compare": lambda session: session.proofs.compare([WINDOW]),
    "proofs.rerun": lambda session: session.proofs.rerun(),
    "acontext": lambda session: asyncio.run(session.acontext(WINDOW)),
    "aprepare": lambda session: asyncio.run(session.aprepare(WINDOW)),
    "context": lambda session: session.context(WINDOW),
    "delegation.begin": lambda session: session.delegation.begin(
        "do it", session_id="mine"
    ),
    "history.derived": lambda session: session.history.derived("main"),
    "strategies.default_fingerprint": lambda session: (
        session.strategies.default_fingerprint()
    ),
    "reviews.decide": lambda session: session.reviews.decide(9, "accept", by="bob"),
    "events": lambda session: session.events(),
    "fork": lambda session: session.fork(2, session_id="mine"),
    "delegation.parent": lambda session: session.delegation.parent(),
    "head": lambda session: session.head(),
    "labels": lambda session: session.labels(),
    "native.read": lambda session: [*session.native.read()],
    "native.fold": lambda session: session.native.fold("n", step=max, start=0),
    "history.follow": lambda session: next(session.history.follow(every=0.01)),
    "history.follow_async": lambda session: asyncio.run(_first_of(session)),
    "native.would_store": lambda session: session.native.would_store(
        NOTES, [{"his": 1}]
    ),
    "delete": lambda session: session.delete(),
    "history.open_calls": lambda session: session.history.open_calls(),
    "history.pages": lambda session: list(session.history.pages()),
    "prepare": lambda session: session.prepare(WINDOW),
    "proofs.replay": lambda session: list(session.proofs.replay()),
    "strategies.retire": lambda session: session.strategies.retire("main"),
    "vault.reveal": lambda session: session.vault.reveal({}, tool="x"),
    "vault.reveal_view": lambda session: session.vault.reveal_view(
        session.context(WINDOW)
    ),
    "reviews.ask": lambda session: session.reviews.ask(),
    "state": lambda session: session.state(),
    "history.stats": lambda session: session.history.stats(),
    "history.streams": lambda session: session.history.streams(),
    "history.timeline": lambda session: list(session.history.timeline()),
    "verify": lambda session: session.verify(),
    "why": lambda session: session.why(WINDOW),
    "proofs.why": lambda session: session.proofs.why(WINDOW),
    "proofs.verify": lambda session: session.proofs.verify(),
    "strategies.chosen": lambda session: session.strategies.chosen(),
}
# Methods that write: they begin a session of bob's own under any name.
WRITES: Final[dict[str, Callable[[Session], Any]]] = {
    "append": lambda session: session.append(refold.UserInput(text="his")),
    "native.append": lambda session: session.native.append(NOTES, [{"his": 1}]),
    "native.put_bytes": lambda session: session.native.put_bytes(b"his", opaque="keep"),
    "append_async": lambda session: asyncio.run(
        session.append_async(refold.UserInput(text="his"))
    ),
    "end": lambda session: session.end(),
    "label": lambda session: session.label(project="his"),
    "record_request": lambda session: session.record_request(_view_of_his(session)),
}
HOLDS_NOTHING: Final = {
    "close",  # it reads and writes nothing
    "session_id",
    "settings",
    "stream",
    "upkeep",
    "user_id",
    "writer",
    "first_labels",
    "delegation.hand_over",  # tested below, with the session that it gets
}

SESSION_PARTS: Final = {
    "delegation": Delegation,
    "history": SessionHistory,
    "memory": SessionMemory,
    "native": NativeItems,
    "proofs": SessionProofs,
    "reviews": SessionReviews,
    "strategies": SessionStrategies,
    "vault": SessionVault,
}

# Attributes of a store that are not methods.
PARTS: Final = {
    "access_log": AccessLog,
    "erasures": Erasures,
    "keys": Keys,
    "memory": Memories,
    "reviews": Reviews,
    "shares": Shares,
}
# Methods of a store for a named session.
NAMED: Final[dict[str, Callable[[SessionStore, str], Any]]] = {
    "access_log.records": lambda store, name: list(
        store.access_log.records("bob", session_id=name)
    ),
    "erase": lambda store, name: store.erase("bob", "asked for", session_id=name),
    "erasures.plan": lambda store, name: store.erasures.plan("bob", session_id=name),
    "rebuild": lambda store, name: list(
        store.rebuild(WINDOW, user_id="bob", session_id=name)
    ),
    "recheck": lambda store, name: list(store.recheck("bob", session_id=name)),
    "repair": lambda store, name: list(store.repair("bob", session_id=name)),
    "reredact": lambda store, name: list(store.reredact("bob", session_id=name)),
    "reviews.list": lambda store, name: store.reviews.list(
        "bob", session_id=name, open_only=False
    ),
    "shares.create": lambda store, name: store.shares.create(
        "bob", session_id=name, lasts=timedelta(days=1)
    ),
    "shares.list": lambda store, name: store.shares.list("bob", session_id=name),
    "shares.revoke": lambda store, name: store.shares.revoke(
        "bob", "0" * 32, session_id=name
    ),
    "keys.rotate_session": lambda store, name: store.keys.rotate_session(
        "bob", session_id=name
    ),
    "verify": lambda store, name: list(store.verify("bob", session_id=name)),
}
# Methods of a store for a named user, or for all users without a name.
OF_A_USER: Final[dict[str, Callable[[SessionStore], Any]]] = {
    "access_log.accesses": lambda store: store.access_log.accesses("bob"),
    "memory.advice": lambda store: store.memory.advice("bob"),
    "catch_up": lambda store: store.catch_up("bob"),
    "erasures.certificates": lambda store: store.erasures.certificates("bob"),
    "erasures.freeze": lambda store: store.erasures.freeze("bob", "asked for"),
    "erasures.hold": lambda store: store.erasures.hold("bob", "case", "asked for"),
    "erasures.holds": lambda store: store.erasures.holds("bob"),
    "memory.of": lambda store: store.memory.of("bob"),
    "memory.profile": lambda store: store.memory.profile("bob"),
    "erasures.stranded": lambda store: store.erasures.stranded("bob"),
    "erasures.is_frozen": lambda store: store.erasures.is_frozen("bob"),
    "keys.rotate_user": lambda store: store.keys.rotate_user("bob"),
    "costs": lambda store: store.costs("bob"),
    "sessions": lambda store: store.sessions("bob"),
    "overviews": lambda store: store.overviews("bob"),
    "search": lambda store: store.search("bob", "secret his it"),
    "search_with_total": lambda store: store.search_with_total("bob", "secret his it"),
    "stats": lambda store: store.stats("bob"),
    "user": lambda store: store.user("bob").status(),
    "erasures.unfreeze": lambda store: store.erasures.unfreeze("bob", "asked for"),
}
# Methods for a named user that are tested in their own folders.
ELSEWHERE: Final = {
    "export_user",
    "session",
    "erasures.readmit",
    "erasures.release",
    "erasures.restore",
    "erasures.unfinished",
    "import_transcript",
    "named",
    "shares.open",
}
# Methods for operators: they work on all users, and accept no name.
OF_ALL: Final = {
    "close",
    "seal",
    "seals",
    "verify_seals",
    "verify_since_seal",
    "keys.rotate_master",
    "keys.status",
    "erasures.complete",
    "erasures.pending",
    "erasures.public_key",
    "erasures.retain",
    "access_log.close",
    "access_log.count",
    "access_log.flush",
    "access_log.is_on",
    "access_log.note",
    "access_log.purge",
    "memory.shared",
}


def _view_of_his(session: Session) -> Any:
    own = SessionStore(
        session.writer.log, session.writer.redactor, session.writer.limits
    )
    return own.session(user_id="bob", session_id="b-1").context(WINDOW)


def test_every_method_of_a_session_is_listed_here() -> None:
    methods = public_names(Session) - public_names(FormerNames) - {*SESSION_PARTS}
    for part, kind in SESSION_PARTS.items():
        names = public_names(kind) - public_names(SessionPart)
        methods |= {f"{part}.{name}" for name in names}

    assert methods == {*LOOKS, *WRITES, *HOLDS_NOTHING}


@pytest.mark.parametrize("name", sorted(public_names(FormerNames)))
def test_a_former_name_is_the_method_that_its_docstring_names(
    name: str, unchanged_shared: SessionStore
) -> None:
    session = unchanged_shared.session(user_id="bob", session_id="mine")
    documented = inspect.getdoc(getattr(FormerNames, name)) or ""
    part, method = documented.strip("`.").split(".")[1:]

    moved = getattr(getattr(session, part), method)
    assert getattr(session, name).__func__ is moved.__func__


def test_every_method_of_a_store_is_listed_here() -> None:
    parts = {
        f"{name}.{method}"
        for name, kind in PARTS.items()
        for method in public_names(kind)
    }
    parts -= {f"{name}.{method}" for name in PARTS for method in ("shares", "writer")}

    listed = {*NAMED, *OF_A_USER, *ELSEWHERE, *OF_ALL}
    assert public_names(SessionStore) - {*PARTS} | parts == listed


@pytest.fixture
def shared(store: SessionStore) -> SessionStore:
    """A store with sessions of ada and bob, on each engine in turn."""
    return fill(store)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def unchanged_shared(
    request: pytest.FixtureRequest,
    postgres: Postgres,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SessionStore]:
    """The same store, created once for calls that change nothing."""
    folder = tmp_path_factory.mktemp("calls")
    name = f"calls_{uuid.uuid4().hex[:12]}"
    url = f"sqlite:///{folder / 'refold.db'}"
    if request.param == "postgresql":
        url = postgres.create_database(name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFOLD_HOME", str(folder / "home"))
        patch.setenv("REFOLD_KEYS", f"sqlite:///{folder / 'keys.db'}")
        with refold.open(url, make_key=True) as store:
            yield fill(store)
    postgres.drop_database(name)


def fill(store: SessionStore) -> SessionStore:
    """Create a full session of ada, and a session of bob."""
    session = store.session(user_id="ada", session_id=HERS)
    session.append([refold.UserInput(text=LONG), refold.UserInput(text=MARK)])
    talk(session, 8)
    session.append(refold.StateUpdate(set={"mark": MARK}))
    assert session.compact(WINDOW) is not None
    session.record_request(session.prepare(WINDOW))
    talk(store.session(user_id="bob", session_id="b-1"), 3)
    return store


def full_text(value: Any) -> str:
    """Return the complete text of a value, including texts that a repr hides."""
    if isinstance(value, dict):
        return full_text([*value.items()])
    if is_dataclass(value):
        return full_text([getattr(value, field.name) for field in fields(value)])
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{', '.join(map(full_text, value))}]"
    return repr(value)


def outcome(call: Callable[[], Any]) -> str:
    """Return the result or error of a call, without the name of the session."""
    try:
        result = call()
    except refold.RefoldError as error:
        result = f"{type(error).__name__}: {error}"
    return full_text(result).replace(HERS, "…").replace(NOWHERE, "…")


def stored_rows_of_ada(store: SessionStore) -> list[Any]:
    """Return everything of ada's, as it is stored."""
    session = store.session(user_id="ada", session_id=HERS)
    derived = [session.history.derived(name) for name in session.history.streams()]
    return [
        session.events(),
        derived,
        session.head(),
        store.sessions("ada", internal=True),
    ]


@pytest.mark.parametrize("name", LOOKS)
def test_another_users_session_looks_like_a_missing_one(
    unchanged_shared: SessionStore, name: str
) -> None:
    before = stored_rows_of_ada(unchanged_shared)

    hers = outcome(
        lambda: LOOKS[name](unchanged_shared.session(user_id="bob", session_id=HERS))
    )
    none = outcome(
        lambda: LOOKS[name](unchanged_shared.session(user_id="bob", session_id=NOWHERE))
    )

    assert hers == none
    assert MARK not in hers
    assert stored_rows_of_ada(unchanged_shared) == before


def test_a_foreign_and_a_missing_session_need_the_same_statements(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ear = Traced(monkeypatch)
    with open_at(sqlite_url, tmp_path) as store:
        fill(store)
        for name, look in LOOKS.items():
            statements = []
            for session_id in (NOWHERE, HERS, NOWHERE):
                with ear.listen() as heard:
                    outcome(
                        partial(
                            look, store.session(user_id="bob", session_id=session_id)
                        )
                    )
                statements.append(
                    [
                        re.sub("'.*?'", "?", statement.text)
                        for statement in heard.statements
                    ]
                )

            assert statements[1] == statements[2], name


@pytest.mark.parametrize("name", WRITES)
def test_writing_to_another_users_session_id_creates_an_own_session(
    shared: SessionStore, name: str
) -> None:
    before = stored_rows_of_ada(shared)

    WRITES[name](shared.session(user_id="bob", session_id=HERS))

    assert stored_rows_of_ada(shared) == before
    assert [
        event.user_id
        for event in shared.session(user_id="bob", session_id=HERS).events()
    ] == ["bob"]


@pytest.mark.parametrize("name", NAMED)
def test_a_store_finds_no_session_of_another_user(
    unchanged_shared: SessionStore, name: str
) -> None:
    before = stored_rows_of_ada(unchanged_shared)

    hers = outcome(lambda: NAMED[name](unchanged_shared, HERS))
    none = outcome(lambda: NAMED[name](unchanged_shared, NOWHERE))

    assert hers == none
    assert MARK not in hers
    assert stored_rows_of_ada(unchanged_shared) == before


@pytest.mark.parametrize("name", OF_A_USER)
def test_calls_for_one_user_return_only_that_users_data(
    shared: SessionStore, name: str
) -> None:
    before = stored_rows_of_ada(shared)

    output = full_text(OF_A_USER[name](shared))

    assert "'ada'" not in output
    assert MARK not in output
    assert stored_rows_of_ada(shared) == before


def test_a_digest_reveals_no_text_of_another_user(
    unchanged_shared: SessionStore,
) -> None:
    session = unchanged_shared.session(user_id="bob", session_id="b-1")

    hers = outcome(lambda: session.history.blob(SHA))

    assert hers.replace(SHA, "") == outcome(
        lambda: session.history.blob("0" * 64)
    ).replace("0" * 64, "")
    assert (
        unchanged_shared.session(user_id="ada", session_id=HERS).history.blob(SHA)
        == LONG
    )


def test_a_fork_names_a_session_of_the_same_user(shared: SessionStore) -> None:
    fork = shared.session(user_id="bob", session_id="b-1").fork(2, session_id=HERS)

    assert {event.user_id for event in fork.events()} == {"bob"}
    assert MARK not in repr(fork.context(WINDOW).messages)


def test_a_forged_fork_finds_nothing(shared: SessionStore) -> None:
    session = shared.session(user_id="bob", session_id="forged")

    forged = outcome(
        lambda: [
            session.append(refold.Fork(session_id=HERS, at_seq=2)),
            session.context(WINDOW),
            session.history.blob(SHA),
        ]
    )

    assert MARK not in forged
    assert "line of text" not in forged


def test_a_result_is_handed_to_no_other_user(shared: SessionStore) -> None:
    child = shared.session(user_id="bob", session_id="b-1").delegation.begin(
        "do it", session_id="child"
    )
    child.append(refold.AgentResponse(text="done"))
    before = stored_rows_of_ada(shared)

    hers = outcome(
        lambda: child.delegation.hand_over(
            to=shared.session(user_id="ada", session_id=HERS)
        )
    )

    assert "SessionNotFound" in hers
    assert stored_rows_of_ada(shared) == before


@pytest.mark.parametrize("user", ["", "ada\0", "a" * 201, None])
def test_an_invalid_name_is_refused(unchanged_shared: SessionStore, user: Any) -> None:
    with pytest.raises(refold.InvalidEvent):
        unchanged_shared.session(user_id=user, session_id=HERS)


@pytest.mark.parametrize(
    "user", ["Ada", "ada ", "%", "_", "*", "ada' OR '1'='1", "ádá"]
)
def test_a_name_that_is_almost_hers_is_another_name(
    unchanged_shared: SessionStore, user: str
) -> None:
    with pytest.raises(refold.SessionNotFound):
        unchanged_shared.session(user_id=user, session_id=HERS).events()
    assert unchanged_shared.sessions(user, internal=True) == []
