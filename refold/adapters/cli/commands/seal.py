"""``refold seal`` and ``refold prove``: signatures of the log, and proofs from them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.adapters.cli import options
from refold.adapters.cli.commands.compact import stopped_by_signals
from refold.adapters.cli.files import write_lines
from refold.adapters.cli.output import Result, tree_head
from refold.domain.errors import InvalidConfiguration, RefoldError
from refold.store.work.workers import EVERY_SEC, Worker

if TYPE_CHECKING:
    from refold.domain.seals import TreeHead


def seal(
    call: options.Call,
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep", help="Check every stream, not only those with new events."
        ),
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Accept that a restored backup lacks events; move the anchor first.",
        ),
    ] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="List the tree heads; seal nothing.")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Keep running and seal new events; stop with Ctrl-C."
        ),
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(
            metavar="SEC", help="With --watch: seconds between seals; default 60."
        ),
    ] = None,
    jobs: options.JobsOption = 1,
) -> Result | None:
    """Sign the end of every stream that has new events.

    Adds the signature to the anchor.  From then on, `refold verify` finds events
    that are changed, cut off or removed.  Does not block appends.
    """
    hint = "see `refold seal --help`"
    if every is not None and not watch:
        raise InvalidConfiguration(f"use --every with --watch only: {hint}")
    if listed and (watch or sweep or accept_loss):
        raise InvalidConfiguration(f"leave --list out to seal: {hint}")
    store = call.store()
    if listed:
        heads = store.seals.heads()
        lines = "\n".join(map(tree_head, heads)) or tree_head(None)
        return Result([head.to_json() for head in heads], lines)
    executor = call.executor(jobs)
    if not watch:
        head = store.seal(executor=executor, sweep=sweep, accept_loss=accept_loss)
        return _seal_report(head)
    if accept_loss:
        raise InvalidConfiguration("use --accept-loss once, without --watch")

    def print_head(_: object, head: TreeHead) -> None:
        call.report(_seal_report(head))
        sys.stdout.flush()

    duties = {"seal": EVERY_SEC["seal"] if every is None else every}
    worker = Worker(store, duties=duties, executor=executor, done=print_head)
    with stopped_by_signals(worker.stop):
        worker.run()
    return None


def _seal_report(head: TreeHead | None) -> Result:
    """Return the report of the newest seal."""
    data = None if head is None else head.to_json()
    return Result(data, tree_head(head), changed=True)


def prove(
    call: options.Call,
    user: Annotated[
        str | None, options.user_option("User of the event.  Default: the only user.")
    ] = None,
    session: Annotated[
        str | None, options.session_option("Session of the event.")
    ] = None,
    seq: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Seq of the event.")
    ] = None,
    stream: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Stream of the event: main, or a strategy's fingerprint.",
        ),
    ] = "main",
    old: Annotated[
        int | None,
        typer.Option("--from", metavar="SIZE", min=1, help="Size of the older tree."),
    ] = None,
    new: Annotated[
        int | None,
        typer.Option(
            "--to",
            metavar="SIZE",
            min=1,
            help="Size of the newer tree; for an event, the newest by default.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write to this file.  Default: stdout."),
    ] = None,
    public_key: Annotated[
        bool,
        typer.Option("--public-key", help="Print the public key that verifies proofs."),
    ] = False,
) -> Result | None:
    """Write a proof of an event, or that a tree only grew.

    Name an event by --session and --seq, or two trees by --from and --to.
    A proof holds no text.  Anyone with the public key can check it: with `refold
    verify --proof FILE`, or with the one file auditor.py.
    """
    store = call.store()
    if public_key:
        from refold.adapters.keys.signatures import public_pem

        pem = public_pem(store.seals.public_key()).strip()
        return _shown_or_written(out, Result({"public_key": pem}, pem))
    names_event = any(value is not None for value in (user, session, seq))
    try:
        if old is not None and new is not None and not names_event:
            proof = store.seals.prove_growth(old, new)
        elif session is None or seq is None or old is not None:
            raise InvalidConfiguration(
                "give --session and --seq, or --from and --to: see `refold prove "
                "--help`"
            )
        else:
            opened = options.found_session(store, user, session)
            opened.head()  # raises if there is no such session
            stream_id = opened.stream._replace(stream=stream)
            proof = store.seals.prove(stream_id, seq, size=new)
    except (LookupError, ValueError) as error:
        if isinstance(error, RefoldError):
            raise
        raise RefoldError(str(error)) from None
    return _shown_or_written(out, Result(proof, json.dumps(proof, indent=1)))


def _shown_or_written(out: Path | None, result: Result) -> Result | None:
    """Write the text of a result to a file; without a file, return the result."""
    if out is None:
        return result
    write_lines(out, [str(result.show).encode()])
    return None
