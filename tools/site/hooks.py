"""Hooks of MkDocs: pages of the API, the navigation, and links to other files.

MkDocs loads this file when ``make docs`` runs.  It imports nothing of Refold.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_ROOT = Path(__file__).parents[2]
_STUBS = _ROOT / "tools" / "public_api.txt"
# The site has this file, so that the tutorial needs no clone.
_TRANSCRIPT = "agent_run.jsonl"
_LINK = re.compile(r"(\]\()((?:\.\./)+)([^)\s#]+)(#[^)\s]*)?(\))")
_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the pages of each folder in the navigation, by name."""
    for section in config.nav or []:
        for title, content in section.items():
            if isinstance(content, str) and content.endswith("/"):
                section[title] = _pages(content)
    return config


def _pages(folder: str) -> list[Any]:
    names = sorted(page.name for page in (_ROOT / "docs" / folder).glob("*.md"))
    pages: list[Any] = [folder + name for name in names if name != "README.md"]
    if "README.md" in names:
        pages.insert(0, folder + "README.md")
    if folder == "reference/":
        pages.append({"Python, in full": [path for path, _ in _api_pages()]})
    return pages


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the tutorial's transcript, and a page for each public module.

    mkdocstrings fills the pages.
    """
    content = (_ROOT / "examples" / "sample" / _TRANSCRIPT).read_text("utf-8")
    files.append(File.generated(config, _TRANSCRIPT, content=content))
    for path, content in _api_pages():
        files.append(File.generated(config, path, content=content))
    return files


def _api_pages() -> Iterator[tuple[str, str]]:
    for section in _STUBS.read_text("utf-8").split("# module ")[1:]:
        module, _, code = section.partition("\n")
        names = re.findall(r"^(?:class|def) (\w+)", code, re.MULTILINE)
        if module == "refold.parts":
            continue
        lines = [f"# `{module}`\n"]
        lines += [f"::: {module}.{name}\n" for name in names]
        yield f"reference/api/{module}.md", "\n".join(lines)


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Let links to files that are not pages lead to the repository."""
    folder = posixpath.dirname(page.file.src_uri)
    repository = _repository()

    def absolute(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, match[2] + match[3]))
        if path == f"examples/sample/{_TRANSCRIPT}":
            local = posixpath.relpath(_TRANSCRIPT, folder or ".")
            return f"{match[1]}{local}{match[5]}"
        if path.startswith("docs/"):
            return match[0]
        return f"{match[1]}{repository}/blob/main/{path}{match[4] or ''}{match[5]}"

    parts: list[str] = []
    end = 0
    for fence in _FENCE.finditer(markdown):
        parts.append(_LINK.sub(absolute, markdown[end : fence.start()]))
        parts.append(fence[0])
        end = fence.end()
    parts.append(_LINK.sub(absolute, markdown[end:]))
    return "".join(parts)


def _repository() -> str:
    settings = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))
    hook = settings["tool"]["hatch"]["metadata"]["hooks"]["custom"]
    return str(hook["repository"])
