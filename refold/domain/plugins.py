"""Plugins: additions of installed packages to Refold, by entry points.

A package names an object in a group of entry points, such as ``refold.importers``.
Refold looks entry points up when a name is not one of its own, or when it lists names.
Refold's own package uses such a group, too, for modules that load on first use.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from refold.domain.errors import InvalidConfiguration

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class Group(NamedTuple):
    """A group of entry points, and the noun for an object in it."""

    name: str
    noun: str


IMPORTERS: Final = Group("refold.importers", "importer")
STRATEGIES: Final = Group("refold.strategies", "strategy")
PACKS: Final = Group("refold.packs", "pack")
COMMANDS: Final = Group("refold.commands", "command")
_GROUPS: Final = (IMPORTERS, STRATEGIES, PACKS, COMMANDS)
_OWN: Final = "refold"  # the package that is Refold itself


class Plugin(NamedTuple):
    """An entry point of a package: the name that it adds, and the object behind it.

    place:   ``module:attribute``, as an entry point is written.
    package: the name of the package that was installed.
    """

    group: Group
    name: str
    place: str
    package: str

    def load(self) -> Any:
        """Import the module, and return the object.

        Raises InvalidConfiguration, which names the package, for any error of the
        module.
        """
        module, _, attributes = self.place.partition(":")
        try:
            loaded: Any = import_module(module)
            if attributes:
                for attribute in attributes.split("."):
                    loaded = getattr(loaded, attribute)
        except Exception as error:
            cause = type(error).__name__
            if isinstance(error, ModuleNotFoundError):
                cause = f"there is no module {error.name}"
            raise self.failed(
                f"cannot be loaded from {self.place} ({cause})"
            ) from error
        return loaded

    def failed(self, problem: str) -> InvalidConfiguration:
        """Return the error for an object that cannot be used, with the remedy.

        problem: the end of a sentence that begins with the object's name.
        """
        return InvalidConfiguration(
            f"the {self.group.noun} {self.name} of the package {self.package} "
            f"{problem}: update or remove the package"
        )


class Installed(NamedTuple):
    """The plugins of a group.

    usable:  those whose names are unique, by name.
    refused: the sentence that explains the refusal of each other name.
    """

    usable: Mapping[str, Plugin]
    refused: Mapping[str, str]

    def remarks(self) -> str:
        """Return the sentences about refused names, for the end of an error message.

        Returns an empty text if no name is refused.
        """
        return "".join(f"; {sentence}" for sentence in self.refused.values())


def installed(group: Group, built_in: Collection[str]) -> Installed:
    """Return the plugins of ``group``, without loading them.

    A name in ``built_in``, and a name that several packages add, is refused.
    """
    plugins: dict[str, list[Plugin]] = {}
    for point in _entry_points(group):
        package = "unknown" if point.dist is None else point.dist.name
        plugin = Plugin(group, point.name, point.value, package)
        others = plugins.setdefault(plugin.name, [])
        if plugin not in others:  # a folder may be on the path twice
            others.append(plugin)
    usable: dict[str, Plugin] = {}
    refused: dict[str, str] = {}
    for name in sorted(plugins):
        packages = " and ".join(sorted(plugin.package for plugin in plugins[name]))
        if name in built_in:
            refused[name] = (
                f"the {group.noun} {name} of the package {packages} is refused, "
                f"because the name {name} is Refold's: rename it"
            )
        elif len(plugins[name]) > 1:
            refused[name] = (
                f"the {group.noun} {name} is refused, because several packages add "
                f"it ({packages}): remove all but one"
            )
        else:
            usable[name] = plugins[name][0]
    return Installed(usable, refused)


def load_own(group: Group, name: str) -> Any:
    """Load the object that Refold's own package names in ``group``.

    Raises InvalidConfiguration if the installed package does not name it, because it
    was installed before the name was added.
    """
    place = _own_places().get((group.name, name))
    if place is None:
        raise InvalidConfiguration(
            f"the {group.noun} {name} is missing in the installed package {_OWN}: "
            "install it again"
        )
    return Plugin(group, name, place, _OWN).load()


@cache
def _own_places() -> dict[tuple[str, str], str]:
    """Return the places that Refold's own package names, by group and name."""
    from importlib.metadata import PackageNotFoundError, distribution

    with suppress(PackageNotFoundError):
        points = distribution(_OWN).entry_points
        return {(point.group, point.name): point.value for point in points}
    return {}


def find(group: Group, name: str, built_in: Collection[str]) -> Plugin | None:
    """Return the plugin of that name, or None if no package adds the name.

    Raises InvalidConfiguration for a name that is refused.
    """
    plugins = installed(group, built_in)
    if name in plugins.refused:
        raise InvalidConfiguration(plugins.refused[name])
    return plugins.usable.get(name)


def package_behind(error: BaseException) -> str | None:
    """Return the package of the plugin that ran when ``error`` was raised, or None."""
    from traceback import walk_tb

    running: set[str] = set()  # the top-level packages of all frames
    for frame, _ in walk_tb(error.__traceback__):
        module = frame.f_globals.get("__name__", "")
        running.add(module.partition(".")[0])
    for group in _GROUPS:
        for point in _entry_points(group):
            if point.dist is not None and _top_level(point.value) in running:
                return point.dist.name
    return None


def _top_level(place: str) -> str:
    """Return the first part of the module in ``module:attribute``."""
    return place.partition(":")[0].partition(".")[0].strip()


def _entry_points(group: Group) -> list[EntryPoint]:
    """Return the entry points of a group, without those of Refold's own package."""
    if not _is_named(group):
        return []
    from importlib.metadata import entry_points

    points: list[EntryPoint] = []
    for point in entry_points(group=group.name):
        if point.dist is None or point.dist.name != _OWN:
            points.append(point)
    return points


def _is_named(group: Group) -> bool:
    """Whether an installed package other than Refold names the group.

    ``importlib.metadata`` would take longer to load than everything else in ``refold
    --help``, so it is not used.
    """
    header = group.name.encode()
    for name in sys.path:
        folder = Path(name or ".")
        if folder.is_file():  # a zip file, which only importlib.metadata reads
            return True
        with suppress(OSError):
            # Installing or removing a package changes the time of the folder.
            modified = folder.stat().st_mtime_ns
            if any(header in text for text in _plugin_listings(folder, modified)):
                return True
    return False


@lru_cache(maxsize=64)
def _plugin_listings(folder: Path, _modified: int) -> list[bytes]:
    """Return the texts of ``entry_points.txt`` in ``folder`` that name a group of ours.

    _modified: when the folder was last changed, so that a changed one is read again.
    """
    texts: list[bytes] = []
    for listing in folder.glob("*-info/entry_points.txt"):
        package = listing.parent.name.partition("-")[0]
        if package == _OWN:
            continue
        text = listing.read_bytes()
        if any(group.name.encode() in text for group in _GROUPS):
            texts.append(text)
    return texts
