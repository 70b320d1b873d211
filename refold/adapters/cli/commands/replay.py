"""``refold replay``: a review bundle, shown without the store that it came from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from refold.adapters.cli.options import Json
from refold.adapters.cli.output import print_json
from refold.domain.errors import RefoldError

# A bundle is 64 KiB at most; what is around it may be a little more.
_MOST: Final = 4 << 20


def replay(
    bundle: Annotated[
        str,
        typer.Argument(
            metavar="BUNDLE", help="A file with a review bundle; - is stdin."
        ),
    ],
    as_json: Json = False,
) -> None:
    """Show what happened in a review bundle, and whether its rule fires again on it.

    It takes what `refold review show --json` prints, or the bundle in it.  No store is
    opened.
    """
    from refold.projections.review.bundle import fires_again, read_bundle

    read = read_bundle(_data(bundle))
    if as_json:
        again = fires_again(read)
        print_json({"bundle": read.to_json(), "says": read.says, "fires_again": again})
    else:
        from refold.adapters.cli.bundles import show_bundle
        from refold.adapters.cli.screen import Screen

        again = show_bundle(Screen(), read)
    if not again:
        raise typer.Exit(1)


def _data(name: str) -> bytes:
    if name == "-":
        data = sys.stdin.buffer.read(_MOST + 1)
    else:
        with Path(name).open("rb") as file:
            data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise RefoldError(f"{name} is over {_MOST:,} bytes: it is no review bundle")
    return data
