"""Commands that operate a store: serve, stats, audit, export, view, schema, move."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import orjson
import typer

from refold.adapters.cli import output
from refold.adapters.cli.files import Destination, write_lines
from refold.adapters.cli.options import (
    Call,
    SessionFilter,
    SessionOption,
    UserFilter,
    UserOption,
    operator,
    sessions,
    since,
    user_option,
)
from refold.adapters.cli.output import Result, Screen
from refold.adapters.display import values
from refold.adapters.display.values import number, size, visible
from refold.domain.canonical import repaired
from refold.domain.errors import InvalidConfiguration, counted

if TYPE_CHECKING:
    from refold.domain.access_log import AccessRecord
    from refold.domain.envelope import Envelope
    from refold.domain.ports import SessionInfo
    from refold.projections.models import Spending
    from refold.store import SessionStore
    from refold.store.exports import CopyRecords


def serve(
    call: Call,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on.  Any other than 127.0.0.1 needs REFOLD_JWKS "
            "or REFOLD_TOKEN_SECRET_FILE.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, help="Port; 0 chooses a free one.")
    ] = 8765,
    user: Annotated[
        str | None, user_option("User of the printed token.  Default: your login.")
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--tls-certificate", metavar="FILE", help="Certificate for TLS, in PEM."
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            "--tls-key", metavar="FILE", help="Private key of the certificate, in PEM."
        ),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Allow pages of this site, such as https://app.example.com, to call "
            "/v1; repeat it for several.",
        ),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="Trust X-Forwarded-For and X-Forwarded-Proto from this address or "
            "network; repeat it for several.  Default: trust nobody.",
        ),
    ] = None,
) -> None:
    """Serve the store over HTTP, with a page that shows runs.

    Operations are under /v1, the page is at /, MCP at /mcp.  Each request needs an
    access token.  Without REFOLD_JWKS or a token secret, it listens only on this
    machine and prints a token that is valid for one day.  It records each use of
    the store in the access log, unless REFOLD_ACCESS_LOG says otherwise.
    """
    from refold.adapters.server import Place, serve as run

    place = Place(
        host=host,
        port=port,
        user=user or operator(None) or "me",
        certificate=certificate,
        key=key,
        origins=tuple(origin or ()),
        proxies=tuple(trusted_proxy or ()),
    )
    where = os.environ.get("REFOLD_ACCESS_LOG") or "table"
    store = call.store(new=True, access_log=where)
    run(store, place, partial(typer.echo, err=True))


By = Literal["session", "user", "day"]
Exports = Literal["events", "atif", "otlp", "dataset", "parquet"]
Columns = Literal["metadata", "all"]


def stats(
    call: Call,
    user: UserFilter = None,
    session: SessionFilter = None,
    cost: Annotated[
        bool,
        typer.Option(
            "--cost", help="Show the token usage and cost of answers instead."
        ),
    ] = False,
    by: Annotated[
        By, typer.Option(metavar="WHAT", help="Sum costs by session, user or day.")
    ] = "session",
) -> Result:
    """Show how much is stored, and how fast it grows.

    Also shows how far stored views lag behind.  Takes a while on a large store,
    since it counts every row.
    """
    store = call.store()
    _needs_user(session, user)
    if user is not None:
        sessions(store, user, session)
    if cost:
        return _costs(store.costs(user, session_id=session, by=by), by)
    if user is None or session is None:
        figures = store.stats(user)
    else:
        figures = store.session(user_id=user, session_id=session).stats()

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
    user: UserFilter = None,
    session: SessionFilter = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            metavar="D",
            parser=since,
            help="Only records since then: 2026-03-16, 2026-03-16T10:00Z, or 7d.",
        ),
    ] = None,
) -> Result:
    """Show the access log: what was done, and when.

    It contains no content and no names: --user finds the records of a user by a
    keyed hash, until the user is erased.  Turn it on with REFOLD_ACCESS_LOG=table.
    """
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
            output.complain(f"there are no records{whose}{hint}")

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
        f"{values.moment(record.ts)}  {whose}  {record.event:<22}  ",
        (f"{said:<16}", _STYLES[record.status]),
        f"  {', '.join(about)}".rstrip(),
        end=(f"{record.duration_us / 1000:,.1f} ms",),
    )


def export(
    call: Call,
    user: UserFilter = None,
    session: SessionFilter = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Write to a file if PATH ends in .jsonl; else write all data of "
            "--user, or Parquet, to a new folder.  Default: stdout.",
        ),
    ] = None,
    form: Annotated[
        Exports,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Write this format: events, a trajectory per session (atif), a trace "
            "per turn (otlp), a chat per session of users who consented "
            "(dataset), or tables of all users (parquet).",
        ),
    ] = "events",
    content: Annotated[
        bool,
        typer.Option(
            "--content", help="Include texts, arguments and results in traces."
        ),
    ] = False,
    consent: Annotated[
        str | None,
        typer.Option(
            metavar="SCOPE",
            help="Consent that users in a dataset must have given.  Default: training.",
        ),
    ] = None,
    columns: Annotated[
        Columns | None,
        typer.Option(
            metavar="WHICH",
            help="Write these columns of parquet: metadata, which needs no key, or "
            "all, decrypted.  Default: metadata.",
        ),
    ] = None,
    buckets: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Number of parquet files to distribute users over.  Default: 16.",
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="For a folder: number of processes that share the work.",
        ),
    ] = 1,
) -> Result | None:
    """Export the log, or everything stored about a user.

    A file contains the events as JSON lines, as `refold log --json` prints them.  A
    folder contains events, summaries, whole texts, views, consent, holds and
    certificates, with their digests in manifest.json: `refold verify --export`
    checks them.  Both are plain text with file permissions for you alone; redacted
    values are in neither.
    """
    if form == "dataset" and (out is None or session is not None):
        raise typer.BadParameter("a dataset needs --out, and takes no --session")
    if (columns or buckets) and form != "parquet":
        raise typer.BadParameter("--columns and --buckets are for --format parquet")
    if consent is not None and form != "dataset":
        raise typer.BadParameter("--consent is for --format dataset")
    if content and form != "otlp":
        raise typer.BadParameter("--content is for --format otlp")
    if form == "parquet":
        if out is None or user or session:
            raise typer.BadParameter("parquet has all users and sessions, in --out")
        return _tables(call, columns == "all", buckets or 16, out)
    if form == "dataset" and out is not None:
        return _dataset(call.store(), user, consent, out)
    if out is not None and out.suffix != ".jsonl" and form == "events":
        return _of_user(call, user, session, out, jobs)
    if jobs != 1:
        raise typer.BadParameter("--jobs is for a folder: see --out")
    from refold.store.exports import CopyRecords

    store = call.store()
    copies = CopyRecords(
        store.writer,
        form,
        "stdout" if out is None else out,
        sessions=None if session is None else (session,),
    )
    chosen = sessions(store, user, session)
    names = _Names(chosen, internal=form == "events", copies=copies)
    lines = map(orjson.dumps, _values(store, names, form, content=content))
    if out is None:
        for line in lines:
            output.write_line(line)
        _complain_unrecorded(copies.unrecorded)
        return None
    with copies.whole_or_dropped():
        wrote = write_lines(out, lines)
    _complain_unrecorded(copies.unrecorded)
    unit, units = _UNITS[form]
    of = f"{counted(wrote, unit, units)} of {counted(names.listed, 'session')}"
    return _wrote(out, of, {"sessions": names.listed, units: wrote})


class _Names:
    """The users and names of sessions; counts those that a listing shows.

    internal: whether those of Refold's own are among them, uncounted.
    copies:   records each user's copy before the first of their sessions is given.
    """

    def __init__(
        self, found: Iterable[SessionInfo], *, internal: bool, copies: CopyRecords
    ) -> None:
        self._found = found
        self._internal = internal
        self._copies = copies
        self.listed = 0

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for info in self._found:
            if not info.is_internal:
                self.listed += 1
            elif not self._internal:
                continue
            self._copies.of(info.user_id)
            yield info.user_id, info.session_id


def _complain_unrecorded(why: str) -> None:
    """Say that no erasure will name an export, if the store took no record of it."""
    if why:
        output.complain(f"a later erasure cannot name this export: {why}")


def _of_user(
    call: Call, user: str | None, session: str | None, out: Path, jobs: int
) -> Result:
    if user is None or session is not None:
        raise typer.BadParameter(
            "a folder takes everything of one user: give --user and no --session; the "
            "name of a file ends in .jsonl",
            param_hint="--out",
        )
    store = call.store()
    exported = store.export_user(user, out, executor=call.executor(jobs))
    _complain_unrecorded(exported.unrecorded)
    manifest: dict[str, Any] = exported.manifest
    counts, digest = manifest["counts"], manifest["digest"]
    kinds = ("session", "event", "blob")
    told = ", ".join(counted(counts[f"{kind}s"], kind) for kind in kinds)
    return _wrote(out, told, {"counts": counts, "digest": digest})


def _wrote(out: Path, what: str, told: dict[str, Any], rest: str = "") -> Result:
    said = f"wrote {what} to {visible(str(out))}{rest}"
    return Result({"out": repaired(str(out))[0], **told}, said)


Names = Iterable[tuple[str, str]]


def _read(store: SessionStore, user: str, session: str) -> Iterator[Envelope]:
    from refold.store.recorded import recorded_as

    with recorded_as("export"):
        return store.session(user_id=user, session_id=session).timeline()


def _values(
    store: SessionStore, names: Names, form: Exports, *, content: bool
) -> Iterator[Any]:
    from refold.adapters.importers.otlp import traces

    if form == "atif":
        yield from _trajectories(store, names)
        return
    for name in names:
        events = _read(store, *name)
        if form == "otlp":
            yield from traces(events, name[1], content=content)
        else:
            yield from (envelope.to_json() for envelope in events)


def _trajectories(store: SessionStore, names: Names) -> Iterator[Any]:
    """A line for each session; those of its sub-agents stand in it."""
    from refold.adapters.importers.atif import trajectory

    for user, mine in groupby(names, itemgetter(0)):
        there = [info.session_id for info in store.sessions(user)]
        for _, session in mine:
            if session.rpartition("~")[0] not in there:
                below = {
                    name.removeprefix(f"{session}~"): _read(store, user, name)
                    for name in there
                    if name.startswith(f"{session}~")
                }
                yield trajectory(_read(store, user, session), session, below)


def _dataset(
    store: SessionStore, user: str | None, consent: str | None, out: Path
) -> Result:
    from refold.adapters.importers.dataset import TRAINING, Dataset

    made = Dataset(store, consent or TRAINING, out)
    wrote = write_lines(out, map(orjson.dumps, made.rows(user)))
    told = f"{counted(wrote, 'row')} of {counted(len(made.users), 'user')}"
    left = f", {counted(made.left, 'user')} without consent to {made.scope} left out"
    figures = {"export": made.export_id, "rows": wrote}
    figures |= {"users": len(made.users), "left_out": made.left}
    return _wrote(out, told, figures, left)


def _tables(call: Call, whole: bool, buckets: int, out: Path) -> Result:
    from refold.adapters.importers.dataset import Tables

    store: Any = call.store() if whole else None
    recorder = store.log.recorder if store else call.recorder()
    made: Any = Tables(recorder, store, buckets).write(out).manifest
    counts = made["counts"]
    told = f"{counted(counts['events'], 'event')} of {counted(counts['users'], 'user')}"
    rest = f", {counts['left']:,} left out" if counts["left"] else ""
    figures = {name: made[name] for name in ("export", "columns", "counts", "digest")}
    return _wrote(out, told, figures, rest)


_UNITS: Final = {
    "events": ("event", "events"),
    "atif": ("trajectory", "trajectories"),
    "otlp": ("trace", "traces"),
}


Lang = Literal["en", "zh"]


def view(
    call: Call,
    user: UserOption,
    session: SessionOption,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write to this file, completely or not at all.  Default: show the "
            "run in the terminal.",
        ),
    ] = None,
    lang: Annotated[Lang, typer.Option(help="Language of the file.")] = "en",
    seq: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Open the run at this event, in the terminal."
        ),
    ] = None,
) -> Result:
    """Show a run in the terminal, or write it as one HTML file.

    The terminal shows turns that open to their events, and the context at each
    request; its last line lists the keys.  It needs `refold[tui]`. The file shows
    the run as turns and the context at its requests, and needs no network.  Of a
    long run it contains the first 5,000 events and 50 contexts, and says so.  It is
    plain text with file permissions for you alone, without redacted values.
    """
    from refold.adapters.frameworks import needed

    needed("jinja2", "server" if html else "tui")
    store = call.store()
    one = store.session(user_id=user, session_id=session)
    if html is None:
        streams = (sys.stdin, sys.stdout, sys.stderr)  # it draws on the last
        if call.as_json or not all(one.isatty() for one in streams):
            raise InvalidConfiguration("no terminal here: use --html or `refold log`")
        needed("textual", "tui")
        from refold.adapters.cli.terminal import Viewer

        one.at(seq or 1)
        raise Viewer(store, one, seq).run() or typer.Exit
    if seq is not None:
        raise typer.BadParameter("--seq is for the terminal, without --html")
    from refold.adapters.server.run import file

    with Destination(html) as destination:
        page = file(one, lang).encode() + b"\n"
        destination.write(page)
        destination.commit()
    return _wrote(html, size(len(page)), {"bytes": len(page)})


Database = Literal["citus", "postgresql", "sqlite"]
"""The engines that have a schema."""

_HEADS: Final = {
    False: "-- The tables of Refold on {}.  Refold makes and upgrades them by itself.",
    True: "-- The roles of Refold.  Run this as the owner of the tables, and again "
    "after\n-- each upgrade.",
}


def schema(
    call: Call,
    roles: Annotated[
        bool,
        typer.Option(
            "--roles",
            help="Print the roles, grants and row-level security of PostgreSQL.",
        ),
    ] = False,
    spread: Annotated[
        bool,
        typer.Option(
            "--spread",
            help="Distribute the tables of --db over the machines of Citus, by user.",
        ),
    ] = False,
    engine: Annotated[
        Database | None,
        typer.Option("--engine", help="Database engine.  Default: the engine of --db."),
    ] = None,
    partitions: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Divide the big tables of PostgreSQL into N parts, by user.",
        ),
    ] = 0,
) -> Result:
    """Print the SQL of the tables or the roles.

    Only --spread opens a database.
    """
    from refold.adapters.sql import schema as written
    from refold.adapters.sql.database import engine_of

    known = engine_of(call.url)
    name = engine or (known or [None])[0]
    if spread and (roles or partitions):
        raise InvalidConfiguration("use --spread without --roles and --partitions")
    if spread and known and known[0] == "postgresql":
        from refold.adapters.sql.citus import CitusDatabase

        with closing(CitusDatabase(known[1])) as database:
            done = database.spread_filled()
        return Result({"spread": done}, f"Spread: {', '.join(done) or 'nothing new'}")
    if name is None:
        raise InvalidConfiguration(
            "only SQLite and PostgreSQL have a schema: choose one with --engine"
        )
    if spread or (name == "sqlite" and (roles or partitions)):
        what = "spread" if spread else "roles" if roles else "partitions"
        raise InvalidConfiguration(f"{name} has no {what}: that is of PostgreSQL")
    tables = written.schema(name, partitions=partitions)
    statements = written.roles(name) if roles else tables
    then = "\n\n-- Then spread them: refold schema --spread"
    ends = [then] if name == "citus" and not roles else []
    said = [_HEADS[roles].format(name), *(f"\n{one};" for one in statements), *ends]
    return Result({"engine": name, "statements": statements}, "\n".join(said))


def move(
    call: Call,
    to: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="URL of an empty PostgreSQL database that nobody has open.",
        ),
    ],
    keys_to: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Copy the wrapped keys to this key store.  Default: they stay where "
            "they are.",
        ),
    ] = None,
) -> Result:
    """Migrate the store to PostgreSQL while agents write.

    Copies ciphertext, seals and ids unchanged, then blocks writers, copies the rest
    and compares all heads.  From then on, the old store refuses writes and names
    the new one; nothing in it is deleted.  If it is interrupted, run it again.
    """
    from refold.opener import move as moved

    def told(rows: int) -> None:
        copied = f"copied {counted(rows, 'row')}"
        call.remark(lambda out: out.line(copied), acted=True)

    call.check_there()
    rows = moved(call.url, to=to, keys_to=keys_to, told=told)
    counts = (counted(rows.get(f"{one}s", 0), one) for one in ("event", "head", "blob"))
    said = f"moved {', '.join(counts)}: all heads are equal, the old store is closed"
    hint = "\nset REFOLD_DB to the new one, and " + (
        "REFOLD_KEYS to the new key store; once all clients have it, destroy the old "
        "one: it keeps the keys of who is erased from now on"
        if keys_to
        else "REFOLD_KEYS to its key store, where that is still"
    )
    text = said + hint if rows else "it was moved there before"
    return Result({"rows": rows}, text, acted=True)
