"""A summary is the same whether its events are in memory or are read again."""

from __future__ import annotations

import pytest

from refold.store import Session, SessionStore
from refold.store.work import rebuilds as rebuilding
from tests.support.rebuilding import WINDOW, append_turns


def test_events_that_are_no_longer_in_memory_are_read_again(
    store: SessionStore, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_turns(session, 12)
    monkeypatch.setattr(rebuilding, "_MOST_RECENT", 3)

    (result,) = store.rebuild(WINDOW)

    assert result.compactions > 1
    verified = session.verify()
    assert (verified.compactions, verified.problems) == (result.compactions, [])


def test_most_summaries_need_no_second_read(
    store: SessionStore, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_turns(session, 12)
    log = type(store.log)
    spans = []
    read = log.read

    def counting(self, stream, **how):  # type: ignore[no-untyped-def]  # as it is
        spans.extend(how.get("spans", ()))
        return read(self, stream, **how)

    monkeypatch.setattr(log, "read", counting)

    (result,) = store.rebuild(WINDOW, dry_run=True)

    assert result.compactions > 1
    assert spans == []
