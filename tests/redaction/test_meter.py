"""One meter counts all work of a value: any stage stops at the end of its budget."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pytest

from refold.domain.envelope import Draft
from refold.domain.errors import RedactionFailed
from refold.domain.events import ToolResult
from refold.redaction.chokepoint import redact
from refold.redaction.guard import Limits
from refold.redaction.learned import Learned
from refold.redaction.plan import WORK_PER_KB, Plan
from refold.redaction.redactor import Redactor
from refold.redaction.registered import Registered
from refold.redaction.values import OverBudget, OverTime, RedactionError
from tests.redaction.test_bounds import ENGINES, dense

SECRET: Final = "hunter2xQ9"
# Values on which one stage works far longer than on the rest.
STAGES: Final[Mapping[str, Any]] = {
    "objects": [{"a": {}} for _ in range(12_000)],
    "texts": [f"a{number}" for number in range(90_000)],
    "keys": {f"password{number}": SECRET for number in range(3_000)},
    "pairs": [[f"password{number}", SECRET] for number in range(3_000)],
    "tables": {
        "columns": ["user", "password"],
        "rows": [["ada", SECRET] for _ in range(10_000)],
    },
    "commands": [["mysql", f"-p{SECRET}{number}"] for number in range(1_500)],
    "names of values": [{"name": "password", "value": SECRET} for _ in range(3_000)],
    "JSON in texts": [
        json.dumps({"password": f"{SECRET}{number}"}) for number in range(1_500)
    ],
    "JSON lines": json.dumps({"password": SECRET}) + "\n" * 2 + '{"a": 1}\n' * 15_000,
    "findings": [f"password={SECRET}{number}" for number in range(1_500)],
    "one text": f"password={SECRET} " * 1_500,
    "numbers": [{"phone": 13_912_345_670 + number} for number in range(1_500)],
}


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_stops_when_the_steps_are_used_up(stage: str) -> None:
    value = {"content": STAGES[stage]}
    redactor = Redactor(Plan(engine="stdlib", work_per_kb=1))

    with pytest.raises(OverBudget, match="work_per_kb") as raised:
        redactor.value(value)

    assert SECRET not in str(raised.value)
    assert isinstance(raised.value.__context__, RedactionError | None)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_fits_into_the_usual_budget(stage: str, engine: str) -> None:
    half = Redactor(
        Plan(engine=engine, work_per_kb=WORK_PER_KB // 2)  # type: ignore[arg-type]  # a parametrized name
    )

    clean, _ = half.value({"content": STAGES[stage]})

    assert "UNSCANNED" not in json.dumps(clean)


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_stops_when_the_time_is_over(
    stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = {"content": STAGES[stage]}
    redactor = Redactor(Plan(engine="stdlib", budget_ms=1, on_error="drop_leaf"))
    monkeypatch.setattr("refold.redaction.values.perf_counter", lambda: float("inf"))

    with pytest.raises(RedactionError, match="budget_ms") as raised:
        redactor.value(value)

    assert SECRET not in str(raised.value)
    assert raised.value.__context__ is None


def _learned() -> Learned:
    learned = Learned(lambda: b"k" * 32, {})
    learned.learn([("SECRET", "q7Zt0Kx3Vb9Lm2Np")], 1)
    return learned


def _registered() -> Registered:
    registered = Registered()
    registered.register("q7Zt0Kx3Vb9Lm2Np")
    return registered


PLAN: Final = Plan(engine="stdlib", budget_ms=1)
SOURCES: Final = {
    "rules": Redactor(PLAN),
    "learned secrets": Redactor(PLAN).learning(_learned()),
    "registered values": Redactor(PLAN, registered=_registered()),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "text",
    [
        "nothing is here",
        f"password={SECRET}",
        "a q7Zt0Kx3Vb9Lm2Np b",
        '{"password": "hunter2xQ9"}',
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ",
    ],
)
def test_a_text_or_value_that_took_too_long_is_refused(
    source: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    redactor = SOURCES[source]
    monkeypatch.setattr("refold.redaction.values.perf_counter", lambda: float("inf"))

    with pytest.raises(OverTime):
        redactor.text(text)
    with pytest.raises(OverTime):
        redactor.value({"content": text})


def test_an_event_over_its_time_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draft = Draft(ToolResult(call_id="c", content=f"password={SECRET}"))
    monkeypatch.setattr("refold.redaction.values.perf_counter", lambda: float("inf"))

    with pytest.raises(RedactionFailed, match="budget_ms") as raised:
        redact(draft, now=1, redactor=Redactor(PLAN), limits=Limits())

    assert SECRET not in str(raised.value)


def test_texts_behind_the_end_of_the_budget_become_stubs() -> None:
    redactor = Redactor(Plan(engine="stdlib", work_per_kb=1, over_budget="stub"))
    texts: Any = [f"password={SECRET}{number}" for number in range(1_500)]

    clean, tally = redactor.value({"content": texts, "note": "all is well"})

    assert SECRET not in json.dumps(clean)
    assert tally.types["UNSCANNED"] > 100
    assert clean["note"] == "all is well"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["phones", "mails", "passwords", "rows", "logs"])
def test_arrays_of_values_take_less_than_half_of_the_budget(
    engine: str, kind: str
) -> None:
    half = Redactor(
        Plan(engine=engine, work_per_kb=WORK_PER_KB // 2)  # type: ignore[arg-type]  # a parametrized name
    )
    lines: Any = dense(kind).split("\n")

    _, tally = half.value({"lines": lines, "objects": [{"text": x} for x in lines]})

    assert tally.n >= 1
    assert "UNSCANNED" not in tally.types
