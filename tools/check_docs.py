"""Check the documentation: links, named files, private names, undocumented commands.

``python -m tools.check_docs [DIRECTORY]`` prints one problem a line and exits 1 if
there are any.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

COMMAND_PAGES = ("README.md", "docs/reference/cli.md")

_FENCE = re.compile(r"^ *(```+|~~~+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
_ANCHOR = re.compile(r"<a +(?:id|name)=[\"']([^\"']+)[\"']")
_LINK = re.compile(
    r"\]\(<?(?P<inline>[^)\s>]*)>?(?: +[\"'][^)]*)?\)"
    r"|^ {0,3}\[[^\]]+\]: +<?(?P<reference>[^\s>]+)",
    re.MULTILINE,
)
_FILE = re.compile(
    r"`(?P<path>(?:benchmarks|docs|examples|refold|requirements|tests|tools)/[\w./*-]*)"
    r"(?:::\w+)?`"
)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_PRIVATE = {
    "a path of one machine": re.compile(r"(?<![\w.~-])/(?:home|root|work|Users)/"),
    "the host of a package registry": re.compile(
        r"\b(?:[\w-]+\.)*(?:pypi|pythonhosted|npmjs)\.(?:org|com)\b"
    ),
}


def check(root: Path) -> Iterator[str]:
    """Yield the problems of all Markdown files under ``root`` that are not hidden."""
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        for line, problem in (
            *broken_links(page, text, root),
            *missing_files(text, root),
            *private_names(text),
        ):
            yield f"{page.relative_to(root)}:{line}: {problem}"


def pages(root: Path) -> list[Path]:
    """Return the Markdown files under ``root`` that are not hidden."""
    files = sorted(root.rglob("*.md"))
    return [file for file in files if not _hidden(file.relative_to(root))]


def broken_links(page: Path, text: str, root: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the problem of each link without a target in ``root``."""
    prose = _CODE.sub(_blank, _FENCE.sub(_blank, text))
    for match in _LINK.finditer(prose):
        target = match["inline"] or match["reference"] or ""
        if not _SCHEME.match(target):
            problem = _problem(page, unquote(target), root)
            if problem:
                yield _line(text, match.start()), f"{problem}: ({target})"


def _problem(page: Path, target: str, root: Path) -> str | None:
    name, _, anchor = target.partition("#")
    file = (page.parent / name).resolve() if name else page
    if not target or name.startswith("/") or not file.is_relative_to(root.resolve()):
        return "not a relative link inside the repository"
    if not file.exists():
        return "no such file"
    if anchor and file.suffix == ".md" and anchor not in anchors(file.read_text()):
        return "no such heading"
    return None


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub derives from the headings of a page."""
    prose = _FENCE.sub(_blank, text)
    slugs = set(_ANCHOR.findall(prose))
    for heading in _HEADING.findall(prose):
        words = re.sub(r"\]\([^)]*\)", "", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        unique = slug
        number = 0
        while unique in slugs:
            number += 1
            unique = f"{slug}-{number}"
        slugs.add(unique)
    return slugs


def missing_files(text: str, root: Path) -> Iterator[tuple[int, str]]:
    """Yield where code in a text names a file or folder that does not exist."""
    for match in _FILE.finditer(text):
        if not any(root.glob(match["path"].rstrip("/"))):
            yield _line(text, match.start()), f"no such file: {match['path']}"


def private_names(text: str) -> Iterator[tuple[int, str]]:
    """Yield where a text names something that only one machine or network has."""
    for kind, pattern in _PRIVATE.items():
        for match in pattern.finditer(text):
            yield _line(text, match.start()), f"names {kind}: {match[0]}"


def undocumented(commands: Iterable[str], root: Path) -> Iterator[str]:
    """Yield the commands that none of ``COMMAND_PAGES`` shows."""
    shown = "\n".join(
        (root / page).read_text(encoding="utf-8")
        for page in COMMAND_PAGES
        if (root / page).exists()
    )
    for command in commands:
        if not re.search(rf"(?:refold .*?|`){re.escape(command)}\b", shown):
            yield f"`refold {command}` is in none of {', '.join(COMMAND_PAGES)}"


def commands(root: Path) -> list[str]:
    """Return the subcommands of ``refold``; none while there is no command line."""
    if not any((root / "refold" / "adapters").glob("cli*")):
        return []
    return sorted(import_module("refold.adapters.cli.commands").COMMANDS)


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def main(root: Path) -> int:
    """Print the problems; return 1 if there are any."""
    problems = [
        *check(root),
        *undocumented(commands(root), root),
    ]
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(*sys.argv[1:2])))
