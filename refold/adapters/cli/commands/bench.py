"""``refold bench``: runs the benchmarks of a checkout."""

from __future__ import annotations

import sys
from dataclasses import fields
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import refold
from refold.domain.errors import RefoldError

Subject = Literal["redaction", "store", "memory", "compaction"]

# Enumerations, since typer takes no list of a Literal.
Part = StrEnum("Part", ["append", "load", "import", "read", "fold"])
Engine = StrEnum("Engine", ["postgresql", "sqlite-full", "sqlite-normal"])


def bench(
    subject: Annotated[
        Subject,
        typer.Argument(metavar="WHAT", help="redaction, store, memory, compaction."),
    ],
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Take a few minutes: fewer rounds, less data."),
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Also use this folder of labelled data or transcripts.",
        ),
    ] = None,
    sessions: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="compaction: measure what survives at the client's own compactions "
            "in this folder of transcripts.",
        ),
    ] = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPEC",
            help="compaction: with --sessions, only this strategy; repeat for more.",
        ),
    ] = None,
    with_command: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="compaction: with --sessions, also a command that reads a history and "
            "writes a summary.",
        ),
    ] = None,
    laws: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="redaction: number of generated cases for the laws."
        ),
    ] = None,
    misses: Annotated[
        bool,
        typer.Option("--misses", help="redaction: write missed values to --json."),
    ] = False,
    events: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="store: number of events in the longest session.",
        ),
    ] = None,
    only: Annotated[
        list[Part] | None,
        typer.Option(help="store: only this part; repeat for more."),
    ] = None,
    engines: Annotated[
        list[Engine] | None,
        typer.Option("--engine", help="store: only this engine; repeat for more."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the figures as JSON.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the figures as a PNG.")
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Page whose results, between its markers, are replaced.",
        ),
    ] = None,
) -> None:
    """Run the benchmarks of redaction, store, memory or compaction.

    Also measures other tools on the same data.  Needs a checkout of Refold.  Exits
    with 1 if a required property does not hold.
    """
    options = {
        "quick": quick or None,
        "data": data,
        "sessions": sessions,
        "strategy": strategy,
        "with_command": with_command,
        "laws": laws,
        "misses": misses or None,
        "events": events,
        "only": only,
        "engines": engines,
        "json": json,
        "plot": plot,
        "markdown": markdown,
    }
    chosen = {name: value for name, value in options.items() if value is not None}
    benchmark = _benchmark(subject)
    supported = {field.name for field in fields(benchmark.Options)}
    for name in chosen:
        if name not in supported:
            option = "engine" if name == "engines" else name.replace("_", "-")
            raise typer.BadParameter(
                f"the benchmark of {subject} does not use it: leave it out",
                param_hint=f"--{option}",
            )
    code: int = benchmark.run(benchmark.Options(**chosen))
    if code:
        raise typer.Exit(code)


def _benchmark(subject: Subject) -> Any:
    """Return the module that runs a benchmark.

    Raises RefoldError without a checkout.
    """
    checkout = Path(refold.__file__).parents[1]
    if not (checkout / "benchmarks" / subject / "run.py").exists():
        raise RefoldError(
            "the benchmarks are not installed: run them from a checkout of Refold, "
            "installed there with `pip install -e .`"
        )
    if str(checkout) not in sys.path:
        sys.path.append(str(checkout))
    return import_module(f"benchmarks.{subject}.run")
