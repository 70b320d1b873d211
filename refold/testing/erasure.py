"""Contracts of erasure, retention, repairs and seals, as tests to inherit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from refold.auditor import check
from refold.domain import erasure, errors
from refold.domain.ids import StreamId
from refold.domain.ports import Appended, EventLog, Scanned
from refold.domain.seals import Seals
from refold.testing.event_log import ADA, BOB, NOW, append_to, user_inputs, write

_SECOND_SESSION = ADA._replace(session_id="s-2")
_WHOLE_USER = erasure.ErasureScope("ada")
_FIRST_SESSION = erasure.ErasureScope("ada", ("s-1",))
_COURT_CASE = erasure.LegalHold("case 7", "a court asked", NOW)
_FREEZE = erasure.LegalHold(erasure.FREEZE, "disputed", NOW)


def begin(
    log: EventLog, scope: erasure.ErasureScope = _WHOLE_USER
) -> erasure.ErasureJob:
    """Begin an erasure."""
    return log.erasures.begin(log.erasures.new_job(scope, due_at=None, facts={}))


def shred(
    log: EventLog, scope: erasure.ErasureScope = _WHOLE_USER
) -> erasure.ErasureJob:
    """Begin an erasure, and destroy the keys."""
    job = begin(log, scope)
    log.erasures.mark(job)
    log.erasures.destroy_keys(job, now=NOW)
    stored = log.erasures.advance(job.at("shredded"), "begun")
    assert stored is not None
    return stored


def end(log: EventLog, job: erasure.ErasureJob, act: str = "erased") -> Any:
    """End an erasure with its certificate, and return that."""
    statement: Any = {
        "format": "refold-certificate/1",
        "act": act,
        "certificate_id": "c-1",
    }
    return log.erasures.certify(job, statement, now=NOW)


def certificate(
    log: EventLog, act: str, user_id: str = "ada"
) -> erasure.NewCertificate:
    """Return a certificate that is not stored yet."""
    statement: Any = {
        "format": erasure.FORMAT,
        "act": act,
        "certificate_id": str(uuid4()),
    }
    return log.erasures.sign(user_id, statement, now=NOW)


def readmit(log: EventLog) -> int:
    """Readmit ada; returns the epoch of her key."""
    readmission = log.erasures.prepare_readmission("ada")
    assert hasattr(readmission, "epoch"), "the readmission is prepared, not certified"
    log.erasures.readmit("ada", readmission, certificate(log, "readmitted"))
    return readmission.epoch


def fill(log: EventLog) -> None:
    """Write two sessions of ada, and one of bob."""
    for stream in (ADA, _SECOND_SESSION, BOB):
        write(log, stream, *user_inputs("a", "b"))


def write_blob(log: EventLog, stream: StreamId = ADA) -> str:
    """Write a text so long that it moves to a blob; returns the digest of the blob."""
    request = append_to(log.head(stream), *user_inputs("a line of text. " * 5_000))
    assert isinstance(log.append(request), Appended)
    return str(request.events[0].blobs[0].sha256)


def refused(log: EventLog, stream: StreamId) -> bool:
    """Whether the log refuses an append, for any reason."""
    try:
        return not isinstance(write(log, stream, *user_inputs("x")), Appended)
    except errors.RefoldError:
        return True


class ErasuresContract:
    """The contract of the port ``ErasureSteps``.  It needs a fixture ``log``."""

    def test_a_begun_erasure_is_listed(self, log: EventLog) -> None:
        fill(log)
        job = begin(log)

        assert log.erasures.jobs() == log.erasures.jobs("ada") == [job]
        assert log.erasures.jobs("bob") == []
        assert begin(log).job_id == job.job_id

    def test_a_job_advances_only_from_its_current_stage(self, log: EventLog) -> None:
        job = begin(log)
        held_job = job.at("held", keys=3)

        assert log.erasures.advance(held_job, "shredded") == job
        assert log.erasures.advance(held_job, "begun") == held_job
        assert log.erasures.jobs() == [held_job]
        assert begin(log, erasure.ErasureScope("bob")).stage == "begun"
        assert log.erasures.advance(replace(held_job, job_id="another"), "held") is None

    def test_a_marked_user_can_be_neither_read_nor_written(self, log: EventLog) -> None:
        fill(log)

        log.erasures.mark(begin(log))

        with pytest.raises(errors.Erased):
            log.head(ADA)
        with pytest.raises(errors.Erased):
            log.read(ADA)
        assert refused(log, ADA)
        assert refused(log, ADA._replace(session_id="new"))
        assert len(log.read(BOB)) == 2

    def test_no_session_begins_during_an_erasure(self, log: EventLog) -> None:
        log.erasures.mark(begin(log))

        assert refused(log, ADA)
        assert not refused(log, BOB)

    def test_destroyed_keys_are_counted_and_gone(self, log: EventLog) -> None:
        fill(log)
        job = begin(log)
        log.erasures.mark(job)

        assert log.erasures.destroy_keys(job, now=NOW) == 3
        assert log.erasures.destroy_keys(job, now=NOW) == 0
        with pytest.raises(errors.Erased):
            log.erasures.refuse_erased("ada")
        log.erasures.refuse_erased("bob")
        assert log.erasures.key_status()["erased_users"] == 1

    def test_restore_gives_held_keys_back(self, log: EventLog) -> None:
        fill(log)
        before = log.read(ADA)
        job = begin(log)
        log.erasures.mark(job)
        assert log.erasures.hold_keys(job, now=NOW) == 3
        with pytest.raises(errors.Erased):
            log.read(ADA)

        log.erasures.restore(job)

        assert log.read(ADA) == before
        assert not refused(log, ADA)
        assert not refused(log, ADA._replace(session_id="new"))

    def test_delete_removes_all_counted_rows_and_no_others(self, log: EventLog) -> None:
        fill(log)
        write_blob(log)
        job = shred(log)

        remains = log.erasures.remains(_WHOLE_USER)
        deleted: dict[str, int] = {}
        for table, number in log.erasures.delete(job):
            deleted[table] = deleted.get(table, 0) + number

        counts = {table: number for table, number in remains.counts.items() if number}
        assert counts == deleted
        assert (counts["events"], counts["blobs"]) == (5, 1)
        assert remains.leaves == 5
        assert set(log.erasures.left(_WHOLE_USER).values()) == {0}
        assert log.erasures.left(erasure.ErasureScope("bob"))["events"] == 2
        assert len(log.read(BOB)) == 2

    def test_one_session_can_be_erased_alone(self, log: EventLog) -> None:
        fill(log)
        digest = write_blob(log, _SECOND_SESSION)
        job = shred(log, _FIRST_SESSION)

        assert sum(number for _, number in log.erasures.delete(job)) > 2

        assert end(log, job) is not None
        assert refused(log, ADA)
        assert len(log.read(_SECOND_SESSION)) == 3
        assert log.blob(_SECOND_SESSION, digest)
        assert not refused(log, _SECOND_SESSION)

    def test_a_job_can_be_widened_to_more_sessions(self, log: EventLog) -> None:
        fill(log)
        job = begin(log, _FIRST_SESSION)

        wider = log.erasures.widen(job, erasure.ErasureScope("ada", ("s-1", "s-2")))

        assert wider is not None
        assert log.erasures.jobs() == [wider]
        assert wider.scope.sessions == ("s-1", "s-2")

    def test_a_certificate_ends_a_job_once(self, log: EventLog) -> None:
        fill(log)
        job = shred(log)
        list(log.erasures.delete(job))

        signed = end(log, job)

        assert signed.statement["act"] == "erased"
        assert signed.public_key == log.erasures.public_key()
        assert end(log, job) is None
        assert log.erasures.jobs() == []
        assert log.erasures.certificates() == log.erasures.certificates("ada")
        assert log.erasures.certificates("ada") == [signed]
        assert log.erasures.certificates("bob") == []

    def test_only_an_erased_user_can_be_readmitted(self, log: EventLog) -> None:
        fill(log)
        with pytest.raises(errors.NotErased):
            readmit(log)
        job = shred(log)
        list(log.erasures.delete(job))
        with pytest.raises(errors.NotErased):
            readmit(log)
        end(log, job)

        assert readmit(log) == 2

        assert log.read(ADA) == []
        assert not refused(log, ADA)

    def test_a_legal_hold_refuses_erasures(self, log: EventLog) -> None:
        fill(log)
        assert log.erasures.hold("ada", _COURT_CASE, certificate(log, "legal hold"))
        assert not log.erasures.hold("ada", _COURT_CASE, certificate(log, "legal hold"))
        assert log.erasures.holds("ada") == [_COURT_CASE]

        with pytest.raises(errors.OnHold):
            begin(log)
        with pytest.raises(errors.OnHold):
            begin(log, _FIRST_SESSION)

        assert log.erasures.jobs() == []
        assert log.erasures.holds("bob") == []
        assert log.erasures.release(
            "ada", "case 7", certificate(log, "legal hold released")
        )
        assert not log.erasures.release(
            "ada", "case 7", certificate(log, "legal hold released")
        )
        assert begin(log).stage == "begun"

    def test_an_export_is_recorded_until_its_user_is_erased(
        self, log: EventLog
    ) -> None:
        fill(log)
        first = erasure.StoredExport("x-1", NOW, "folder", "/a", "host")
        second = erasure.StoredExport("x-2", NOW + 1, "atif", "/b", "host", ("s-1",))
        for export in (second, first):
            log.erasures.record_export("ada", export)
        assert log.erasures.exports("ada") == [first, second]
        assert log.erasures.exports("bob") == []
        log.erasures.drop_export("ada", "x-2")
        assert log.erasures.exports("ada") == [first]

        job = begin(log)
        log.erasures.mark(job)

        with pytest.raises(errors.Erased):
            log.erasures.record_export("ada", second)
        assert log.erasures.exports("ada") == [first]
        log.erasures.destroy_keys(job, now=NOW)
        list(log.erasures.delete(job))
        assert log.erasures.exports("ada") == []

    def test_everything_opens_after_key_rotation(self, log: EventLog) -> None:
        fill(log)
        of_ada = log.read(ADA)
        of_bob = log.read(BOB)

        assert log.erasures.rotate_user("ada") == 2
        assert log.erasures.rotate_master() == 0

        assert log.read(ADA) == of_ada
        assert log.read(BOB) == of_bob
        assert log.erasures.key_status()["users"] == 2

    def test_an_erased_user_has_no_key_to_rotate(self, log: EventLog) -> None:
        fill(log)
        shred(log)

        with pytest.raises(errors.Erased):
            log.erasures.rotate_user("ada")


class RetentionContract:
    """The contract of the port ``Retention``.  It needs a fixture ``log``."""

    def _begin_if_unused(
        self, log: EventLog, **changes: Any
    ) -> erasure.ErasureJob | None:
        """Begin an erasure of ada's first session, if it is unused.

        changes: other conditions of ``Unused`` than those that the session meets.
        """
        conditions = {
            "since": NOW,
            "reads": True,
            "all_sessions": ("s-1", "s-2"),
            **changes,
        }
        job = log.erasures.new_job(_FIRST_SESSION, due_at=None, facts={})
        return log.retention.begin_unused(job, erasure.Unused(**conditions))

    def test_a_frozen_user_can_be_read_but_not_written(self, log: EventLog) -> None:
        fill(log)
        assert log.retention.freeze("ada", _FREEZE, certificate(log, "frozen"))
        assert not log.retention.freeze("ada", _FREEZE, certificate(log, "frozen"))

        for stream in (ADA, _SECOND_SESSION, ADA._replace(session_id="new")):
            with pytest.raises(errors.Frozen):
                write(log, stream, *user_inputs("x"))
        assert len(log.read(ADA)) == 2
        assert not refused(log, BOB)
        assert [hold.name for hold in log.erasures.holds("ada")] == [erasure.FREEZE]

        assert log.retention.unfreeze("ada", certificate(log, "unfrozen"))
        assert not log.retention.unfreeze("ada", certificate(log, "unfrozen"))
        assert not refused(log, ADA)

    def test_a_user_under_erasure_cannot_be_frozen(self, log: EventLog) -> None:
        fill(log)
        begin(log)

        with pytest.raises(errors.Erased):
            log.retention.freeze("ada", _FREEZE, certificate(log, "frozen"))

    def test_accesses_of_existing_sessions_add_up(self, log: EventLog) -> None:
        fill(log)
        of_no_session = erasure.Accesses("ada", "none", 1, NOW)
        first = erasure.Accesses("ada", "s-1", 2, 9)
        second = erasure.Accesses("ada", "s-1", 3, 7)

        log.retention.add_accesses("ada", [first, of_no_session])
        log.retention.add_accesses("ada", [second])

        assert log.retention.accesses() == [erasure.Accesses("ada", "s-1", 5, 9)]
        assert log.retention.accesses("bob") == []

    def test_begin_unused_also_marks_the_session(self, log: EventLog) -> None:
        fill(log)

        job = self._begin_if_unused(log)

        assert job is not None
        assert log.erasures.jobs() == [job]
        assert refused(log, ADA)
        assert not refused(log, _SECOND_SESSION)

    @pytest.mark.parametrize(
        "conditions",
        [
            {"since": NOW - 1},
            {"all_sessions": ("s-1",)},
            {"all_sessions": ("s-1", "s-2", "s-3")},
        ],
    )
    def test_a_used_session_or_one_with_forks_stays(
        self, log: EventLog, conditions: dict[str, Any]
    ) -> None:
        fill(log)

        assert self._begin_if_unused(log, **conditions) is None

        assert log.erasures.jobs() == []
        assert not refused(log, ADA)

    def test_a_read_session_stays_if_reads_count(self, log: EventLog) -> None:
        fill(log)
        log.retention.add_accesses("ada", [erasure.Accesses("ada", "s-1", 1, NOW + 1)])

        assert self._begin_if_unused(log) is None
        assert self._begin_if_unused(log, reads=False) is not None

    def test_a_legal_hold_keeps_unused_sessions(self, log: EventLog) -> None:
        fill(log)
        log.erasures.hold("ada", _COURT_CASE, certificate(log, "legal hold"))

        with pytest.raises(errors.OnHold):
            self._begin_if_unused(log)

        assert not refused(log, ADA)

    def test_a_read_of_an_expired_blob_raises_expired(self, log: EventLog) -> None:
        digest = write_blob(log)
        digest_of_bob = write_blob(log, BOB)
        assert list(log.retention.old_blobs(NOW - 1)) == []
        old = {blobs.user_id: blobs for blobs in log.retention.old_blobs(NOW)}

        assert log.retention.expire_blobs(old["ada"]) == 1
        assert log.retention.expire_blobs(old["ada"]) == 0

        with pytest.raises(errors.Expired):
            log.blob(ADA, digest)
        assert log.blob(BOB, digest_of_bob)
        assert [blobs.user_id for blobs in log.retention.old_blobs(NOW)] == ["bob"]

    def test_blobs_of_a_frozen_user_do_not_expire(self, log: EventLog) -> None:
        digest = write_blob(log)
        (old,) = log.retention.old_blobs(NOW)
        log.retention.freeze("ada", _FREEZE, certificate(log, "frozen"))

        assert log.retention.expire_blobs(old) == 0
        assert log.blob(ADA, digest)


class RepairsContract:
    """The contract of the port ``Repairs``.  It needs a fixture ``log``."""

    def _blob(self, log: EventLog) -> tuple[str, erasure.OldBlobs]:
        """Write a blob; returns its digest and where it is stored."""
        digest = write_blob(log)
        (stored,) = log.retention.old_blobs(NOW)
        return digest, stored

    def test_put_head_replaces_a_head(self, log: EventLog) -> None:
        fill(log)
        other = log.head(ADA)._replace(tokens=4711)

        assert log.repairs.put_head(ADA, other)

        assert log.head(ADA).tokens == 4711
        assert not refused(log, ADA)

    def test_put_head_refuses_a_head_older_than_the_events(self, log: EventLog) -> None:
        fill(log)
        before = log.head(ADA)
        write(log, ADA, *user_inputs("on"))

        assert not log.repairs.put_head(ADA, before)

        assert log.head(ADA).seq == 3

    def test_put_head_refuses_an_erased_or_frozen_user(self, log: EventLog) -> None:
        fill(log)
        head = log.head(ADA)
        other = log.head(BOB)
        log.retention.freeze("bob", _FREEZE, certificate(log, "frozen", "bob"))
        assert not log.repairs.put_head(BOB, other)
        shred(log)

        with pytest.raises(errors.Erased):
            log.repairs.put_head(ADA, head)

    def test_a_blob_that_an_event_names_is_not_unnamed(self, log: EventLog) -> None:
        self._blob(log)

        assert log.repairs.unnamed_blobs(ADA) == Scanned({"main": 1}, ())

    def test_drop_blobs_needs_the_scanned_head(self, log: EventLog) -> None:
        digest, stored = self._blob(log)

        assert not log.repairs.drop_blobs(ADA, Scanned({"main": 7}, stored.addresses))
        assert log.blob(ADA, digest)
        assert log.repairs.drop_blobs(ADA, Scanned({"main": 1}, stored.addresses))
        assert log.blob(ADA, digest) is None


class SealsContract:
    """The contract of the port ``Seals``.  It needs fixtures ``log`` and ``seals``."""

    def test_seal_covers_new_events_once(self, log: EventLog, seals: Seals) -> None:
        assert seals.seal(now=NOW) is None
        fill(log)

        head = seals.seal(now=NOW)

        assert head is not None
        assert head.size == 3
        assert seals.seal(now=NOW + 1) == seals.seal(now=NOW + 1, sweep=True) == head
        write(log, ADA, *user_inputs("on"))
        later = seals.seal(now=NOW + 1)
        assert later is not None
        assert later.size == 4
        assert seals.heads() == [head, later]

    def test_verify_counts_sealed_and_unsealed_leaves(
        self, log: EventLog, seals: Seals
    ) -> None:
        fill(log)
        seals.seal(now=NOW)
        write(log, ADA, *user_inputs("on"))

        verified = seals.verify()

        assert (verified.tree_heads, verified.leaves, verified.anchored) == (1, 3, 1)
        assert (verified.unsealed, verified.problems) == (1, [])

    def test_an_event_is_proved_when_sealed(self, log: EventLog, seals: Seals) -> None:
        fill(log)
        seals.seal(now=NOW)
        write(log, ADA, *user_inputs("on"))

        proof: Any = seals.prove(ADA, 1, size=None)

        assert (proof["event"]["seq"], proof["tree_head"]["size"]) == (1, 3)
        assert check(proof, seals.public_key()).startswith("holds")
        for seq, size in ((3, None), (1, 2)):
            with pytest.raises(LookupError):
                seals.prove(ADA, seq, size=size)

    def test_growth_of_the_tree_can_be_proved(
        self, log: EventLog, seals: Seals
    ) -> None:
        for stream in (ADA, BOB):
            write(log, stream, *user_inputs("a"))
            seals.seal(now=NOW)

        proof = seals.prove_growth(1, 2)

        assert check(proof, seals.public_key()).startswith("holds")
        with pytest.raises(LookupError):
            seals.prove_growth(1, 3)

    def test_leaves_of_an_erased_user_stay(self, log: EventLog, seals: Seals) -> None:
        fill(log)
        seals.seal(now=NOW)
        job = shred(log)
        list(log.erasures.delete(job))

        assert log.erasures.tree_leaves(job)["count"] == 2
        assert seals.verify().erased == 2
        head = log.erasures.tree_head()
        assert head is not None
        assert head["size"] == 3
