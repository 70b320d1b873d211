"""Commands for who operates a store: stats, audit, export, schema, bench."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import orjson
import typer

from refold.adapters.cli.options import Call, sessions
from refold.adapters.cli.output import (
    Result,
    Screen,
    complain,
    moment,
    number,
    size,
    visible,
    write_line,
)
from refold.domain.canonical import repaired
from refold.domain.errors import InvalidConfiguration, RefoldError, counted

if TYPE_CHECKING:
    from typing import BinaryIO

    from refold.domain.access_log import AccessRecord
    from refold.domain.envelope import Envelope
    from refold.projections.models import Spending
    from refold.store import SessionStore


By = Literal["session", "user", "day"]
Exports = Literal["events", "atif", "otlp", "dataset"]


def stats(
    call: Call,
    user: str | None = None,
    session: str | None = None,
    cost: bool = False,
    by: By = "session",
) -> Result:
    """Show how much is stored, and how fast it grows."""
    store = call.store()
    _needs_user(session, user)
    if cost:
        if user is not None:
            sessions(store, user, session)
        return _costs(store.costs(user, session_id=session, by=by), by)
    if user is None:
        figures = store.stats()
    else:
        sessions(store, user, session)
        one = session and store.session(user_id=user, session_id=session)
        figures = one.stats() if one else store.stats(user)

    def show(out: Screen) -> None:
        out.table(("what", "#how much"), _figures(figures))
        if lag := figures["lag"]:
            out.line("")
            names = ("views", "behind", "events", "most")
            out.table(
                ("views of strategy", "#views", "#behind", "#by events", "#at most"),
                (
                    (one["fingerprint"][:12], *(number(one[name]) for name in names))
                    for one in lag
                ),
            )

    return Result(figures, show)


def _costs(found: list[Spending], by: By) -> Result:
    def show(out: Screen) -> None:
        names = ("answers", "input", "written", "read", "output", "US$")
        whose = ("user", "session") if by == "session" else (by,)
        out.table((*whose, *(f"#{name}" for name in names)), map(_cost, found))
        if not found:
            out.line("no answer says what it used")
        if unpriced := sum(one.unpriced for one in found):
            out.line("")
            told = counted(unpriced, "answer")
            out.line((f"{told} of models without a known price", "yellow"))

    return Result([one.to_json() for one in found], show)


def _cost(one: Spending) -> list[str]:
    usage = one.usage
    counts = (one.answers, usage.input, usage.written, usage.read, usage.output)
    whose = filter(None, (one.user_id, one.session_id, one.day))
    return [*map(visible, whose), *map(number, counts), f"{one.dollars:.4f}"]


def _needs_user(session: str | None, user: str | None) -> None:
    if session is not None and user is None:
        raise typer.BadParameter("--session needs --user")


def _figures(figures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in figures.items():
        what, last, when = name.partition("_last_")
        is_size = what.endswith("_bytes")
        what = what.removesuffix("_bytes").replace("_", " ") + " size" * is_size
        if last:  # an imported event keeps the time at which it happened
            rate = "written to" if what == "sessions" else "dated"
            what = f"{what} {rate} in the last {when}"
        if isinstance(value, int):
            yield what, size(value) if is_size else number(value)
        elif isinstance(value, str):
            yield what, value


_HASH: Final = 12  # characters that are shown of a hash
_STYLES: Final = {"ok": "", "denied": "yellow", "error": "red"}


def audit(
    call: Call,
    user: str | None = None,
    session: str | None = None,
    since: datetime | None = None,
) -> Result:
    """Show the access log: what was done, and when."""
    _needs_user(session, user)
    store = call.store()
    records = store.access_log.records(user, session_id=session, since=since)

    def show(screen: Screen) -> None:
        record = None
        for record in records:
            _record(screen, record)
        if record is None:
            whose = "" if user is None else f" of user {user!r}"
            how = ": turn them on with REFOLD_ACCESS_LOG=table"
            hint = "" if store.access_log.is_on else how
            complain(f"there are no records{whose}{hint}")

    return Result((record.to_json() for record in records), show)


def _record(screen: Screen, record: AccessRecord) -> None:
    names = (record.user, record.session)
    whose = " ".join((name or "")[:_HASH].ljust(_HASH) for name in names)
    about = [f"{name} {value:,}" for name, value in record.meta.items()]
    if record.state_version is not None:
        about.insert(0, f"seq {record.state_version}")
    if record.event_type:
        about.append(record.event_type)
    said = record.status if record.error_code is None else record.error_code
    screen.line(
        f"{moment(record.ts)}  {whose}  {record.event:<22}  ",
        (f"{said:<16}", _STYLES[record.status]),
        f"  {', '.join(about)}".rstrip(),
        end=(f"{record.duration_us / 1000:,.1f} ms",),
    )


def export(
    call: Call,
    user: str | None = None,
    session: str | None = None,
    out: Path | None = None,
    form: Exports = "events",
    content: bool = False,
    consent: str | None = None,
) -> Result | None:
    """Export the log, or everything of a user."""
    if form == "dataset" and (out is None or session is not None):
        raise typer.BadParameter("a dataset needs --out, and takes no --session")
    if consent is not None and form != "dataset":
        raise typer.BadParameter("--consent is for --format dataset")
    if content and form != "otlp":
        raise typer.BadParameter("--content is for --format otlp")
    if form == "dataset" and out is not None:
        return _dataset(call.store(), user, consent, out)
    if out is not None and out.suffix != ".jsonl" and form == "events":
        return _of_user(call, user, session, out)
    store = call.store()
    found = sessions(store, user, session)
    names = [(info.user_id, info.session_id) for info in found]
    write = partial(_traces, content=content) if form == "otlp" else _WRITERS[form]
    lines = write(store, names)
    if out is None:
        for line in lines:
            write_line(line)
        return None
    count = 0
    with _written(out) as file:
        for line in lines:
            file.write(line + b"\n")
            count += 1
    unit, units = _UNITS[form]
    of = f"{counted(count, unit, units)} of {counted(len(names), 'session')}"
    return Result(
        {"out": repaired(str(out))[0], "sessions": len(names), units: count},
        f"wrote {of} to {visible(str(out))}",
    )


def _of_user(call: Call, user: str | None, session: str | None, out: Path) -> Result:
    if user is None or session is not None:
        raise typer.BadParameter(
            "a folder takes everything of one user: give --user and no --session; the "
            "name of a file ends in .jsonl",
            param_hint="--out",
        )
    manifest: dict[str, Any] = call.store().export_user(user, out).manifest
    counts, digest = manifest["counts"], manifest["digest"]
    kinds = ("session", "event", "blob")
    told = ", ".join(counted(counts[f"{kind}s"], kind) for kind in kinds)
    return Result(
        {"out": repaired(str(out))[0], "counts": counts, "digest": digest},
        f"wrote {told} to {visible(str(out))}",
    )


Names = list[tuple[str, str]]


def _read(store: SessionStore, user: str, session: str) -> Iterator[Envelope]:
    from refold.store.proofs.access_log import called

    with called("export"):
        return store.session(user_id=user, session_id=session).timeline()


def _events(store: SessionStore, names: Names) -> Iterator[bytes]:
    for name in names:
        for envelope in _read(store, *name):
            yield orjson.dumps(envelope.to_json())


def _trajectories(store: SessionStore, names: Names) -> Iterator[bytes]:
    """A line for each session; those of its sub-agents stand in it."""
    from refold.adapters.importers.atif import trajectory

    for user in dict.fromkeys(user for user, _ in names):
        there = [info.session_id for info in store.sessions(user)]
        for of, session in names:
            if of == user and session.rpartition("~")[0] not in there:
                below = {
                    name.removeprefix(f"{session}~"): _read(store, user, name)
                    for name in there
                    if name.startswith(f"{session}~")
                }
                made = trajectory(_read(store, user, session), session, below)
                yield orjson.dumps(made)


def _traces(store: SessionStore, names: Names, *, content: bool) -> Iterator[bytes]:
    from refold.adapters.importers.otlp import traces

    for name in names:
        for request in traces(_read(store, *name), name[1], content=content):
            yield orjson.dumps(request)


def _dataset(
    store: SessionStore, user: str | None, consent: str | None, out: Path
) -> Result:
    from refold.adapters.importers.dataset import TRAINING, Dataset

    made, count = Dataset(store, consent or TRAINING), 0
    with _written(out) as file:
        for row in made.rows(user):
            file.write(orjson.dumps(row) + b"\n")
            count += 1
    told = f"{counted(count, 'row')} of {counted(len(made.users), 'user')}"
    left = f"{counted(made.left, 'user')} without consent to {made.scope} left out"
    return Result(
        {
            "out": repaired(str(out))[0],
            "export": made.export_id,
            "rows": count,
            "users": len(made.users),
            "left_out": made.left,
        },
        f"wrote {told} to {visible(str(out))}, {left}",
    )


_WRITERS: Final = {"events": _events, "atif": _trajectories}
_UNITS: Final = {
    "events": ("event", "events"),
    "atif": ("trajectory", "trajectories"),
    "otlp": ("trace", "traces"),
}


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


Database = Literal["postgresql", "sqlite"]
"""The engines that have a schema."""

_HEADS: Final = {
    False: "-- The tables of Refold on {}.  Refold makes and upgrades them by itself.",
    True: "-- The roles of Refold.  Run this as the owner of the tables, and again "
    "after\n-- each upgrade.",
}


def schema(call: Call, roles: bool = False, engine: Database | None = None) -> Result:
    """Print the SQL of the tables or the roles."""
    from refold.adapters.sql import schema as written
    from refold.adapters.sql.database import engine_of

    name = engine or (engine_of(call.url) or [None])[0]
    if name is None:
        raise InvalidConfiguration(
            "only SQLite and PostgreSQL have a schema: choose one with --engine"
        )
    if roles and name != "postgresql":
        raise InvalidConfiguration(
            f"{name} has no roles: use --roles with --engine postgresql"
        )
    statements = written.roles() if roles else written.schema(name)
    said = [_HEADS[roles].format(name), *(f"\n{one};" for one in statements)]
    return Result({"engine": name, "statements": statements}, "\n".join(said))


def __getattr__(name: str) -> Any:
    """``bench`` is part of a checkout, not of what is installed."""
    import refold

    if name != "bench":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    checkout = Path(refold.__file__).parents[1]
    if not (checkout / "benchmarks" / "command.py").exists():
        raise RefoldError(
            "the benchmarks are not installed: run them from a checkout of Refold, "
            "installed there with `pip install -e .`"
        )
    if str(checkout) not in sys.path:
        sys.path.append(str(checkout))
    return importlib.import_module("benchmarks.command").bench
