"""The scenarios of clients fail for a client that does nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.contract import ClientContract, TranscriptContract
from tests.clients.programs import Program
from tests.clients.trial import Trial
from tests.support.provider import Provider, call

IDLE = Program(
    command=Path("/bin/true"),
    upstream="anthropic",
    variable="ANTHROPIC_BASE_URL",
    environment=lambda home: {},  # noqa: ARG005  # it needs no variables
    begin=lambda prompt: [prompt],
    resume=lambda prompt: [prompt],
    runs=lambda command: call("bash", {"command": command}),
)
SCENARIOS = [
    ClientContract.test_a_plain_answer_is_recorded,
    ClientContract.test_calls_and_their_results_are_recorded,
    ClientContract.test_parallel_calls_are_recorded,
    ClientContract.test_a_retry_after_an_error_adds_no_content,
    ClientContract.test_a_resumed_conversation_continues_its_session,
    ClientContract.test_secrets_are_redacted_before_the_disk,
    TranscriptContract.test_an_import_of_its_transcript_adds_no_content,
    TranscriptContract.test_a_capture_at_the_same_time_adds_no_content,
]


class _Idle(TranscriptContract):
    program = IDLE
    transcripts = ".idle"
    form = "claude-code"


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    with Provider() as provider:
        trial = Trial(IDLE, provider, tmp_path)
        yield trial
        trial.close()


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_client_that_does_nothing_fails(
    trial: Trial, scenario: Callable[[TranscriptContract, Trial], None]
) -> None:
    with pytest.raises(AssertionError):
        scenario(_Idle(), trial)
