"""Importers that installed packages add by entry points of ``refold.importers``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from refold.adapters.importers.base import Importer, Source, Transcript
from refold.domain import plugins
from refold.domain.errors import ImportFailed, InvalidConfiguration
from refold.domain.plugins import Installed, Plugin


class AddedImporter:
    """An importer of a plugin.

    An unexpected error in it becomes ImportFailed, which names the package, so that
    other files can still be imported.
    """

    def __init__(self, plugin: Plugin, importer: Any) -> None:
        self.NAME = plugin.name
        self._plugin = plugin
        self._importer = importer

    def recognises(self, source: Source) -> bool:
        """Whether the plugin reads this file; it does not if it refuses it."""
        try:
            return bool(self._importer.recognises(source))
        except ImportFailed:
            return False
        except RecursionError:
            raise
        except Exception as error:
            raise self._failed(source, error) from error

    def read(self, source: Source) -> Iterator[Transcript]:
        """Yield the transcripts that the plugin reads in the file."""
        try:
            yield from self._importer.read(source)
        except (ImportFailed, RecursionError):
            raise
        except Exception as error:
            raise self._failed(source, error) from error

    def _failed(self, source: Source, error: Exception) -> ImportFailed:
        """Return the error for an unexpected error of the plugin."""
        problem = f"cannot read this file ({type(error).__name__})"
        return source.failed(str(self._plugin.failed(problem)))


class Loaded(NamedTuple):
    """The importers of all plugins.

    names:   the names of those that could be loaded.
    remarks: the end of an error message, which names the others; empty without any.
    """

    usable: list[Importer]
    names: list[str]
    remarks: str


def installed(built_in: Collection[str]) -> Installed:
    """Return the importers that installed packages name, without loading them."""
    return plugins.installed(plugins.IMPORTERS, built_in)


def find(name: str, built_in: Collection[str]) -> Plugin | None:
    """Return the importer of that name, not loaded; None if no package adds it.

    Raises InvalidConfiguration for a name that is refused.
    """
    return plugins.find(plugins.IMPORTERS, name, built_in)


def load(name: str, built_in: Collection[str]) -> Importer:
    """Load the importer of that name, which a package must add.

    Raises InvalidConfiguration if it is refused, or cannot be loaded.
    """
    plugin = find(name, built_in)
    if plugin is None:
        raise InvalidConfiguration(f"no installed package adds the importer {name}")
    return _load(plugin)


def importers(built_in: Collection[str]) -> Loaded:
    """Load the importers of all plugins, except those that cannot be loaded."""
    plugins_found = installed(built_in)
    usable: list[Importer] = []
    names: list[str] = []
    remarks = plugins_found.remarks()
    for plugin in plugins_found.usable.values():
        try:
            usable.append(_load(plugin))
        except InvalidConfiguration as error:
            remarks += f"; {error}"
        else:
            names.append(plugin.name)
    return Loaded(usable, names, remarks)


def recognising(
    source: Source, importers: Iterable[Importer]
) -> tuple[list[Importer], str]:
    """Return the importers that recognise a file, and a remark on each that fails."""
    recognised: list[Importer] = []
    problems = ""
    for importer in importers:
        try:
            if importer.recognises(source):
                recognised.append(importer)
        except ImportFailed as error:
            problems += f"; {error.why}"
    return recognised, problems


def _load(plugin: Plugin) -> Importer:
    """Load a plugin, and check that it is an importer of its name."""
    loaded = plugin.load()
    for function in ("recognises", "read"):
        if not callable(getattr(loaded, function, None)):
            raise plugin.failed(f"has no function {function}: {plugin.place}")
    name = getattr(loaded, "NAME", None)
    if name != plugin.name:
        raise plugin.failed(f"must have NAME = {plugin.name!r}: {plugin.place}")
    return AddedImporter(plugin, loaded)
