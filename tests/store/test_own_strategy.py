"""The strategy that the page shows, as a user would write it."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/how-to/write-a-strategy.md"


def test_the_strategy_of_the_page_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)

    ran = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks)],
        cwd=tmp_path,
        env={"REFOLD_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert f"It prints `{ran.stdout.strip()}`" in PAGE.read_text("utf-8")


def test_it_is_as_short_as_the_page_promises() -> None:
    (first, *_) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)

    assert len(first.splitlines()) <= 30
