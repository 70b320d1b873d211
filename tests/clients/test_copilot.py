"""``refold run`` records the Copilot CLI."""

from __future__ import annotations

from tests.clients.contract import ClientContract
from tests.clients.programs import COPILOT
from tests.clients.trial import PNG, Trial, answers_of, with_answer
from tests.support.provider import Failure, answer, call


class TestCopilot(ClientContract):
    """The scenarios of all clients, an image, and a sub-agent.

    Its tool ``view`` sends no image to this model, only the path of the file.
    """

    program = COPILOT
    failure = Failure(429, retry_after=0.1)

    def test_an_image_of_a_person_is_recorded(self, trial: Trial) -> None:
        (trial.work / "square.png").write_bytes(PNG)

        trial.run(
            [*COPILOT.begin("What is it?"), "--attachment", "square.png"],
            answer("A red square."),
        )

        with_answer(trial.check(), "A red square.")
        assert b"image_url" in trial.provider.requests[-1].decoded

    def test_a_sub_agent_becomes_a_session(self, trial: Trial) -> None:
        task = {"agent_type": "general-purpose", "description": "One", "name": "one"}

        trial.begin(
            "Delegate.",
            answer("I ask one.", call("task", {**task, "prompt": "Greet Ada."})),
            answer("Hello, Ada."),
        )

        sessions = trial.check()
        assert len(sessions) == 2
        assert answers_of(with_answer(sessions, "Hello, Ada.")) == ["Hello, Ada."]
