"""Whatever a public call is given, it does it or says in our words why not."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import refold
from refold.domain.canonical import encodable
from refold.domain.envelope import Format
from refold.domain.errors import RefoldError
from refold.store import Session, SessionStore
from refold.store.erasure import Erasures, Keys
from refold.store.memory.memories import Memories
from refold.store.overviews import OverviewFilter
from refold.store.proofs.access_log import AccessLog
from refold.store.reviews import Reviews
from refold.store.session.delegation import Delegation
from refold.store.session.history import SessionHistory
from refold.store.session.memory import SessionMemory
from refold.store.session.native import NativeItems
from refold.store.session.proofs import SessionProofs
from refold.store.session.reviews import SessionReviews
from refold.store.session.strategies import SessionStrategies
from refold.store.session.vault import SessionVault
from tests.fuzz.targets import SECRET, Fault
from tests.support.stores import open_at

IDS = st.sampled_from(
    ["ada", "s-1", "", "_user", "_x", "../s", "a b", "\x00", "\ud800", "🙂", "i" * 5000]
)
NUMBERS = st.sampled_from([None, 0, 1, 2, 3, -1, 10**6, 2**63, -(2**70)])
TEXTS = st.sampled_from(["", SECRET, "why\x00", "\ud800", "x" * 100_000, "🙂\u202e"])
SPECS = st.sampled_from(
    [None, "keep_all", "turn_window", "turn_window:full_turns=0", "nothing", "", ":=,"]
)
FLAGS = st.booleans()
TIMES = st.sampled_from(
    [
        None,
        datetime(1, 1, 1, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        datetime(2026, 1, 1),  # noqa: DTZ001  # without a zone, which is refused
    ]
)
SPANS = st.sampled_from(
    [None, timedelta(0), timedelta(days=30), timedelta.max, timedelta.min]
)


def _is_something(value: object) -> bool:
    return value is not None


HANDED = {"system": TEXTS, "memory": TEXTS, "window": NUMBERS}
GIVEN: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("user_id", "session_id", "name", "sha256", "agent"), IDS),
    **dict.fromkeys(("project", "fingerprint"), IDS),
    "memory_id": IDS,
    **dict.fromkeys(("request_id", "idempotency_key", "operator"), IDS),
    **dict.fromkeys(
        ("reason", "what", "model", "note", "reasons", "task", "why"), TEXTS
    ),
    **dict.fromkeys(("after", "limit", "per_session", "upto", "at", "seq"), NUMBERS),
    **dict.fromkeys(("expected_seq", "index_at_most", "message", "k"), NUMBERS),
    **dict.fromkeys(("ts", "since", "until"), TIMES),
    **dict.fromkeys(("grace", "key_backups", "older_than", "fresh"), SPANS),
    "strategy": SPECS,
    "text": TEXTS,
    "path": st.sampled_from(["nowhere.jsonl", "", "a\0b"]),
    "format": IDS,
    "label": st.dictionaries(TEXTS.filter(_is_something), TEXTS.filter(_is_something)),
    "unscanned": st.sampled_from(["refuse", "stub"]),
    # Of a format only these calls take one that is no name.
    "items": st.lists(st.none() | TEXTS | NUMBERS | st.binary(), max_size=3),
    "data": st.binary(),
    "opaque": st.sampled_from(["refuse", "keep"]),
    "kind": st.none() | TEXTS,
    "types": st.lists(TEXTS.filter(_is_something), max_size=2),
    "event": st.sampled_from(["token_refused", "foreign_user"]),
    "denied": st.sampled_from([None, "Foreign"]),
    "newest": NUMBERS,
    "spans": st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=2),
    "step": st.just(lambda state, item: [state, item.seq]),
    "start": st.none() | TEXTS.filter(encodable),
    "version": st.integers(0, 9),
    "decision": st.sampled_from(["accept", "dismissed", "yes", "", "\ud800"]),
    "by": TEXTS.filter(_is_something),
    "accept_loss": FLAGS,
    "internal": FLAGS,
    "open_only": FLAGS,
    "arguments": st.dictionaries(IDS, TEXTS | NUMBERS, max_size=3),
    "tool": TEXTS,
    "salt": st.none() | st.binary(max_size=40),
    "reveal": FLAGS,
    "prompt": st.none() | TEXTS,
    "strategies": st.lists(SPECS.filter(bool), max_size=2),
    "as_": st.sampled_from(["sent", "rebuilt"]),
    "sort": st.sampled_from(["last", "title", "dollars", "session", "", "a\0b"]),
    "descending": st.none() | FLAGS,
    "matching": st.none() | st.builds(OverviewFilter, text=TEXTS.filter(encodable)),
    **dict.fromkeys(("chain_only", "apply", "dry_run", "strict", "sweep"), FLAGS),
    **dict.fromkeys(("others", "chains", "checks"), FLAGS),
    **dict.fromkeys(("wait", "vacuum", "absent_ok", "retryable", "matches"), FLAGS),
}
# Objects that programs hand in, whose types a checker holds; and what ends the store.
LEFT_OUT = frozenset(
    {
        "self",
        "labels",
        "summarizer",
        "progress",
        "executor",
        "view",
        "extras",
        "choice_args",
        "options",
        "meta",
        "policy",
        "rules",
        "classify",
        "taxonomy",
        "to",
        "call_id",
    }
)
# Calls that end the store, or begin with an object that other calls create.
ENDS = frozenset(
    {"close", "export_user", "hand_over", "retain", "record_request", "reveal_view"}
    # what goes on until somebody ends the session
    | {"follow", "follow_async"}
)

SESSION_PARTS = (
    Delegation,
    NativeItems,
    SessionHistory,
    SessionMemory,
    SessionProofs,
    SessionReviews,
    SessionStrategies,
    SessionVault,
)
KINDS = (
    SessionStore,
    Session,
    AccessLog,
    Erasures,
    Keys,
    Memories,
    Reviews,
    *SESSION_PARTS,
)


@pytest.fixture(params=["sqlite", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SessionStore]:
    if request.param == "memory":
        opened = refold.open("memory://")
    else:
        opened = open_at(f"sqlite:///{tmp_path / 'refold.db'}", tmp_path)
    with opened:
        session = opened.session(user_id="ada", session_id="s-1")
        session.append([refold.UserInput(text="why"), refold.Final(text="so")])
        session.append(refold.ToolCall(call_id="c", tool_name="make"))
        yield opened


def public(kind: type) -> list[str]:
    return [
        name
        for name, member in inspect.getmembers(kind)
        if not name.startswith("_") and inspect.isfunction(member) and name not in ENDS
    ]


def arguments(method: Callable[..., Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Values for the parameters that a call can be given."""
    needed: dict[str, st.SearchStrategy[Any]] = {}
    more: dict[str, st.SearchStrategy[Any]] = {}
    for name, parameter in inspect.signature(method).parameters.items():
        if name in GIVEN:
            where = needed if parameter.default is parameter.empty else more
            may_be_none = "None" in str(parameter.annotation)
            values = GIVEN[name]
            if "Format" in str(parameter.annotation):
                values = st.just(Format("notes"))
            where[name] = values if may_be_none else values.filter(_is_something)
        elif name == "handed":
            more.update(HANDED)
        elif name == "labels" and parameter.kind is parameter.VAR_KEYWORD:
            more.update({"project": TEXTS, "Topic": TEXTS})
    return st.fixed_dictionaries(needed, optional=more)


def done(call: Callable[..., Any], values: dict[str, Any]) -> None:
    """Runs a call to its end. Its errors must be Refold's, and quote no secret."""
    try:
        result = call(**values)
        if inspect.iscoroutine(result):
            result.close()
        elif isinstance(result, Iterator):
            for _ in result:
                pass
    except RefoldError as error:
        if SECRET in str(error):
            raise Fault(str(error)) from None


def target(store: SessionStore, kind: type) -> Any:
    parts = store.access_log, store.erasures, store.keys, store.memory, store.reviews
    session = store.session(user_id="ada", session_id="s-1")
    if kind in SESSION_PARTS:
        return kind(session)
    return next(part for part in (store, session, *parts) if type(part) is kind)


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in KINDS for name in public(kind)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_call_is_done_or_refused(store: SessionStore, kind: type, name: str) -> None:
    events = st.sampled_from(
        [
            refold.UserInput(text=SECRET),
            refold.Final(text="\x00"),
            refold.Pin(seqs=(9,)),
        ]
    )

    @given(st.data())
    @settings(max_examples=25, suppress_health_check=list(HealthCheck))
    def holds(data: st.DataObject) -> None:
        method = getattr(target(store, kind), name)
        values = data.draw(arguments(method))
        if "events" in inspect.signature(method).parameters:
            values["events"] = data.draw(events)
        done(method, values)

    holds()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_parameter_gets_a_value(kind: type) -> None:
    """A new one must be named above, or nobody tries it."""
    tried = {*GIVEN, *LEFT_OUT, "events"}
    for name in public(kind):
        names = set(inspect.signature(getattr(kind, name)).parameters)
        assert names <= tried, f"{name}: {names - tried}"
