"""How far counts of tokens are from a tokenizer's own, by kind of text.

``python -m benchmarks.tokens FOLDER --counter MODULE:FUNCTION --tokenizer NAME``

FOLDER has a folder for each kind of text (``prose``, ``code``), in it ``train`` and
``test`` with text files.  FUNCTION takes a text and gives its tokens.  NAME is what
the calibrated counter starts from.  The texts are cut into pieces of 4 000 characters;
errors are those of the pieces of ``test``; requests to learn from are made of
``train``, with tool definitions of 600 tokens that no view shows.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

from refold.domain.tokens import estimate_text
from refold.projections.tokens import (
    Features,
    Weights,
    of_text,
    starting_weights,
    total,
)

Piece: TypeAlias = tuple[str, Features, int]
Kinds: TypeAlias = Mapping[str, Sequence[Piece]]
PIECE = 4_000
BESIDE = 600
REQUESTS = (1, 3, 10, 20)
SEEDS = range(8)


def pieces(folder: Path, count: Callable[[str], int]) -> Iterator[Piece]:
    """The texts of a folder, cut; a rest of under half a piece is left out."""
    for path in sorted(folder.rglob("*")):
        text = path.read_text("utf-8") if path.is_file() else ""
        for at in range(0, len(text) - PIECE // 2 + 1, PIECE):
            part = text[at : at + PIECE]
            if tokens := count(part):
                yield part, of_text(part), tokens


def learned(weights: Weights, train: Kinds, requests: int, seed: int) -> Weights:
    """The factors after requests that each add up to three pieces of any kind."""
    chance = random.Random(seed)
    features = Features()
    tokens = BESIDE
    kinds = sorted(train)
    for _ in range(requests):
        for _ in range(chance.randint(1, 3)):
            _, added, cost = chance.choice(train[chance.choice(kinds)])
            features = total([features, added])
            tokens += cost
        weights = weights.learned(features, tokens)
    return weights


def error(test: Sequence[Piece], *counts: Callable[[Piece], float]) -> str:
    """The mean error of a piece, and in brackets that of all pieces together.

    Of several counts, the mean of their errors: one lucky draw says nothing.
    """
    each = [abs(count(p) / p[2] - 1) for count in counts for p in test]
    true = sum(piece[2] for piece in test)
    whole = [abs(sum(map(count, test)) / true - 1) for count in counts]
    return f"{fmean(each):6.1%} ({fmean(whole):.1%})"


def lines(train: Kinds, test: Kinds, tokenizer: str) -> Iterator[str]:
    start = starting_weights(tokenizer)
    for kind, pieces in test.items():
        yield f"{kind:10} stored {error(pieces, lambda piece: estimate_text(piece[0]))}"
        yield f"{kind:10} start  {error(pieces, _by(start))}"
        for requests in REQUESTS:
            each = [_by(learned(start, train, requests, seed)) for seed in SEEDS]
            yield f"{kind:10} {requests:6} {error(pieces, *each)}"


def _by(weights: Weights) -> Callable[[Piece], float]:
    return lambda piece: weights.tokens(piece[1])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--counter", required=True)
    parser.add_argument("--tokenizer", required=True)
    given = parser.parse_args(arguments)
    module, _, function = given.counter.partition(":")
    count = getattr(import_module(module), function)
    kinds = sorted(path.name for path in given.folder.iterdir() if path.is_dir())
    train, test = (
        {kind: list(pieces(given.folder / kind / half, count)) for kind in kinds}
        for half in ("train", "test")
    )
    print(*lines(train, test, given.tokenizer), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
