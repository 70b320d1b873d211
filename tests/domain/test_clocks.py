"""A wall clock is trusted as far as other evidence confirms it."""

from __future__ import annotations

import pytest

from refold.domain.clocks import (
    DAY,
    ClockReading,
    EstimatedTime,
    KnownTime,
    first_known,
)

T = 1_700_000_000_000_000
YEARS = 3_650 * DAY
MINUTE = 60_000_000
KNOWN = KnownTime(T, "boot", 0)


@pytest.mark.parametrize("jump", [YEARS, -YEARS, 2 * DAY, -2 * DAY])
def test_a_clock_that_jumps_moves_the_time_only_by_what_passed(jump: int) -> None:
    reading = ClockReading(T + jump + MINUTE, "boot", MINUTE)

    assert KNOWN.estimate(reading) == EstimatedTime(T + MINUTE, disputed=True)


@pytest.mark.parametrize("drift", [0, MINUTE, -MINUTE])
def test_a_clock_that_runs_with_the_machine_is_trusted(drift: int) -> None:
    reading = ClockReading(T + YEARS + drift, "boot", YEARS)

    assert KNOWN.estimate(reading) == EstimatedTime(reading.wall)


@pytest.mark.parametrize(
    ("off", "disputed"),
    [
        (0, False),
        (6 * DAY, False),
        (8 * DAY, True),
        (YEARS, True),
        (-MINUTE, False),
        (-DAY, True),
        (-YEARS, True),
    ],
)
@pytest.mark.parametrize("boot", ["another", ""])
def test_a_machine_that_was_off_for_a_week_is_trusted(
    off: int, disputed: bool, boot: str
) -> None:
    reading = ClockReading(T + off, boot, 5 * MINUTE)

    estimate = KNOWN.estimate(reading)

    assert estimate.disputed == disputed
    assert estimate.now == (T if disputed else reading.wall)


@pytest.mark.parametrize("jump", [YEARS, -YEARS])
def test_a_clock_that_was_set_is_trusted_a_day_later(jump: int) -> None:
    record = KNOWN.after(ClockReading(T + jump, "boot", 0), newest=0)
    record = record.after(ClockReading(T + jump + DAY // 2, "boot", DAY // 2), newest=0)
    assert record.time_at(ClockReading(0, "boot", DAY // 2)) == T + DAY // 2

    last = ClockReading(T + jump + DAY, "boot", DAY)
    record = record.after(last, newest=0)

    assert record.estimate(last) == EstimatedTime(T + jump + DAY)


def test_a_clock_is_trusted_across_a_restart_if_it_kept_running() -> None:
    first = ClockReading(T + YEARS, "b", 0)
    second = ClockReading(T + YEARS + 2 * DAY, "c", 0)

    record = KNOWN.after(first, newest=0)
    assert record.estimate(first).disputed
    record = record.after(second, newest=0)

    assert record.estimate(second) == EstimatedTime(second.wall)


def test_a_reading_that_agrees_ends_the_trial_of_another_clock() -> None:
    record = KNOWN.after(ClockReading(T + YEARS, "boot", 0), newest=0)
    record = record.after(ClockReading(T + DAY // 2, "boot", DAY // 2), newest=0)
    last = ClockReading(T + YEARS + DAY, "boot", DAY)

    record = record.after(last, newest=0)

    assert record.estimate(last) == EstimatedTime(T + DAY, disputed=True)


def test_a_write_by_another_clock_prevents_trust_in_a_disputed_one() -> None:
    record = KNOWN.after(ClockReading(T + YEARS, "boot", 0), newest=0)
    last = ClockReading(T + YEARS + DAY, "boot", DAY)

    contradicted = record.after(last, newest=T + DAY // 2)
    agreeing = record.after(last, newest=T + YEARS + DAY // 2)

    assert contradicted.estimate(last).disputed
    assert not agreeing.estimate(last).disputed


def test_a_clock_that_jumps_each_time_is_never_trusted() -> None:
    record = KNOWN
    for day in range(1, 30):
        reading = ClockReading(T + YEARS * day, "boot", DAY * day)
        record = record.after(reading, newest=0)
        assert record.estimate(reading) == EstimatedTime(T + DAY * day, disputed=True)


@pytest.mark.parametrize(
    ("age", "estimate"),
    [(DAY, EstimatedTime(T + DAY)), (YEARS, EstimatedTime(T, disputed=True))],
)
def test_the_newest_event_attests_the_time_of_an_older_store(
    age: int, estimate: EstimatedTime
) -> None:
    reading = ClockReading(T + age, "boot", 0)

    record = first_known(reading, newest=T)

    assert record.estimate(reading) == estimate


def test_an_empty_store_trusts_the_clock() -> None:
    reading = ClockReading(T, "boot", 0)

    assert first_known(reading, newest=0).estimate(reading) == EstimatedTime(T)
