"""``refold stats``: how much is stored, how fast it grows, and what is behind."""

from __future__ import annotations

import errno
import importlib
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.adapters.cli import options as opening, output as wording
from refold.adapters.cli.options import Json, SomeSession, SomeUser
from refold.adapters.cli.output import (
    complain,
    counted,
    duration,
    print_json,
    visible,
    write_line,
)
from refold.domain.errors import RefoldError

if TYPE_CHECKING:
    from typing import BinaryIO

    from refold.adapters.cli.output import Screen
    from refold.domain.access_log import AuditRecord
    from refold.store import SessionStore


def stats(
    context: typer.Context,
    user: SomeUser = None,
    session: SomeSession = None,
    as_json: Json = False,
) -> None:
    """Show how much is stored, how fast it grows, and how far views are behind.

    Every row is counted, which in a large store takes a while.
    """
    if session is not None and user is None:
        raise typer.BadParameter("--session needs --user")
    with opening.existing(context) as store:
        if user is not None:
            opening.sessions(store, user, session)
        if user is not None and session is not None:
            figures = store.session(user, session).stats()
        else:
            figures = store.stats(user)
    if as_json:
        print_json(figures)
        return
    from refold.adapters.cli.output import Screen

    out = Screen()
    out.table(("what", "#how much"), [*_rows(figures)])
    _lag(out, figures["lag"])


def _rows(figures: dict[str, Any]) -> list[tuple[str, str]]:
    rows = []
    for name, value in figures.items():
        what, last, when = name.partition("_last_")
        size = what.endswith("_bytes")
        what = what.removesuffix("_bytes").replace("_", " ") + " size" * size
        what = f"{what}, last {when}" if last else what
        if isinstance(value, int):
            rows.append((what, wording.size(value) if size else wording.number(value)))
        elif isinstance(value, str):
            rows.append((what, value))
    return rows


def _lag(out: Screen, lag: list[dict[str, Any]]) -> None:
    if not lag:
        return
    out.line("")
    out.table(
        ("views of strategy", "#views", "#behind", "#by events", "#at most"),
        (
            (
                one["fingerprint"][:12],
                *(
                    wording.number(one[name])
                    for name in ("views", "behind", "events", "most")
                ),
            )
            for one in lag
        ),
    )


_HASH: Final = 12  # characters that are shown of a hash
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d")
_STYLES: Final = {"ok": "", "denied": "yellow", "error": "red"}


def _since(text: str | None) -> datetime | None:
    """A date, a time, or how long ago it is."""
    if text is None:
        return None
    try:
        if _DATE.match(text):
            found = datetime.fromisoformat(text)
            return found if found.tzinfo else found.replace(tzinfo=UTC)
        return datetime.now(UTC) - (duration(text) or timedelta(0))
    except (ValueError, OverflowError, typer.BadParameter):
        raise typer.BadParameter(
            "give a date (2026-03-16), a time (2026-03-16T10:00:00Z), or 30d, 12h, …"
        ) from None


def audit(
    context: typer.Context,
    user: SomeUser = None,
    session: SomeSession = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="D", help="Only from then on: 2026-03-16, 2026-03-16T10:00Z, or 7d."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the audit log: what was done with the store, when, and how it went.

    It holds no content, and no names: --user finds the records of a user who is not
    erased by a keyed hash.  It is kept where REFOLD_AUDIT says table.
    """
    if session is not None and user is None:
        raise typer.BadParameter("--session needs --user")
    begin = _since(since)
    with opening.existing(context) as store:
        records = store.audit_records(user, session, since=begin)
        count = _print(records, as_json=as_json)
        if not (count or as_json):
            complain(_nothing(store, user))


def _print(records: Iterable[AuditRecord], *, as_json: bool) -> int:
    count = 0
    if as_json:
        for count, record in enumerate(records, start=1):  # noqa: B007  # it is returned
            print_json(record.to_json())
        return count
    from refold.adapters.cli.output import Screen

    screen = Screen()
    for count, record in enumerate(records, start=1):  # noqa: B007  # it is returned
        _line(screen, record)
    return count


def _line(screen: Screen, record: AuditRecord) -> None:
    from refold.adapters.cli.output import moment

    whose = " ".join(
        (name or "")[:_HASH].ljust(_HASH) for name in (record.user, record.session)
    )
    about = [f"{name} {value:,}" for name, value in record.meta.items()]
    if record.state_version is not None:
        about.insert(0, f"seq {record.state_version}")
    if record.event_type:
        about.append(record.event_type)
    said = record.status if record.error_code is None else record.error_code
    screen.line(
        f"{moment(record.ts)}  {whose}  {record.event:<22}  ",
        (f"{said:<16}", _STYLES[record.status]),
        f"  {record.duration_us / 1000:>10,.1f} ms  {', '.join(about)}".rstrip(),
    )


def _nothing(store: SessionStore, user: str | None) -> str:
    whose = "" if user is None else f" of user {user!r}"
    if store.audit_is_on:
        return f"there are no audit records{whose}"
    return f"there are no audit records{whose}: REFOLD_AUDIT=table keeps them"


def export(
    context: typer.Context,
    user: SomeUser = None,
    session: SomeSession = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write there, all or nothing; left out: to stdout."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write all there is of --user to a new directory, with a manifest.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the log out again, as JSON lines of envelopes.

    A file can be read by its owner only: what was redacted is not in it, the rest is
    in plain text.  With --out it is not the log alone but everything of a user: events
    and derived streams, whole texts, views, consent, holds and certificates, each file
    with its digest in manifest.json, which `refold verify --export` checks.
    """
    if out is not None:
        _user(context, user, out, as_json, other=session or output)
        return
    with opening.existing(context) as store:
        found = opening.sessions(store, user, session)
        names = [(info.user_id, info.session_id) for info in found]
        if output is None:
            for line in _lines(store, names):
                write_line(line)
            return
        count = 0
        with _written(output) as file:
            for line in _lines(store, names):
                file.write(line + b"\n")
                count += 1
    if as_json:
        from refold.domain.canonical import repaired

        place = repaired(str(output))[0]
        print_json({"sessions": len(names), "events": count, "output": place})
    else:
        events, sessions = counted(count, "event"), counted(len(names), "session")
        typer.echo(f"wrote {events} of {sessions} to {visible(str(output))}")


def _user(
    context: typer.Context,
    user: str | None,
    out: Path,
    as_json: bool,
    *,
    other: object,
) -> None:
    if user is None or other is not None:
        raise typer.BadParameter(
            "it takes all of one user: --user U, and neither --session nor --output",
            param_hint="--out",
        )
    with opening.existing(context) as store:
        manifest = store.export_user(user, out).manifest
    counts: Any = manifest["counts"]
    if as_json:
        from refold.domain.canonical import repaired

        place = repaired(str(out))[0]
        print_json({"out": place, "counts": counts, "digest": manifest["digest"]})
        return
    kinds = ("session", "event", "blob")
    told = ", ".join(counted(counts[f"{kind}s"], kind) for kind in kinds)
    typer.echo(f"wrote {told} to {visible(str(out))}")


def _lines(store: SessionStore, names: list[tuple[str, str]]) -> Iterator[bytes]:
    import orjson

    from refold.store.access_log import called

    for user, session in names:
        with called("export"):
            entries = store.session(user, session).timeline()
        for envelope in entries:
            yield orjson.dumps(envelope.to_json())


@contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its name once it is whole and on disk, or not at all."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


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
