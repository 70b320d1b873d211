"""Questions to humans on the screen: the list of them, one with its bundle, a scan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.bundles import show_bundle
from refold.adapters.cli.output import complain, print_json
from refold.adapters.cli.previews import readable
from refold.adapters.cli.screen import Screen, shown_in_line
from refold.adapters.cli.wording import counted
from refold.domain.errors import InvalidEvent, RefoldError
from refold.projections.review.bundle import FORMAT, read_bundle
from refold.projections.review.rules import ReviewRules

if TYPE_CHECKING:
    from refold.domain.ports import SessionInfo
    from refold.projections.review.questions import Review
    from refold.store import SessionStore
    from refold.store.asking import Reviewed
    from refold.store.reviewing import Reviews

_STYLES = {"critical": "bold red", "high": "red", "medium": "yellow"}


def show_list(found: Reviews, *, every: bool, as_json: bool) -> None:
    """A line a question, the gravest first; of bundles, nothing.

    A session that cannot be read is told, and the exit code is 1 then.
    """
    _list(found, every=every, as_json=as_json)
    for one in found.unreadable:
        complain(f"session {one.session_id!r}: {one.error}")
    if found.unreadable:
        raise typer.Exit(1)


def _list(found: list[Review], *, every: bool, as_json: bool) -> None:
    if as_json:
        print_json([_without_bundle(one) for one in found])
        return
    screen = Screen()
    if found:
        head = (
            "severity",
            "asked (UTC)",
            "user",
            "session",
            "#seq",
            "rule",
            "question",
        )
        rows = [
            (
                one.severity,
                one.at[:19].replace("T", " "),
                one.user_id,
                one.session_id,
                str(one.seq),
                shown_in_line(one.trigger),
                shown_in_line(one.question),
                shown_in_line(_state(one)),
            )
            for one in found
        ]
        screen.table((*head, "decided"), rows)
    what = "question" if every else "open question"
    screen.line(counted(len(found), what))


def show(
    store: SessionStore, user: str, session: str, seq: int, *, as_json: bool
) -> None:
    """One question with what it was asked for."""
    store.session(user, session).head()  # says if it is not there
    found = store.reviews(user, session, open_only=False)
    one = next((one for one in found if one.seq == seq), None)
    if one is None:
        if found.unreadable:
            raise found.unreadable[0].error
        raise InvalidEvent(
            f"seq {seq} of the session is no question to a human: "
            "`refold review list --all` names those there are"
        )
    if as_json:
        print_json(one.to_json())
        return
    screen = Screen()
    severity = (one.severity, _STYLES.get(one.severity, ""))
    screen.line(severity, "  ", shown_in_line(one.question))
    screen.line("decided   ", shown_in_line(_state(one) or "not yet"))
    if one.decided is not None and one.decided.note:
        screen.body(one.decided.note, indent=" " * 10)
    if one.bundle is None:
        screen.line(("no rule asked it: it has no bundle", "dim"))
        return
    if one.bundle.get("format") == FORMAT:
        show_bundle(screen, read_bundle(_json(one.bundle)))
    else:
        screen.body(readable(one.bundle), indent=" " * 10)


def scan(
    store: SessionStore,
    rules: Path | None,
    user: str | None,
    session: str | None,
    *,
    as_json: bool,
) -> None:
    """Ask what the rules say of each session that takes a question; say what is next.

    A session that cannot be looked at is told, and the others are looked at; the exit
    code is 1 then.
    """
    chosen = ReviewRules.read(rules.read_bytes()) if rules else ReviewRules.default()
    done: list[tuple[SessionInfo, Reviewed]] = []
    skipped = failed = 0
    for info in opening.sessions(store, user, session):
        if info.status != "open" or info.session_id.startswith("_"):
            skipped += info.status != "open"
            continue
        try:
            reviewed = store.session(info.user_id, info.session_id).review(chosen)
        except RefoldError as error:
            failed += 1
            complain(f"session {info.session_id!r}: {error}")
            continue
        if reviewed.asked or reviewed.recoveries:
            done.append((info, reviewed))
    if as_json:
        sessions = [_as_json(*one) for one in done]
        print_json({"sessions": sessions, "skipped": skipped, "failed": failed})
    else:
        _told(done, skipped)
    if failed:
        raise typer.Exit(1)


def _told(done: list[tuple[SessionInfo, Reviewed]], skipped: int) -> None:
    screen = Screen()
    for info, reviewed in done:
        place = f"{info.user_id} / {info.session_id}"
        for seq in reviewed.asked:
            screen.line(shown_in_line(f"{place}: asked at seq {seq}"))
        for one in reviewed.recoveries:
            screen.line(
                shown_in_line(
                    f"{place}: {one.rule} at seq {one.seq}: the agent is to "
                ),
                (one.step, "bold"),
            )
    asked = sum(len(reviewed.asked) for _, reviewed in done)
    ended = f", {counted(skipped, 'closed or frozen session')} left out"
    screen.line(f"{counted(asked, 'question')} asked{ended if skipped else ''}")


def _state(one: Review) -> str:
    if one.decided is None:
        return "session closed" if one.closed else ""
    by = f" by {one.decided.by}" if one.decided.by else ""
    return f"{one.decided.decision}{by}"


def _without_bundle(one: Review) -> dict[str, Any]:
    return {key: value for key, value in one.to_json().items() if key != "bundle"}


def _as_json(info: SessionInfo, reviewed: Reviewed) -> dict[str, Any]:
    return {
        "user_id": info.user_id,
        "session_id": info.session_id,
        "asked": reviewed.asked,
        "recoveries": [one.to_json() for one in reviewed.recoveries],
    }


def _json(value: Any) -> bytes:
    import orjson

    return orjson.dumps(value)
