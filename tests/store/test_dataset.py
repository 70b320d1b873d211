"""A dataset contains users who allowed it; an erasure reports datasets with rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

import refold
from refold import AgentResponse, Final, SessionStore, ToolCall, ToolResult, UserInput
from refold.adapters.importers.dataset import Dataset
from refold.domain.errors import ExportFailed


def fill(store: SessionStore, user: str, *sessions: str, text: str = "Hi.") -> None:
    for name in sessions:
        session = store.session(user_id=user, session_id=name)
        session.append(UserInput(text=text))
        session.append(AgentResponse(text="I look."))
        session.append(ToolCall(call_id="c", tool_name="ls", arguments={"at": text}))
        session.append(
            ToolResult(call_id="c", content=[{"type": "text", "text": text}])
        )
        session.append(Final(outcome="success", reward=1.0))


def test_a_row_is_a_chat_with_its_lineage(store: SessionStore) -> None:
    fill(store, "ada", "run", text="Write to ada@example.com.")
    store.user("ada").consent("training")

    dataset = Dataset(store)
    (row,) = dataset.rows()

    text = "Write to [REDACTED:EMAIL]."
    function = {"name": "ls", "arguments": '{"at":"Write to [REDACTED:EMAIL]."}'}
    assert row["messages"] == [
        {"role": "user", "content": text},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c", "content": text},
    ]
    assert (row["outcome"], row["reward"]) == ("success", 1.0)
    lineage: Any = row["lineage"]
    assert (lineage["export"], lineage["seqs"]) == (dataset.export_id, [1, 5])
    assert lineage["consent"]["scope"] == "training"
    assert lineage["redaction"]["types"] == {"EMAIL": 3}
    assert "'ada'" not in str(lineage)


def test_users_without_consent_are_left_out(store: SessionStore) -> None:
    for user in ("ada", "bob", "eve"):
        fill(store, user, "run")
    store.user("ada").consent("training")
    store.user("bob").consent("training")
    store.user("bob").withdraw("training")
    store.user("eve").consent("evaluation")

    dataset = Dataset(store)

    assert len([*dataset.rows()]) == 1
    assert (dataset.users, dataset.users_left_out) == (["ada"], 2)
    assert len([*Dataset(store, "evaluation").rows()]) == 1
    assert not [*Dataset(store).rows("bob")]


def test_an_erasure_names_the_datasets_with_rows(store: SessionStore) -> None:
    fill(store, "ada", "one", "two")
    store.user("ada").consent("training")
    first = Dataset(store)
    second = Dataset(store)
    row, _ = first.rows()
    rows = [*second.rows()]

    done = store.erase("ada", "asked", session_id="one")
    assert done.certificate is not None
    assert [export["export"] for export in done.certificate.statement["exports"]] == [
        first.export_id,
        second.export_id,
    ]
    lineage: Any = row["lineage"]
    assert done.certificate.statement["exports"][0]["rows"] == [lineage["session"]]

    done = store.erase("ada", "asked")
    assert done.certificate is not None
    of: Any = rows[0]["lineage"]
    assert done.certificate.statement["exports"][1] == {
        "export": second.export_id,
        "rows": [of["user"]],
    }


def test_an_erasure_of_an_unexported_user_names_no_dataset(store: SessionStore) -> None:
    fill(store, "ada", "run")

    done = store.erase("ada", "asked")

    assert done.certificate is not None
    assert done.certificate.statement["exports"] == []


def test_a_dataset_fails_if_a_user_is_erased_during_its_export(
    store: SessionStore,
) -> None:
    for user in ("ada", "bob"):
        fill(store, user, "run")
        store.user(user).consent("training")
    rows = Dataset(store).rows()
    next(rows)

    store.erase("ada", "asked")

    with pytest.raises(ExportFailed, match="being erased"):
        list(rows)


@given(st.text("ab \n", max_size=20), st.text("ab \n", max_size=20))
def test_no_row_contains_text_that_the_log_lacks(before: str, after: str) -> None:
    with refold.open("memory://") as store:
        fill(store, "ada", "run", text=f"{before} ada.b@example.com {after}")
        store.user("ada").consent("training")

        rows = [*Dataset(store).rows()]

    assert "example.com" not in str(rows)
    assert "[REDACTED:EMAIL]" in str(rows)
