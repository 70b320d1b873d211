"""``refold bench``: the benchmarks of a checkout, from the command line."""

from __future__ import annotations

from dataclasses import fields
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Literal

import typer

from refold.adapters.cli.options import given

Subject = Literal["redaction", "store", "memory", "compaction"]
"""What can be measured."""


# Of these a list is asked for, which typer takes of no Literal.
Part = StrEnum("Part", ["append", "load", "import", "read", "fold"])
Engine = StrEnum("Engine", ["postgresql", "sqlite-full", "sqlite-normal"])


def bench(
    subject: Subject,
    quick: bool = False,
    data: Path | None = None,
    laws: int | None = None,
    misses: bool | None = None,
    events: int | None = None,
    only: list[Part] | None = None,
    engines: list[Engine] | None = None,
    json: Path | None = None,
    plot: Path | None = None,
    markdown: Path | None = None,
) -> None:
    """Run the benchmarks of redaction, store, memory or compaction."""
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
