"""The scenarios that every client passes under ``refold run``.

After each, the record of every request equals what the provider received.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.programs import Program
from tests.clients.trial import (
    MAIL,
    SECRET,
    Trial,
    answers_of,
    events_of,
    wait_for_requests,
    with_answer,
)
from tests.support.provider import Call, Failure, Provider, answer
from tests.support.waiting import PATIENCE_SEC


class ClientContract:
    """Inherit it, and set ``program``."""

    program: Program
    # An error after which the client asks again.
    failure = Failure(529, retry_after=0.1)

    @pytest.fixture
    def trial(self, tmp_path: Path) -> Iterator[Trial]:
        """The client with a provider and an empty store."""
        with Provider(scripted=self.program.is_main) as provider:
            trial = Trial(self.program, provider, tmp_path)
            yield trial
            trial.close()

    def test_a_plain_answer_is_recorded(self, trial: Trial) -> None:
        outcome = trial.begin("What is six by seven?", answer("It is 42."))

        assert outcome.status == 0, outcome
        # mini-swe-agent hides an answer without a call, and asks for another one.
        assert self.program.last or "42" in outcome.stdout
        session = with_answer(trial.check(), "It is 42.")
        assert answers_of(session).count("It is 42.") == 1

    def test_calls_and_their_results_are_recorded(self, trial: Trial) -> None:
        runs = self._runs()

        trial.begin(
            "Look around.",
            answer("First, I look.", runs("echo first-output")),
            answer("Then I look again.", runs("echo second-output")),
            answer("All is done."),
        )

        session = with_answer(trial.check(), "All is done.")
        results = [str(result.content) for result in events_of(session, "tool_result")]
        assert "first-output" in results[0]
        assert "second-output" in results[1]

    def test_parallel_calls_are_recorded(self, trial: Trial) -> None:
        runs = self._runs()
        both = (runs("echo left-output"), runs("echo right-output"))

        trial.begin("Look twice.", answer("Both at once.", *both), answer("Done."))

        session = with_answer(trial.check(), "Done.")
        results = [str(result.content) for result in events_of(session, "tool_result")]
        assert sum("left-output" in result for result in results) == 1
        assert sum("right-output" in result for result in results) == 1

    def test_a_retry_after_an_error_adds_no_content(self, trial: Trial) -> None:
        trial.begin("What is six by seven?", self.failure, answer("It is 42."))

        session = with_answer(trial.check(), "It is 42.")
        statuses = [request.status for request in trial.provider.requests]
        assert self.failure.status in statuses
        assert answers_of(session).count("It is 42.") == 1
        assert events_of(session, "error")

    def test_a_resumed_conversation_continues_its_session(self, trial: Trial) -> None:
        if self.program.resume is None:
            pytest.skip(f"{self.program.command.name} cannot resume a conversation")
        trial.begin("What is six by seven?", answer("It is 42."))

        trial.resume("And by eight?", answer("It is 48."))

        session = with_answer(trial.check(), "It is 48.")
        assert self.program.rewrites or "It is 42." in answers_of(session)

    def test_secrets_are_redacted_before_the_disk(self, trial: Trial) -> None:
        prompt = f"Write to {MAIL} with the key {SECRET}."
        replies = [answer(f"I write to {MAIL}, with {SECRET}.")]
        if self.program.runs is not None:
            replies.insert(0, answer("", self.program.runs(f"echo {SECRET} {MAIL}")))

        trial.begin(prompt, *replies)

        trial.check()
        request = trial.provider.requests[-1]
        assert SECRET.encode() in request.decoded  # the provider gets the values

    def test_an_interrupted_answer_is_recorded_as_far_as_it_came(
        self, trial: Trial
    ) -> None:
        trial.provider.reply(answer("A text of several pieces.").holding(after=4))
        process = trial.start(self.program.begin("Tell me a story."))
        wait_for_requests(trial.provider, 1)

        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=PATIENCE_SEC)

        trial.check(interrupted=True)

    def _runs(self) -> Callable[[str], Call]:
        if self.program.runs is None:
            pytest.skip(f"{self.program.command.name} has no tool for commands")
        return self.program.runs


class TranscriptContract(ClientContract):
    """Also for clients whose transcripts are imported and captured.

    Inherit it, and set these, too.

    transcripts: the folder of the transcripts, in the home of the user.
    form:        the name of their format.
    """

    transcripts: str
    form: str

    def test_an_import_of_its_transcript_adds_no_content(self, trial: Trial) -> None:
        trial.begin(
            "Look around.",
            answer("First, I look.", self._runs()("echo first-output")),
            answer("All is done."),
        )

        trial.import_transcripts(trial.home / self.transcripts)

        sessions = trial.check()
        session = with_answer(sessions, "All is done.")
        answers = [answers_of(recorded) for recorded in sessions]
        assert answers == [["First, I look.", "All is done."]]
        assert len(events_of(session, "tool_result")) == 1

    def test_a_capture_at_the_same_time_adds_no_content(self, trial: Trial) -> None:
        folder = trial.home / self.transcripts
        follower = trial.follow_transcripts(self.form, folder)
        try:
            trial.begin(
                "Look around.",
                answer("First, I look.", self._runs()("echo first-output")),
                answer("All is done."),
            )
            trial.resume("And again?", answer("Done again."))
        finally:
            follower.terminate()
            follower.communicate()
        trial.capture_once(self.form, folder)

        session = with_answer(trial.check(), "Done again.")
        assert answers_of(session) == ["First, I look.", "All is done.", "Done again."]
        assert len(events_of(session, "tool_call")) == 1
        assert len(events_of(session, "tool_result")) == 1
