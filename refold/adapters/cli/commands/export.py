"""``refold export``: the log out again, as JSON lines."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    as_json: Json = False,
) -> None:
    """Write the log out again, as JSON lines of envelopes.

    A file can be read by its owner only: what was redacted is not in it, the rest is
    in plain text.
    """
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


def _lines(store: SessionStore, names: list[tuple[str, str]]) -> Iterator[bytes]:
    import orjson

    for user, session in names:
        for envelope in store.session(user, session).timeline():
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
