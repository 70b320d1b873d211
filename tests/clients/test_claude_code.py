"""``refold run`` records Claude Code."""

from __future__ import annotations

import base64
import json

from tests.clients.contract import TranscriptContract
from tests.clients.programs import CLAUDE_CODE
from tests.clients.trial import (
    PNG,
    Trial,
    answers_of,
    events_of,
    parents_of,
    seqs_of,
    sessions_of,
    with_answer,
)
from tests.support.provider import Call, answer, call


def _delegate(name: str, prompt: str) -> Call:
    arguments = {
        "description": name,
        "prompt": prompt,
        "subagent_type": "general-purpose",
        "run_in_background": False,
    }
    return call("Agent", arguments)


class TestClaudeCode(TranscriptContract):
    """The scenarios of all clients, and those that need its tools."""

    program = CLAUDE_CODE
    transcripts = ".claude/projects"
    form = "claude-code"

    def test_parallel_sub_agents_become_linked_sessions(self, trial: Trial) -> None:
        both = (
            _delegate("One", "Greet Ada in one sentence."),
            _delegate("Two", "Greet Grace in one sentence."),
        )

        trial.begin("Delegate.", answer("I ask two.", *both), answer("Both greeted."))

        sessions = trial.check()
        main = with_answer(sessions, "Both greeted.")
        assert len(sessions) == 3
        for session in sessions:
            if session.session_id != main.session_id:
                assert answers_of(session) == ["Nothing to add."]
        delegations = seqs_of(main, "tool_call")
        assert sorted(parents_of(sessions)) == [
            (main.session_id, seq) for seq in delegations
        ]

    def test_a_compacted_conversation_goes_on(self, trial: Trial) -> None:
        long_answer = answer("It is 42, because seven and seven make fourteen. " * 20)
        trial.begin("What is six by seven?", long_answer)
        trial.resume("/compact", answer("<summary>The user asked.</summary>"))

        trial.resume("And by eight?", answer("It is 48."))

        session = with_answer(trial.check(), "It is 48.")
        assert events_of(session, "provider_edit")

    def test_a_call_to_which_it_adds_a_default_is_recorded_once(
        self, trial: Trial
    ) -> None:
        note = trial.work / "note.txt"
        note.write_text("It is five.\n")
        edit = {"file_path": str(note), "old_string": "five", "new_string": "six"}
        trial.begin(
            "Change the note.",
            answer("I read it.", call("Read", {"file_path": str(note)})),
            answer("I change it.", call("Edit", edit)),
            answer("It is changed."),
        )
        trial.import_transcripts(trial.home / ".claude/projects")

        session = with_answer(trial.check(), "It is changed.")
        calls = events_of(session, "tool_call")
        assert [tool_call.tool_name for tool_call in calls] == ["Read", "Edit"]
        assert calls[1].arguments == edit
        (rewritten,) = events_of(session, "provider_edit")
        assert rewritten.arguments == {"replace_all": False}
        assert note.read_text() == "It is six.\n"

    def test_images_are_recorded(self, trial: Trial) -> None:
        (trial.work / "square.png").write_bytes(PNG)
        path = str(trial.work / "square.png")

        trial.begin(
            "Look at the square.",
            answer("I look.", call("Read", {"file_path": path})),
            answer("It is red."),
        )

        with_answer(trial.check(), "It is red.")

    def test_an_image_of_a_person_is_recorded(self, trial: Trial) -> None:
        source = {"type": "base64", "media_type": "image/png"}
        source["data"] = base64.b64encode(PNG).decode()
        content = [
            {"type": "text", "text": "What is it?"},
            {"type": "image", "source": source},
        ]
        line = {"type": "user", "message": {"role": "user", "content": content}}
        streams = ("--input-format", "stream-json", "--output-format", "stream-json")

        trial.run(
            ["-p", *streams, "--verbose", "--dangerously-skip-permissions"],
            answer("A red square."),
            stdin=json.dumps(line) + "\n",
        )

        with_answer(trial.check(), "A red square.")

    def test_an_import_adds_what_ran_without_the_proxy(self, trial: Trial) -> None:
        trial.begin("What is six by seven?", answer("I know it."))
        resumed = CLAUDE_CODE.resume
        assert resumed is not None
        trial.run_without_proxy(resumed("And by eight?"), answer("I know it."))

        trial.import_transcripts(trial.home / ".claude/projects")

        (session,) = sessions_of(trial.store)
        assert answers_of(session) == ["I know it.", "I know it."]
        inputs = [given.text for given in events_of(session, "user_input")]
        assert inputs.count("What is six by seven?") == 1
        assert inputs.count("And by eight?") == 1
