"""The house check finds each violation of a rule, and nothing in a correct house."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools import check_house
from tools.check_house import House

Check = Callable[[House], Iterator[str]]


def house(root: Path, **texts: str) -> House:
    """Create a package with modules given by dotted names, ``__`` for a dot."""
    for name, text in texts.items():
        path = root / "refold" / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return House(root)


def layout(root: Path, *places: str) -> None:
    rows = "\n".join(f"| `{place}` | something |" for place in places)
    table = f"| place | what |\n|---|---|\n{rows}"
    (root / "CONTRIBUTING.md").write_text(f"## Layout\n\n{table}\n\n## Next\n")


def test_a_sound_house_has_no_problems(tmp_path: Path) -> None:
    layout(tmp_path, "refold/store/")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "glossary.md").write_text("### session\n\nOne talk.\n")
    sound = house(tmp_path, store__sessions='"""Sessions."""\n')

    assert list(check_house.check(sound)) == []


def test_the_layout_names_every_folder_once(tmp_path: Path) -> None:
    layout(tmp_path, "refold/store/", "refold/store/", "refold/gone.py")

    small_house = house(tmp_path, store__a="", sql__lite__b="")
    problems = check_house.layout_differences(small_house)

    assert list(problems) == [
        "CONTRIBUTING.md: the layout does not name refold/sql/",
        "CONTRIBUTING.md: the layout does not name refold/sql/lite/",
        "CONTRIBUTING.md: the layout names refold/gone.py, which does not exist",
        "CONTRIBUTING.md: the layout names refold/store 2 times",
    ]


def test_caches_and_empty_folders_are_no_entries(tmp_path: Path) -> None:
    (tmp_path / "refold" / "old" / "__pycache__").mkdir(parents=True)
    (tmp_path / "refold" / "old" / "__pycache__" / "a.pyc").touch()

    assert set(house(tmp_path, a="").entries) == {Path("refold")}


def test_a_circle_is_found_wherever_the_import_is(tmp_path: Path) -> None:
    hidden = (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import refold.c\n"
    )
    inner = "def f():\n    from refold.a import x\n"

    round_ = house(
        tmp_path, a="import refold.b\n", b=hidden, c=inner, d="import refold.a"
    )

    assert list(check_house.circles(round_)) == [
        "modules import one another: refold.a, refold.b, refold.c"
    ]


@pytest.mark.parametrize(
    ("text", "lacking"),
    [
        ("def f(): ...", "f"),
        ("class A: ...", "A"),
        ("class A:\n    'One.'\n    def f(self): ...", "A.f"),
    ],
)
def test_public_names_need_a_docstring(tmp_path: Path, text: str, lacking: str) -> None:
    (problem,) = check_house.undocumented(house(tmp_path, a=f"'A.'\n{text}\n"))

    assert problem.endswith(f": {lacking} has no docstring")


@pytest.mark.parametrize(
    "text",
    [
        "def _f(): ...",
        "def test_something(): ...",
        "class A(B):\n    'One.'\n    def f(self): ...",
        "class P(Protocol):\n    'One.'\n    def f(self): 'Do.'\n"
        "class A:\n    'One.'\n    def f(self): ...",
        "@overload\ndef f(): ...",
    ],
)
def test_an_inherited_docstring_is_enough(tmp_path: Path, text: str) -> None:
    assert list(check_house.undocumented(house(tmp_path, a=f"'A.'\n{text}\n"))) == []


def test_a_module_needs_a_docstring(tmp_path: Path) -> None:
    assert list(check_house.undocumented(house(tmp_path, a=""))) == [
        "refold/a.py: the module has no docstring"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('"""What a page shows."""', '1: "What ..." is no sentence'),
        ('"""A."""\n\ndef f():\n    """Who asks."""', '4: "Who ..." is no sentence'),
        ("a = 1\n# Whoever waits\n# is not served.", '2: "Whoever ..." is no sentence'),
        ("a = 1  # made\n# anew", '1: use another word than "anew"'),
        ('"""All but\nfor one."""', '1: use another word than "but\nfor"'),
        ("# Meanwhile, it waits.", '1: use another word than "Meanwhile"'),
    ],
)
def test_odd_english_is_a_problem(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text(text)

    problems = [*check_house.odd_english(House(tmp_path))]

    assert f"tests/a.py:{problem}" in problems


@pytest.mark.parametrize(
    "text",
    [
        '"""What does a page show?"""',
        '"""Whatever a page shows is text."""',
        '"""A page shows what the store holds."""',
        'a = "What is made anew meanwhile"',
    ],
)
def test_questions_strings_and_clauses_inside_sentences_are_no_problem(
    tmp_path: Path, text: str
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text(text)

    assert list(check_house.odd_english(House(tmp_path))) == []


def test_problems_are_printed_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    house(tmp_path, __init__='"""A package."""\n')
    assert check_house.main(tmp_path) == 0
    assert capsys.readouterr().out == ""

    house(tmp_path, a="")

    assert check_house.main(tmp_path) == 1
    assert len(capsys.readouterr().out.splitlines()) == 1
