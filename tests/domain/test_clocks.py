"""A wall clock is believed as far as something else attests what it says."""

from __future__ import annotations

import pytest

from refold.domain.clocks import DAY, Attested, Judged, Look, first_attested

T = 1_700_000_000_000_000
YEARS = 3_650 * DAY
MINUTE = 60_000_000
KNOWN = Attested(T, "boot", 0)


@pytest.mark.parametrize("jump", [YEARS, -YEARS, 2 * DAY, -2 * DAY])
def test_a_clock_that_jumps_moves_the_time_only_by_what_passed(jump: int) -> None:
    look = Look(T + jump + MINUTE, "boot", MINUTE)

    assert KNOWN.judged(look) == Judged(T + MINUTE, disputed=True)


@pytest.mark.parametrize("drift", [0, MINUTE, -MINUTE])
def test_a_clock_that_runs_with_the_machine_is_believed(drift: int) -> None:
    look = Look(T + YEARS + drift, "boot", YEARS)

    assert KNOWN.judged(look) == Judged(look.wall)


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
def test_a_machine_that_was_off_for_a_week_is_believed(
    off: int, disputed: bool, boot: str
) -> None:
    look = Look(T + off, boot, 5 * MINUTE)

    judged = KNOWN.judged(look)

    assert judged.disputed == disputed
    assert judged.now == (T if disputed else look.wall)


@pytest.mark.parametrize("jump", [YEARS, -YEARS])
def test_a_clock_that_was_set_is_believed_a_day_later(jump: int) -> None:
    known = KNOWN.after(Look(T + jump, "boot", 0), newest=0)
    known = known.after(Look(T + jump + DAY // 2, "boot", DAY // 2), newest=0)
    assert known.at(Look(0, "boot", DAY // 2)) == T + DAY // 2

    last = Look(T + jump + DAY, "boot", DAY)
    known = known.after(last, newest=0)

    assert known.judged(last) == Judged(T + jump + DAY)


def test_a_clock_is_believed_across_a_restart_if_it_went_on() -> None:
    first, second = Look(T + YEARS, "b", 0), Look(T + YEARS + 2 * DAY, "c", 0)

    known = KNOWN.after(first, newest=0)
    assert known.judged(first).disputed
    known = known.after(second, newest=0)

    assert known.judged(second) == Judged(second.wall)


def test_a_look_that_agrees_ends_what_another_clock_began() -> None:
    known = KNOWN.after(Look(T + YEARS, "boot", 0), newest=0)
    known = known.after(Look(T + DAY // 2, "boot", DAY // 2), newest=0)
    last = Look(T + YEARS + DAY, "boot", DAY)

    known = known.after(last, newest=0)

    assert known.judged(last) == Judged(T + DAY, disputed=True)


def test_a_write_by_another_clock_keeps_one_from_being_believed() -> None:
    known = KNOWN.after(Look(T + YEARS, "boot", 0), newest=0)
    last = Look(T + YEARS + DAY, "boot", DAY)

    contradicted = known.after(last, newest=T + DAY // 2)
    agreeing = known.after(last, newest=T + YEARS + DAY // 2)

    assert contradicted.judged(last).disputed
    assert not agreeing.judged(last).disputed


def test_a_clock_that_jumps_each_time_is_never_believed() -> None:
    known = KNOWN
    for day in range(1, 30):
        look = Look(T + YEARS * day, "boot", DAY * day)
        known = known.after(look, newest=0)
        assert known.judged(look) == Judged(T + DAY * day, disputed=True)


@pytest.mark.parametrize("age", [DAY, YEARS])
def test_the_newest_event_attests_the_time_of_an_older_store(age: int) -> None:
    look = Look(T + age, "boot", 0)

    judged = first_attested(look, newest=T).judged(look)

    assert judged == (Judged(T, disputed=True) if age == YEARS else Judged(T + age))


def test_an_empty_store_believes_the_clock() -> None:
    look = Look(T, "boot", 0)

    assert first_attested(look, newest=0).judged(look) == Judged(T)
