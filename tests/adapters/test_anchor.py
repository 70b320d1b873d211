"""An anchor file keeps every added head, even if a process dies while adding."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from refold.adapters.seals import FileAnchor
from refold.domain.errors import SealBroken
from refold.domain.seals import Anchor, TreeHead
from refold.testing.ports import HEADS, AnchorContract


class TestFileAnchor(AnchorContract):
    @pytest.fixture
    def opened(self, tmp_path: Path) -> Callable[[], Anchor]:
        return lambda: FileAnchor(tmp_path / "deep" / "anchor.jsonl")


class Noop:
    """An anchor that stores nothing and lets nobody wait."""

    def held(self) -> AbstractContextManager[None]:
        return nullcontext()

    def read(self) -> list[TreeHead]:
        return []

    def newest(self) -> TreeHead | None:
        return None

    def add(self, heads: object) -> None:
        pass


@pytest.mark.parametrize(
    "promise",
    [
        "test_heads_are_kept_in_their_order",
        "test_heads_not_larger_than_the_newest_are_skipped",
    ],
)
def test_the_contract_detects_an_anchor_without_effect(promise: str) -> None:
    with pytest.raises(AssertionError):
        getattr(AnchorContract(), promise)(Noop)


@pytest.mark.parametrize("cut", [1, 100, -1])
def test_a_truncated_line_counts_as_none_and_is_overwritten(
    tmp_path: Path, cut: int
) -> None:
    anchor = FileAnchor(tmp_path / "anchor.jsonl")
    anchor.add(HEADS[:2])
    whole = anchor.path.read_bytes()
    anchor.add(HEADS)
    last = anchor.path.read_bytes().removeprefix(whole)
    anchor.path.write_bytes(whole + last[:cut])

    assert anchor.newest() == HEADS[1]
    assert list(anchor.read()) == list(HEADS[:2])
    anchor.add(HEADS)

    assert anchor.path.read_bytes() == whole + last


def test_only_the_owner_can_read_an_anchor(tmp_path: Path) -> None:
    anchor = FileAnchor(tmp_path / "anchor.jsonl")
    anchor.add(HEADS)

    assert anchor.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("line", [b"", b"{}", b"[1]", b"\xff", b'{"size": "1"}'])
def test_an_invalid_line_is_reported_with_its_place(
    tmp_path: Path, line: bytes
) -> None:
    anchor = FileAnchor(tmp_path / "anchor.jsonl")
    anchor.add(HEADS[:1])
    with anchor.path.open("ab") as file:
        file.write(line + b"\n")

    with pytest.raises(SealBroken, match="line 2"):
        list(anchor.read())
    with pytest.raises(SealBroken, match="the last line"):
        anchor.newest()
