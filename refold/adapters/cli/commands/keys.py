"""``refold keys``: which there are, and replacing them."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.adapters.cli import options as opening
from refold.adapters.cli.options import Json, SomeSession, SomeUser
from refold.adapters.cli.output import print_json
from refold.domain.errors import RefoldError

if TYPE_CHECKING:
    from refold.adapters.keys.master import MasterKeyFile
    from refold.store import SessionStore


class Action(StrEnum):
    """What to do with keys."""

    STATUS = "status"
    ROTATE = "rotate"
    RECONCILE = "reconcile"


def keys(
    context: typer.Context,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="What to do.")],
    master: Annotated[
        bool, typer.Option("--master", help="Rotate the master key.")
    ] = False,
    drop_older: Annotated[
        bool,
        typer.Option(
            "--drop-older", help="Take the master key of before out of its file."
        ),
    ] = False,
    user: SomeUser = None,
    session: SomeSession = None,
    as_json: Json = False,
) -> None:
    """Show which keys there are, or replace some.

    status counts them; rotate replaces the master key, a user's or a session's;
    reconcile destroys again what an older key store brought back.
    """
    if action is Action.RECONCILE:
        _told({"destroyed": opening.reconcile(context)}, as_json)
        return
    rotates = action is Action.ROTATE and master and user is None
    file = _file() if rotates else None
    if file is not None and not drop_older:
        file.add()  # before the store is opened, which reads it
    with opening.existing(context) as store:
        if action is Action.STATUS:
            _told(dict(store.key_status()), as_json)
        elif rotates:
            _told(_rotate_master(store, file, drop_older), as_json)
        elif user is not None and session is not None and not master:
            done = store.rotate_session_key(user, session)
            _told({"key_version": done.key_version}, as_json)
        elif user is not None and not master:
            _told({"sessions": store.rotate_user_key(user)}, as_json)
        else:
            raise typer.BadParameter("rotate takes --master, or --user [--session]")


def _file() -> MasterKeyFile | None:
    """The file that the master key is in, if it is in one."""
    from refold.adapters.keys.master import VARIABLE, MasterKeyFile

    return None if os.environ.get(VARIABLE) else MasterKeyFile()


def _rotate_master(
    store: SessionStore, file: MasterKeyFile | None, drop_older: bool
) -> dict[str, Any]:
    """Wrap everything with the newest master key, and let go of the one before."""
    wrapped, stale = store.rotate_master_key(), store.key_status()["stale"]
    if file is not None and drop_older:
        if stale:
            raise RefoldError(
                f"{stale} keys are still under the master key of before: run it again"
            )
        file.drop_older()
    return {"wrapped": wrapped, "stale": stale, "older_dropped": drop_older}


def _told(told: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(told)
        return
    from refold.adapters.cli.output import Screen

    rows = [(name.replace("_", " "), str(value)) for name, value in told.items()]
    Screen().table(("what", "#value"), rows)
