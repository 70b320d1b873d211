"""The promises of rewriting: what was replaced is gone, what it was bound to stays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from refold.domain.envelope import Envelope
from refold.domain.events import (
    CompactionNote,
    RedactionApplied,
    SystemPrompt,
    UserInput,
)
from refold.domain.ports import Appended, Conflict, EventLog, Problem, StoredView
from refold.domain.record import Draft
from refold.domain.session import SessionState
from refold.redaction.chokepoint import RedactedEvent, redact
from refold.redaction.engine import Redactor
from refold.redaction.guard import Limits
from refold.testing.support import ADA, NOW, append_to, said, texts, write

_SMALL = Limits(leaf_bytes=2048, event_bytes=8192)


class Without:
    """A rewriting that takes a word out of what users said."""

    def __init__(self, word: str) -> None:
        self._word = word

    def again(self, envelope: Envelope) -> RedactedEvent | None:
        event = envelope.payload
        if not isinstance(event, UserInput) or self._word not in event.text:
            return None
        return self._redacted(UserInput(text=event.text.replace(self._word, "-")))

    def state(self, state: SessionState) -> SessionState:
        return state

    def record(self, event: RedactionApplied) -> RedactedEvent:
        return self._redacted(event)

    @staticmethod
    def _redacted(event: UserInput | RedactionApplied) -> RedactedEvent:
        draft = Draft(event)
        return redact(draft, now=NOW, redactor=Redactor(), limits=Limits())


class RewritingContract:
    """The promises of ``rewrite``; a part of EventLogContract."""

    def test_a_rewriting_takes_out_what_it_is_told_to(self, log: EventLog) -> None:
        write(log, ADA, *said("a", "b secret", "c"))

        done = log.rewrite(ADA, Without("secret"), now=NOW)

        assert (done.events, done.key_version) == (1, 2)
        assert texts(log.read(ADA)) == ["a", "b -", "c"]
        assert log.read(ADA)[1].redaction["before"] == {**log.read(ADA)[0].redaction}

    def test_a_rewriting_leaves_hashes_as_they_were(self, log: EventLog) -> None:
        write(log, ADA, *said("a", "b secret"))
        before = [event.hash for event in log.read(ADA)]

        log.rewrite(ADA, Without("secret"), now=NOW)
        write(log, ADA, *said("c"))

        assert [event.hash for event in log.read(ADA)][:2] == before
        assert log.read(ADA)[2].prev_hash == before[-1]
        assert [item for item in log.audit(ADA) if isinstance(item, Problem)] == []
        assert len(list(log.audit(ADA))) == 4

    def test_a_rewriting_says_what_it_replaced(self, log: EventLog) -> None:
        derived = ADA._replace(stream="f" * 64)
        write(log, ADA, *said("a", "b secret"))
        write(log, derived, CompactionNote(phase="retired"))

        log.rewrite(ADA, Without("secret"), now=NOW)

        said_so = [event.payload for event in log.read(ADA, after=2)]
        assert [event.stream for event in said_so] == ["main", "f" * 64]  # type: ignore[union-attr]  # both are redaction_applied
        assert [event.seqs for event in said_so] == [(2,), ()]  # type: ignore[union-attr]  # the same
        assert [item for item in log.audit(derived) if isinstance(item, Problem)] == []

    def test_a_rewriting_can_follow_another(self, log: EventLog) -> None:
        write(log, ADA, *said("one two three"))

        for number, word in enumerate(("one", "two"), start=2):
            assert log.rewrite(ADA, Without(word), now=NOW).key_version == number

        assert texts(log.read(ADA)) == ["- - three"]
        assert log.retired_keys(ADA) == log.retire_keys(ADA) == 0
        assert [item for item in log.audit(ADA) if isinstance(item, Problem)] == []

    def test_a_closed_session_can_be_rewritten(self, log: EventLog) -> None:
        write(log, ADA, *said("secret"), SystemPrompt(closed=True))

        log.rewrite(ADA, Without("secret"), now=NOW)

        head = log.head(ADA)
        assert (head.status, head.state.closed, head.seq) == ("closed", True, 3)
        unaware = replace(head, state=replace(head.state, closed=False))
        assert isinstance(log.append(append_to(unaware, *said("b"))), Conflict)

    def test_a_rewriting_drops_views_and_keeps_streams(self, log: EventLog) -> None:
        derived = ADA._replace(stream="f" * 64)
        write(log, ADA, *said("a secret"))
        write(log, derived, CompactionNote(phase="retired"))
        log.save_view(ADA, "v", StoredView(1, 0, {"n": 1}), replaces=0)
        before = log.head(derived)
        assert log.view_names("ada", "s-1") == ["v"]

        log.rewrite(ADA, Without("secret"), now=NOW)

        assert log.view_names("ada", "s-1") == []
        assert log.head(derived) == before
        assert isinstance(
            write(log, derived, CompactionNote(phase="retired")), Appended
        )

    def test_a_blob_goes_with_the_text_it_was_cut_from(self, log: EventLog) -> None:
        gone, kept = "secret. " * 2000, "a long line. " * 2000
        request = append_to(log.head(ADA), *said(gone, kept), limits=_SMALL)
        log.append(request)
        digests = [event.blobs[0].sha256 for event in request.events]

        done = log.rewrite(ADA, Without("secret"), now=NOW)

        assert done.blobs == 1
        assert log.blob(ADA, digests[0]) is None
        assert log.blob(ADA, digests[1]) == kept.encode()

    def test_a_rewriting_that_fails_changes_nothing(self, log: EventLog) -> None:
        write(log, ADA, *said("a secret"))

        class Failing(Without):
            def record(self, event: RedactionApplied) -> RedactedEvent:
                raise LookupError(event.stream)

        with pytest.raises(LookupError):
            log.rewrite(ADA, Failing("secret"), now=NOW)
        assert texts(log.read(ADA)) == ["a secret"]
        write(log, ADA, *said("b"))
        assert log.head(ADA).seq == 2

    def test_what_did_not_pass_redaction_replaces_nothing(self, log: EventLog) -> None:
        write(log, ADA, *said("a secret"))

        class Raw(Without):
            def again(self, envelope: Envelope) -> RedactedEvent | None:
                return envelope.payload  # type: ignore[return-value]  # on purpose

        with pytest.raises(TypeError):
            log.rewrite(ADA, Raw("secret"), now=NOW)
        assert texts(log.read(ADA)) == ["a secret"]
