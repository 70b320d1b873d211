"""A context that starts from a checkpoint equals the fold from the first event."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import refold
from refold.adapters.log import EncryptedLog
from refold.domain import errors
from refold.domain.canonical import canonical
from refold.domain.events import ProviderEdit
from refold.domain.ports import StoredView
from refold.projections.context.outline import Outline
from refold.projections.context.strategy import Strategy
from refold.store import Session, SessionStore, checkpoints
from refold.store.checkpoints import spacing
from refold.store.contexts import Viewer, WhichSummaries, with_derived
from refold.store.session.core import viewer_of
from tests.projections.logs import logs
from tests.support.stores import open_at
from tests.support.talking import talk

WINDOW = "turn_window:full_turns=2,cached_turns=1"
# One of each kind of fold: of counts, turns, exchanges, forgetting, clearing, layers.
STRATEGIES = (
    "keep_all",
    "last_turns:n=2",
    "token_budget:max_tokens=60",
    WINDOW,
    "message_window:compression_window_size=2,tail_keep_size=3",
    "tool_clearing:trigger_input_tokens=60,keep=1",
    f"tool_clearing:trigger_input_tokens=60+{WINDOW}",
    "recursive_summary:every=2,keep_last=1",
    "hybrid:every=2,keep_last=1,threshold_low=50,threshold_high=90,last_n_events=5",
    "history_summary:trigger_on_history_size_chars=150,"
    "history_tail_size_chars_to_exclude=40",
    "native",
)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'refold.db'}"


@pytest.fixture
def store(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SessionStore]:
    # Checkpoints every four events, so that short sessions have many.
    monkeypatch.setattr(checkpoints, "SPACING", 4)
    monkeypatch.setattr("refold.store.contexts.SPACING", 4)
    with open_at(url, tmp_path) as opened:
        yield opened


class SessionAtWork:
    """A session that gets the events of a drawn log, and other work in between."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def act(self, action: str, name: str) -> None:
        """Do an action under the strategy of this name."""
        with suppress(errors.InvalidEvent, errors.SessionClosed):
            if action == "compact":
                self.session.compact(name)
            elif action == "context":
                self.session.context(name)
            elif action == "earlier":
                self.session.context(name, at=max(1, self.session.head().seq // 2))
            elif action == "request":
                self.session.record_request(self.session.context(name))
            elif action == "leave out":
                last = self.session.head().seq
                edit = ProviderEdit(reason="rewound", left_out=((last, last),))
                self.session.append(edit)

    def head_seq(self) -> int:
        """Return the seq of the newest event; 0 if there is none."""
        return self.session.writer.log.head(self.session.stream).seq

    def rebuild(self, store: SessionStore, name: str) -> None:
        session_id = self.session.session_id
        list(store.rebuild(name, user_id="ada", session_id=session_id))


def folded_from_the_first_event(
    viewer: Viewer, strategy: Strategy, seq: int, as_: WhichSummaries
) -> Outline:
    """Return the view that ``Viewer.at`` returned before checkpoints existed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "SPACING", 10**9)
        patch.setattr("refold.store.contexts.SPACING", 10**9)
        return viewer.at(strategy, seq, as_)


def check_against_whole_folds(session: Session, name: str, seqs: Sequence[int]) -> None:
    """Compare contexts at these seqs, and the current one, with whole folds."""
    strategy = session.settings.strategy(name)
    viewer = viewer_of(session)
    for seq in seqs:
        for as_ in get_args(WhichSummaries):
            whole = folded_from_the_first_event(viewer, strategy, seq, as_)
            assert viewer.at(strategy, seq, as_) == whole, (name, seq, as_)
            first = viewer.render(strategy, whole)
            again = viewer.render(strategy, viewer.at(strategy, seq, as_))
            assert canonical(again.messages) == canonical(first.messages)
            assert again.request() == first.request()
    derived = session.history.derived(strategy.fingerprint)
    whole = with_derived(viewer.fold_all(strategy), derived)
    assert viewer.current(strategy) == whole, name


ACTIONS = ("compact", "compact", "context", "earlier", "request", "leave out")


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_contexts_from_checkpoints_equal_folds_from_the_first_event(
    store: SessionStore, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(STRATEGIES))
    events = data.draw(logs(max_size=40))
    at_work = SessionAtWork(store.session(user_id="ada", session_id=f"s-{uuid4().hex}"))
    fork_at = data.draw(st.integers(0, len(events)))
    for number, event in enumerate(events):
        if number and number == fork_at:
            parent = at_work.session
            with suppress(errors.InvalidEvent):
                fork = parent.fork(number, session_id=f"f-{uuid4().hex}")
                at_work = SessionAtWork(fork)
        draft = refold.Draft(event.payload, meta=event.meta, agent=event.agent)
        with suppress(errors.InvalidEvent):
            at_work.session.append(draft)
        acts_now = data.draw(st.integers(0, 3)) == 0
        if acts_now and at_work.head_seq():
            at_work.act(data.draw(st.sampled_from(ACTIONS)), name)
    head = at_work.head_seq()
    if not head:
        return
    if data.draw(st.booleans()):
        at_work.rebuild(store, name)
    seqs = data.draw(st.lists(st.integers(1, head), min_size=1, max_size=4))

    check_against_whole_folds(at_work.session, name, [*seqs, head])


def long_session(store: SessionStore, turns: int = 20) -> Session:
    return talk(store.session(user_id="ada", session_id="s-1"), turns)


def stored_names(session: Session, name: str = WINDOW) -> list[str]:
    """The names of the checkpoints of a strategy, oldest first."""
    fingerprint = session.settings.strategy(name).fingerprint
    log = session.writer.log
    names = log.view_names("ada", session.session_id)
    of_strategy = [name for name in names if name.startswith(f"{fingerprint}-")]
    return sorted(of_strategy, key=lambda name: int(name.split("-")[1]))


def folded_events(session: Session, at: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many events a context at this seq folds."""
    strategy = session.settings.strategy(WINDOW)
    folded_seqs: list[int] = []
    take = type(strategy).take

    def recording_take(self: Strategy, builder: Any, envelope: Any) -> None:
        folded_seqs.append(envelope.seq)
        take(self, builder, envelope)

    with monkeypatch.context() as patch:
        patch.setattr(type(strategy), "take", recording_take)
        session.context(WINDOW, at=at)
    return len(folded_seqs)


def test_the_second_context_of_the_past_folds_only_since_a_checkpoint(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = long_session(store)
    first = folded_events(session, 39, monkeypatch)

    again = folded_events(session, 38, monkeypatch)

    assert first == 39
    assert again <= checkpoints.SPACING


def test_the_first_context_at_the_head_stores_checkpoints(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = long_session(store)

    session.context(WINDOW)

    assert len(stored_names(session)) == 40 // checkpoints.SPACING
    assert folded_events(session, 39, monkeypatch) <= checkpoints.SPACING


def test_a_session_has_a_bounded_number_of_checkpoints(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "MOST", 5)
    session = long_session(store, 9)
    session.context(WINDOW)
    few = stored_names(session)
    talk(session, 30)

    session.context(WINDOW)

    assert [name.split("-")[1] for name in few] == ["4", "8", "12", "16"]
    seqs = [int(name.split("-")[1]) for name in stored_names(session)]
    assert seqs == [16, 32, 48, 64]


@pytest.mark.parametrize("head_seq", [1, 511, 512, 32_768, 33_280, 300_000, 10**7])
def test_spacing_keeps_checkpoints_few(head_seq: int) -> None:
    assert head_seq // spacing(head_seq) <= checkpoints.MOST


def test_a_checkpoint_over_the_limit_is_not_stored(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "MOST_BYTES", 10)
    session = long_session(store)

    view = session.context(WINDOW)

    assert view.at == 40
    assert stored_names(session) == []


def replace_view(
    session: Session, name: str, change: Callable[[StoredView], Any]
) -> None:
    """Store another view in place of the one of this name, under the session's key."""
    log = session.writer.log
    stored = log.load_view(session.stream, name)
    assert stored is not None
    view = change(stored)
    assert log.save_view(session.stream, name, view, replaces=stored.through_seq)


def of_another_history(view: StoredView) -> StoredView:
    outline: Any = view.body["checkpoint"]
    body = {**view.body, "checkpoint": {**outline, "raw_tokens": 1}, "hash": "0" * 64}
    return replace(view, body=body)


def of_an_older_form(view: StoredView) -> StoredView:
    outline: Any = view.body["checkpoint"]
    return replace(view, body={**view.body, "checkpoint": {**outline, "shape": 1}})


def without_a_body(view: StoredView) -> StoredView:
    return replace(view, body={})


@pytest.mark.parametrize(
    "change", [of_another_history, of_an_older_form, without_a_body]
)
def test_a_wrong_checkpoint_is_dropped_and_made_again(
    store: SessionStore, change: Callable[[StoredView], StoredView]
) -> None:
    session = long_session(store)
    right = session.context(WINDOW, at=39)
    names = stored_names(session)
    for name in names:
        replace_view(session, name, change)

    assert session.context(WINDOW, at=39).digest == right.digest

    assert stored_names(session) == names
    log = session.writer.log
    view = log.load_view(session.stream, names[0])
    assert view is not None
    assert view.body["hash"] == log.read(session.stream, after=3, upto=4)[0].hash


def test_a_checkpoint_of_another_session_does_not_open(store: SessionStore) -> None:
    session = long_session(store)
    other = talk(store.session(user_id="ada", session_id="s-2"), 20)
    right = session.context(WINDOW, at=39)
    other.context(WINDOW, at=39)
    log = store.log
    assert isinstance(log, EncryptedLog)
    key_check = log.key(session.stream).check
    for name in stored_names(session):
        row = log.recorder.view_row(other.stream, name)
        assert row is not None
        assert log.recorder.save_view_row(
            session.stream, name, row, replaces=row.through_seq, key_check=key_check
        )

    assert session.context(WINDOW, at=39).digest == right.digest


def test_a_view_of_another_history_is_folded_again(store: SessionStore) -> None:
    session = long_session(store, 40)
    right = session.context(WINDOW)
    fingerprint = session.settings.strategy(WINDOW).fingerprint

    def with_another_outline(view: StoredView) -> StoredView:
        outline: Any = view.body["outline"]
        body = {**view.body, "outline": {**outline, "raw_tokens": 1}, "hash": "0" * 64}
        return replace(view, body=body)

    replace_view(session, fingerprint, with_another_outline)

    assert session.context(WINDOW) == right
    assert session.verify().problems == []


def test_proofs_ignore_checkpoints(store: SessionStore) -> None:
    session = long_session(store)
    session.context(WINDOW, at=39)
    for name in stored_names(session):
        replace_view(session, name, of_another_history)

    assert session.verify().problems == []


def test_erasure_deletes_checkpoints(store: SessionStore) -> None:
    session = long_session(store)
    session.context(WINDOW)
    assert stored_names(session)

    store.erase("ada", reason="asked")

    log = store.log
    assert isinstance(log, EncryptedLog)
    assert log.recorder.view_names("ada", "s-1") == []


def test_retiring_a_strategy_deletes_its_checkpoints(store: SessionStore) -> None:
    session = long_session(store)
    session.context(WINDOW)
    session.strategies.activate("keep_all")

    session.strategies.retire(session.settings.strategy(WINDOW).fingerprint)

    assert stored_names(session) == []


_CHILD = """
import sys
import refold
from refold.store import checkpoints
checkpoints.SPACING = 4
import refold.store.contexts
refold.store.contexts.SPACING = 4
save = checkpoints.Checkpoints._save
def announcing_save(self, *arguments):
    print("saving", flush=True)
    return save(self, *arguments)
checkpoints.Checkpoints._save = announcing_save
with refold.open(sys.argv[1]) as store:
    session = store.session(user_id="ada", session_id="s-1")
    session.context(sys.argv[2], at=int(sys.argv[3]))
"""


@pytest.mark.parametrize("saves", [1, 4, 9])
def test_a_process_killed_while_it_stores_a_checkpoint_harms_nothing(
    store: SessionStore, url: str, saves: int
) -> None:
    session = long_session(store, 40)
    command = [sys.executable, "-c", _CHILD, url, WINDOW, "80"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for _ in range(saves):
            assert child.stdout.readline() == "saving\n"
        child.kill()

    assert len(stored_names(session)) >= saves - 1
    check_against_whole_folds(session, WINDOW, [80, 79, 40, 4 * saves])
    assert session.verify().problems == []


def test_two_folds_at_once_store_the_same_checkpoints(store: SessionStore) -> None:
    session = long_session(store)
    with ThreadPoolExecutor(2) as threads:
        views = list(
            threads.map(lambda at: session.context(WINDOW, at=at), [39, 39, 40, 40])
        )

    assert views[0].digest == views[1].digest
    check_against_whole_folds(session, WINDOW, [39, 40])
