"""``refold run`` records Codex."""

from __future__ import annotations

import json

from tests.clients.contract import TranscriptContract
from tests.clients.programs import CODEX
from tests.clients.trial import (
    PNG,
    Trial,
    events_of,
    parents_of,
    with_answer,
)
from tests.support.provider import Failure, answer, call
from tests.support.waiting import PATIENCE_SEC

_FLAGS = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]


class TestCodex(TranscriptContract):
    """The scenarios of all clients, and those that need its tools."""

    program = CODEX
    transcripts = ".codex/sessions"
    form = "codex"
    failure = Failure(500)

    def test_a_sub_agent_becomes_a_linked_session(self, trial: Trial) -> None:
        task = {"task_name": "greeting", "message": "Greet Ada in one sentence."}
        space = "collaboration"
        # The conversation waits until the sub-agent has its answer, however slow.
        patience = {"timeout_ms": int(PATIENCE_SEC * 1000)}

        trial.begin(
            "Delegate this to a sub-agent.",
            answer("I ask one.", call("spawn_agent", task, namespace=space)),
            answer("I wait.", call("wait_agent", patience, namespace=space)),
            answer("It has greeted."),
        )

        sessions = trial.check()
        main = with_answer(sessions, "It has greeted.")
        sub_agent = with_answer(sessions, "Nothing to add.")
        assert len(sessions) == 2
        assert main.session_id != sub_agent.session_id
        ((parent_id, seq),) = parents_of(sessions)
        assert parent_id == main.session_id
        (spawned,) = [event for event in main.events() if event.seq == seq]
        assert getattr(spawned.payload, "tool_name", spawned.type) == "spawn_agent"

    def test_a_compacted_conversation_goes_on(self, trial: Trial) -> None:
        limit = "model_auto_compact_token_limit=20000"
        script = f"text(await tools.exec_command({{cmd: {json.dumps('echo one')}}}));"

        trial.run(
            ["exec", *_FLAGS, "-c", limit, "Look around."],
            answer("I look.", call("exec", script), input_tokens=90_000),
            answer("This is not sent, since a compaction is asked for."),
            answer("All is done."),
        )

        session = with_answer(trial.check(), "All is done.")
        edits = [edit.model_dump_json() for edit in events_of(session, "provider_edit")]
        assert any("encrypted_content" in edit for edit in edits)

    def test_an_image_of_a_person_is_recorded(self, trial: Trial) -> None:
        (trial.work / "square.png").write_bytes(PNG)

        trial.run(
            ["exec", *_FLAGS, "-i", "square.png", "--", "What is it?"],
            answer("A red square."),
        )

        with_answer(trial.check(), "A red square.")
