"""``refold run`` records opencode."""

from __future__ import annotations

from tests.clients.contract import ClientContract
from tests.clients.programs import OPENCODE
from tests.clients.trial import PNG, Trial, with_answer
from tests.support.provider import answer


class TestOpencode(ClientContract):
    """The scenarios of all clients, and an image."""

    program = OPENCODE

    def test_an_image_of_a_person_is_recorded(self, trial: Trial) -> None:
        (trial.work / "square.png").write_bytes(PNG)

        trial.run(
            [*OPENCODE.begin("What is it?"), "-f", "square.png"],
            answer("A red square."),
        )

        with_answer(trial.check(), "A red square.")
        sent = [request.decoded for request in trial.provider.requests]
        assert any(b"image/png" in body for body in sent)
