"""With CONTRIBUTING alone a newcomer finds what is most often wanted."""

import re

import pytest

from tests.support.warm import ROOT

_PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
_TABLE = _PAGE.partition("| what you look for |")[2].partition("\n\n")[0]
PLACES = re.findall(r"^\| (.+?) \| `(.+?)` \| `(.+?)` \|$", _TABLE, re.MULTILINE)


@pytest.mark.parametrize(
    "wish",
    [
        "where a column is added",
        "where sections that a caller hands in are cut to their budgets",
        "where an erasure deletes rows",
        "where a Chinese phone number is recognised",
        "what happens between `append` and the disk",
    ],
)
def test_the_page_says_where(wish: str) -> None:
    assert wish in [asked for asked, _, _ in PLACES]


@pytest.mark.parametrize(("wish", "file", "name"), PLACES)
def test_every_named_file_exists(wish: str, file: str, name: str) -> None:
    text = (ROOT / file).read_text("utf-8")

    assert re.search(rf'(def|class) {re.escape(name)}\b|"{re.escape(name)}"', text)
