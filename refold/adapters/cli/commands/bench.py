"""``refold bench``: measure what Refold does, from a checkout of its source."""

from __future__ import annotations

import importlib
import sys
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from refold.domain.errors import RefoldError


class Subject(StrEnum):
    """What can be measured."""

    REDACTION = "redaction"
    STORE = "store"
    MEMORY = "memory"


class Part(StrEnum):
    """What the benchmark of the store is made of."""

    APPEND = "append"
    LOAD = "load"
    IMPORT = "import"
    READ = "read"
    FOLD = "fold"


class Engine(StrEnum):
    """Where the store is measured."""

    POSTGRESQL = "postgresql"
    FULL = "sqlite-full"
    NORMAL = "sqlite-normal"


def bench(
    subject: Annotated[
        Subject, typer.Argument(metavar="WHAT", help="redaction|store|memory")
    ],
    quick: Annotated[
        bool, typer.Option("--quick", help="A hundredth of the data, to see it run.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="A folder of labelled data, or transcripts, to use too."
        ),
    ] = None,
    laws: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="redaction: how many generated cases to try the laws on."
        ),
    ] = None,
    misses: Annotated[
        bool | None,
        typer.Option("--misses", help="redaction: write to --json what was missed."),
    ] = None,
    events: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="store: events of the longest session."),
    ] = None,
    only: Annotated[
        list[Part] | None, typer.Option(help="store: this part; repeat for more.")
    ] = None,
    engine: Annotated[
        list[Engine] | None, typer.Option(help="store: this engine; repeat for more.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all figures as JSON.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the figures as a PNG.")
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Replace the results in a page's marks."),
    ] = None,
) -> None:
    """Measure redaction, the store or memory, beside others on the same data.

    Runs from a checkout of Refold.  Exits with 1 if something that must hold does not.
    """
    run = _benchmark(subject)
    given: dict[str, object] = {
        "quick": quick,
        "data": data,
        "laws": laws,
        "misses": misses,
        "events": events,
        "only": only,
        "engines": engine,
        "json": json,
        "plot": plot,
        "markdown": markdown,
    }
    chosen = {
        name: value
        for name, value in given.items()
        if value is not None and value is not False
    }
    _check(subject, chosen, {field.name for field in fields(run.Options)})
    code: int = run.run(run.Options(**chosen))
    if code:
        raise typer.Exit(code)


def _check(subject: Subject, chosen: dict[str, object], known: set[str]) -> None:
    """Refuse an option that this benchmark has no use for."""
    for name in chosen:
        if name not in known:
            option = f"--{name.removesuffix('s') if name == 'engines' else name}"
            raise typer.BadParameter(
                f"the benchmark of {subject} has no use for it: leave it out",
                param_hint=option,
            )


def _benchmark(subject: Subject) -> ModuleType:
    """The benchmark's module; it is part of a checkout, not of what is installed."""
    import refold

    checkout = Path(refold.__file__).parents[1]
    if not (checkout / "benchmarks" / subject / "run.py").exists():
        raise RefoldError(
            f"the benchmark of {subject} is not installed with Refold: run it from a "
            "checkout of its source, where Refold is installed with `pip install -e .`"
        )
    if str(checkout) not in sys.path:
        sys.path.append(str(checkout))
    return importlib.import_module(f"benchmarks.{subject}.run")
