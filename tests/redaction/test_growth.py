"""Redaction takes time in proportion to the size of a text or value, for any input."""

from __future__ import annotations

import gc
from time import process_time

import pytest

from benchmarks.redaction.growth import INPUTS, size_of
from refold.redaction import Plan, Redactor
from refold.redaction.engines import installed
from refold.redaction.values import JsonValue, OverBudget

# An input eight times as large takes eight times as long, and with quadratic work
# sixty-four times.
SMALL = 2_000
LARGE = 16_000
FASTEST_QUADRATIC = 24
# Less is lost in the noise of a clock.
LEAST_SECONDS = 0.004
TRIES = 4
ENGINES = ["stdlib", *(["vectorscan"] if installed() else [])]
REDACTORS = {
    engine: Redactor(Plan(engine=engine))  # type: ignore[arg-type]  # one of them
    for engine in ENGINES
}


def seconds(redactor: Redactor, value: JsonValue) -> float:
    """The CPU time that the redactor takes, or takes to refuse the value."""
    gc.disable()
    began = process_time()
    try:
        redactor.value({"content": value})
    except OverBudget:
        pass
    finally:
        gc.enable()
    return process_time() - began


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", INPUTS)
def test_work_grows_in_proportion_to_the_input(name: str, engine: str) -> None:
    redactor = REDACTORS[engine]
    small = INPUTS[name](SMALL)
    large = INPUTS[name](LARGE)
    allowed = FASTEST_QUADRATIC * size_of(large) / size_of(small) / (LARGE / SMALL)
    seconds(redactor, INPUTS[name](SMALL // 4))  # compiles the checks that it needs

    for _ in range(TRIES):
        least = max(seconds(redactor, small), LEAST_SECONDS / 2)
        most = seconds(redactor, large)
        if most <= allowed * least:
            return

    pytest.fail(f"{most:.3f} s for {LARGE} characters, {least:.4f} s for {SMALL}")
