"""The files around the package fit together: versions, changelog, community files."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

import pytest
import yaml

import refold
from tests.support.stores import ROOT

# A file that each kind of package manager reads.
_MANIFESTS: Final = {
    "pip": "*.txt",
    "npm": "package-lock.json",
    "github-actions": ".github/workflows/*.yml",
    "docker": "Dockerfile",
    "docker-compose": "compose.yaml",
}
_GROUPS: Final = ("Added", "Changed", "Fixed", "Security", "Removed")
# The digest of the changelog below its newest release.  It changes with each release.
_EARLIER_RELEASES: Final = (
    "c43be3023c3db4aa43b1b0f46d59b3d52903ebbf9b81cd3715bcb57ea15d8b3e"
)


def _text(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


def test_dependabot_looks_where_the_manifests_are() -> None:
    updates = yaml.safe_load(_text(".github/dependabot.yml"))["updates"]

    assert {update["package-ecosystem"] for update in updates} == set(_MANIFESTS)
    for update in updates:
        manifest = _MANIFESTS[update["package-ecosystem"]]
        for directory in update.get("directories", [update.get("directory")]):
            pattern = f"{directory}/{manifest}".strip("/")
            assert list(ROOT.glob(pattern)), directory


def test_dependabot_reads_each_lock_file() -> None:
    updates = yaml.safe_load(_text(".github/dependabot.yml"))["updates"]
    read: set[Path] = set()
    for update in updates:
        manifest = _MANIFESTS[update["package-ecosystem"]]
        for directory in update.get("directories", [update.get("directory")]):
            read.update(ROOT.glob(f"{directory}/{manifest}".strip("/")))

    locks = {*ROOT.glob("requirements/*"), *ROOT.glob("tests/**/package-lock.json")}

    assert locks - read == set()


def test_pre_commit_runs_the_commands_of_make_check() -> None:
    recipe = _text("Makefile").partition("\ncheck: ")[2].partition("\n\n")[0]
    commands = [
        line.strip().removeprefix("@$(BIN)/").partition(" || ")[0].removesuffix(" .")
        for line in recipe.splitlines()[1:]
    ]

    (repository,) = yaml.safe_load(_text(".pre-commit-config.yaml"))["repos"]
    entries = [hook["entry"] for hook in repository["hooks"]]

    assert commands
    assert sorted(entries) == sorted(f".venv/bin/{command}" for command in commands)


def test_contributing_names_the_system_packages_that_tests_need() -> None:
    makefile = _text("Makefile")
    installed = re.findall(r"--no-install-recommends ([\w-]+)", makefile)

    setup = _text("CONTRIBUTING.md").partition("## Layout")[0]

    assert installed
    assert [name for name in installed if name not in setup] == []
    assert [name for name in installed if name not in _devcontainer()] == []


def _devcontainer() -> str:
    return _text(".devcontainer/Dockerfile")


def test_the_user_of_the_devcontainer_may_use_sudo() -> None:
    user = re.search(r"^USER (\w+)$", _devcontainer(), re.MULTILINE)

    assert user is not None
    assert f"{user[1]} ALL=(ALL) NOPASSWD: ALL" in _devcontainer()


@pytest.mark.parametrize(
    "page", ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "LICENSE"]
)
def test_the_readme_links_the_pages_for_people(page: str) -> None:
    assert f"]({page})" in _text("README.md")


def test_all_files_name_the_same_version() -> None:
    newest = re.search(r"^## \[(.+?)\]", _text("CHANGELOG.md"), re.MULTILINE)
    cited = re.search(r"^version: (.+)$", _text("CITATION.cff"), re.MULTILINE)
    status = re.search(r"^Version (\d+\.\d+),", _text("README.md"), re.MULTILINE)
    image = re.search(r"^  image: refold:(.+)$", _text("compose.yaml"), re.MULTILINE)
    wheel = re.search(r"refold-(.+?)-py3-none", _text("docs/how-to/install.md"))

    assert newest is not None
    assert cited is not None
    assert status is not None
    assert image is not None
    assert wheel is not None
    assert newest[1] == cited[1] == image[1] == wheel[1] == refold.__version__
    assert status[1] == ".".join(refold.__version__.split(".")[:2])


def test_the_release_fetches_the_commit_of_the_benchmark() -> None:
    assert "fetch-depth: 0" in _text(".github/workflows/release.yml")


def test_the_changelog_has_releases_with_groups_of_short_lines() -> None:
    releases = re.split(r"^## ", _text("CHANGELOG.md"), flags=re.MULTILINE)[1:]

    for release in releases:
        groups = re.findall(r"^### (.+)$", release, re.MULTILINE)
        assert groups == [group for group in _GROUPS if group in groups]
    entries = [
        " ".join(entry.split())
        for entry in re.findall(r"^- (.+(?:\n  .+)*)", _text("CHANGELOG.md"), re.M)
    ]
    visible = [re.sub(r"\]\([^)]*\)", "]", entry) for entry in entries]
    assert [entry for entry in visible if len(entry) > 160] == []
    assert len(set(entries)) == len(entries)


def test_new_entries_stand_in_the_newest_release() -> None:
    _, *earlier = re.split(r"^## \[", _text("CHANGELOG.md"), flags=re.MULTILINE)[1:]

    digest = hashlib.sha256("## [".join(earlier).encode()).hexdigest()

    assert digest == _EARLIER_RELEASES
