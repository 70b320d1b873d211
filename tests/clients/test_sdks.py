"""``refold run`` records agents on the SDKs of providers, whole and streaming."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.clients.contract import ClientContract
from tests.clients.programs import KEY, PYTHON, Program
from tests.clients.trial import PNG, Trial, answers_of, with_answer
from tests.support.provider import Failure, answer, call

_SCRIPT: Final = str(Path(__file__).with_name("sdk_agent.py"))


def _environment(home: Path) -> Mapping[str, str]:
    return {
        "ANTHROPIC_API_KEY": KEY,
        "OPENAI_API_KEY": KEY,
        "GEMINI_API_KEY": KEY,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


def _sdk(name: str, upstream: str, variable: str, base: str = "") -> Program:
    """Return an agent on an SDK."""
    return Program(
        command=PYTHON / "python",
        upstream=upstream,
        variable=variable,
        base=base,
        environment=_environment,
        begin=lambda prompt: [_SCRIPT, name, prompt],
        resume=lambda prompt: [_SCRIPT, name, "--resume", prompt],
        runs=lambda command: call("run_command", {"command": command}),
    )


def _streaming(program: Program) -> Program:
    """Return the same agent, which asks for streams."""
    resume = program.resume
    assert resume is not None
    return replace(
        program,
        begin=lambda prompt: [*program.begin(prompt), "--stream"],
        resume=lambda prompt: [*resume(prompt), "--stream"],
    )


class _Whole(ClientContract):
    """The scenarios of all clients, and an image."""

    failure = Failure(429, retry_after=0.1)

    def test_an_image_of_a_person_is_recorded(self, trial: Trial) -> None:
        (trial.work / "square.png").write_bytes(PNG)

        trial.run(
            [*self.program.begin("What is it?"), "--image", "square.png"],
            answer("A red square."),
        )

        with_answer(trial.check(), "A red square.")


class _Streaming(_Whole):
    """These scenarios with streams, and an agent that cancels one."""

    def test_a_cancelled_stream_is_recorded_as_far_as_it_came(
        self, trial: Trial
    ) -> None:
        trial.run(
            [*self.program.begin("What is six by seven?"), "--cancel"],
            answer("A long answer that nobody reads to its end.").holding(after=4),
            answer("It is 42."),
        )

        session = with_answer(trial.check(), "It is 42.")
        assert len(trial.provider.requests) == 2
        assert len(answers_of(session)) <= 2


_ANTHROPIC = _sdk("anthropic", "anthropic", "ANTHROPIC_BASE_URL")
_CHAT = _sdk("openai-chat", "openai", "OPENAI_BASE_URL", "/v1")
_RESPONSES = _sdk("openai-responses", "openai", "OPENAI_BASE_URL", "/v1")
_STORED = _sdk("openai-stored", "openai", "OPENAI_BASE_URL", "/v1")
_GEMINI = _sdk("google-genai", "gemini", "GOOGLE_GEMINI_BASE_URL")
_OLLAMA = replace(_sdk("ollama", "ollama", "OLLAMA_HOST"), has_ids=False)
_LITELLM = _sdk("litellm", "openai", "OPENAI_BASE_URL", "/v1")
_TRANSLATED = _sdk("litellm-anthropic", "anthropic", "ANTHROPIC_BASE_URL")


class TestAnthropic(_Whole):
    program = _ANTHROPIC
    failure = Failure(529, retry_after=0.1)


class TestAnthropicStreaming(_Streaming):
    program = _streaming(_ANTHROPIC)
    failure = Failure(529, retry_after=0.1)


class TestOpenAiChat(_Whole):
    program = _CHAT


class TestOpenAiChatStreaming(_Streaming):
    program = _streaming(_CHAT)


class TestOpenAiResponses(_Whole):
    program = _RESPONSES


class TestOpenAiResponsesStreaming(_Streaming):
    program = _streaming(_RESPONSES)


class TestOpenAiStoredResponses(_Whole):
    """Its requests have ``previous_response_id`` in place of the history."""

    program = _STORED


class TestOpenAiStoredResponsesStreaming(_Streaming):
    program = _streaming(_STORED)


class TestGoogleGenAi(_Whole):
    program = _GEMINI


class TestGoogleGenAiStreaming(_Streaming):
    program = _streaming(_GEMINI)


class TestOllama(_Whole):
    program = _OLLAMA


class TestOllamaStreaming(_Streaming):
    program = _streaming(_OLLAMA)


class TestLiteLlm(_Whole):
    program = _LITELLM


class TestLiteLlmStreaming(_Streaming):
    program = _streaming(_LITELLM)


class TestLiteLlmTranslated(_Whole):
    """Its requests have another protocol than the calls of the agent."""

    program = _TRANSLATED


class TestLiteLlmTranslatedStreaming(_Streaming):
    program = _streaming(_TRANSLATED)
