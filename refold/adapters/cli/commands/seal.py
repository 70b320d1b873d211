"""``refold seal``: sign what is in the log, and keep what was signed elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.options import Json
from refold.adapters.cli.output import print_json

if TYPE_CHECKING:
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
    from refold.adapters.cli.commands.watch import stopped_by_signals
    from refold.store.sealing import EVERY_SEC, Sealer

    def done(head: TreeHead) -> None:
        _show(head, as_json)
        sys.stdout.flush()

    sealer = Sealer(store, every=EVERY_SEC if every is None else every, done=done)
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
    from refold.adapters.cli.screen import Screen
    from refold.adapters.cli.wording import counted
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
