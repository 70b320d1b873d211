"""The check of the documentation's site finds missing pages, and other hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.site.check import problems

STUBS = "# module refold\n\nclass Session:\n\n# module refold.parts\n\nclass X:\n"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "README.md").write_text("# Start\n")
    (folder / "tutorial.md").write_text("# Tutorial\n")
    return folder


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    api = folder / "reference" / "api"
    api.mkdir(parents=True)
    (folder / "index.html").write_text('<script src="a.js"></script>')
    (folder / "tutorial.html").write_text('<a href="https://b.test">b</a>')
    (api / "refold.html").write_text('<h2 id="refold.Session">Session</h2>')
    locations = ["tutorial.html", "reference/cli.html", "reference/api/refold.html#a"]
    index = {"docs": [{"location": location} for location in locations]}
    (folder / "search").mkdir()
    (folder / "search" / "search_index.json").write_text(json.dumps(index))
    return folder


def test_a_complete_site_has_no_problems(docs: Path, site: Path) -> None:
    assert list(problems(site, docs, STUBS)) == []


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("tutorial.html", None, "tutorial.html: missing"),
        ("search/search_index.json", None, "search/search_index.json: missing"),
        (
            "search/search_index.json",
            '{"docs": [{"location": "tutorial.html"}]}',
            "reference/cli.html: not in the search",
        ),
        (
            "index.html",
            '<script src="https://cdn.test/a.js"></script>',
            "index.html: loads https://cdn.test/a.js",
        ),
        (
            "index.html",
            '<link rel="stylesheet" href="https://fonts.test/a.css">',
            "index.html: loads https://fonts.test/a.css",
        ),
        ("reference/api/refold.html", "", "refold.html: Session is missing"),
    ],
)
def test_a_problem_is_named(
    docs: Path, site: Path, name: str, text: str | None, problem: str
) -> None:
    if text is None:
        (site / name).unlink()
    else:
        (site / name).write_text(text)

    assert problem in list(problems(site, docs, STUBS))
