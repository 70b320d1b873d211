"""``refold sessions``: whose sessions are in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from refold.adapters.cli import opening, wording
from refold.adapters.cli.options import Json, SomeUser
from refold.adapters.cli.output import print_json

if TYPE_CHECKING:
    from refold.domain.ports import SessionInfo


def sessions(
    context: typer.Context, user: SomeUser = None, as_json: Json = False
) -> None:
    """List the sessions, with their size and age."""
    with opening.existing(context) as store:
        found = store.sessions(user)
    if as_json:
        print_json([_as_json(info) for info in found])
        return
    _show(found, user)


def _show(found: list[SessionInfo], user: str | None) -> None:
    from refold.adapters.cli.screen import Screen

    out = Screen()
    if not found:
        whose = f" of user {user!r}" if user else ""
        out.line(f"no sessions{whose} yet: `refold import` brings transcripts in")
        return
    out.table(
        ("user", "session", "#events", "#tokens", "begun (UTC)", "last change (UTC)"),
        (
            (
                info.user_id,
                info.session_id
                + ("" if info.status == "open" else f" ({info.status})"),
                wording.number(info.head_seq),
                wording.number(info.tokens),
                wording.moment(info.created_at),
                wording.moment(info.updated_at),
            )
            for info in found
        ),
    )


def _as_json(info: SessionInfo) -> dict[str, object]:
    return {
        "user_id": info.user_id,
        "session_id": info.session_id,
        "head_seq": info.head_seq,
        "created_at": wording.rfc3339(info.created_at),
        "updated_at": wording.rfc3339(info.updated_at),
        "tokens": info.tokens,
    }
