"""``refold prove``: a proof that others can check without the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.options import SomeSession, SomeUser
from refold.adapters.cli.output import write_line

if TYPE_CHECKING:
    from refold.domain.events import JsonObject
    from refold.store import SessionStore

_USAGE = "`refold prove --help` shows what goes together"


def prove(
    context: typer.Context,
    user: SomeUser = None,
    session: SomeSession = None,
    seq: Annotated[
        int | None, typer.Option("--seq", min=1, metavar="N", help="Which event.")
    ] = None,
    stream: Annotated[
        str,
        typer.Option(metavar="NAME", help="Of which stream; a strategy's fingerprint."),
    ] = "main",
    old: Annotated[
        int | None,
        typer.Option("--from", min=1, metavar="SIZE", help="The smaller tree's size."),
    ] = None,
    new: Annotated[
        int | None,
        typer.Option(
            "--to",
            min=1,
            metavar="SIZE",
            help="The tree's size; of an event, the newest if left out.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write there, not to stdout."),
    ] = None,
    public_key: Annotated[
        bool,
        typer.Option(
            "--public-key", help="Print the key that proofs are checked with."
        ),
    ] = False,
) -> None:
    """Write the proof that an event was in the log, or that a tree only grew.

    An event is named by --user, --session and --seq, two trees by --from and --to.  A
    proof holds no text.  Anyone with the public key checks it, by `refold verify
    --proof FILE` or with the one file auditor.py.
    """
    with opening.existing(context) as store:
        if public_key:
            from refold.adapters.signing import public_pem

            _write(out, public_pem(store.seals.public_key()).encode().strip())
            return
        found = _proof(store, user, session, seq, stream, old, new)
    _write(out, json.dumps(found, indent=1).encode())


def _proof(
    store: SessionStore,
    user: str | None,
    session: str | None,
    seq: int | None,
    stream: str,
    old: int | None,
    new: int | None,
) -> JsonObject:
    from refold.domain.errors import InvalidConfiguration, RefoldError

    named = (user, session, seq)
    try:
        if old is not None and new is not None and named == (None, None, None):
            return store.seals.prove_growth(old, new)
        if user is None or session is None or seq is None or old is not None:
            raise InvalidConfiguration(
                "an event is --user, --session and --seq, a growth --from and --to: "
                + _USAGE
            )
        of = store.session(user, session).stream._replace(stream=stream)
        opening.sessions(store, user, session)
        return store.seals.prove(of, seq, size=new)
    except (LookupError, ValueError) as error:
        if isinstance(error, RefoldError):
            raise
        raise RefoldError(str(error)) from None


def _write(out: Path | None, text: bytes) -> None:
    if out is None:
        write_line(text)
    else:
        out.write_bytes(text + b"\n")
