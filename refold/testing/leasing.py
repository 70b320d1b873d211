"""The promises of leases: who may compact what, for a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

from refold.domain.ids import StreamId
from refold.domain.ports import EventLog
from refold.testing.support import ADA, BOB, NOW, said, write

_DERIVED: Final = ADA._replace(stream="f" * 64)
_LATER: Final = NOW + 1_000


def take(log: EventLog, owner: str, *, now: int = NOW, until: int = _LATER) -> bool:
    """Ask for the lease of ``_DERIVED``."""
    return log.leases.take_lease(_DERIVED, owner, now=now, until=until)


class LeaseContract:
    """The promises of the port ``Leases``; part of ``EventLogContract``."""

    def test_of_many_that_ask_for_a_lease_one_has_it(self, log: EventLog) -> None:
        write(log, ADA, *said("a"))

        with ThreadPoolExecutor(8) as pool:
            taken = list(pool.map(lambda i: take(log, f"o-{i}"), range(8)))

        assert sum(taken) == 1

    def test_a_lease_is_of_one_derived_stream(self, log: EventLog) -> None:
        write(log, ADA, *said("a"))
        write(log, BOB, *said("b"))
        assert take(log, "first")
        others = (
            _DERIVED._replace(stream="e" * 64),
            BOB._replace(stream=_DERIVED.stream),
        )

        assert not take(log, "second")
        for stream in others:
            assert log.leases.take_lease(stream, "second", now=NOW, until=_LATER)

    def test_a_lease_that_ended_can_be_taken(self, log: EventLog) -> None:
        write(log, ADA, *said("a"))
        take(log, "first")

        assert not take(log, "second", now=_LATER - 1)
        assert take(log, "second", now=_LATER, until=_LATER + 1_000)
        assert not log.leases.renew_lease(_DERIVED, "first", until=_LATER + 9_000)
        assert not log.leases.release_lease(_DERIVED, "first")
        assert not take(log, "third", now=_LATER + 999)

    def test_a_lease_that_is_renewed_goes_on(self, log: EventLog) -> None:
        write(log, ADA, *said("a"))
        take(log, "first")

        assert log.leases.renew_lease(_DERIVED, "first", until=_LATER + 1_000)
        assert not log.leases.renew_lease(_DERIVED, "second", until=_LATER + 9_000)

        assert not take(log, "second", now=_LATER)
        assert take(log, "second", now=_LATER + 1_000)

    def test_a_lease_given_back_is_free(self, log: EventLog) -> None:
        write(log, ADA, *said("a"))
        take(log, "first")

        assert log.leases.release_lease(_DERIVED, "first") is False

        assert take(log, "second")
        assert not take(log, "first")

    def test_its_holder_learns_that_others_asked(self, log: EventLog) -> None:
        write(log, ADA, *said("a"))
        take(log, "first")
        take(log, "second")

        assert log.leases.release_lease(_DERIVED, "first") is True
        assert log.leases.release_lease(_DERIVED, "first") is False

    def test_who_takes_a_lease_was_not_asked_yet(self, log: EventLog) -> None:
        write(log, ADA, *said("a"))
        take(log, "first")
        assert not take(log, "second")
        assert take(log, "third", now=_LATER, until=_LATER + 1_000)

        assert log.leases.release_lease(_DERIVED, "third") is False

    def test_the_holder_may_ask_again(self, log: EventLog) -> None:
        write(log, ADA, *said("a"))
        take(log, "first")

        assert take(log, "first", until=_LATER + 1_000)

        assert not take(log, "second", now=_LATER)
        assert log.leases.release_lease(_DERIVED, "first") is True

    def test_a_session_that_is_not_there_has_no_leases(self, log: EventLog) -> None:
        nobody = StreamId("nobody", "s-1", "f" * 64)

        assert not log.leases.take_lease(nobody, "first", now=NOW, until=_LATER)
