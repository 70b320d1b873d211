"""Check the built site: every page, the search, the API, and nothing from other hosts.

``python -m tools.site.check [FOLDER]`` prints one problem a line and exits 1 if there
are any.  ``make docs`` runs it after the build.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_LOADED = re.compile(
    r"<(?:script|img|iframe)[^>]+src=\"?(https?:[^\s\">]+)"
    r"|<link(?=[^>]+rel=\"?(?:stylesheet|preload|preconnect))[^>]+href=\"?(https?:[^\s\">]+)"
)
_NAME = re.compile(r"^(?:class|def) (\w+)", re.MULTILINE)
_PUBLISHED = "refold.parts"  # the classes without a module of their own


def problems(site: Path, docs: Path, stubs: str) -> Iterator[str]:
    """Yield what is wrong with a site that was built from these pages and stubs."""
    for page in sorted(docs.rglob("*.md")):
        relative = page.relative_to(docs).with_suffix(".html")
        if relative.name == "README.html":
            relative = relative.with_name("index.html")
        if not (site / relative).exists():
            yield f"{relative}: missing"
    for page in sorted(site.rglob("*.html")):
        for match in _LOADED.finditer(page.read_text("utf-8")):
            yield f"{page.relative_to(site)}: loads {match[1] or match[2]}"
    yield from _missing_from_search(site)
    yield from _missing_from_api(site, stubs)


def _missing_from_search(site: Path) -> Iterator[str]:
    index = site / "search" / "search_index.json"
    if not index.exists():
        yield "search/search_index.json: missing"
        return
    searchable = {entry["location"].partition("#")[0] for entry in _entries(index)}
    for page in ("tutorial.html", "reference/cli.html", "reference/api/refold.html"):
        if page not in searchable:
            yield f"{page}: not in the search"


def _entries(index: Path) -> list[dict[str, str]]:
    entries: list[dict[str, str]] = json.loads(index.read_text("utf-8"))["docs"]
    return entries


def _missing_from_api(site: Path, stubs: str) -> Iterator[str]:
    for section in stubs.split("# module ")[1:]:
        module, _, code = section.partition("\n")
        page = site / "reference" / "api" / f"{module}.html"
        if module == _PUBLISHED:
            continue
        text = page.read_text("utf-8") if page.exists() else ""
        for name in _NAME.findall(code):
            if (
                f'id="{module}.{name}"' not in text
                and f"id={module}.{name}" not in text
            ):
                yield f"{page.name}: {name} is missing"


def main(arguments: Sequence[str]) -> int:
    """Check a site; return 1 if it has problems."""
    site = Path(arguments[0]) if arguments else ROOT / "build" / "site"
    stubs = (ROOT / "tools" / "public_api.txt").read_text("utf-8")
    failures = list(problems(site, ROOT / "docs", stubs))
    for problem in failures:
        print(problem)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
