"""``refold verify`` and ``refold repair``: checks of stored data, and its repair."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.adapters.cli.options import (
    Call,
    JobsOption,
    SessionFilter,
    UserFilter,
    VerboseOption,
    optional_session_name,
    sessions,
)
from refold.adapters.cli.output import Progress, Result, Screen, mark, shown
from refold.domain.errors import InvalidConfiguration, RefoldError, counted

if TYPE_CHECKING:
    from refold.domain.erasure import Signed
    from refold.domain.ids import StreamId
    from refold.domain.ports import Damage, SessionInfo
    from refold.domain.seals import SealsVerified
    from refold.store.proofs.verification import Verified


def verify(
    call: Call,
    user: UserFilter = None,
    session: SessionFilter = None,
    chain_only: Annotated[
        bool,
        typer.Option(
            "--chain-only",
            help="Check only that the hash chains link up; uses no keys, so a "
            "rewritten unsealed end goes unnoticed.",
        ),
    ] = False,
    since_seal: Annotated[
        bool,
        typer.Option(
            "--since-seal",
            help="Check only the chains after the newest seal, and that seal; uses no "
            "keys, so a rewritten end goes unnoticed.",
        ),
    ] = False,
    proof: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Check only this proof of `refold prove`."),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Check only this certificate of `refold erase`."
        ),
    ] = None,
    salt: Annotated[
        str | None,
        typer.Option(
            metavar="HEX", help="Salt of the certificate: check that it is of --user."
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Check only this folder of `refold export --out`."
        ),
    ] = None,
    body: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Check only which recorded request of the proxy had exactly this "
            "body.",
        ),
    ] = None,
    request: Annotated[
        int | None,
        typer.Option(
            metavar="SEQ", help="Check --body against this request of --session."
        ),
    ] = None,
    public_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Public key.  Default: the key of the store."
        ),
    ] = None,
    jobs: JobsOption = 1,
    verbose: VerboseOption = False,
) -> Result:
    """Check that stored data is what was written.

    Checks chains, heads, envelopes, calls and their results, the sources of all
    compactions and the digests of all recorded requests.  Without --user and
    --session it also checks the tree of `refold seal` against its anchor.  Events
    that were redacted again are superseded: they are checked, but summaries and
    requests made from them are not.  Prints problems and a total; --verbose prints
    each session.  Exits with 1 if any check fails.
    """
    if proof is not None:
        return _verify_proof(call, proof, public_key)
    if export is not None:
        return _verify_export(export)
    if body is not None:
        return _verify_body(call, body, user, session, request)
    if request is not None:
        raise typer.BadParameter("use --request with --body")
    if certificate is not None:
        return _verify_certificate(call, certificate, public_key, user, session, salt)
    if since_seal and (chain_only or user is not None or session is not None):
        raise typer.BadParameter("use --since-seal alone: it checks all users")
    store = call.store()
    session = optional_session_name(store, user, session)
    sessions(store, user, session)  # raises if there are none
    checks: Iterable[tuple[SessionInfo | StreamId, Verified]]
    if since_seal:
        checks = store.verify_since_seal()
    else:
        checks = store.verify(
            user,
            session_id=session,
            chain_only=chain_only,
            executor=call.executor(jobs),
        )
    totals = dict.fromkeys(("sessions", *_COUNTED), 0)
    problems: list[Any] = []
    shows_progress = not call.as_json and not verbose and sys.stderr.isatty()
    with Progress(None, of="sessions", shows=shows_progress) as progress:
        for info, verified in checks:
            totals["sessions"] += 1
            for name in _COUNTED:
                totals[name] += getattr(verified, name)
            problems += verified.problems
            progress.advance("verified", 1)
            if verbose or verified.problems:
                progress.hide()
                call.remark(partial(_show_session, info=info, verified=verified))
    seals = None
    if since_seal:
        seals = store.seals.verify(newest=True)
    elif user is None and session is None:
        seals = store.verify_seals()
    if seals is not None:
        problems += seals.problems

    def show(screen: Screen) -> None:
        if seals is not None:
            _show_seals(screen, seals)
        checked = counted(totals["sessions"], "session")
        if problems:
            count = counted(len(problems), "problem")
            verdict = (f"{count} in {checked}", "bold red")
        else:
            holding = _verdict(totals, chain_only=chain_only, since_seal=since_seal)
            verdict = (f"{holding}: {checked}", "bold green")
        screen.line(mark(ok=not problems), verdict, f", {_counts(totals)}")
        if chain_only or since_seal:
            screen.line((_UNKEYED, "dim"))
        if since_seal:
            screen.line((_SKIPPED, "dim"))

    sealed = None
    if seals is not None:
        sealed = {name: getattr(seals, name) for name in _SEALS_COUNTED}
    value = {
        "ok": not problems,
        **totals,
        "seals": sealed,
        "problems": [problem.to_json() for problem in problems],
    }
    return Result(value, show, int(bool(problems)))


_UNKEYED: Final = (
    "no keys were used: only a full `refold verify` finds an unsealed end of a session "
    "that was rewritten together with its hashes"
)
_SKIPPED: Final = (
    "not checked: events before the newest seals, views, holds, freezes, and erasures"
)


def _verdict(totals: Mapping[str, int], *, chain_only: bool, since_seal: bool) -> str:
    """Return the words for a check without problems."""
    if since_seal:
        return "chains link up from the newest seals"
    if chain_only:
        return "chains link up"
    if totals["superseded"]:
        return "unchanged since it was written, except later redactions"
    return "unchanged since it was written"


_COUNTED = ("events", "compactions", "requests", "superseded", "superseded_digests")
_SEALS_COUNTED: Final = ("tree_heads", "leaves", "erased", "anchored", "unsealed")


def _show_session(
    screen: Screen, info: SessionInfo | StreamId, verified: Verified
) -> None:
    """Print a line about a checked session, and one for each problem."""
    screen.line(
        mark(ok=not verified.problems),
        shown(f"{info.user_id} / {info.session_id}"),
        (f"  {_counts(verified._asdict())}", "dim"),
    )
    for problem in verified.problems:
        text = ""
        if problem.stream != "main":
            text += f"stream {problem.stream[:12]} "
        if problem.seq is not None:
            text += f"seq {problem.seq}: "
        text += problem.detail
        screen.line("    ", (problem.code, "red"), "  ", shown(text))


def _show_seals(screen: Screen, seals: SealsVerified) -> None:
    """Print a line about the tree of seals, and one for each problem."""
    if not seals.tree_heads and not seals.problems:
        remark = "no seals yet: `refold seal` also proves later that nothing is missing"
        screen.line((remark, "dim"))
        return
    counts = ", ".join(
        (
            counted(seals.tree_heads, "tree head"),
            f"{seals.anchored:,} anchored",
            counted(seals.leaves, "leaf", "leaves"),
            f"{counted(seals.unsealed, 'stream')} not sealed to the end",
        )
    )
    screen.line(mark(ok=not seals.problems), "seals", (f"  {counts}", "dim"))
    for problem in seals.problems:
        text = ""
        if problem.user_id:
            text += f"{problem.user_id} / {problem.session_id} "
        if problem.seq is not None:
            text += f"{problem.seq}: "
        text += problem.detail
        screen.line("    ", (problem.code, "red"), "  ", shown(text))


def _counts(counts: Mapping[str, int]) -> str:
    """Return the numbers of checked items as text.

    Summaries and requests are events, too.
    """
    parts = [counted(counts["events"], "event")]
    included: list[str] = []
    if counts["compactions"]:
        included.append(counted(counts["compactions"], "compaction"))
    if counts["requests"]:
        included.append(counted(counts["requests"], "request"))
    if included:
        parts.append(f"including {' and '.join(included)}")
    if counts["superseded"]:
        parts.append(counted(counts["superseded"], "superseded event"))
    if counts["superseded_digests"]:
        parts.append(counted(counts["superseded_digests"], "superseded digest"))
    return ", ".join(parts)


def _verify_proof(call: Call, file: Path, public_key: Path | None) -> Result:
    """Check a proof; without a public key, against the store's tree heads, too."""
    from refold import auditor

    try:
        parsed = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        raise InvalidConfiguration(f"{file} is not a proof: it is not JSON") from None
    tree_heads: list[Any] | None = None
    if public_key is not None:
        key = _read_key(public_key)
    else:
        seals = call.store().seals
        key = seals.public_key()
        tree_heads = [head.to_json() for head in seals.heads()]
    try:
        detail = auditor.check(parsed, key, tree_heads)
        holds = True
    except auditor.Refused as refused:
        detail = f"does not hold: {refused}"
        holds = False
    except ValueError as error:
        raise InvalidConfiguration(f"{file}: {error}") from None

    def show(screen: Screen) -> None:
        screen.line(mark(ok=holds), shown(detail))

    return Result({"ok": holds, "detail": detail}, show, int(not holds))


def _read_key(file: Path) -> bytes:
    """Return the public key in a file."""
    from refold.adapters.keys.signatures import read_public_key

    return read_public_key(file.read_text("utf-8", errors="replace"))


def _verify_body(
    call: Call, file: Path, user: str | None, session: str | None, seq: int | None
) -> Result:
    """Look for the requests that had exactly the bytes of a file as their body.

    seq: only this request of the session.
    """
    from refold.adapters.proxy.history import wire_of
    from refold.adapters.proxy.macs import body_mac

    if seq is not None and session is None:
        raise typer.BadParameter("name the session of the request with --session")
    content = file.read_bytes()
    store = call.store()
    session = optional_session_name(store, user, session)
    matches: list[tuple[str, str, int]] = []
    checked = 0
    for info in sessions(store, user, session):
        if info.status == "erased":
            continue
        opened = store.session(user_id=info.user_id, session_id=info.session_id)
        codes: dict[int, Any] = {}
        for envelope in opened.events(types=("request",)):
            code = wire_of(envelope).get("mac")
            if code is not None and seq in (None, envelope.seq):
                codes[envelope.seq] = code
        if not codes:
            continue
        checked += len(codes)
        expected = body_mac(opened, content)
        for request_seq, code in codes.items():
            if code == expected:
                matches.append((info.user_id, info.session_id, request_seq))
    if seq is not None and not checked:
        raise RefoldError(f"seq {seq} is no request that the proxy recorded")

    def show(screen: Screen) -> None:
        size = counted(len(content), "byte")
        for user_id, session_id, request_seq in matches:
            place = shown(f"{user_id} / {session_id} seq {request_seq}")
            screen.line(mark(ok=True), place, f": the body had exactly these {size}")
        if not matches:
            requests = counted(checked, "request")
            screen.line(mark(ok=False), f"no body had exactly these {size}: {requests}")

    value = {
        "ok": bool(matches),
        "bytes": len(content),
        "requests": checked,
        "matches": [
            {"user_id": user_id, "session_id": session_id, "seq": request_seq}
            for user_id, session_id, request_seq in matches
        ],
    }
    return Result(value, show, int(not matches))


def _verify_export(folder: Path) -> Result:
    """Check a folder of an export against its manifest."""
    from refold.store.exports import check_export

    checked = check_export(folder)
    ok = not checked.problems

    def show(screen: Screen) -> None:
        for problem in checked.problems:
            screen.line(mark(ok=False), shown(f"{problem.path}: {problem.detail}"))
        if ok:
            owner = f" of user {checked.user_id!r}" if checked.user_id else ""
            screen.line(
                mark(ok=True), shown(f"the export{owner} is complete and unchanged")
            )

    value = {
        "ok": ok,
        "user_id": checked.user_id,
        "counts": checked.counts,
        "problems": [problem._asdict() for problem in checked.problems],
    }
    return Result(value, show, int(not ok))


def _verify_certificate(
    call: Call,
    file: Path,
    public_key: Path | None,
    user: str | None,
    session: str | None,
    salt: str | None,
) -> Result:
    """Check a certificate's signature and, with a salt, that it is of this user."""
    from refold.domain.erasure import Signed

    try:
        signed = Signed.read(file.read_bytes())
    except ValueError as error:
        raise RefoldError(f"{file}: {error}") from None
    problems = _signature_problems(call, signed, public_key)
    if salt is not None:
        problems += _subject_problems(signed, user, session, salt)

    def show(screen: Screen) -> None:
        for problem in problems:
            screen.line(mark(ok=False), problem)
        if problems:
            return
        screen.line(mark(ok=True), "signed by this store's key")
        for name in ("act", "scope", "completed_at", "reason", "certificate_id"):
            value = shown(signed.statement.get(name, ""))
            screen.line(f"  {name.replace('_', ' '):16}", value)

    value = {"ok": not problems, "certificate": signed.statement, "problems": problems}
    return Result(value, show, int(bool(problems)))


def _signature_problems(
    call: Call, signed: Signed, public_key: Path | None
) -> list[str]:
    """Return the problems of a certificate's signature.

    Without a public key, the certificate must also be stored.
    """
    from refold.adapters.keys.signatures import signed_by

    stored: list[Any] | None = None
    if public_key is not None:
        key = _read_key(public_key)
    else:
        erasures = call.store().erasures
        key = erasures.public_key()
        stored = [certificate.statement for certificate in erasures.certificates()]
    if not signed_by(key, signed.signature, signed.message()):
        return ["not signed by this key: forged, or of another store"]
    if stored is not None and signed.statement not in stored:
        return ["signed by this store, but removed from it"]
    return []


def _subject_problems(
    signed: Signed, user: str | None, session: str | None, salt: str
) -> list[str]:
    """Return a problem if the certificate is not of this user or session."""
    from refold.domain.erasure import subject

    if user is None:
        raise typer.BadParameter("give --salt together with --user")
    try:
        secret = bytes.fromhex(salt)
    except ValueError:
        raise typer.BadParameter("a salt is 64 hex digits") from None
    sessions = None if session is None else (session,)
    if subject(secret, user, sessions) != signed.statement.get("subject"):
        return ["of another user, or with the salt of another certificate"]
    return []


def repair(
    call: Call,
    user: UserFilter = None,
    session: SessionFilter = None,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Repair derived data.  Default: only report."),
    ] = False,
) -> Result:
    """Report damage, and repair derived data.

    --apply rebuilds derived data from the events: heads and stored views.  It
    deletes blobs that no event names, and keys that an interrupted redaction left.
    It never changes events: it reports damaged ones, and `refold verify` keeps
    finding them.  Exits with 1 if any damage is left.
    """
    if session is not None and user is None:
        raise typer.BadParameter("--session needs --user")
    store = call.store()
    with suppress(RefoldError):  # repair finds a session whose head is lost
        session = optional_session_name(store, user, session)
    damages: list[Damage] = []
    checked = 0

    def report() -> Result:
        return _repaired(checked, damages, changed=apply)

    with call.reporting(report) if apply else nullcontext():
        for _, damages_of_session in store.repair(
            user, session_id=session, apply=apply
        ):
            checked += 1
            damages += damages_of_session
    if not checked:
        sessions(store, user, session)  # raises if there are none
    return report()


def _repaired(checked: int, damages: list[Damage], *, changed: bool) -> Result:
    """Return the report of a repair so far."""
    mended = [damage for damage in damages if damage.mended]
    lost = [damage for damage in damages if not damage.mendable]
    mendable = [damage for damage in damages if damage.mendable and not damage.mended]
    value = {
        "sessions": checked,
        "mended": len(mended),
        "mendable": len(mendable),
        "lost": len(lost),
        "damages": [damage.to_json() for damage in damages],
    }
    code = 1 if len(mended) < len(damages) else 0

    def show(screen: Screen) -> None:
        _show_damages(screen, value, damages)

    return Result(value, show, code, changed=changed)


# The words for the numbers of damages, by their keys in the report.
_FIGURES: Final = {
    "mended": "repaired",
    "mendable": "to repair: add --apply",
    "lost": "beyond repair: restore them from a backup",
}


def _show_damages(
    screen: Screen, figures: dict[str, Any], damages: list[Damage]
) -> None:
    """Print a line for each damage, and the totals."""
    for damage in damages:
        user_id, session_id, stream = damage.stream
        name = f"{user_id} / {session_id}"
        if stream != "main":
            name += f" {stream[:12]}"
        if damage.mended:
            sign = mark(ok=True)
        elif damage.mendable:
            sign = mark(ok=None)
        else:
            sign = mark(ok=False)
        screen.line(sign, shown(name), f"  {damage.kind}: ", shown(damage.detail))
    parts = [f"{counted(figures['sessions'], 'session')} checked"]
    for key, meaning in _FIGURES.items():
        if figures[key]:
            parts.append(f"{figures[key]} {meaning}")
    if not damages:
        parts.append("no damage")
    screen.line("; ".join(parts))
