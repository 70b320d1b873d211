"""What ``refold verify`` says of seals, and of a proof that somebody was given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.output import print_json

if TYPE_CHECKING:
    from refold.adapters.cli.screen import Screen
    from refold.domain.seals import SealsVerified

_COUNTED = ("tree_heads", "leaves", "erased", "anchored", "unsealed")


def counts_of(seals: SealsVerified) -> dict[str, int]:
    """The counts, by name."""
    return {name: getattr(seals, name) for name in _COUNTED}


def show_seals(screen: Screen, seals: SealsVerified) -> None:
    """The tree in a line, what is wrong with it below."""
    from refold.adapters.cli.screen import shown
    from refold.adapters.cli.wording import counted

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
        from refold.adapters.cli.screen import Screen, shown

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
    from refold.adapters.signing import read_public_key

    if public_key is not None:
        return read_public_key(public_key.read_text("utf-8", errors="replace")), None
    with opening.existing(context) as store:
        heads = [head.to_json() for head in store.seals.heads()]
        return store.seals.public_key(), heads
