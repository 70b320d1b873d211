"""``refold verify``: prove that what is stored is what was written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.commands.certificates import check_certificate
from refold.adapters.cli.commands.exports import check_exported
from refold.adapters.cli.commands.seals import check_proof, counts_of, show_seals
from refold.adapters.cli.options import Json, SomeSession, SomeUser
from refold.adapters.cli.output import print_json

if TYPE_CHECKING:
    from refold.adapters.cli.screen import Screen
    from refold.domain.ports import SessionInfo
    from refold.store.verifying import Verified

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
    from refold.adapters.cli.screen import Screen

    return Screen()


def _session(screen: Screen, info: SessionInfo, verified: Verified) -> None:
    from refold.adapters.cli.screen import shown

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
    from refold.adapters.cli.wording import counted

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
    from refold.adapters.cli.wording import counted

    told = [
        counted(counts[f"{what}s"], what) for what in ("event", "compaction", "request")
    ]
    if counts["superseded"]:
        told.append(counted(counts["superseded"], "superseded event"))
    if counts["superseded_digests"]:
        told.append(counted(counts["superseded_digests"], "superseded digest"))
    return ", ".join(told)
