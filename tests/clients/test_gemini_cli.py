"""``refold run`` records the Gemini CLI."""

from __future__ import annotations

from tests.clients.contract import ClientContract
from tests.clients.programs import GEMINI_CLI
from tests.clients.trial import PNG, Trial, answers_of, with_answer
from tests.support.provider import Failure, answer, call

_IMAGE_TYPE = b"image/png"


class TestGeminiCli(ClientContract):
    """The scenarios of all clients, images, and a sub-agent."""

    program = GEMINI_CLI
    failure = Failure(429, retry_after=0.1)

    def test_images_are_recorded(self, trial: Trial) -> None:
        path = trial.work / "square.png"
        path.write_bytes(PNG)

        trial.begin(
            "Look at the square.",
            answer("I look.", call("read_file", {"file_path": str(path)})),
            answer("It is red."),
        )

        with_answer(trial.check(), "It is red.")
        assert _IMAGE_TYPE in trial.provider.requests[-1].decoded

    def test_an_image_of_a_person_is_recorded(self, trial: Trial) -> None:
        (trial.work / "square.png").write_bytes(PNG)

        trial.begin("What is it? @square.png", answer("A red square."))

        with_answer(trial.check(), "A red square.")
        assert _IMAGE_TYPE in trial.provider.requests[-1].decoded

    def test_a_sub_agent_becomes_a_session(self, trial: Trial) -> None:
        task = {"agent_name": "generalist", "prompt": "Greet Ada."}

        trial.begin(
            "Delegate.",
            answer("I ask one.", call("invoke_agent", task)),
            answer("Hello, Ada."),
        )

        sessions = trial.check()
        main = with_answer(sessions, "I ask one.")
        sub_agent = with_answer(sessions, "Hello, Ada.")
        assert len(sessions) == 2
        assert main.session_id != sub_agent.session_id
        assert answers_of(main) == ["I ask one.", "Nothing to add."]
