"""``refold export``: the log out again, as JSON lines."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.options import Json, SomeSession, SomeUser
from refold.adapters.cli.output import print_json, visible, write_line
from refold.adapters.cli.wording import counted

if TYPE_CHECKING:
    from typing import BinaryIO

    from refold.store import SessionStore


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

    from refold.store.audited import called

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
