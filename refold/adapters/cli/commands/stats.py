"""``refold stats``: how much is stored, how fast it grows, and what is behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from refold.adapters.cli import opening, wording
from refold.adapters.cli.options import Json, SomeSession, SomeUser
from refold.adapters.cli.output import print_json

if TYPE_CHECKING:
    from refold.adapters.cli.screen import Screen


def stats(
    context: typer.Context,
    user: SomeUser = None,
    session: SomeSession = None,
    as_json: Json = False,
) -> None:
    """Show how much is stored, how fast it grows, and how far views are behind.

    Every row is counted, which in a large store takes a while.
    """
    if session is not None and user is None:
        raise typer.BadParameter("--session needs --user")
    with opening.existing(context) as store:
        if user is not None:
            opening.sessions(store, user, session)
        if user is not None and session is not None:
            figures = store.session(user, session).stats()
        else:
            figures = store.stats(user)
    if as_json:
        print_json(figures)
        return
    from refold.adapters.cli.screen import Screen

    out = Screen()
    out.table(("what", "#how much"), [*_rows(figures)])
    _lag(out, figures["lag"])


def _rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for name, value in figures.items():
        what, last, when = name.partition("_last_")
        size = what.endswith("_bytes")
        what = what.removesuffix("_bytes").replace("_", " ") + " size" * size
        what = f"{what}, last {when}" if last else what
        if isinstance(value, int):
            rows.append((what, wording.size(value) if size else wording.number(value)))
        elif isinstance(value, str):
            rows.append((what, value))
    return rows


def _lag(out: Screen, lag: list[dict[str, Any]]) -> None:
    if not lag:
        return
    out.line("")
    out.table(
        ("views of strategy", "#views", "#behind", "#by events", "#at most"),
        (
            (
                one["fingerprint"][:12],
                *(
                    wording.number(one[name])
                    for name in ("views", "behind", "events", "most")
                ),
            )
            for one in lag
        ),
    )
