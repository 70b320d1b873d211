"""Checks that stored views equal a fold of the log from its beginning."""

from __future__ import annotations

from collections.abc import Iterator

from refold.projections.context.outline import Outline, fold_derived
from refold.projections.context.strategies import spec
from refold.store import Session
from refold.store.checkpoints import changes, without_failures
from refold.store.history import History


def unequal_views(session: Session) -> Iterator[str]:
    """Yield the problems of a session's stored views; nobody may change them now."""
    log = session.writer.log
    history = History.of(log, session.head().state)
    for name in log.view_names(session.user_id, session.session_id):
        view = log.load_view(session.stream, name)
        if view is None or not view.body:
            yield f"{session.session_id}: a view that nobody can open"
            continue
        strategy = spec.parse(view.body["strategy"])  # type: ignore[arg-type]  # as written
        derived = session.history.derived(strategy.fingerprint)
        entries = derived[: view.derived_seq]
        is_checkpoint = name != strategy.fingerprint
        if is_checkpoint:
            entries = changes(derived, upto=view.derived_seq)
        outline = view.body["checkpoint" if is_checkpoint else "outline"]
        stored = Outline.load(outline)  # type: ignore[arg-type]  # as written
        fresh = strategy.read(strategy.begin(), history.events(upto=view.through_seq))
        for entry in entries:
            fresh = fold_derived(fresh, entry)
        if is_checkpoint:
            # Contexts of the past ignore failed attempts.
            stored = without_failures(stored, derived_seq=fresh.derived_seq)
            fresh = without_failures(fresh, derived_seq=fresh.derived_seq)
        if fresh.dump() != stored.dump():
            places = (view.through_seq, view.derived_seq)
            yield f"{session.session_id}: a view at {places} is no fresh fold"
