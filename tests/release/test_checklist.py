"""The checklist of a release sees what is unfinished, and the workflow obeys it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.release.checklist import main, open_points
from tools import public_api

DATED = "# Changelog\n\n## [1.2.0] – 2026-12-01\n\n## [1.1.0] – 2026-01-02\n"
OWNED = 'repository = "https://github.com/refold/refold"'


def test_a_finished_release_has_no_open_points() -> None:
    assert open_points(DATED, OWNED, "1.2.0") == []


@pytest.mark.parametrize(
    ("changelog", "pyproject", "version", "named"),
    [
        (DATED, OWNED, "1.3.0", "does not begin with version 1.3.0"),
        (DATED.replace("2026-12-01", "soon"), OWNED, "1.2.0", "no date for 1.2.0"),
        (DATED, OWNED.replace("com/refold", "com/OWNER"), "1.2.0", "no owner"),
    ],
)
def test_an_open_point_is_named(
    changelog: str, pyproject: str, version: str, named: str
) -> None:
    (point,) = open_points(changelog, pyproject, version)

    assert named in point


def test_a_tag_with_open_points_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tag", "v0.0.1"]) == 1
    assert "the tag v0.0.1 is not" in capsys.readouterr().out

    assert main([]) == 0
    assert "by hand:" in capsys.readouterr().out


def test_a_stored_api_of_an_earlier_version_is_an_open_point(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = tmp_path / "public_api.txt"
    earlier.write_text("# module refold\n")
    monkeypatch.setattr(public_api, "DUMP", earlier)

    main([])

    printed = capsys.readouterr().out
    assert "open: tools/public_api.txt is not of this version" in printed
