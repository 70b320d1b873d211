"""``refold seal``: sign what is in the log, and keep what was signed elsewhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.adapters.cli import options as opening
from refold.adapters.cli.options import Json, SomeSession, SomeUser
from refold.adapters.cli.output import print_json, write_line

if TYPE_CHECKING:
    from refold.domain.events import JsonObject
    from refold.domain.seals import TreeHead
    from refold.store import SessionStore


def seal(
    context: typer.Context,
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep", help="Look at every stream, not only at those that moved."
        ),
    ] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="List the tree heads; seal nothing.")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Seal what is new until SIGTERM or Ctrl-C."),
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(metavar="SEC", help="How often --watch seals; 60 if left out."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Sign the ends of all streams that moved, and add that to the anchor.

    What was sealed cannot be changed, cut off or taken away without `refold verify`
    finding it.  Appends go on meanwhile.
    """
    from refold.domain.errors import InvalidConfiguration

    if every is not None and not watch:
        raise InvalidConfiguration("--every is for --watch: `refold seal --help`")
    if listed and (watch or sweep):
        raise InvalidConfiguration("--list seals nothing: `refold seal --help`")
    with opening.existing(context) as store:
        if watch:
            _watch(store, every, as_json)
        elif listed:
            _list(store.seals.heads(), as_json)
        else:
            _show(store.seal(sweep=sweep), as_json)


def _watch(store: SessionStore, every: float | None, as_json: bool) -> None:
    from refold.adapters.cli.commands.compact import stopped_by_signals
    from refold.store.workers import SEALING_EVERY_SEC, Sealer

    def done(head: TreeHead) -> None:
        _show(head, as_json)
        sys.stdout.flush()

    sealer = Sealer(
        store, every=SEALING_EVERY_SEC if every is None else every, done=done
    )
    with stopped_by_signals(sealer.stop):
        sealer.run()


def _list(heads: list[TreeHead], as_json: bool) -> None:
    if as_json:
        print_json([head.to_json() for head in heads])
        return
    for head in heads:
        _show(head, as_json)
    if not heads:
        _show(None, as_json)


def _show(head: TreeHead | None, as_json: bool) -> None:
    from refold.adapters.cli.output import Screen, counted
    from refold.domain.envelope import from_microseconds

    if as_json:
        print_json(head and head.to_json())
        return
    if head is None:
        Screen().line("nothing is sealed yet: the log is empty, or was not sealed")
        return
    moment = from_microseconds(head.sealed_at).strftime("%Y-%m-%d %H:%M:%S")
    Screen().line(
        (f"{counted(head.size, 'leaf', 'leaves')}", "bold"),
        f"  sealed {moment}  root {head.root.hex()[:16]}…",
    )


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
            from refold.adapters.keys.signatures import public_pem

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
