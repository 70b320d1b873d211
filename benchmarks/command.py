"""``refold bench``: the benchmarks of a checkout, from the command line."""

from __future__ import annotations

from dataclasses import fields
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Literal

import typer

from refold.adapters.cli.options import argument, flag, given, option

Subject = Literal["redaction", "store", "memory", "compaction"]
"""What can be measured."""


# Of these a list is asked for, which typer takes of no Literal.
Part = StrEnum("Part", ["append", "load", "import", "read", "fold"])
Engine = StrEnum("Engine", ["postgresql", "sqlite-full", "sqlite-normal"])


def bench(
    subject: Subject = argument("redaction, store, memory, compaction.", of="WHAT"),
    quick: bool = flag("Take a few minutes: fewer rounds, less data."),
    data: Path | None = option(
        "Also use this folder of labelled data or transcripts.", of="DIR"
    ),
    laws: int | None = option(
        "redaction: number of generated cases for the laws.", of="N"
    ),
    misses: bool | None = option(
        "redaction: write what was missed to --json.", "--misses"
    ),
    events: int | None = option(
        "store: number of events in the longest session.", of="N", min=1
    ),
    only: list[Part] | None = option("store: only this part; repeat for more."),
    engines: list[Engine] | None = option(
        "store: only this engine; repeat for more.", "--engine"
    ),
    json: Path | None = option("Write the figures as JSON.", of="FILE"),
    plot: Path | None = option("Draw the figures as a PNG.", of="FILE"),
    markdown: Path | None = option(
        "Replace the results between the marks of a page.", of="FILE"
    ),
) -> None:
    """Run the benchmarks of redaction, store, memory or compaction.

    Measures other tools on the same data.  Needs a checkout of Refold.  Exits with 1
    if something that must hold does not.
    """
    chosen = given(locals())
    del chosen["subject"]
    run = import_module(f"benchmarks.{subject}.run")
    known = {field.name for field in fields(run.Options)}
    for name in chosen:
        if name not in known:
            raise typer.BadParameter(
                f"the benchmark of {subject} does not use it: leave it out",
                param_hint="--engine" if name == "engines" else f"--{name}",
            )
    code: int = run.run(run.Options(**chosen))
    if code:
        raise typer.Exit(code)
