"""``make demo`` runs to its end and shows what it promises."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT
from tests.support import warm


@pytest.mark.timeout(600)  # a dozen processes
def test_the_demo_leaves_only_a_page(tmp_path: Path) -> None:
    programs = warm.shim(tmp_path / "bin")
    place = tmp_path / "place"
    place.mkdir()
    python = Path(sys.executable).parent
    path = os.pathsep.join([str(programs), str(python), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "TMPDIR": str(place)}

    ran = subprocess.run(
        ["sh", str(ROOT / "examples" / "demo.sh"), str(tmp_path / "run.html")],
        env=environment,
        capture_output=True,
        text=True,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("\n→ ") == 13
    assert "with 72 events" in ran.stdout
    assert "tokens instead of" in ran.stdout
    assert "rows left" in ran.stdout
    assert "was erased" in ran.stdout
    assert f"The run as a page is in {tmp_path / 'run.html'}" in ran.stdout
    assert "REDACTED:EMAIL" in (tmp_path / "run.html").read_text("utf-8")
    assert list(place.iterdir()) == []
