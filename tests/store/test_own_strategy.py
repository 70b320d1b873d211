"""The strategy of the documentation, written as a user would write it."""

import re
from pathlib import Path

from tests.support import warm

PAGE = Path(__file__).parents[2] / "docs/how-to/write-a-strategy.md"


def test_the_documented_strategy_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)

    ran = warm.code(
        "\n".join(blocks), cwd=tmp_path, environment={"REFOLD_HOME": str(tmp_path)}
    )
    printed, errors = ran.communicate()

    assert ran.returncode == 0, errors
    assert f"It prints `{printed.strip()}`" in PAGE.read_text("utf-8")


def test_the_strategy_is_as_short_as_documented() -> None:
    (first, *_) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)

    assert len(first.splitlines()) <= 30
