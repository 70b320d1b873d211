"""The command line: ``refold [--db URL] COMMAND``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from refold.adapters.cli.commands import (
    compact,
    compact as rebuild,
    compare,
    context,
    erase,
    erase as forgetting,
    erase as freeze,
    erase as retain,
    import_,
    keys,
    log,
    log as sessions,
    memory,
    memory as consent,
    operate as audit,
    operate as bench,
    operate as export,
    operate as schema,
    operate as stats,
    redact,
    repair,
    review,
    review as replay,
    seal,
    seal as prove,
    verify,
    why,
)
from refold.adapters.cli.run import mend_streams, run

# Plain help: rich would take as long to load as all the rest.
app = typer.Typer(
    name="refold",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from refold import __version__

        typer.echo(f"refold {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def refold(
    context: typer.Context,
    db: Annotated[  # noqa: ARG001 - the commands read it from the context
        str | None,
        typer.Option(
            metavar="URL",
            help="The store: sqlite:///FILE or postgresql://…  Left out: REFOLD_DB, "
            "else sqlite:///refold.db.",
        ),
    ] = None,
    version: Annotated[  # noqa: ARG001 - its callback answers
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Keep everything an agent session did: append once, refold any time."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


for name, function in (
    ("import", import_.import_),
    ("sessions", sessions.sessions),
    ("log", log.log),
    ("context", context.context),
    ("why", why.why),
    ("compact", compact.compact),
    ("rebuild", rebuild.rebuild),
    ("compare", compare.compare),
    ("memory", memory.memory),
    ("review", review.review),
    ("replay", replay.replay),
    ("verify", verify.verify),
    ("audit", audit.audit),
    ("seal", seal.seal),
    ("prove", prove.prove),
    ("erase", erase.erase),
    ("restore", forgetting.restore),
    ("readmit", forgetting.readmit),
    ("hold", forgetting.hold),
    ("keys", keys.keys),
    ("redact", redact.redact),
    ("export", export.export),
    ("consent", consent.consent),
    ("freeze", freeze.freeze),
    ("retain", retain.retain),
    ("schema", schema.schema),
    ("stats", stats.stats),
    ("repair", repair.repair),
    ("bench", bench.bench),
):
    app.command(name)(function)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line with ``args``, or the process's; returns the exit code."""
    if args is not None:
        return run(app, args)
    mend_streams()
    return run(app, sys.argv[1:])
