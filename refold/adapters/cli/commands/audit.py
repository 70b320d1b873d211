"""``refold audit``: what was done with the store, by keyed hashes of users."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.durations import duration
from refold.adapters.cli.options import Json, SomeSession, SomeUser
from refold.adapters.cli.output import complain, print_json

if TYPE_CHECKING:
    from refold.adapters.cli.screen import Screen
    from refold.domain.audit import AuditRecord
    from refold.store import SessionStore

_HASH: Final = 12  # characters that are shown of a hash
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_STYLES: Final = {"ok": "", "denied": "yellow", "error": "red"}


def _since(text: str | None) -> datetime | None:
    """A date, a time, or how long ago it is."""
    if text is None:
        return None
    try:
        if _DATE.match(text):
            found = datetime.fromisoformat(text)
            return found if found.tzinfo else found.replace(tzinfo=UTC)
        return datetime.now(UTC) - (duration(text) or timedelta(0))
    except (ValueError, OverflowError, typer.BadParameter):
        raise typer.BadParameter(
            "give a date (2026-03-16), a time (2026-03-16T10:00:00Z), or 30d, 12h, …"
        ) from None


def audit(
    context: typer.Context,
    user: SomeUser = None,
    session: SomeSession = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="D", help="Only from then on: 2026-03-16, 2026-03-16T10:00Z, or 7d."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the audit log: what was done with the store, when, and how it went.

    It holds no content, and no names: --user finds the records of a user who is not
    erased by a keyed hash.  It is kept where REFOLD_AUDIT says table.
    """
    if session is not None and user is None:
        raise typer.BadParameter("--session needs --user")
    begin = _since(since)
    with opening.existing(context) as store:
        records = store.audit_records(user, session, since=begin)
        count = _print(records, as_json=as_json)
        if not (count or as_json):
            complain(_nothing(store, user))


def _print(records: Iterable[AuditRecord], *, as_json: bool) -> int:
    count = 0
    if as_json:
        for count, record in enumerate(records, start=1):  # noqa: B007  # it is returned
            print_json(record.to_json())
        return count
    from refold.adapters.cli.screen import Screen

    screen = Screen()
    for count, record in enumerate(records, start=1):  # noqa: B007  # it is returned
        _line(screen, record)
    return count


def _line(screen: Screen, record: AuditRecord) -> None:
    from refold.adapters.cli.wording import moment

    whose = " ".join(
        (name or "")[:_HASH].ljust(_HASH) for name in (record.user, record.session)
    )
    about = [f"{name} {value:,}" for name, value in record.meta.items()]
    if record.state_version is not None:
        about.insert(0, f"seq {record.state_version}")
    if record.event_type:
        about.append(record.event_type)
    said = record.status if record.error_code is None else record.error_code
    screen.line(
        f"{moment(record.ts)}  {whose}  {record.event:<22}  ",
        (f"{said:<16}", _STYLES[record.status]),
        f"  {record.duration_us / 1000:>10,.1f} ms  {', '.join(about)}".rstrip(),
    )


def _nothing(store: SessionStore, user: str | None) -> str:
    whose = "" if user is None else f" of user {user!r}"
    if store.audit_is_on:
        return f"there are no audit records{whose}"
    return f"there are no audit records{whose}: REFOLD_AUDIT=table keeps them"
