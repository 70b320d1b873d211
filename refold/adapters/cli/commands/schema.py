"""``refold schema``: the tables, triggers and roles in SQL, to read or to run."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.options import Json
from refold.adapters.cli.output import print_json


class Database(StrEnum):
    """The engines that have a schema."""

    POSTGRESQL = "postgresql"
    SQLITE = "sqlite"


_HEADS: Final = {
    False: "-- The tables of Refold on {}.  Refold makes and upgrades them by itself.",
    True: "-- The roles of Refold: run it as the owner of the tables.  It can be run "
    "again,\n-- and is to be, after an upgrade.",
}


def schema(
    context: typer.Context,
    roles: Annotated[
        bool,
        typer.Option(
            "--roles", help="PostgreSQL: roles, grants and row-level security instead."
        ),
    ] = False,
    engine: Annotated[
        Database | None,
        typer.Option("--engine", help="Of which; left out: that of --db."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the SQL that makes the tables, or the roles; no database is opened."""
    from refold.adapters.sql import schema as written
    from refold.domain.errors import InvalidConfiguration

    chosen = engine or Database(opening.engine(context))
    if roles and chosen is not Database.POSTGRESQL:
        raise InvalidConfiguration(
            f"{chosen} knows no roles: --roles is for --engine postgresql"
        )
    statements = written.roles() if roles else written.schema(chosen.value)
    if as_json:
        print_json({"engine": chosen.value, "statements": statements})
        return
    typer.echo(_HEADS[roles].format(chosen))
    for statement in statements:
        typer.echo(f"\n{statement};")
