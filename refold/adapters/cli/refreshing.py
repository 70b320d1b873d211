"""Making the memory of users by now, so that whoever asks next finds it made."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING

import typer

from refold.adapters.cli.output import complain, print_json
from refold.adapters.cli.screen import Screen
from refold.adapters.cli.wording import counted
from refold.domain.errors import CorruptEvent, Erased, Frozen, KeyUnavailable

if TYPE_CHECKING:
    from refold.store import SessionStore

_COUNTED = ("users", "sessions", "items", "opted_out", "frozen", "failed")


def refresh(store: SessionStore, user: str | None, *, as_json: bool) -> None:
    """Make the memory of each user, or of one, and what may be said of it.

    Who is frozen or opted out of memory is counted and left out.  Of whom it cannot be
    made is told, and the others' is made; the exit code is 1 then.
    """
    done: Counter[str] = Counter()
    for name in sorted({info.user_id for info in store.sessions(user)}):
        try:
            done += _made(store, name)
        except (CorruptEvent, KeyUnavailable) as error:
            done["failed"] += 1
            complain(f"user {name!r}: {error}")
    if as_json:
        print_json({what: done[what] for what in _COUNTED})
    else:
        _told(done)
    if done["failed"]:
        raise typer.Exit(1)


def _made(store: SessionStore, user: str) -> Counter[str]:
    if store.is_frozen(user):
        return Counter(frozen=1)
    try:
        found = store.memory(user)
        if found.opted_out:
            return Counter(opted_out=1)
        store.advice(user, fresh=timedelta(0))
    except Erased:  # meanwhile: it is nowhere any more, as those before it
        return Counter()
    except Frozen:
        return Counter(frozen=1)
    items = sum(one.established for one in found.items)
    return Counter(users=1, sessions=found.sessions, items=items)


def _told(done: Counter[str]) -> None:
    items = counted(done["items"], "item")
    sessions = counted(done["sessions"], "session")
    made = f"{items} of {sessions} of {counted(done['users'], 'user')}"
    left = [
        f"{done[what]:,} {words}"
        for what, words in (
            ("opted_out", "opted out"),
            ("frozen", "frozen"),
            ("failed", "not readable"),
        )
        if done[what]
    ]
    Screen().line(made, (f"; left out: {', '.join(left)}" if left else "", "dim"))
