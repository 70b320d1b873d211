"""Paths below ``/memories``: which are taken, and what lies in which."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Final

ROOT: Final = "/memories"
_LONGEST: Final = 256
_DEEPEST: Final = 2
# Nothing is ever decoded here; but who reads such a path elsewhere might.
_ENCODED: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_HIDDEN: Final = "node_modules"


class BadPath(Exception):
    """A path that is not taken; the message is what the model is told."""


def checked(given: object, name: str = "path") -> str:
    """The one spelling of a path at or below ``/memories``.

    Raises BadPath for one that leads out of it or might, and for one that is no name
    in plain text of at most 256 characters.
    """
    if not isinstance(given, str) or not given:
        raise BadPath(f"Error: {name} must be a path that starts with {ROOT}")
    path = unicodedata.normalize("NFC", given)
    if len(path) > _LONGEST or not path.isprintable():
        raise BadPath(f"Error: {name} must be printable, of {_LONGEST} characters")
    if "\\" in path or _ENCODED.search(path):
        raise BadPath(f"Error: {name} must hold no backslash and no %XX")
    if path != ROOT and not path.startswith(f"{ROOT}/"):
        raise BadPath(f"Error: {name} must start with {ROOT}")
    parts = [part for part in path.split("/") if part]
    if any(part.strip(" .") == "" for part in parts):
        raise BadPath(f"Error: {name} would escape the {ROOT} directory")
    return "/" + "/".join(parts)


def inside(files: Mapping[str, str], path: str) -> list[str]:
    """The file of that path, or all files below it; in order."""
    return sorted(one for one in files if one == path or one.startswith(f"{path}/"))


def is_folder(files: Mapping[str, str], path: str) -> bool:
    """Whether something lies in it; ``/memories`` is always there."""
    return path == ROOT or any(one.startswith(f"{path}/") for one in files)


def parents(path: str) -> Iterator[str]:
    """The folders that a path lies in, from the outermost below ``/memories``."""
    parts = path.split("/")
    for end in range(3, len(parts)):
        yield "/".join(parts[:end])


def listing(files: Mapping[str, str], folder: str) -> Iterator[str]:
    """A folder and what lies in it, two levels deep, each with its size in bytes."""
    sizes: dict[str, int] = {folder: 0}
    for path in inside(files, folder):
        size = len(files[path].encode("utf-8", "surrogatepass"))
        sizes[folder] += size
        below = path[len(folder) + 1 :].split("/")
        if any(part.startswith(".") or part == _HIDDEN for part in below):
            continue
        for depth in range(1, min(len(below), _DEEPEST) + 1):
            name = "/".join((folder, *below[:depth]))
            shown = name if depth == len(below) else f"{name}/"
            sizes[shown] = sizes.get(shown, 0) + size
    yield from (f"{_size(sizes[name])}\t{name}" for name in sorted(sizes))


def _size(count: float) -> str:
    if count < 1024:
        return f"{count:.0f}B"
    for unit in "KM":
        count /= 1024
        if count < 1024:
            return f"{count:.1f}{unit}"
    return f"{count / 1024:.1f}G"
