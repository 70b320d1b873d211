"""All that is measured, from one seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from benchmarks.redaction import events, prose
from benchmarks.redaction.adversarial import adversarial
from benchmarks.redaction.events import Json
from benchmarks.redaction.mixed import mixed
from benchmarks.redaction.noise import noise

SEED = 20_260
Texts: TypeAlias = list[str]
_MEBI = 1_000_000
_LONG = 100_000


@dataclass(frozen=True)
class Corpora:
    """The corpora at ``scale`` of their size, each made when it is first asked for."""

    scale: float = 1.0
    seed: int = SEED

    @cached_property
    def clean(self) -> Texts:
        """Chinese and English prose and Python, without personal data."""
        return prose.chunks(self._clean)

    @cached_property
    def mixed(self) -> Texts:
        """The same with one byte in a hundred of personal data and secrets."""
        return mixed(self._rng("mixed"), self.clean)

    @cached_property
    def clean_long(self) -> Texts:
        """``clean`` in texts of 100 KB."""
        return prose.chunks("".join(self.clean), _LONG)

    @cached_property
    def mixed_long(self) -> Texts:
        """``mixed`` in texts of 100 KB."""
        return prose.chunks("".join(self.mixed), _LONG)

    @cached_property
    def events(self) -> list[Json]:
        """Results of tools, as JSON values."""
        count = max(26, int(events.EVENTS * self.scale))
        return [*events.events(self._rng("events"), count)]

    @cached_property
    def small_events(self) -> list[Json]:
        """Events of 174 bytes."""
        rng = self._rng("small")
        return [
            events.small_event(rng) for _ in range(max(200, int(5000 * self.scale)))
        ]

    @cached_property
    def small_leaves(self) -> list[Json]:
        """Answers of a hundred short rows each."""
        rng = self._rng("leaves")
        return [events.small_leaves(rng) for _ in range(max(5, int(100 * self.scale)))]

    @cached_property
    def noise(self) -> dict[str, str]:
        """What tools print, by kind, without personal data."""
        return noise(self._rng("noise"), int(4 * _MEBI * self.scale))

    @cached_property
    def code(self) -> dict[str, str]:
        """Whole files of the standard library in which a plain eye sees nothing."""
        files = [file for file in prose.library() if not prose.personal(file[1])]
        return dict(files[:: max(1, round(1 / self.scale))])

    @cached_property
    def adversarial(self) -> dict[str, str]:
        """Thirty texts of 100 KB; at a smaller scale, shorter ones."""
        size = int(_LONG * min(1.0, self.scale * 10))
        return adversarial(self._rng("adversarial"), size)

    @cached_property
    def _clean(self) -> str:
        rng = self._rng("clean")
        third = int(1.65 * _MEBI * self.scale)
        chinese = prose.chinese(rng, int(1.8 * _MEBI * self.scale))
        return chinese + prose.english(rng, third) + prose.code(third)

    def _rng(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}:{name}")
