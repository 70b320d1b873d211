"""``refold keys``: shows the state of keys, and replaces them."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from refold.adapters.cli import options
from refold.adapters.cli.output import Result, Screen
from refold.adapters.config import home
from refold.adapters.keys.master import VARIABLE, MasterKeyFile
from refold.adapters.keys.ring import KeyRing
from refold.adapters.keys.rotation import stale
from refold.adapters.sql.keystore import SqlKeyStore
from refold.adapters.sql.urls import url_of_file
from refold.domain.errors import KeyUnavailable, RefoldError, counted
from refold.opener import reconcile_keys

if TYPE_CHECKING:
    from refold.store import SessionStore


Action = Literal["status", "rotate", "reconcile"]
"""The actions on keys."""


def keys(
    call: options.Call,
    action: Annotated[
        Action, typer.Argument(metavar="ACTION", help="status, rotate or reconcile.")
    ],
    master: Annotated[
        bool, typer.Option("--master", help="Rotate the master key.")
    ] = False,
    drop_older: Annotated[
        bool,
        typer.Option(
            "--drop-older", help="Remove the previous master key from its file."
        ),
    ] = False,
    user: Annotated[
        str | None, options.user_option("Rotate the key of this user.")
    ] = None,
    session: Annotated[
        str | None, options.session_option("Rotate the key of this session of --user.")
    ] = None,
) -> Result:
    """Show the state of the keys, or replace them.

    status counts the keys; rotate replaces the key of --master, --user or
    --session; reconcile destroys keys again that a restored backup brought back.
    """
    if action != "rotate" and (master or drop_older or user or session):
        raise typer.BadParameter(f"{action} takes no options: it is for all keys")
    if drop_older and not master:
        raise typer.BadParameter("--drop-older needs --master")
    if drop_older and os.environ.get(VARIABLE):
        raise typer.BadParameter(
            f"the master key is in {VARIABLE}: remove the previous one from there"
        )
    if session is not None and user is None:
        raise typer.BadParameter("--session needs --user")
    if action == "reconcile":
        call.check_exists()
        return _result({"destroyed": reconcile_keys(call.url)})
    rotates_master = action == "rotate" and master and user is None
    file: MasterKeyFile | None = None
    if rotates_master and not os.environ.get(VARIABLE):
        file = MasterKeyFile()
    if file is not None and not drop_older:
        call.check_exists()
        file.add()  # before the store is opened, which reads the file
    store = call.store()
    if action == "status":
        return _result(dict(store.keys.status()), changed=False)
    if rotates_master:
        return _result(_rotate_master(store, file, drop_older=drop_older))
    if user is None or master:
        raise typer.BadParameter(
            "give rotate either --master, or --user and perhaps --session"
        )
    if session is not None:
        session = options.session_name(store, user, session)
        rotation = store.keys.rotate_session(user, session_id=session)
        return _result({"key_version": rotation.key_version})
    return _result({"sessions": store.keys.rotate_user(user)})


def _rotate_master(
    store: SessionStore, file: MasterKeyFile | None, *, drop_older: bool
) -> dict[str, Any]:
    """Wrap all keys with the newest master key, and drop the previous one if asked.

    file: contains the master keys; None if they are in a variable.

    Raises RefoldError if a key is still wrapped with the previous one.
    """
    wrapped = store.keys.rotate_master()
    stale_keys = store.keys.status()["stale"]
    if file is not None and drop_older:
        if stale_keys:
            raise RefoldError(
                f"{counted(stale_keys, 'key')} still under the previous master key: "
                "run this again"
            )
        _check_other_stores(file)
        file.drop_older()
    return {"wrapped": wrapped, "stale": stale_keys, "older_dropped": drop_older}


def _check_other_stores(file: MasterKeyFile) -> None:
    """Raise RefoldError if a key store in ``REFOLD_HOME`` needs the previous key."""
    master = file.open()
    for path in sorted((home() / "keys").glob("*.db")):
        key_store = SqlKeyStore(url_of_file(path))
        # A key store with another master key raises KeyUnavailable.
        with closing(key_store), suppress(KeyUnavailable):
            stale_keys = stale(KeyRing(key_store, master))
            if stale_keys:
                raise RefoldError(
                    f"{counted(stale_keys, 'key')} in {path} still under the previous "
                    "master key: run `refold --db … keys rotate --master` for its "
                    "store first"
                )


def _result(figures: dict[str, Any], *, changed: bool = True) -> Result:
    """Return a report of these figures."""
    rows = [(name.replace("_", " "), str(value)) for name, value in figures.items()]

    def show(screen: Screen) -> None:
        screen.table(("what", "#value"), rows)

    return Result(figures, show, changed=changed)
