"""The codes of bodies are the same, however much of a body is hashed again."""

from __future__ import annotations

import hmac
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import refold
from refold.adapters.proxy import macs
from refold.adapters.proxy.macs import BodyMacs, body_mac
from refold.store import Session, SessionStore

BLOCK = macs._BLOCK_BYTES
NEAR_BLOCKS = st.sampled_from([0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK])


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SessionStore:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path))
    return refold.open(f"sqlite:///{tmp_path / 'refold.db'}")


def _session(store: SessionStore, name: str) -> Session:
    session = store.session(user_id="ada", session_id=name)
    if not store.writer.log.head(session.stream).seq:
        session.append(refold.UserInput(text="hello"))
    return session


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), NEAR_BLOCKS, NEAR_BLOCKS, st.binary()),
        max_size=8,
    )
)
def test_code_of_a_body_does_not_depend_on_earlier_ones(
    store: SessionStore, changes: list[tuple[str, int, int, bytes]]
) -> None:
    codes = BodyMacs()
    bodies = {"a": b"", "b": b""}
    for name, kept, added, more in changes:
        body = bodies[name][:kept] + b"x" * added + more
        bodies[name] = body
        session = _session(store, name)
        assert codes.of(session, body) == body_mac(session, body)


def test_only_new_bytes_are_hashed(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[int] = []

    class Counting:
        def __init__(self, state: hmac.HMAC) -> None:
            self._state = state

        def update(self, data: bytes) -> None:
            hashed.append(len(data))
            self._state.update(data)

        def copy(self) -> Counting:
            return Counting(self._state.copy())

        def hexdigest(self) -> str:
            return self._state.hexdigest()

    new = hmac.new
    monkeypatch.setattr(hmac, "new", lambda *given: Counting(new(*given)))
    codes = BodyMacs()
    session = _session(store, "a")
    body = b"x" * 1_000_000
    for _ in range(3):
        codes.of(session, body)
        body = body[:-100] + b"y" * 2_000
    hashed.clear()
    codes.of(session, body)
    assert sum(hashed) < 3 * BLOCK


def test_bodies_in_memory_are_bounded(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(macs, "_MOST_BYTES", 10_000)
    codes = BodyMacs()
    for name in ("a", "b", "c", "a", "d"):
        codes.of(_session(store, name), b"x" * 4_000)
    assert [stream.session_id for stream in codes._last] == ["a", "d"]
    codes.of(_session(store, "e"), b"x" * 20_000)
    assert not codes._last


def test_code_of_an_erased_session_is_refused(store: SessionStore) -> None:
    codes = BodyMacs()
    session = _session(store, "a")
    codes.of(session, b"body")
    store.erase("ada", "a test", session_id="a")
    with pytest.raises(refold.Erased):
        codes.of(session, b"body")
    assert not codes._last
