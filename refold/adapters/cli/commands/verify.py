"""``refold verify``: prove that what is stored is what was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.adapters.cli import options as opening
from refold.adapters.cli.options import Json, SomeSession, SomeUser
from refold.adapters.cli.output import print_json
from refold.domain.errors import RefoldError

if TYPE_CHECKING:
    from refold.adapters.cli.output import Screen
    from refold.domain.erasure import Signed
    from refold.domain.ports import SessionInfo
    from refold.domain.seals import SealsVerified
    from refold.store.verification import Verified


def check_certificate(
    context: typer.Context,
    file: Path,
    public_key: Path | None,
    *,
    user: str | None,
    session: str | None,
    salt: str | None,
    as_json: bool,
) -> None:
    """Check its signature, and with a salt whose it is; exits with 1 if not."""
    from refold.domain.erasure import Signed

    try:
        signed = Signed.read(file.read_bytes())
    except ValueError as error:
        raise RefoldError(f"{file}: {error}") from None
    problems = _problems(context, signed, public_key)
    if salt is not None:
        problems += _of(signed, user, session, salt)
    told = {"ok": not problems, "certificate": signed.statement, "problems": problems}
    if as_json:
        print_json(told)
    else:
        _show(signed.statement, problems)
    if problems:
        raise typer.Exit(1)


def _problems(
    context: typer.Context, signed: Signed, public_key: Path | None
) -> list[str]:
    from refold.adapters.keys.signatures import read_public_key, signed_by

    kept: list[Signed] = []
    if public_key is not None:
        key = read_public_key(public_key.read_text("utf-8", errors="replace"))
    else:
        with opening.existing(context) as store:
            key, kept = store.public_key(), store.certificates()
    if not signed_by(key, signed.signature, signed.message()):
        return ["it is not signed by this key: it is forged, or of another store"]
    if public_key is None and signed.statement not in [one.statement for one in kept]:
        return ["the store signed it, and does not have it: it was taken out"]
    return []


def _of(signed: Signed, user: str | None, session: str | None, salt: str) -> list[str]:
    from refold.domain.erasure import subject

    if user is None:
        raise typer.BadParameter("--salt needs --user: whose it is said to be")
    try:
        secret = bytes.fromhex(salt)
    except ValueError:
        raise typer.BadParameter("a salt is 64 hex digits") from None
    sessions = None if session is None else (session,)
    if subject(secret, user, sessions) != signed.statement.get("subject"):
        return ["it is of another user, or the salt is another's"]
    return []


def _show(statement: dict[str, Any], problems: list[str]) -> None:
    from refold.adapters.cli.output import Screen, shown

    screen = Screen()
    for problem in problems:
        screen.line(("✗ ", "bold red"), problem)
    if problems:
        return
    screen.line(("✓ ", "bold green"), "signed by this store's key")
    for name in ("act", "scope", "completed_at", "reason", "certificate_id"):
        screen.line(f"  {name.replace('_', ' '):16}", shown(statement.get(name, "")))


def check_exported(folder: Path, as_json: bool) -> None:
    """Say whether the export is whole and as it was written; exit with 1 if not."""
    from refold.store.exports import check_export

    checked = check_export(folder)
    ok = not checked.problems
    if as_json:
        problems = [problem.to_json() for problem in checked.problems]
        counts, user = checked.counts, checked.user_id
        print_json({"ok": ok, "user_id": user, "counts": counts, "problems": problems})
    else:
        from refold.adapters.cli.output import Screen, shown

        screen = Screen()
        for problem in checked.problems:
            screen.line(("✗ ", "bold red"), shown(f"{problem.path}: {problem.detail}"))
        if ok:
            said = f"all of user {checked.user_id!r} is there, as it was written"
            screen.line(("✓ ", "bold green"), shown(said))
    if not ok:
        raise typer.Exit(1)


_SEALS_COUNTED = ("tree_heads", "leaves", "erased", "anchored", "unsealed")


def counts_of(seals: SealsVerified) -> dict[str, int]:
    """The counts, by name."""
    return {name: getattr(seals, name) for name in _SEALS_COUNTED}


def show_seals(screen: Screen, seals: SealsVerified) -> None:
    """The tree in a line, what is wrong with it below."""
    from refold.adapters.cli.output import counted, shown

    if not seals.tree_heads and not seals.problems:
        screen.line(("nothing is sealed: `refold seal` signs what is there", "dim"))
        return
    ok = not seals.problems
    said = [
        counted(seals.tree_heads, "tree head"),
        f"{seals.anchored:,} anchored",
        counted(seals.leaves, "leaf", "leaves"),
        counted(seals.unsealed, "stream") + " not sealed to the end",
    ]
    screen.line(
        ("✓ " if ok else "✗ ", "bold green" if ok else "bold red"),
        "seals",
        (f"  {', '.join(said)}", "dim"),
    )
    for problem in seals.problems:
        whose = f"{problem.user_id} / {problem.session_id} " if problem.user_id else ""
        place = "" if problem.seq is None else f"{problem.seq}: "
        what = shown(f"{whose}{place}{problem.detail}")
        screen.line("    ", (problem.code, "red"), "  ", what)


def check_proof(
    context: typer.Context, proof: Path, public_key: Path | None, as_json: bool
) -> None:
    """Check a proof with the key in that file, or with the store's; exits with 1."""
    from refold import auditor
    from refold.domain.errors import InvalidConfiguration

    parsed = _parsed(proof)
    key, anchored = _trusted(context, public_key)
    try:
        holds, said = True, auditor.check(parsed, key, anchored)
    except auditor.Refused as refused:
        holds, said = False, f"does not hold: {refused}"
    except ValueError as error:
        raise InvalidConfiguration(f"{proof}: {error}") from None
    if as_json:
        print_json({"ok": holds, "detail": said})
    else:
        from refold.adapters.cli.output import Screen, shown

        Screen().line(("✓ " if holds else "✗ ", "bold"), shown(said))
    if not holds:
        raise typer.Exit(1)


def _parsed(proof: Path) -> Any:
    from refold.domain.errors import InvalidConfiguration

    try:
        return json.loads(proof.read_bytes())
    except (ValueError, RecursionError):
        raise InvalidConfiguration(f"{proof} is no JSON: it is no proof") from None


def _trusted(context: typer.Context, public_key: Path | None) -> tuple[bytes, Any]:
    """The key to check with, and the tree heads that are known to be the store's."""
    from refold.adapters.keys.signatures import read_public_key

    if public_key is not None:
        return read_public_key(public_key.read_text("utf-8", errors="replace")), None
    with opening.existing(context) as store:
        heads = [head.to_json() for head in store.seals.heads()]
        return store.seals.public_key(), heads


_COUNTED = ("events", "compactions", "requests", "superseded", "superseded_digests")


def verify(
    context: typer.Context,
    user: SomeUser = None,
    session: SomeSession = None,
    chain_only: Annotated[
        bool,
        typer.Option("--chain-only", help="Prove the rows alone, decrypting none."),
    ] = False,
    proof: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Check what `refold prove` wrote instead."),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Check what `refold erase` signed instead."),
    ] = None,
    salt: Annotated[
        str | None,
        typer.Option(
            metavar="HEX", help="Also that it is of --user; this came with it."
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Check what `refold export --out` wrote instead."
        ),
    ] = None,
    public_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The key to check with; left out, the store's own."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Prove that what is stored is what was written.

    Checks chains, heads and envelopes, that each result answers a call, the sources
    of all compactions and the digests of all recorded requests.  Events that were
    redacted again are superseded: proved too, but not what was made of them.  Without
    --user and --session also that the tree of `refold seal` is the one that was
    anchored, and that all of it is there.  Exits with 1 if anything does not hold.
    """
    if proof is not None:
        check_proof(context, proof, public_key, as_json)
        return
    if export is not None:
        check_exported(export, as_json)
        return
    if certificate is not None:
        check_certificate(
            context,
            certificate,
            public_key,
            user=user,
            session=session,
            salt=salt,
            as_json=as_json,
        )
        return
    screen = None if as_json else _screen()
    totals = dict.fromkeys(("sessions", *_COUNTED), 0)
    problems = []
    with opening.existing(context) as store:
        opening.sessions(store, user, session)
        for info, verified in store.verify(user, session, chain_only=chain_only):
            totals["sessions"] += 1
            for what in _COUNTED:
                totals[what] += getattr(verified, what)
            problems += verified.problems
            if screen:
                _session(screen, info, verified)
        whole = user is None and session is None
        seals = store.verify_seals() if whole else None
    if seals is not None:
        problems += seals.problems
    if screen:
        if seals is not None:
            show_seals(screen, seals)
        _total(screen, totals, len(problems))
    else:
        told = [problem.to_json() for problem in problems]
        sealed = seals and counts_of(seals)
        found = {**totals, "seals": sealed, "problems": told}
        print_json({"ok": not problems, **found})
    if problems:
        raise typer.Exit(1)


def _screen() -> Screen:
    from refold.adapters.cli.output import Screen

    return Screen()


def _session(screen: Screen, info: SessionInfo, verified: Verified) -> None:
    from refold.adapters.cli.output import shown

    ok = not verified.problems
    screen.line(
        ("✓ " if ok else "✗ ", "bold green" if ok else "bold red"),
        shown(f"{info.user_id} / {info.session_id}"),
        (f"  {_counts(verified._asdict())}", "dim"),
    )
    for problem in verified.problems:
        stream = "" if problem.stream == "main" else f"stream {problem.stream[:12]} "
        seq = "" if problem.seq is None else f"seq {problem.seq}: "
        screen.line(
            "    ",
            (problem.code, "red"),
            "  ",
            shown(f"{stream}{seq}{problem.detail}"),
        )


def _total(screen: Screen, totals: dict[str, int], problems: int) -> None:
    from refold.adapters.cli.output import counted

    sessions = counted(totals["sessions"], "session")
    if problems:
        verdict: tuple[str, str] = (
            f"{counted(problems, 'problem')} in {sessions}",
            "bold red",
        )
    else:
        what = "all that is not superseded" if totals["superseded"] else "all"
        verdict = (f"{what} is as it was written: {sessions}", "bold green")
    screen.line(verdict, f", {_counts(totals)}")


def _counts(counts: dict[str, int]) -> str:
    from refold.adapters.cli.output import counted

    told = [
        counted(counts[f"{what}s"], what) for what in ("event", "compaction", "request")
    ]
    if counts["superseded"]:
        told.append(counted(counts["superseded"], "superseded event"))
    if counts["superseded_digests"]:
        told.append(counted(counts["superseded_digests"], "superseded digest"))
    return ", ".join(told)
