"""Built-in importers are entry points of Refold's package, and load when needed."""

import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from refold.adapters import importers
from refold.adapters.importers import registry
from refold.domain import plugins
from refold.domain.errors import ImportFailed, InvalidConfiguration
from tests.importers.samples import write_document, write_sample
from tests.support.packages import ROOT

_LOADED = """
import sys
from pathlib import Path
from refold.adapters import importers
if len(sys.argv) > 1:
    importers.read(Path(sys.argv[1]), format=sys.argv[2])
print(*sorted(name.rpartition(".")[2] for name in sys.modules if name.startswith(
    "refold.adapters.importers.")))
"""


def loaded(*arguments: str) -> set[str]:
    """Return the modules of importers that a process loads."""
    ran = subprocess.run(
        [sys.executable, "-c", _LOADED, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(ran.stdout.split())


def test_each_built_in_importer_is_an_entry_point_of_its_name() -> None:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    points = project["project"]["entry-points"][plugins.IMPORTERS.name]

    assert list(points) == [*registry.NAMES]
    for importer in registry.BUILT_IN:
        module = importer.load()
        assert importer.name == module.NAME
        assert sys.modules[points[importer.name]] is module


def test_importers_of_refold_are_no_plugins() -> None:
    assert plugins.installed(plugins.IMPORTERS, ()).usable == {}


def test_the_entry_points_of_refold_are_read_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Reading them takes longer than a small file, so each process does it once."""
    path = write_sample(tmp_path, "chatgpt")
    importers.read(path)

    def unexpected(name: str) -> None:
        raise AssertionError(f"the package {name} is read again")

    monkeypatch.setattr(metadata, "distribution", unexpected)

    assert importers.read(path)


def test_an_importer_that_the_installed_package_lacks_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(registry, "BUILT_IN", (registry.BuiltIn("newest"),))
    why = "the importer newest is missing in the installed package refold"

    with pytest.raises(InvalidConfiguration, match=f"{why}: install it again"):
        registry.load("newest")
    with pytest.raises(ImportFailed, match=why):
        importers.read(write_document(tmp_path, []))


def test_a_process_that_imports_nothing_loads_no_importer() -> None:
    assert loaded() == {"added", "base", "lines", "registry"}


def test_a_named_format_loads_no_other_importer(tmp_path: Path) -> None:
    modules = loaded(str(write_sample(tmp_path, "openai")), "openai")

    assert modules == {
        "added",
        "base",
        "exit_codes",
        "lines",
        "messages",
        "openai",
        "own",
        "registry",
    }
