"""How much is found, and what is found where nothing is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from benchmarks.redaction import datasets, labelled, prose, targets
from benchmarks.redaction.figures import Accuracy, Figures, Half
from benchmarks.redaction.finding import Tool
from benchmarks.redaction.labelled import Item
from benchmarks.redaction.score import score, wrong
from refold.redaction.redactor import Redactor

_PEER_NOISE = 40_000


def accuracy(
    figures: Figures, tools: Sequence[Tool], data: Path | None, *, each: int, seed: int
) -> None:
    """Score each tool on each half of our own texts and, if given, of ``data``."""
    _halves(figures, targets.OWN, labelled.items(Random(f"{seed}:own"), each), tools)
    keys = labelled.vendor_items(Random(f"{seed}:keys"))[:: max(1, 40 // each)]
    _halves(figures, targets.KEYS, keys, tools)
    if data is None:
        return
    if (data / datasets.SENTENCES).exists():
        _halves(figures, targets.SENTENCES, datasets.sentences(data), tools)
    if (data / datasets.CASES).exists():
        cases = datasets.cases(data)
        figures.case_count = len(cases)
        figures.cases = {tool.name: wrong(tool, cases) for tool in tools}


def _halves(
    figures: Figures, data: str, items: Sequence[Item], tools: Sequence[Tool]
) -> None:
    halves: tuple[tuple[Half, bool], ...] = (("development", False), ("held out", True))
    for tool in tools:
        for half, held_out in halves:
            some = [item for item in items if item.held_out is held_out]
            entry = Accuracy(data, half, tool.name, score(tool, some))
            figures.accuracy.append(entry)


def noise(figures: Figures, texts: Mapping[str, str], tools: Sequence[Tool]) -> None:
    """False positives by kind; other tools get the start of each kind."""
    for tool in tools:
        most = None if tool.name.startswith("refold") else _PEER_NOISE
        given = {kind: text[:most] for kind, text in texts.items()}
        figures.noise_bytes[tool.name] = sum(len(t.encode()) for t in given.values())
        figures.noise[tool.name] = {
            kind: _found(tool, text) for kind, text in given.items()
        }


def _found(tool: Tool, text: str) -> int:
    return sum(len(tool.spans(chunk)) for chunk in prose.chunks(text))


def code(figures: Figures, files: Mapping[str, str], redactor: Redactor) -> None:
    """Which files of clean code change, and by how many bytes."""
    changed = {}
    for name, text in files.items():
        after, _ = redactor.text(text)
        if after != text:
            lines = zip(text.splitlines(), after.splitlines(), strict=False)
            changed[name] = [old.strip()[:160] for old, new in lines if old != new]
    figures.code = {
        "files": len(files),
        "bytes": sum(len(text.encode()) for text in files.values()),
        "changed_files": len(changed),
        "changed_bytes": sum(len(s.encode()) for ls in changed.values() for s in ls),
        "changed": dict(list(changed.items())[:50]),
    }
