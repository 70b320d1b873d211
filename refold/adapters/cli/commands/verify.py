"""``refold verify`` and ``refold repair``: what is as it was written, and what not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.adapters.cli.options import (
    Call,
    JobsOption,
    SessionFilter,
    UserFilter,
    sessions,
)
from refold.adapters.cli.output import Result, Screen, mark, shown
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
    public_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Public key.  Default: the key of the store."
        ),
    ] = None,
    jobs: JobsOption = 1,
) -> Result:
    """Check that stored data is what was written.

    Checks chains, heads, envelopes, calls and their results, the sources of all
    compactions and the digests of all recorded requests.  Without --user and
    --session it also checks the tree of `refold seal` against its anchor.  Events
    that were redacted again are superseded: they are checked, what was made of them
    is not. Exits with 1 if anything does not hold.
    """
    if proof is not None:
        return _proof(call, proof, public_key)
    if export is not None:
        return _exported(export)
    if certificate is not None:
        return _certificate(call, certificate, public_key, user, session, salt)
    totals = dict.fromkeys(("sessions", *_COUNTED), 0)
    problems: list[Any] = []
    store, found = call.store(), None
    if since_seal:
        if chain_only or user is not None or session is not None:
            raise typer.BadParameter("--since-seal stands alone: it is of all users")
        found = store.verify_since_seal()
    sessions(store, user, session)
    how: dict[str, Any] = {"session_id": session, "executor": call.executor(jobs)}
    proved = found or store.verify(user, chain_only=chain_only, **how)
    for info, verified in proved:
        totals["sessions"] += 1
        for what in _COUNTED:
            totals[what] += getattr(verified, what)
        problems += verified.problems
        call.remark(partial(_session, info=info, verified=verified))
    seals = store.seals.verify(newest=True) if since_seal else None
    if not since_seal and user is None and session is None:
        seals = store.verify_seals()
    if seals is not None:
        problems += seals.problems

    def show(screen: Screen) -> None:
        if seals is not None:
            _seals(screen, seals)
        looked = counted(totals["sessions"], "session")
        verdict = (
            f"{_verdict(totals, chain_only, since_seal)}: {looked}",
            "bold green",
        )
        if problems:
            found = counted(len(problems), "problem")
            verdict = (f"{found} in {looked}", "bold red")
        screen.line(verdict, f", {_counts(totals)}")
        if chain_only or since_seal:
            screen.line((_UNKEYED, "dim"))

    told = {
        "ok": not problems,
        **totals,
        "seals": seals and {name: getattr(seals, name) for name in _SEALS_COUNTED},
        "problems": [problem.to_json() for problem in problems],
    }
    return Result(told, show, int(bool(problems)))


_UNKEYED: Final = (
    "no keys were used: only a full `refold verify` finds an unsealed end of a session "
    "that was rewritten together with its hashes"
)


def _verdict(totals: Mapping[str, int], chain_only: bool, since_seal: bool) -> str:
    """What holds, in the words of what was checked."""
    if since_seal:
        return "chains link up from the newest seals"
    if chain_only:
        return "chains link up"
    what = "all that is not superseded" if totals["superseded"] else "all"
    return f"{what} is as it was written"


_COUNTED = ("events", "compactions", "requests", "superseded", "superseded_digests")
_SEALS_COUNTED: Final = ("tree_heads", "leaves", "erased", "anchored", "unsealed")


def _session(screen: Screen, info: SessionInfo | StreamId, verified: Verified) -> None:
    screen.line(
        mark(not verified.problems),
        shown(f"{info.user_id} / {info.session_id}"),
        (f"  {_counts(verified._asdict())}", "dim"),
    )
    for problem in verified.problems:
        stream = "" if problem.stream == "main" else f"stream {problem.stream[:12]} "
        seq = "" if problem.seq is None else f"seq {problem.seq}: "
        what = shown(f"{stream}{seq}{problem.detail}")
        screen.line("    ", (problem.code, "red"), "  ", what)


def _seals(screen: Screen, seals: SealsVerified) -> None:
    if not seals.tree_heads and not seals.problems:
        screen.line(("nothing is sealed: `refold seal` does it", "dim"))
        return
    heads, leaves = counted(seals.tree_heads, "tree head"), seals.leaves
    said = (
        f"  {heads}, {seals.anchored:,} anchored, {counted(leaves, 'leaf', 'leaves')}"
    )
    rest = f", {counted(seals.unsealed, 'stream')} not sealed to the end"
    screen.line(mark(not seals.problems), "seals", (said + rest, "dim"))
    for problem in seals.problems:
        whose = f"{problem.user_id} / {problem.session_id} " if problem.user_id else ""
        place = "" if problem.seq is None else f"{problem.seq}: "
        what = shown(f"{whose}{place}{problem.detail}")
        screen.line("    ", (problem.code, "red"), "  ", what)


def _counts(counts: Mapping[str, int]) -> str:
    kinds = ("event", "compaction", "request")
    told = [counted(counts[f"{one}s"], one) for one in kinds]
    for name, what in (("superseded", "event"), ("superseded_digests", "digest")):
        if counts[name]:
            told.append(counted(counts[name], f"superseded {what}"))
    return ", ".join(told)


def _proof(call: Call, file: Path, public_key: Path | None) -> Result:
    from refold import auditor

    try:
        parsed = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        raise InvalidConfiguration(f"{file} is not JSON, so it is no proof") from None
    anchored = None  # the tree heads that are known to be the store's
    if public_key is not None:
        key = _key(public_key)
    else:
        seals = call.store().seals
        key, anchored = seals.public_key(), [head.to_json() for head in seals.heads()]
    try:
        holds, said = True, auditor.check(parsed, key, anchored)
    except auditor.Refused as refused:
        holds, said = False, f"does not hold: {refused}"
    except ValueError as error:
        raise InvalidConfiguration(f"{file}: {error}") from None
    told = {"ok": holds, "detail": said}
    return Result(told, lambda out: out.line(mark(holds), shown(said)), int(not holds))


def _key(file: Path) -> bytes:
    from refold.adapters.keys.signatures import read_public_key

    return read_public_key(file.read_text("utf-8", errors="replace"))


def _exported(folder: Path) -> Result:
    from refold.store.exports import check_export

    checked = check_export(folder)
    ok = not checked.problems

    def show(screen: Screen) -> None:
        for problem in checked.problems:
            screen.line(mark(False), shown(f"{problem.path}: {problem.detail}"))
        if ok:
            whose = f" of user {checked.user_id!r}" if checked.user_id else ""
            said = f"all{whose} is there, as it was written"
            screen.line(mark(True), shown(said))

    told = {"ok": ok, "user_id": checked.user_id, "counts": checked.counts}
    told["problems"] = [problem._asdict() for problem in checked.problems]
    return Result(told, show, int(not ok))


def _certificate(
    call: Call,
    file: Path,
    public_key: Path | None,
    user: str | None,
    session: str | None,
    salt: str | None,
) -> Result:
    """Check its signature, and with a salt whose it is."""
    from refold.domain.erasure import Signed

    try:
        signed = Signed.read(file.read_bytes())
    except ValueError as error:
        raise RefoldError(f"{file}: {error}") from None
    problems = _forged(call, signed, public_key)
    if salt is not None:
        problems += _misattributed(signed, user, session, salt)

    def show(screen: Screen) -> None:
        for problem in problems:
            screen.line(mark(False), problem)
        if problems:
            return
        screen.line(mark(True), "signed by this store's key")
        for name in ("act", "scope", "completed_at", "reason", "certificate_id"):
            said = shown(signed.statement.get(name, ""))
            screen.line(f"  {name.replace('_', ' '):16}", said)

    told = {"ok": not problems, "certificate": signed.statement, "problems": problems}
    return Result(told, show, int(bool(problems)))


def _forged(call: Call, signed: Signed, public_key: Path | None) -> list[str]:
    from refold.adapters.keys.signatures import signed_by

    kept: list[Any] | None = None
    if public_key is not None:
        key = _key(public_key)
    else:
        erasures = call.store().erasures
        key = erasures.public_key()
        kept = [one.statement for one in erasures.certificates()]
    if not signed_by(key, signed.signature, signed.message()):
        return ["not signed by this key: forged, or of another store"]
    if kept is not None and signed.statement not in kept:
        return ["signed by this store, but removed from it"]
    return []


def _misattributed(
    signed: Signed, user: str | None, session: str | None, salt: str
) -> list[str]:
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
    finding them. Exits with 1 if any damage is left.
    """
    if session is not None and user is None:
        raise typer.BadParameter("--session needs --user")
    store = call.store()
    found: list[Damage] = []
    looked = 0

    def report() -> Result:
        return _repaired(looked, found, acted=apply)

    with call.reporting(report) if apply else nullcontext():
        for _, damages in store.repair(user, session_id=session, apply=apply):
            looked += 1
            found += damages
    if not looked:
        sessions(store, user, session)
    return report()


def _repaired(looked: int, found: list[Damage], *, acted: bool) -> Result:
    """What a repair found and did, as far as it came."""
    told = {
        "sessions": looked,
        "mended": sum(damage.mended for damage in found),
        "mendable": sum(damage.mendable and not damage.mended for damage in found),
        "lost": sum(not damage.mendable for damage in found),
        "damages": [damage.to_json() for damage in found],
    }
    left = any(not damage.mended for damage in found)
    return Result(
        told, lambda screen: _damages(screen, told, found), int(left), acted=acted
    )


_FIGURES = {
    "mended": "repaired",
    "mendable": "to repair: add --apply",
    "lost": "beyond repair: restore them from a backup",
}


def _damages(screen: Screen, told: dict[str, Any], found: list[Damage]) -> None:
    for damage in found:
        user_id, session_id, stream = damage.stream
        where = f"{user_id} / {session_id}"
        name = shown(where if stream == "main" else f"{where} {stream[:12]}")
        ok = True if damage.mended else None if damage.mendable else False
        screen.line(mark(ok), name, f"  {damage.kind}: ", shown(damage.detail))
    parts = [f"{counted(told['sessions'], 'session')} checked"]
    parts += [f"{told[name]} {what}" for name, what in _FIGURES.items() if told[name]]
    screen.line("; ".join(parts if found else [*parts, "no damage"]))
