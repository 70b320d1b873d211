"""``refold bench``: measure what Refold does, from a checkout of its source."""

from __future__ import annotations

import importlib
import sys
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from refold.domain.errors import RefoldError


class Subject(StrEnum):
    """What can be measured."""

    REDACTION = "redaction"


def bench(
    subject: Annotated[Subject, typer.Argument(metavar="WHAT", help="redaction")],
    quick: Annotated[
        bool, typer.Option("--quick", help="A hundredth of the data, to see it run.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder of labelled data to score on too."),
    ] = None,
    laws: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="How many generated cases the laws are tried on."
        ),
    ] = None,
    misses: Annotated[
        bool, typer.Option("--misses", help="Write to --json also what was missed.")
    ] = False,
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
    """Measure speed and accuracy on generated data, beside other tools.

    Runs from a checkout of Refold.  Exits with 1 if something that must hold does not.
    """
    run = _benchmark(subject)
    options = run.Options(
        quick=quick,
        data=data,
        laws=laws,
        misses=misses,
        json=json,
        plot=plot,
        markdown=markdown,
    )
    code: int = run.run(options)
    if code:
        raise typer.Exit(code)


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
