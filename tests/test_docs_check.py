"""The documentation checker finds each kind of fault, and nothing in correct pages."""

from pathlib import Path

import pytest

from tools import check_docs


def problems(root: Path, **pages: str) -> list[str]:
    for name, text in pages.items():
        (root / f"{name}.md").write_text(text)
    return list(check_docs.check(root))


def test_links_that_lead_somewhere_are_fine(tmp_path: Path) -> None:
    (tmp_path / "Makefile").touch()

    reported = problems(
        tmp_path,
        one="# One\nSee [two](two.md#a-part), [here](#one), [make](Makefile).\n",
        two='## A `part`!\n[out](https://a.org "Title"), [ref]\n\n[ref]: one.md',
    )

    assert reported == []


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("[x](gone.md)", "no such file"),
        ("![x](gone.png)", "no such file"),
        ("[x]: gone.md", "no such file"),
        ("[x](#gone)", "no such heading"),
        ("[x](page.md#gone)", "no such heading"),
        ("[x](/page.md)", "not a relative link"),
        ("[x](../page.md)", "not a relative link"),
        ("[x]()", "not a relative link"),
    ],
)
def test_a_link_that_leads_nowhere_is_found(
    tmp_path: Path, link: str, problem: str
) -> None:
    reported = problems(tmp_path, page=f"# Page\n\n{link}\n")

    assert len(reported) == 1
    assert reported[0].startswith(f"page.md:3: {problem}")


def test_links_in_code_are_ignored(tmp_path: Path) -> None:
    fenced = "```python\n# no heading\nview[0](gone)\n```\n"

    assert problems(tmp_path, page=f"`a[0](gone)` and\n{fenced}") == []
    assert len(problems(tmp_path, page=f"{fenced}[x](#no-heading)")) == 1


def test_equal_headings_get_numbered_anchors() -> None:
    assert check_docs.anchors("# A\n## A\n## A b_c-d\n") == {"a", "a-1", "a-b_c-d"}


@pytest.mark.parametrize("directory", ["home", "root", "work", "Users"])
def test_a_path_of_one_machine_is_found(tmp_path: Path, directory: str) -> None:
    reported = problems(tmp_path, page=f"# Page\nopen `/{directory}/ada/x`\n")

    assert reported == [f"page.md:2: names a path of one machine: /{directory}/"]


@pytest.mark.parametrize("registry", ["pypi", "files.pythonhosted", "registry.npmjs"])
def test_a_package_registry_is_found(tmp_path: Path, registry: str) -> None:
    reported = problems(tmp_path, page=f"see https://{registry}.org/simple")

    assert len(reported) == 1
    assert "registry" in reported[0]


@pytest.mark.parametrize(
    "named",
    ["refold/store/", "refold/store/a.py", "refold/*/a.py", "refold/store/a.py::x"],
)
def test_files_that_are_there_may_be_named(tmp_path: Path, named: str) -> None:
    (tmp_path / "refold" / "store").mkdir(parents=True)
    (tmp_path / "refold" / "store" / "a.py").touch()

    assert problems(tmp_path, page=f"# Page\nopen `{named}`\n") == []


@pytest.mark.parametrize("named", ["refold/gone.py", "tests/gone/", "refold/*/gone.py"])
def test_a_file_that_is_not_there_is_found(tmp_path: Path, named: str) -> None:
    reported = problems(tmp_path, page=f"# Page\nopen `{named}`\n")

    assert reported == [f"page.md:2: no such file: {named}"]


def test_hidden_directories_are_not_read(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "readme.md").write_text("[x](gone.md)")

    assert problems(tmp_path) == []


def test_a_command_must_be_shown(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("`refold --json log` or `erase --user U`")

    missing = list(check_docs.undocumented(["erase", "log", "verify"], tmp_path))

    assert missing == ["`refold verify` is in none of README.md, docs/reference/cli.md"]


def test_problems_are_printed_and_counted(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check_docs, "commands", lambda _: ["verify"])
    (tmp_path / "README.md").write_text("`refold verify`")
    assert check_docs.main(tmp_path) == 0
    assert capsys.readouterr().out == ""

    (tmp_path / "README.md").write_text("[x](gone.md)")

    assert check_docs.main(tmp_path) == 1
    assert len(capsys.readouterr().out.splitlines()) == 2
