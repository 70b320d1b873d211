"""``refold compare``: what several strategies would have sent of one log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.options import Json, OneSession, User
from refold.adapters.cli.output import complain, print_json
from refold.domain.errors import InvalidConfiguration

if TYPE_CHECKING:
    from refold.store.comparing import Compared, How


def compare(
    context: typer.Context,
    user: User,
    session: OneSession,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPEC",
            help="A strategy: name, name:key=value,… or @file.toml; may be given "
            "several times.  Left out: all there are, with their defaults.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="M",
            help="Whose prices, cache rules and window count.  Left out: the model "
            "that answered last.",
        ),
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="TOML with a table [models]: prices of your own."
        ),
    ] = None,
    recorded: Annotated[
        bool,
        typer.Option(
            "--recorded", help="Use the summaries in the log, and make no others."
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw tokens per request, and recall."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Walk a session's log under several strategies, in memory: nothing is written.

    Summaries are made by abridged, without a model.
    """
    if plot is not None:
        _check_plot(plot)
    how: How = {"model": model, "prices": prices, "recorded": recorded}
    with opening.existing(context) as store:
        compared = store.session(user, session).compare(strategy or None, **how)
    if plot is not None:
        from refold.adapters.cli.picture import draw

        draw(compared.outcomes, plot)
    _show(compared, as_json=as_json)


def _show(compared: Compared, *, as_json: bool) -> None:
    for name, why in compared.skipped:
        complain(f"{name} is left out: {why}")
    if as_json:
        print_json([outcome.to_json() for outcome in compared.outcomes])
    else:
        from refold.adapters.cli.comparison import show_comparison
        from refold.adapters.cli.screen import Screen

        show_comparison(Screen(), compared)


def _check_plot(path: Path) -> None:
    """Refuse what cannot be drawn before any work is done."""
    from importlib.util import find_spec

    if path.suffix.lower() != ".png":
        raise InvalidConfiguration(f"--plot writes a PNG: {path} does not end in .png")
    if not path.absolute().parent.is_dir():
        raise InvalidConfiguration(f"--plot: there is no directory {path.parent}")
    if find_spec("matplotlib") is None:
        raise InvalidConfiguration(
            "--plot needs matplotlib: `pip install 'refold[plot]'` installs it"
        )
