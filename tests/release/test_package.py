"""The built package is complete and reproducible, and its links work everywhere."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest

import refold
from tests.release.packages import (
    Built,
    build,
    extras,
    metadata,
    project,
    source_copy,
    unpacked,
)
from tests.support.warm import ROOT
from tools.package_metadata import with_absolute_links


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("package")
    return build(source_copy(folder / "source"), folder / "dist")


def test_a_second_build_gives_the_same_files(built: Built, tmp_path: Path) -> None:
    source = source_copy(tmp_path / "elsewhere")

    again = build(source, tmp_path / "again")

    assert again.wheel.read_bytes() == built.wheel.read_bytes()
    assert again.sdist.read_bytes() == built.sdist.read_bytes()


def test_a_build_into_a_relative_folder_is_in_the_working_directory(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = unpacked(built.sdist, tmp_path / "unpacked")
    monkeypatch.chdir(tmp_path)

    again = build(source, Path("again"))

    assert again.wheel.parent == (tmp_path / "again").resolve()


def test_the_source_distribution_builds_the_same_wheel(
    built: Built, tmp_path: Path
) -> None:
    source = unpacked(built.sdist, tmp_path / "unpacked")

    again = build(source, tmp_path / "again")

    assert again.wheel.read_bytes() == built.wheel.read_bytes()


def test_the_source_distribution_has_the_tests_and_nothing_of_git(
    built: Built, tmp_path: Path
) -> None:
    source = unpacked(built.sdist, tmp_path / "unpacked")

    assert (source / "tests" / "release" / "test_package.py").is_file()
    assert not (source / ".git").exists()
    assert not (source / ".venv").exists()


def test_the_wheel_has_each_file_of_the_package_and_nothing_else(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        packed = set(archive.namelist())

    folder = ROOT / "refold"
    there = {
        str(file.relative_to(ROOT))
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    information = {name for name in packed if ".dist-info/" in name}
    assert packed - information == there
    assert "refold/py.typed" in packed
    assert any(name.endswith("licenses/LICENSE") for name in information)


def test_the_metadata_names_version_urls_and_extras(built: Built) -> None:
    fields = metadata(built.wheel)

    urls = dict(url.split(", ") for url in fields.get_all("Project-URL", []))
    assert fields["Version"] == refold.__version__
    assert fields["Author"]
    assert set(urls) >= {"Changelog", "Documentation", "Issues", "Repository"}
    assert len({"/".join(url.split("/")[:5]) for url in urls.values()}) == 1
    assert set(fields.get_all("Provides-Extra", [])) == {"all", *extras()}


def test_the_readme_of_the_package_has_only_absolute_links(built: Built) -> None:
    readme = str(metadata(built.wheel).get_payload())

    prose = re.sub(r"^```.*?^```", "", readme, flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)
    assert len(targets) > 20
    assert [target for target in targets if not target.startswith("https://")] == []


def test_links_become_absolute_outside_of_code_only() -> None:
    page = (
        "[a](docs/a.md#b) ![c](c.png) [two\nlines](d.md) [e](https://e.test) [f](#f)\n"
        "```sh\necho '[g](g.md)'\n```\n[h](h.md)\n"
    )

    absolute = with_absolute_links(page, "https://host.test/r", "1.2")

    assert absolute == (
        "[a](https://host.test/r/blob/v1.2/docs/a.md#b) "
        "![c](https://host.test/r/raw/v1.2/c.png) "
        "[two\nlines](https://host.test/r/blob/v1.2/d.md) "
        "[e](https://e.test) [f](#f)\n"
        "```sh\necho '[g](g.md)'\n```\n[h](https://host.test/r/blob/v1.2/h.md)\n"
    )


def test_the_extra_all_has_every_other_extra() -> None:
    lines = project()["optional-dependencies"]["all"]

    named = [name for line in lines for name in line[len("refold[") : -1].split(",")]

    assert sorted(named) == extras()


def test_the_page_of_the_installation_lists_each_extra() -> None:
    page = (ROOT / "docs/how-to/install.md").read_text("utf-8")

    listed = re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE)

    assert listed == [*extras(), "all"]
