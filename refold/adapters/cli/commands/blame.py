"""``refold blame``: which events read and wrote a file, and who wrote a line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final

import typer

from refold.adapters.cli import options, output
from refold.adapters.display import values
from refold.adapters.display.files import (
    blamed_json,
    entry_json,
    file_json,
    reason_text,
)
from refold.domain.errors import RefoldError, counted

if TYPE_CHECKING:
    from refold.projections.files.history import (
        BlamedLine,
        Entry,
        FileHistories,
        FileHistory,
    )
    from refold.store.session.session import Session

_MOST_CANDIDATES: Final = 5
_LONGEST_CANDIDATE: Final = 50  # columns
_TO_THE_MINUTE: Final = len("2026-03-16 10:00")
_WITH_LINE: Final = re.compile(r"(?P<file>.+):(?P<line>[1-9]\d{0,8})")


def blame(
    call: options.Call,
    file: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE",
            help="Path of a file, or its end; FILE:LINE for one line.  Default: list "
            "the files that --session changed.",
        ),
    ] = None,
    user: options.ReaderOption = None,
    session: Annotated[
        str | None,
        options.session_option(
            "Only this session and its sub-agents.  Default: all sessions of the user."
        ),
    ] = None,
) -> output.Result:
    """Show which events changed a file, which one wrote a line, or the changed files.

    Without a line, shows the reads and changes of the file in order, each with the
    message that asked for it.  With a line, shows the event that wrote it, and its
    diff.  Lines keep their event when other edits move them.  Without a file, lists
    the files that a session changed.  Changes that a person rejected count for nothing.

    The content comes from the recorded reads and edits.  Where a command or somebody
    else may have changed the file, the output says so: such lines are not guessed.
    """
    if file is None and session is None:
        raise typer.BadParameter("name a FILE, or a session with --session")
    sessions = _sessions(call, user, session)
    # The command may read many events, so other commands do not load this.
    from refold.store.files import file_histories

    histories = file_histories(sessions)
    if file is None:
        return _list_result(histories)
    path, line = _place(histories, file)
    history = histories.files[path]
    if line is None:
        return _history_result(history)
    return _line_result(history, line)


def _sessions(
    call: options.Call, user: str | None, session: str | None
) -> list[Session]:
    """Return the sessions to read.  Raises RefoldError if none or several users fit."""
    from refold.store.files import with_sub_agents

    store = call.store()
    session = options.optional_session_name(store, user, session)
    infos = list(options.sessions(store, user, session))
    if not infos:
        raise RefoldError("no sessions yet: `refold run` and `refold import` add them")
    options.only_user(infos)
    opened = [
        store.session(user_id=info.user_id, session_id=info.session_id)
        for info in infos
    ]
    return with_sub_agents(opened[0]) if session is not None else opened


def _place(histories: FileHistories, name: str) -> tuple[str, int | None]:
    """Return the path and the line that the argument means.

    Raises RefoldError if no file or several files end with the name.
    """
    paths = histories.matching(name)
    line: int | None = None
    with_line = _WITH_LINE.fullmatch(name)
    if not paths and with_line is not None:
        paths = histories.matching(with_line["file"])
        line = int(with_line["line"])
    if not paths:
        raise RefoldError(
            "no recorded event reads or changes such a file: `refold log` shows which "
            "files a run uses"
        )
    if len(paths) > 1:
        shown = [_end_of_path(path) for path in paths[:_MOST_CANDIDATES]]
        more = len(paths) - len(shown)
        names = ", ".join(shown) + (f" and {more} more" if more else "")
        number = counted(len(paths), "path")
        raise RefoldError(f"{number} end with that, give more of the path: {names}")
    return paths[0], line


def _end_of_path(path: str) -> str:
    """Return the path for an error; only its end if it is long."""
    return output.cut_left(output.one_line(path), _LONGEST_CANDIDATE)


def _list_result(histories: FileHistories) -> output.Result:
    """Return the changed files of a session, those that were changed last first."""
    changed = [history for history in histories.files.values() if history.changes]
    changed.sort(key=lambda history: history.changes[-1].ts, reverse=True)

    def show(screen: output.Screen) -> None:
        if not changed:
            screen.line("the session changed no file, as far as its calls name them")
            return
        rows: list[list[output.Part]] = []
        for history in changed:
            last = history.changes[-1].place
            rows.append(
                [
                    str(len(history.changes)),
                    (f"+{history.added}", "green"),
                    (f"-{history.removed}", "red"),
                    str(last.seq),
                    screen.path(history.path, taken=_BEFORE_PATH),
                ]
            )
        screen.table(("#edits", "#added", "#removed", "#last seq", "file"), rows)

    return output.Result([file_json(history) for history in changed], show)


def _history_result(history: FileHistory) -> output.Result:
    """Return the history of a file."""

    def show(screen: output.Screen) -> None:
        screen.line((screen.path(history.path), "bold"))
        screen.line(
            f"{counted(history.reads, 'read')}, "
            f"{counted(len(history.changes), 'change')}, "
            f"+{history.added} -{history.removed} lines"
            + (f", {history.rejected} rejected" if history.rejected else "")
        )
        rows: list[list[output.Part]] = []
        session_id = ""
        for entry in history.entries:
            if entry.place.session_id != session_id:
                _show_table(screen, rows)
                rows = []
                session_id = entry.place.session_id
                screen.line()
                screen.line("session ", (output.shown_in_line(session_id), "bold"))
            rows.append(_row(entry))
        _show_table(screen, rows)

    value = {
        "path": history.path,
        "reads": history.reads,
        "added": history.added,
        "removed": history.removed,
        "entries": [entry_json(entry) for entry in history.entries],
    }
    return output.Result(value, show)


_COLUMNS: Final = (
    "#seq",
    "time (UTC)",
    "use",
    "#added",
    "#removed",
    "requested by",
)
_BEFORE_PATH: Final = 38  # columns of a table before the path of a file
_ROOM: Final = 26  # columns of the last cell
_ROOM_FOR_MESSAGE: Final = 55  # columns of a message in a line of its own


def _show_table(screen: output.Screen, rows: list[list[output.Part]]) -> None:
    if rows:
        screen.table(_COLUMNS, rows)


def _row(entry: Entry) -> list[output.Part]:
    """Return the row of a use of a file; all cells fit 80 columns."""
    asked = ""
    if entry.asked.user is not None:
        asked = f"{entry.asked.user} {entry.asked.text}"
    if entry.kind == "unknown" and entry.reason is not None:
        asked = entry.detail or reason_text(entry.reason)
    changes = entry.kind in ("write", "edit", "delete", "rejected")
    return [
        str(entry.place.seq),
        values.moment(entry.ts)[:_TO_THE_MINUTE],
        entry.kind,
        str(entry.added) if changes else "",
        str(entry.removed) if changes else "",
        output.cut(output.shown_in_line(asked), _ROOM),
    ]


def _line_result(history: FileHistory, number: int) -> output.Result:
    """Return the origin of a line.  Raises RefoldError if the line is not known."""
    blamed = history.blame()
    line = next((line for line in blamed if line.number == number), None)
    if line is None:
        other_lines = counted(len(blamed), "other line")
        raise RefoldError(
            f"line {number} of the file is unknown: no recorded event shows or writes "
            f"it ({other_lines} known)"
        )

    def show(screen: output.Screen) -> None:
        _show_line(screen, history, line)

    value = {
        "path": history.path,
        **blamed_json(line),
        "entry": None if line.entry is None else entry_json(line.entry),
    }
    return output.Result(value, show)


def _show_line(screen: output.Screen, history: FileHistory, line: BlamedLine) -> None:
    text = "(only a part of the line was shown)" if line.text is None else line.text
    place = f"{history.path}:{line.number}"
    screen.line((screen.path(place), "bold"))
    screen.line("  ", output.shown_in_line(text))
    if line.doubt is not None:
        why = reason_text(line.doubt.reason, line.doubt.detail)
        since = f"seq {line.doubt.place.seq} of {line.doubt.place.session_id}"
        sentence = f"unknown since {since}: {why}"
        screen.line((output.shown_in_line(sentence), "yellow"))
    entry = line.entry
    if entry is None:
        return
    where = f"seq {entry.place.seq} of {output.shown_in_line(entry.place.session_id)}"
    time = values.moment(entry.ts)
    match line.origin:
        case "written":
            tool = output.shown_in_line(entry.tool)
            screen.line(f"written by {tool}, {where}, {time} UTC")
        case "found":
            screen.line(f"stood there when {where} first read it, {time} UTC")
        case _:
            screen.line(f"changed outside of the recorded edits before {where}, {time}")
    if line.origin == "written":
        _show_asked(screen, entry)
        screen.line()
        for diff in _diffs_with(entry, line.text or ""):
            _show_diff(screen, diff)


def _show_asked(screen: output.Screen, entry: Entry) -> None:
    asked = entry.asked
    if asked.user is not None:
        text = output.cut(output.shown_in_line(asked.text), _ROOM_FOR_MESSAGE)
        screen.line(f"requested by seq {asked.user}: ", text)
    calls: list[str] = []
    if asked.request is not None:
        calls.append(f"the request to the model is seq {asked.request}")
    if asked.response is not None:
        calls.append(f"the model's answer is seq {asked.response}")
    if calls:
        screen.line(", ".join(calls))


def _diffs_with(entry: Entry, text: str) -> list[str]:
    """Return the diffs of an entry that add a line; all of them if none does."""
    adding = [diff for diff in entry.diffs if f"+{text}" in diff.split("\n")]
    return adding or list(entry.diffs)


def _show_diff(screen: output.Screen, diff: str) -> None:
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for row in diff.split("\n"):
        screen.line((output.shown_in_line(row), styles.get(row[:1], "")))
