"""What ``refold verify`` says of the export of a user that somebody was given."""

from __future__ import annotations

from pathlib import Path

import typer

from refold.adapters.cli.output import print_json


def check_exported(folder: Path, as_json: bool) -> None:
    """Say whether the export is whole and as it was written; exit with 1 if not."""
    from refold.store.export_check import check_export

    checked = check_export(folder)
    ok = not checked.problems
    if as_json:
        problems = [problem.to_json() for problem in checked.problems]
        counts, user = checked.counts, checked.user_id
        print_json({"ok": ok, "user_id": user, "counts": counts, "problems": problems})
    else:
        from refold.adapters.cli.screen import Screen, shown

        screen = Screen()
        for problem in checked.problems:
            screen.line(("✗ ", "bold red"), shown(f"{problem.path}: {problem.detail}"))
        if ok:
            said = f"all of user {checked.user_id!r} is there, as it was written"
            screen.line(("✓ ", "bold green"), shown(said))
    if not ok:
        raise typer.Exit(1)
