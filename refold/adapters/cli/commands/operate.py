"""Commands that operate a store: serve, stats, audit, export, view, schema, move."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    NoReturn,
)

import orjson
import typer

from refold.adapters.cli import options, output
from refold.adapters.cli.commands.resume import AtOption, RevealOption, export_context
from refold.adapters.cli.files import Destination, write_lines
from refold.adapters.cli.options import (
    Call,
    ReaderOption,
    SessionFilter,
    SessionOption,
    StrategyOption,
    UserFilter,
    only_user,
    operator,
    optional_session_name,
    sessions,
    user_option,
)
from refold.adapters.cli.output import (
    WIDE,
    Part,
    Result,
    Screen,
    cut,
    shown_in_line,
)
from refold.adapters.cli.session_names import short_names
from refold.adapters.display import values
from refold.adapters.display.values import number, short_number, size, visible
from refold.domain.canonical import repaired
from refold.domain.errors import InvalidConfiguration, counted

if TYPE_CHECKING:
    from sqlalchemy import URL

    from refold.domain.access_log import AccessRecord
    from refold.domain.envelope import Envelope
    from refold.domain.ports import SessionInfo
    from refold.projections.models import Spending
    from refold.store import Session, SessionStore
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
    from refold.adapters.server import ServerOptions, check, serve as run_server

    server_options = ServerOptions(
        host=host,
        port=port,
        user=user or operator(None) or "me",  # "me" if the system has no login
        certificate=certificate,
        key=key,
        origins=tuple(origin or ()),
        proxies=tuple(trusted_proxy or ()),
    )
    check(server_options)  # before it creates a store and a master key
    access_log = os.environ.get("REFOLD_ACCESS_LOG") or "table"
    store = call.store(new=True, long_running=True, access_log=access_log)
    print_on_stderr = partial(typer.echo, err=True)
    run_server(store, server_options, print_on_stderr)


By = Literal["session", "user", "day"]
_TITLE_WIDTH: Final = 30  # columns of a title below the name of its session
ExportFormat = Literal[
    "events",
    "atif",
    "otlp",
    "dataset",
    "parquet",
    "claude-code",
    "codex",
    "openai",
    "anthropic",
    "gemini",
]
# The formats of a context, which a client continues or a provider's SDK takes.
_OF_CONTEXTS: Final = frozenset(
    {"claude-code", "codex", "openai", "anthropic", "gemini"}
)
TraceEncoding = Literal["protobuf", "json"]
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
    session = optional_session_name(store, user, session)
    if user is not None or session is not None:
        infos = sessions(store, user, session)  # raises if there are none
        if user is None:
            user = only_user(infos)
    if cost:
        spendings = store.costs(user, session_id=session, by=by)
        return _costs(spendings, by, partial(_Listed, store, user))
    if user is None or session is None:
        figures = store.stats(user)
    else:
        figures = store.session(user_id=user, session_id=session).history.stats()

    def show(screen: Screen) -> None:
        screen.table(("what", "#how much"), _figures(figures))
        if figures["lag"]:
            screen.line("")
            head = ("views of strategy", "#views", "#behind", "#by events", "#at most")
            screen.table(head, map(_lag_row, figures["lag"]))

    return Result(figures, show)


def _lag_row(views: dict[str, Any]) -> list[str]:
    """Return the row that shows how far a strategy's stored views lag behind."""
    return [
        views["fingerprint"][:12],
        number(views["views"]),
        number(views["behind"]),
        number(views["events"]),
        number(views["most"]),
    ]


class _Listed:
    """The sessions of a user, or of all users, as a table names them.

    titles: by user and session.
    short:  short names, by name.
    """

    def __init__(self, store: SessionStore, user: str | None) -> None:
        self.titles: dict[tuple[str, str], str] = {}
        for session in store.overviews(user).sessions:
            info = session.info
            self.titles[info.user_id, info.session_id] = session.overview.title
        self.short = short_names({session for _, session in self.titles})


def _costs(spendings: list[Spending], by: By, listed: Callable[[], _Listed]) -> Result:
    """Return the report of costs by session, user or day, the greatest first."""

    def show(screen: Screen) -> None:
        ordered = spendings
        if by != "day":
            ordered = sorted(spendings, key=lambda cost: cost.dollars, reverse=True)
        _show_costs(screen, ordered, by, listed() if by == "session" else None)
        total = _total(spendings)
        if total.is_lower_bound:
            screen.line("")
            _explain_lower_bound(screen, total)

    return Result([spending.to_json() for spending in spendings], show)


def _explain_lower_bound(screen: Screen, total: Spending) -> None:
    """Print why figures are marked as too low."""
    screen.line(("≥: the true number is greater", "yellow"))
    if total.unpriced:
        answers = counted(total.unpriced, "answer")
        screen.line((f"   {answers} of models without a known price", "yellow"))
    if total.undercounted:
        answers = counted(total.undercounted, "answer")
        reason = "whose recorded output tokens are too few for their text"
        screen.line((f"   {answers} {reason}", "yellow"))


def _show_costs(
    screen: Screen,
    spendings: list[Spending],
    by: By,
    listed: _Listed | None,
) -> None:
    """Print a table of costs; a user who has all of the sessions is named once.

    listed: the sessions, if each has a row.
    """
    if not spendings:
        screen.line("no answer has a recorded token usage")
        return
    users = {spending.user_id for spending in spendings}
    names_user = by == "session" and len(users) > 1
    if by == "session" and not names_user:
        screen.line("user ", (visible(users.pop() or ""), "bold"))
        screen.line("")
    is_wide = screen.width >= WIDE
    head: list[str] = [by]
    if names_user:
        head.insert(0, "user")
    if is_wide:
        head += ["#answers", "#input", "#written", "#read", "#output", "#US$"]
    else:
        head += ["#answers", "#input", "#cached", "#output", "#US$"]
    rows: list[list[Part]] = []
    for spending in spendings:
        name = spending.session_id or spending.user_id or spending.day or ""
        title = ""
        if listed is not None:
            title = listed.titles.get((spending.user_id or "", name), "")
            if screen.cuts:
                name = listed.short.get(name, name)
        label = visible(name)
        if title:
            label += f"\n{cut(shown_in_line(title), _TITLE_WIDTH)}"
        row: list[Part] = [label, *_figures_of_cost(spending, is_wide=is_wide)]
        if names_user:
            row.insert(0, visible(spending.user_id or ""))
        rows.append(row)
    if len(spendings) > 1:
        texts = ["total", *_figures_of_cost(_total(spendings), is_wide=is_wide)]
        if names_user:
            texts.insert(1, "")
        rows.append([(text, "bold") for text in texts])
    screen.table(head, rows)
    if not is_wide:
        screen.line("")
        note = "input: all tokens sent; cached: share of them read from the cache"
        screen.line((note, "dim"))


def _total(spendings: Iterable[Spending]) -> Spending:
    """Return the sum of several costs."""
    from refold.projections.models import Spending

    total = Spending()
    for spending in spendings:
        total = total._replace(
            answers=total.answers + spending.answers,
            usage=total.usage + spending.usage,
            dollars=total.dollars + spending.dollars,
            unpriced=total.unpriced + spending.unpriced,
            undercounted=total.undercounted + spending.undercounted,
        )
    return total


def _figures_of_cost(spending: Spending, *, is_wide: bool) -> list[str]:
    """Return the figures of a row in the table of costs."""
    usage = spending.usage
    mark_of_output = "≥" if spending.undercounted else ""
    mark_of_cost = "≥" if spending.is_lower_bound else ""
    if is_wide:
        return [
            number(spending.answers),
            number(usage.input),
            number(usage.written),
            number(usage.read),
            mark_of_output + number(usage.output),
            f"{mark_of_cost}{spending.dollars:.4f}",
        ]
    sent = usage.input + usage.written + usage.read
    return [
        number(spending.answers),
        short_number(sent),
        f"{usage.read / sent:.0%}" if sent else "–",
        mark_of_output + short_number(usage.output),
        f"{mark_of_cost}{spending.dollars:.2f}",
    ]


def _figures(figures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the name of each figure for people, and its value.

    The key ``events_last_day`` counts the events of a period.  The value of a key that
    ends in ``_bytes`` before the period is a size.
    """
    for key, value in figures.items():
        subject, _, period = key.partition("_last_")
        is_size = subject.endswith("_bytes")
        name = subject.removesuffix("_bytes").replace("_", " ")
        if is_size:
            name += " size"
        if key == "events" and figures.get("derived_streams"):
            name += ", including summaries"
        if period:
            # Imported events are older than the time at which they were written.
            verb = "written to" if name == "sessions" else "dated"
            name += f" {verb} in the last {period}"
        if isinstance(value, int):
            yield name, size(value) if is_size else number(value)
        elif isinstance(value, str):
            yield name, value


_HASH_WIDTH: Final = 12  # characters that are shown of a hash
_STATUS_STYLES: Final = {"ok": "", "denied": "yellow", "error": "red"}


def audit(
    call: Call,
    user: UserFilter = None,
    session: SessionFilter = None,
    since: Annotated[
        datetime | None,
        typer.Option(
            metavar="D",
            parser=options.since,
            help="Only records since then: 2026-03-16, 2026-03-16T10:00Z, or 7d.",
        ),
    ] = None,
) -> Result:
    """Show the access log: what was done, and when.

    It contains no content and no names: --user finds the records of a user by a
    keyed hash, until the user is erased.  Turn it on with REFOLD_ACCESS_LOG=table.
    """
    store = call.store()
    if session is not None and user is None:
        user = only_user(sessions(store, None, session))
    records = store.access_log.records(user, session_id=session, since=since)

    def show(screen: Screen) -> None:
        is_empty = True
        for record in records:
            is_empty = False
            _show_record(screen, record)
        if is_empty:
            sentence = "there are no records"
            if user is not None:
                sentence += f" of user {user!r}"
            if not store.access_log.is_on:
                sentence += ": turn them on with REFOLD_ACCESS_LOG=table"
            output.complain(sentence)

    return Result((record.to_json() for record in records), show)


def _show_record(screen: Screen, record: AccessRecord) -> None:
    """Print a record of the access log as one line."""
    user = (record.user or "")[:_HASH_WIDTH].ljust(_HASH_WIDTH)
    session = (record.session or "")[:_HASH_WIDTH].ljust(_HASH_WIDTH)
    details: list[str] = []
    if record.state_version is not None:
        details.append(f"seq {record.state_version}")
    details += [f"{name} {value:,}" for name, value in record.meta.items()]
    if record.event_type:
        details.append(record.event_type)
    outcome = record.status if record.error_code is None else record.error_code
    screen.line(
        f"{values.moment(record.ts)}  {user} {session}  {record.event:<22}  ",
        (f"{outcome:<16}", _STATUS_STYLES[record.status]),
        f"  {', '.join(details)}".rstrip(),
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
        ExportFormat,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Write this format: events, a trajectory per session (atif), a trace "
            "per turn (otlp), a chat per session of users who consented "
            "(dataset), or tables of all users (parquet).  Or write the context of "
            "--session for another program: claude-code, codex, openai, anthropic or "
            "gemini.",
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
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Send traces to this OTLP endpoint instead of writing them, such as "
            "http://localhost:6006 for Phoenix.",
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Send this header to the endpoint, such as a key; repeat it for "
            "several.  Default: those in OTEL_EXPORTER_OTLP_HEADERS.",
        ),
    ] = None,
    encoding: Annotated[
        TraceEncoding | None,
        typer.Option(
            metavar="NAME",
            help="Send traces as protobuf or json.  Default: protobuf.",
        ),
    ] = None,
    at: AtOption = None,
    strategy: StrategyOption = None,
    reveal: RevealOption = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Overwrite the file with a context if it exists."),
    ] = False,
) -> Result | None:
    """Export the log, or everything stored about a user.

    A file contains the events as JSON lines, as `refold log --json` prints them.  A
    folder contains events, summaries, whole texts, views, consent, holds and
    certificates, with their digests in manifest.json: `refold verify --export`
    checks them.  Both are plain text with file permissions for you alone; redacted
    values are in neither.

    The context of a session is what `refold context` shows, message by message.
    """
    if form in _OF_CONTEXTS:
        if session is None:
            raise typer.BadParameter(f"{form} has one session: give --session")
        if jobs != 1:
            raise typer.BadParameter("--jobs is for a folder: see --out")
        return export_context(
            call,
            user,
            session,
            form,
            out,
            at=at,
            strategy=strategy,
            reveal=reveal,
            force=force,
        )
    of_contexts = {
        "--at": at,
        "--strategy": strategy,
        "--reveal": reveal,
        "--force": force,
    }
    for name in options.used(of_contexts):
        formats = ", ".join(sorted(_OF_CONTEXTS))
        raise typer.BadParameter(f"{name} is for the formats of a context: {formats}")
    if form == "dataset" and (out is None or session is not None):
        raise typer.BadParameter("a dataset needs --out, and takes no --session")
    if (columns or buckets) and form != "parquet":
        raise typer.BadParameter("--columns and --buckets are for --format parquet")
    if consent is not None and form != "dataset":
        raise typer.BadParameter("--consent is for --format dataset")
    if content and form != "otlp":
        raise typer.BadParameter("--content is for --format otlp")
    if endpoint is not None:
        if form != "otlp" or out is not None:
            raise typer.BadParameter("--endpoint is for --format otlp without --out")
        return _send_traces(
            call,
            SessionFilters(user, session),
            TracesEndpoint(endpoint, header or [], encoding or "protobuf"),
            content=content,
        )
    if header or encoding:
        raise typer.BadParameter("--header and --encoding are for --endpoint")
    if form == "parquet":
        if out is None or user or session:
            raise typer.BadParameter("parquet has all users and sessions, in --out")
        return _export_tables(
            call, out, decrypted=columns == "all", buckets=buckets or 16
        )
    if form == "dataset" and out is not None:
        return _export_dataset(call.store(), user, consent, out)
    if out is not None and out.suffix != ".jsonl" and form == "events":
        return _export_user(call, user, session, out, jobs)
    if jobs != 1:
        raise typer.BadParameter("--jobs is for a folder: see --out")
    return _export_lines(call, user, session, form, out, content=content)


class SessionFilters(NamedTuple):
    """The user and the session to export; None for all of them."""

    user: str | None
    session: str | None


class TracesEndpoint(NamedTuple):
    """The endpoint that traces are sent to.

    headers: as ``NAME=VALUE``.
    """

    url: str
    headers: list[str]
    encoding: TraceEncoding


def _send_traces(
    call: Call, filters: SessionFilters, endpoint: TracesEndpoint, *, content: bool
) -> Result:
    """Send a trace for each turn to an OTLP endpoint.

    Spans that the endpoint rejects are counted, and make the exit status 1.
    """
    from refold.adapters.otlp.sender import Sender, headers_of
    from refold.store.exports import CopyRecords

    headers = headers_of(endpoint.headers)
    with Sender(endpoint.url, headers=headers, encoding=endpoint.encoding) as sender:
        store = call.store()
        session = optional_session_name(store, filters.user, filters.session)
        copies = CopyRecords(
            store.writer,
            "otlp",
            sender.url,
            sessions=None if session is None else (session,),
        )
        exported = _ExportedSessions(
            sessions(store, filters.user, session), internal=False, copies=copies
        )
        sent = 0
        for trace in _values(store, exported, "otlp", content=content):
            sender.send(trace)
            sent += 1
    _complain_unrecorded(copies.unrecorded)
    amount = f"{counted(sent, 'trace')} of {counted(exported.count, 'session')}"
    text = f"sent {amount} to {sender.url}"
    if sender.rejected:
        spans = counted(sender.rejected, "span")
        text += f"; the endpoint rejected {spans}"
    if sender.reason:
        text += f": {output.one_line(sender.reason)}"
    figures = {
        "endpoint": sender.url,
        "sessions": exported.count,
        "traces": sent,
        "rejected_spans": sender.rejected,
    }
    return Result(figures, text, code=1 if sender.rejected else 0)


def _export_lines(
    call: Call,
    user: str | None,
    session: str | None,
    form: ExportFormat,
    out: Path | None,
    *,
    content: bool,
) -> Result | None:
    """Write values of a format to a file or stdout, one in each line."""
    from refold.store.exports import CopyRecords

    store = call.store()
    session = optional_session_name(store, user, session)
    copies = CopyRecords(
        store.writer,
        form,
        "stdout" if out is None else out,
        sessions=None if session is None else (session,),
    )
    exported = _ExportedSessions(
        sessions(store, user, session), internal=form == "events", copies=copies
    )
    lines = map(orjson.dumps, _values(store, exported, form, content=content))
    if out is None:
        for line in lines:
            output.write_line(line)
        _complain_unrecorded(copies.unrecorded)
        return None
    with copies.dropped_on_failure():
        line_count = write_lines(out, lines)
    _complain_unrecorded(copies.unrecorded)
    unit, units = _UNITS[form]
    sessions_text = counted(exported.count, "session")
    amount = f"{counted(line_count, unit, units)} of {sessions_text}"
    return _written(out, amount, {"sessions": exported.count, units: line_count})


class _ExportedSessions:
    """Yields (user, session) of the sessions to export, and counts the sessions.

    internal: whether Refold's own sessions are included; they are not counted.
    copies:   records the copy of each user's data before the user's first session is
              exported, so that a later erasure can name the export.

    ``count`` is the number of sessions so far.
    """

    def __init__(
        self, infos: Iterable[SessionInfo], *, internal: bool, copies: CopyRecords
    ) -> None:
        self._infos = infos
        self._internal = internal
        self._copies = copies
        self.count = 0

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for info in self._infos:
            if not info.is_internal:
                self.count += 1
            elif not self._internal:
                continue
            self._copies.record(info.user_id)
            yield info.user_id, info.session_id


def _complain_unrecorded(reason: str) -> None:
    """Warn if the store could not record an export: later erasures cannot name it.

    reason: why the store could not; empty if it recorded the export.
    """
    if reason:
        output.complain(f"a later erasure cannot name this export: {reason}")


def _export_user(
    call: Call, user: str | None, session: str | None, out: Path, jobs: int
) -> Result:
    """Write everything stored about a user to a folder."""
    if user is None or session is not None:
        raise typer.BadParameter(
            "a folder takes everything of one user: give --user without --session; the "
            "name of a file ends in .jsonl",
            param_hint="--out",
        )
    store = call.store()
    exported = store.export_user(user, out, executor=call.executor(jobs))
    _complain_unrecorded(exported.unrecorded)
    manifest: dict[str, Any] = exported.manifest
    counts = manifest["counts"]
    amounts = (
        counted(counts["sessions"], "session"),
        counted(counts["events"], "event"),
        counted(counts["blobs"], "blob"),
    )
    figures = {"counts": counts, "digest": manifest["digest"]}
    return _written(out, ", ".join(amounts), figures)


def _written(out: Path, amount: str, figures: dict[str, Any], note: str = "") -> Result:
    """Return the report of a written file or folder.

    amount:  what was written, for people.
    figures: the rest of the report for ``--json``.
    note:    follows the path, for people.
    """
    path, _ = repaired(str(out))
    text = f"wrote {amount} to {visible(str(out))}{note}"
    return Result({"out": path, **figures}, text)


SessionNames = Iterable[tuple[str, str]]
"""The user and the name of each session."""


def _timeline(store: SessionStore, user: str, session: str) -> Iterator[Envelope]:
    """Return the timeline of a session; the access log records an export."""
    from refold.store.recorded import recorded_as

    with recorded_as("export"):
        return store.session(user_id=user, session_id=session).history.timeline()


def _values(
    store: SessionStore, names: SessionNames, form: ExportFormat, *, content: bool
) -> Iterator[Any]:
    """Yield the values of sessions in a format: events, traces, or trajectories."""
    from refold.adapters.importers.otlp import traces

    if form == "atif":
        yield from _trajectories(store, names)
        return
    for user, session in names:
        envelopes = _timeline(store, user, session)
        if form == "otlp":
            yield from traces(envelopes, session, content=content)
        else:
            for envelope in envelopes:
                yield envelope.to_json()


def _trajectories(store: SessionStore, names: SessionNames) -> Iterator[Any]:
    """Yield the trajectory of each session, which contains those of its sub-agents.

    A sub-agent's session has the name of its parent session, ``~``, and a suffix.
    """
    from refold.adapters.importers.atif import trajectory

    for user, names_of_user in groupby(names, itemgetter(0)):
        all_sessions = [info.session_id for info in store.sessions(user)]
        for _, session in names_of_user:
            parent, _, _ = session.rpartition("~")
            if parent in all_sessions:
                continue  # the trajectory of the parent contains it
            sub_agents: dict[str, Iterator[Envelope]] = {}
            for name in all_sessions:
                if name.startswith(f"{session}~"):
                    suffix = name.removeprefix(f"{session}~")
                    sub_agents[suffix] = _timeline(store, user, name)
            yield trajectory(_timeline(store, user, session), session, sub_agents)


def _export_dataset(
    store: SessionStore, user: str | None, consent: str | None, out: Path
) -> Result:
    """Write the chats of users who gave a consent to a file, one in each line."""
    from refold.adapters.importers.dataset import TRAINING, Dataset

    dataset = Dataset(store, consent or TRAINING, out)
    rows = write_lines(out, map(orjson.dumps, dataset.rows(user)))
    amount = f"{counted(rows, 'row')} of {counted(len(dataset.users), 'user')}"
    without = (
        f"{counted(dataset.users_left_out, 'user')} without consent to {dataset.scope}"
    )
    figures = {
        "export": dataset.export_id,
        "rows": rows,
        "users": len(dataset.users),
        "left_out": dataset.users_left_out,
    }
    return _written(out, amount, figures, f", {without} left out")


def _export_tables(call: Call, out: Path, *, decrypted: bool, buckets: int) -> Result:
    """Write tables of all users to a folder, in Parquet.

    decrypted: whether to include the columns that need keys.
    buckets:   the number of files to distribute users over.
    """
    from refold.adapters.importers.dataset import Tables

    store: Any = None
    if decrypted:
        store = call.store()
        recorder = store.log.recorder
    else:
        recorder = call.recorder()
    manifest: Any = Tables(recorder, store, buckets).write(out).manifest
    counts = manifest["counts"]
    events = counted(counts["events"], "event")
    users = counted(counts["users"], "user")
    note = f", {counts['left']:,} left out" if counts["left"] else ""
    figures = {
        "export": manifest["export"],
        "columns": manifest["columns"],
        "counts": counts,
        "digest": manifest["digest"],
    }
    return _written(out, f"{events} of {users}", figures, note)


_UNITS: Final = {
    "events": ("event", "events"),
    "atif": ("trajectory", "trajectories"),
    "otlp": ("trace", "traces"),
}


Language = Literal["en", "zh"]


def view(
    call: Call,
    session: SessionOption,
    user: ReaderOption = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write to this file, completely or not at all.  Default: show the "
            "run in the terminal.",
        ),
    ] = None,
    lang: Annotated[Language, typer.Option(help="Language of the file.")] = "en",
    seq: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Open the run at this event, in the terminal."
        ),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain", help="Show texts as written, without Markdown, in the file."
        ),
    ] = False,
) -> Result:
    """Show a run in the terminal, or write it as one HTML file.

    The terminal shows turns that open to their events, and the context at each
    request; its last line lists the keys.  It needs `refold[tui]`.

    The file shows the run as turns and the context at its requests, and needs no
    network.  Of a long run it contains the first 5,000 events and 50 contexts, and
    says so.  It is plain text with file permissions for you alone, without redacted
    values.  A later erasure names the file.
    """
    if html is None:
        _check_terminal_extra()
    else:
        from refold.adapters.server import check_page_extra

        check_page_extra()
    store = call.store()
    opened = options.found_session(store, user, session)
    if html is None:
        _view_in_terminal(call, store, opened, seq)
    if seq is not None:
        raise typer.BadParameter("--seq is for the terminal, without --html")
    from refold.adapters.server.run_pages import html_file
    from refold.store.exports import CopyRecords
    from refold.store.session.forking import lineage

    names = lineage(opened)
    copies = CopyRecords(store.writer, "page", html, sessions=names)
    with copies.dropped_on_failure(), Destination(html) as destination:
        copies.record(opened.user_id)
        page = html_file(opened, lang, plain=plain).encode() + b"\n"
        destination.write(page)
        destination.commit()
    _complain_unrecorded(copies.unrecorded)
    return _written(html, size(len(page)), {"bytes": len(page)})


def _check_terminal_extra() -> None:
    """Raise InvalidConfiguration if a package of the terminal is not installed."""
    from refold.adapters.frameworks import import_extra

    for module in ("jinja2", "textual"):
        import_extra(module, "tui")


def _view_in_terminal(
    call: Call, store: SessionStore, session: Session, seq: int | None
) -> NoReturn:
    """Show a run in the terminal, then exit, or raise the error that ended it."""
    streams = (sys.stdin, sys.stdout, sys.stderr)  # it draws on stderr
    if call.as_json or not all(stream.isatty() for stream in streams):
        raise InvalidConfiguration("no terminal here: use --html or `refold log`")
    from refold.adapters.cli.terminal import Viewer

    session.at(seq or 1)  # raises if there is no such event
    error = Viewer(store, session, seq).run()
    if error is not None:
        raise error
    raise typer.Exit


Engine = Literal["citus", "postgresql", "sqlite"]
"""The engines that have a schema."""

_MOST_PARTITIONS: Final = 1024
# Comments in the printed SQL.
_ABOVE_TABLES: Final = (
    "-- The tables of Refold on {}.  Refold makes and upgrades them by itself."
)
_ABOVE_ROLES: Final = (
    "-- The roles of Refold.  Run this as the owner of the tables, and again after\n"
    "-- each upgrade."
)
_BELOW_TABLES_OF_CITUS: Final = "\n\n-- Then spread them: refold schema --spread"


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
        Engine | None,
        typer.Option("--engine", help="Database engine.  Default: the engine of --db."),
    ] = None,
    partitions: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            max=_MOST_PARTITIONS,
            help="Divide the big tables of PostgreSQL into N parts, by user.",
        ),
    ] = 0,
) -> Result:
    """Print the SQL of the tables or the roles.

    Only --spread opens a database.
    """
    from refold.adapters.sql import schema as sql
    from refold.adapters.sql.urls import engine_of

    database = engine_of(call.url)
    if spread and (roles or partitions):
        raise InvalidConfiguration("use --spread without --roles and --partitions")
    if spread and database is not None and database[0] == "postgresql":
        return _spread(database[1])
    name: Engine | None = engine
    if name is None and database is not None:
        name, _ = database
    if name is None:
        raise InvalidConfiguration(
            "only SQLite and PostgreSQL have a schema: choose one with --engine"
        )
    if spread:
        raise InvalidConfiguration("--spread needs a PostgreSQL database: see --db")
    if name == "sqlite" and roles:
        raise InvalidConfiguration("sqlite has no roles: --roles is for PostgreSQL")
    if name == "sqlite" and partitions:
        raise InvalidConfiguration(
            "sqlite has no partitions: --partitions is for PostgreSQL"
        )
    if roles:
        statements = sql.roles(name)
        lines = [_ABOVE_ROLES]
    else:
        statements = sql.schema(name, partitions=partitions)
        lines = [_ABOVE_TABLES.format(name)]
    for statement in statements:
        lines.append(f"\n{statement};")
    if name == "citus" and not roles:
        lines.append(_BELOW_TABLES_OF_CITUS)
    return Result({"engine": name, "statements": statements}, "\n".join(lines))


def _spread(url: URL) -> Result:
    """Spread the tables of a PostgreSQL database over the machines of Citus."""
    from refold.adapters.sql.citus import CitusDatabase

    with closing(CitusDatabase(url)) as citus:
        tables = citus.spread_tables()
    names = ", ".join(tables) or "nothing new"
    return Result({"spread": tables}, f"Spread: {names}")


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
    from refold.opener import move as move_store

    def show_progress(rows: int) -> None:
        copied = f"copied {counted(rows, 'row')}"
        call.remark(lambda screen: screen.line(copied), changed=True)

    call.check_exists()
    row_counts = move_store(call.url, to=to, keys_to=keys_to, on_progress=show_progress)
    if not row_counts:
        sentence = "the store was moved there before"
        return Result({"rows": row_counts}, sentence, changed=True)
    events = counted(row_counts.get("events", 0), "event")
    heads = counted(row_counts.get("heads", 0), "head")
    blobs = counted(row_counts.get("blobs", 0), "blob")
    if keys_to:
        next_step = (
            "REFOLD_KEYS to the new key store; once all clients use it, destroy the "
            "old one: it keeps the keys of users who are erased from now on"
        )
    else:
        next_step = "REFOLD_KEYS to the key store, which stays where it is"
    text = (
        f"moved {events}, {heads}, {blobs}: all heads are equal, the old store is "
        f"closed\nset REFOLD_DB to the new one, and {next_step}"
    )
    return Result({"rows": row_counts}, text, changed=True)
