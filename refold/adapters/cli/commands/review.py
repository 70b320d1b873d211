"""``refold review`` and ``refold replay``: questions to humans, and their bundles."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import orjson
import typer

from refold.adapters.cli import options
from refold.adapters.cli.events import STYLES
from refold.adapters.cli.output import Result, Screen, complain, names_of, shown_in_line
from refold.adapters.display.events import DIGEST, preview, readable
from refold.domain.errors import InvalidEvent, RefoldError, counted
from refold.projections.review.bundle import FORMAT, fires_again, read_bundle
from refold.projections.review.rules import ReviewRules

if TYPE_CHECKING:
    from refold.domain.ports import SessionInfo
    from refold.projections.review.bundle import Bundle, Entry
    from refold.projections.review.incidents import Review
    from refold.store import Session, SessionStore
    from refold.store.reviews import Reviewed


Action = Literal["list", "show", "decide", "scan"]
"""An action on questions to humans."""

Decision = Literal["accept", "reject", "corrected", "dismissed"]
"""The answer of a human to a question."""


def review(
    call: options.Call,
    action: Annotated[
        Action, typer.Argument(metavar="ACTION", help="scan, list, show or decide.")
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="SESSION", help="show, decide: session of the question."
        ),
    ] = None,
    seq: Annotated[
        int | None,
        typer.Argument(metavar="SEQ", help="show, decide: seq of the question."),
    ] = None,
    user: Annotated[
        str | None,
        options.user_option(
            "decide: user of the session; show: the same, by default the only user; "
            "list, scan: only this user."
        ),
    ] = None,
    session: options.SessionFilter = None,
    every: Annotated[
        bool, typer.Option("--all", help="list: include decided questions.")
    ] = False,
    decision: Annotated[
        Decision | None, typer.Option(help="decide: the decision.")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="decide: name of the person who decided.  Default: your login.",
        ),
    ] = None,
    note: Annotated[
        str, typer.Option(metavar="TEXT", help="decide: the reason; it is redacted.")
    ] = "",
    rules: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="scan: your own rules in TOML, instead of the built-in ones.",
        ),
    ] = None,
) -> Result:
    """Find, list, show and decide questions to humans.

    scan applies the rules to all sessions and adds new questions; list shows open
    questions; show and decide need SESSION and SEQ, decide needs --user, too.
    """
    if action == "decide" and user is None:
        raise typer.BadParameter("decide needs --user")
    question = _question_of(name, seq, user)
    needs_question = action in ("show", "decide")
    if needs_question != (question is not None):
        raise typer.BadParameter(
            "give show and decide SESSION and SEQ; give list and scan neither of them"
        )
    if (action == "decide") != (decision is not None):
        raise typer.BadParameter("give --decision with decide, and only then")

    store = call.store()
    session = options.optional_session_name(store, user, session)
    if question is not None:
        opened = options.found_session(store, question.user, question.session)
    if question is not None and decision is not None:
        receipt = opened.reviews.decide(
            question.seq, decision, by=options.operator(by), note=note
        )
        return Result(
            {"seq": receipt.last_seq, "decision": decision},
            f"recorded at seq {receipt.last_seq}: {decision}",
        )
    if question is not None:
        return _question(store, opened, question.seq)
    if action == "scan":
        return _scan(store, rules, user, session)
    if user is not None or session is not None:
        options.sessions(store, user, session)  # raises if there are none
    return _list(store, user, session, every=every)


class _QuestionPlace(NamedTuple):
    """The session of a question, and its seq there.

    user: None means the only user who has such a session.
    """

    user: str | None
    session: str
    seq: int


def _question_of(
    session: str | None, seq: int | None, user: str | None
) -> _QuestionPlace | None:
    """Return the place of the question that the arguments name; None if they name none.

    Raises typer.BadParameter for an incomplete place.
    """
    if session is None and seq is None:
        return None
    if session is None or seq is None:
        raise typer.BadParameter("name a question by SESSION and SEQ")
    return _QuestionPlace(user, session, seq)


_HEAD: Final = (
    "severity",
    "asked (UTC)",
    "user",
    "session",
    "#seq",
    "rule",
    "question",
    "decided",
)


def _list(
    store: SessionStore, user: str | None, session: str | None, *, every: bool
) -> Result:
    """Return a table of questions without their bundles, the most severe first."""
    reviews = store.reviews.list(user, session_id=session, open_only=not every)
    for unreadable in reviews.unreadable:
        complain(f"session {unreadable.session_id!r}: {unreadable.error}")

    def show(screen: Screen) -> None:
        if reviews:
            screen.table(_HEAD, map(_row, reviews))
        screen.line(counted(len(reviews), "question" if every else "open question"))

    values = [review.to_json() for review in reviews]
    for value in values:
        value.pop("bundle", None)
    return Result(values, show, int(bool(reviews.unreadable)))


def _row(review: Review) -> list[str]:
    """Return the row of a question in the table."""
    return [
        review.severity,
        review.at[:19].replace("T", " "),
        review.user_id,
        review.session_id,
        str(review.seq),
        shown_in_line(review.trigger),
        shown_in_line(review.question),
        shown_in_line(_decision(review)),
    ]


def _question(store: SessionStore, session: Session, seq: int) -> Result:
    """Return a question with its bundle.  Raises InvalidEvent for another event."""
    session.head()  # raises if it is missing
    reviews = store.reviews.list(
        session.user_id, session_id=session.session_id, open_only=False
    )
    review = next((review for review in reviews if review.seq == seq), None)
    if review is None:
        if reviews.unreadable:
            raise reviews.unreadable[0].error
        raise InvalidEvent(
            f"seq {seq} of the session is not a question to a human: "
            "`refold review list --all` lists the questions"
        )

    def show(screen: Screen) -> None:
        severity = (review.severity, STYLES["severities"].get(review.severity, ""))
        screen.line(severity, "  ", shown_in_line(review.question))
        screen.line("decided   ", shown_in_line(_decision(review) or "not yet"))
        if review.decided is not None and review.decided.note:
            screen.body(review.decided.note, indent=" " * 10)
        if review.bundle is None:
            screen.line(("not asked by a rule: there is no bundle", "dim"))
        elif review.bundle.get("format") == FORMAT:
            _show_bundle(screen, read_bundle(orjson.dumps(review.bundle)))
        else:
            screen.body(readable(review.bundle), indent=" " * 10)

    return Result(review.to_json, show)


def _decision(review: Review) -> str:
    """Return the decision and its author as text; empty for an open question."""
    if review.decided is None:
        return "session closed" if review.closed else ""
    text = str(review.decided.decision)
    if review.decided.by:
        text += f" by {review.decided.by}"
    return text


def _scan(
    store: SessionStore, rules: Path | None, user: str | None, session: str | None
) -> Result:
    """Apply the rules to each open session, and add their questions.

    If a session cannot be read, the others are scanned and the exit code is 1.
    """
    if rules is None:
        review_rules = ReviewRules.default()
    else:
        review_rules = ReviewRules.read(rules.read_bytes())
    scanned: list[tuple[SessionInfo, Reviewed]] = []
    skipped = 0
    failed = 0
    for info in options.sessions(store, user, session):
        if info.status != "open":
            skipped += 1
            continue
        if info.is_internal:
            continue
        opened = store.session(user_id=info.user_id, session_id=info.session_id)
        try:
            reviewed = opened.reviews.ask(review_rules)
        except RefoldError as error:
            failed += 1
            complain(f"session {info.session_id!r}: {error}")
            continue
        if reviewed.asked or reviewed.recoveries:
            scanned.append((info, reviewed))

    def show(screen: Screen) -> None:
        asked = 0
        for info, reviewed in scanned:
            asked += len(reviewed.asked)
            place = f"{info.user_id} / {info.session_id}"
            for seq in reviewed.asked:
                screen.line(shown_in_line(f"{place}: asked at seq {seq}"))
            for recovery in reviewed.recoveries:
                rule = f"{recovery.rule} at seq {recovery.seq}"
                advice = f"{place}: {rule}: the agent should "
                screen.line(shown_in_line(advice), (recovery.step, "bold"))
        total = f"{counted(asked, 'question')} asked"
        if skipped:
            total += f", {counted(skipped, 'closed or frozen session')} skipped"
        screen.line(total)

    sessions = []
    for info, reviewed in scanned:
        recoveries = [recovery.to_json() for recovery in reviewed.recoveries]
        sessions.append(
            {**names_of(info), "asked": reviewed.asked, "recoveries": recoveries}
        )
    value = {"sessions": sessions, "skipped": skipped, "failed": failed}
    return Result(value, show, int(failed > 0))


# A bundle has at most 64 KiB, and the JSON of its question a little more.
_MOST_BYTES: Final = 4 << 20


def replay(
    bundle: Annotated[
        str,
        typer.Argument(metavar="BUNDLE", help="File with a review bundle; - is stdin."),
    ],
) -> Result:
    """Show a review bundle and apply its rule again.

    Reads the output of `refold review show --json`, or the bundle in it.  Opens no
    store.  Exits with 1 if the rule does not fire.
    """
    parsed = read_bundle(_read(bundle))
    fires = fires_again(parsed)
    value = {
        "bundle": parsed.to_json(),
        "says": parsed.description,
        "fires_again": fires,
    }
    return Result(value, lambda screen: _show_bundle(screen, parsed), int(not fires))


def _read(name: str) -> bytes:
    """Return the content of a file, or of stdin for ``-``.

    Raises RefoldError if it is too long for a bundle.
    """
    if name == "-":
        data = sys.stdin.buffer.read(_MOST_BYTES + 1)
    else:
        with Path(name).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise RefoldError(
            f"{name} is over {_MOST_BYTES:,} bytes: this is not a review bundle"
        )
    return data


_MAX_LINES: Final = 12  # printed of an event


def _show_bundle(screen: Screen, bundle: Bundle) -> None:
    """Print a bundle, and whether its rule fires again.

    Raises InvalidEvent, before anything is printed, if the rule cannot be applied.
    """
    verdict = "fires again" if fires_again(bundle) else "does not fire again"
    _show_facts(screen, bundle)
    previous_seq = 0
    for entry in bundle.events:
        if previous_seq and entry.seq > previous_seq + 1:
            screen.line(("…", "dim"))
        _show_entry(screen, entry, marked=entry.seq in bundle.where.seqs)
        previous_seq = entry.seq
    if bundle.left_out:
        left_out = f"{counted(bundle.left_out, 'event')} of the turn left out"
        screen.line((left_out, "dim"))
    if bundle.refused:
        screen.line("no events: ", shown_in_line(bundle.refused))
    screen.line(f"the rule {verdict} on these events (*)")


def _show_facts(screen: Screen, bundle: Bundle) -> None:
    """Print the rule of a bundle, and its place, version, and request."""
    where = bundle.where
    rule = bundle.rule
    name = shown_in_line(rule.get("name", "?"))
    screen.line((name, "bold"), "  ", shown_in_line(bundle.description))
    place = f"{where.user_id} / {where.session_id}, seq {where.first_seq}"
    if where.at_seq != where.first_seq:
        place += f" to {where.at_seq}"
    screen.line("where     ", shown_in_line(place))
    steps: Any = rule.get("steps") or ["none"]
    screen.line("before    ", shown_in_line(", ".join(map(str, steps))))
    version = f"refold {bundle.refold}, rules {bundle.rules[:DIGEST]}"
    screen.line("asked by  ", shown_in_line(version))
    strategy: Any = bundle.strategy or {}
    parts = {
        "strategy": strategy.get("name"),
        "model": bundle.model,
        "request": bundle.request_digest and bundle.request_digest[:DIGEST],
        "system": bundle.system_digest and bundle.system_digest[:DIGEST],
    }
    sent = ", ".join(f"{key} {value}" for key, value in parts.items() if value)
    if sent:
        screen.line("sent      ", shown_in_line(sent))


def _show_entry(screen: Screen, entry: Entry, *, marked: bool) -> None:
    """Print an event of a bundle; ``marked`` if the rule fires on it."""
    content = preview(entry.event())
    style = STYLES["events"].get(entry.type, "dim")
    if content.failed:
        style = "bold red"
    sign = "*" if marked else " "
    details = f"  {content.note}"
    if entry.agent:
        details += f"  agent {entry.agent}"
    for warning in entry.warnings:
        details += f"  [{warning.code}]"
    screen.line(
        (f"{entry.seq:>5}", "dim"),
        f" {sign} ",
        (entry.type, style),
        shown_in_line(details),
    )
    screen.body(content.body, indent=" " * 8, max_lines=_MAX_LINES)
