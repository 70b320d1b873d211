"""``refold sessions`` and ``refold stats``: what is in the store."""

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


def stats(context: typer.Context, as_json: Json = False) -> None:
    """Show how much is stored, and how large it is."""
    with opening.existing(context) as store:
        figures = store.stats()
    if as_json:
        print_json(figures)
        return
    from refold.adapters.cli.screen import Screen

    rows = []
    for name, value in figures.items():
        what = name.removesuffix("_bytes").replace("_", " ")
        if isinstance(value, int) and name.endswith("_bytes"):
            rows.append((f"{what} size", wording.size(value)))
        else:
            rows.append(
                (what, wording.number(value) if isinstance(value, int) else str(value))
            )
    Screen().table(("what", "#how much"), rows)


def _as_json(info: SessionInfo) -> dict[str, object]:
    return {
        "user_id": info.user_id,
        "session_id": info.session_id,
        "head_seq": info.head_seq,
        "created_at": wording.rfc3339(info.created_at),
        "updated_at": wording.rfc3339(info.updated_at),
        "tokens": info.tokens,
    }
