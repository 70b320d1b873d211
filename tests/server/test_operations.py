"""Each HTTP operation is one call of the store and reports what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from pydantic import TypeAdapter
from starlette.testclient import TestClient

import refold
from refold.adapters import server
from refold.domain.erasure import subject
from refold.store import SessionStore
from tests.server.conftest import ClientFor

ASKS = {"type": "user_input", "payload": {"text": "Why does the build fail?"}}
CALLS = {
    "type": "tool_call",
    "payload": {"call_id": "c1", "tool_name": "bash", "arguments": {"command": "make"}},
    "agent": "coder",
    "meta": {"scenario": "builds"},
}
EVENTS = "/v1/sessions/s-1/events"


def create_session(client: TestClient, name: str = "s-1") -> None:
    answer = client.post(f"/v1/sessions/{name}/events", json={"events": [ASKS, CALLS]})
    assert answer.status_code == 201, answer.text


def test_appended_events_are_read_back(ada: TestClient) -> None:
    answered = ada.post(
        EVENTS, json={"events": [ASKS, CALLS]}, headers={"X-Request-ID": "r-7"}
    )

    assert answered.status_code == 201
    assert answered.json()["last_seq"] == 2
    assert answered.headers["x-request-id"] == "r-7"
    first, second = ada.get(EVENTS).json()["events"]
    assert first["payload"]["text"] == "Why does the build fail?"
    assert (first["user_id"], first["request_id"]) == ("ada", "r-7")
    assert (second["agent"], second["meta"]) == ("coder", {"scenario": "builds"})


def test_a_retry_gets_the_first_receipt(ada: TestClient) -> None:
    key = {"Idempotency-Key": "k-1"}
    first = ada.post(EVENTS, json={"events": [ASKS]}, headers=key)
    again = ada.post(EVENTS, json={"events": [ASKS]}, headers=key)

    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json() | {"duplicate": True}
    other = ada.post(EVENTS, json={"events": [CALLS]}, headers=key)
    assert (other.status_code, other.json()["first_seq"]) == (409, 1)


def test_a_stale_writer_gets_the_expected_and_actual_seq(ada: TestClient) -> None:
    create_session(ada)

    late = ada.post(EVENTS, json={"events": [ASKS]}, headers={"Expected-Seq": "1"})

    assert late.status_code == 409
    assert late.headers["content-type"] == "application/problem+json"
    problem = late.json()
    assert problem["type"] == "urn:refold:problem:stale-session"
    assert (problem["expected"], problem["actual"]) == (1, 2)


def test_events_are_listed_by_page_and_by_type(ada: TestClient) -> None:
    create_session(ada)
    ada.post(EVENTS, json={"events": [ASKS] * 5})

    page = ada.get(EVENTS, params={"limit": 3}).json()
    rest = ada.get(EVENTS, params={"limit": 9, "after": page["next"]}).json()
    calls = ada.get(EVENTS, params={"type": ["tool_call", "tool_result"]}).json()

    assert [each["seq"] for each in page["events"]] == [1, 2, 3]
    assert [each["seq"] for each in rest["events"]] == [4, 5, 6, 7]
    assert rest["next"] is None
    assert [each["type"] for each in calls["events"]] == ["tool_call"]


def test_values_that_json_cannot_hold_are_repaired(ada: TestClient) -> None:
    odd = r'{"half": "\ud800", "wei": 25000000000000000000, "nan": NaN, "ok": 1}'
    event = f'{{"type": "state", "payload": {{"set": {odd}}}}}'
    body = f'{{"events": [{event}, {{"type": "user_input"}}]}}'
    headers = {"Content-Type": "application/json", "Idempotency-Key": "k"}

    statuses = [
        ada.post(EVENTS, content=body, headers=headers).status_code for _ in "ab"
    ]
    repaired, plain = ada.get(EVENTS).json()["events"]

    clean = {"half": "\ufffd", "wei": "25000000000000000000", "nan": "nan", "ok": 1}
    assert statuses == [201, 200]
    assert repaired["payload"]["set"] == clean
    assert repaired["meta"]["warnings"] == [{"code": "repaired"}]
    assert "warnings" not in plain["meta"]


def test_sessions_are_listed_by_page_and_by_label(ada: TestClient) -> None:
    for name in ("a", "b", "c"):
        create_session(ada, name)
    labelled = ada.put("/v1/sessions/b/labels", json={"project": "refold"})

    page = ada.get("/v1/sessions", params={"limit": 2}).json()
    rest = ada.get("/v1/sessions", params={"after": page["next"]}).json()
    labelled_sessions = ada.get(
        "/v1/sessions", params={"label": "project=refold"}
    ).json()

    assert labelled.json() == {"project": "refold"}
    assert [each["session_id"] for each in page["sessions"]] == ["a", "b"]
    assert [each["session_id"] for each in rest["sessions"]] == ["c"]
    assert [each["session_id"] for each in labelled_sessions["sessions"]] == ["b"]
    assert ada.get("/v1/sessions/b").json()["labels"] == {"project": "refold"}


def test_the_example_of_a_list_has_the_fields_of_a_list(ada: TestClient) -> None:
    create_session(ada, "a")
    examples = orjson.loads(
        (Path(server.__file__).parent / "examples.json").read_bytes()
    )
    example = examples["sessions"]["gives"]

    page = ada.get("/v1/sessions").json()

    assert list(example) == list(page)
    assert set(example["sessions"][0]) == set(page["sessions"][0])


@pytest.mark.parametrize(
    "name", ["a/b", "100%", "a b", "?x=1#y", "ÄÖ 会话", "..", "%2F"]
)
def test_a_name_may_hold_any_printable_character(ada: TestClient, name: str) -> None:
    from urllib.parse import quote

    place = quote(name, safe="").replace(".", "%2E")
    answered = ada.post(f"/v1/sessions/{place}/events", json={"events": [ASKS]})

    assert answered.status_code == 201, answered.text
    assert ada.get("/v1/sessions").json()["sessions"][0]["session_id"] == name
    assert ada.get(f"/v1/sessions/{place}").json()["session_id"] == name


@pytest.mark.parametrize("name", ["%FF", "%C3", "%00", "%ED%A0%80"])
def test_a_session_name_must_be_text(
    ada: TestClient, store: SessionStore, name: str
) -> None:
    answer = ada.post(f"/v1/sessions/{name}/events", json={"events": [ASKS]})

    assert answer.status_code == 404
    assert store.sessions("ada") == []


def test_a_label_may_have_any_name_that_labels_may_have(ada: TestClient) -> None:
    create_session(ada)
    labels = {"self": "x", "labels": "y"}

    answer = ada.put("/v1/sessions/s-1/labels", json=labels)

    assert answer.json() == labels


def test_a_body_of_another_type_is_refused_with_the_needed_type(
    ada: TestClient,
) -> None:
    kind = {"Content-Type": "application/x-www-form-urlencoded"}

    answered = ada.post("/v1/erasures", content=b'{"reason": "x"}', headers=kind)

    assert answered.status_code == 422
    assert "Content-Type: application/json" in answered.json()["detail"]


def test_a_context_accepts_the_parameters_for_turns(
    ada: TestClient, store: SessionStore
) -> None:
    for number in range(12):
        asks = {"type": "user_input", "payload": {"text": f"question {number}"}}
        says = {"type": "agent_response", "payload": {"text": "an answer " * 20}}
        ada.post(EVENTS, json={"events": [asks, says]})
    spec = "turn_window:full_turns=2,cached_turns=2"
    compacted = ada.post(
        "/v1/sessions/s-1/compact", json={"strategy": spec, "until_idle": True}
    )

    turns = {"fullContextTurns": 2, "cachedContextTurns": 2}
    shown = ada.get("/v1/sessions/s-1/context", params=turns).json()

    assert len(compacted.json()["summaries"]) >= 2
    session = store.session(user_id="ada", session_id="s-1")
    nothing_recorded: dict[str, object] = {
        "provenance": "assumed",
        "request": None,
        "rules": [],
    }
    assert shown == session.context(spec).to_json() | nothing_recorded
    assert {span["kind"] for span in shown["spans"]} == {"summary", "raw"}
    then = ada.get("/v1/sessions/s-1/context", params={"at": 4, "as": "rebuilt"})
    assert then.json()["at"] == 4


def test_a_compaction_compacts_the_turns_that_its_body_names(
    ada: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_FULL_CONTEXT_TURNS", "9")
    for number in range(5):
        asks = {"type": "user_input", "payload": {"text": f"question {number}"}}
        says = {"type": "agent_response", "payload": {"text": "an answer " * 20}}
        ada.post(EVENTS, json={"events": [asks, says]})

    turns = {"fullContextTurns": 2, "cachedContextTurns": 3}
    summaries = ada.post("/v1/sessions/s-1/compact", json=turns).json()["summaries"]
    both = ada.post("/v1/sessions/s-1/compact", json=turns | {"strategy": "hybrid"})
    no_turns = ada.post("/v1/sessions/s-1/compact", json={"fullContextTurns": 0})

    (summary,) = summaries
    assert summary["payload"]["last_seq"] == 6
    params = summary["payload"]["strategy"]["params"]
    assert (params["full_turns"], params["cached_turns"]) == (2, 3)
    assert (both.status_code, no_turns.status_code) == (422, 422)


def test_a_strategy_cannot_name_a_file_of_the_server(ada: TestClient) -> None:
    create_session(ada)

    for spec in ("@policy.toml", "keep_all;@x.json"):
        shown = ada.get("/v1/sessions/s-1/context", params={"strategy": spec})
        compacted = ada.post("/v1/sessions/s-1/compact", json={"strategy": spec})
        compared = ada.get("/v1/sessions/s-1/compare", params={"strategy": [spec]})
        assert {answer.status_code for answer in (shown, compacted, compared)} == {422}
        assert "file" in shown.json()["detail"]


def test_why_compare_verify_and_search_answer(ada: TestClient) -> None:
    create_session(ada)

    why = ada.get("/v1/sessions/s-1/why").json()
    compared = ada.get("/v1/sessions/s-1/compare", params={"strategy": "keep_all"})
    proved = ada.get("/v1/sessions/s-1/verify").json()
    hits = ada.get("/v1/search", params={"words": "build fail"}).json()
    state = ada.get("/v1/sessions/s-1/state").json()
    costs = ada.get("/v1/costs").json()

    assert why["at"] == 2
    assert compared.json()["outcomes"][0]["name"] == "keep_all"
    assert (proved["ok"], proved["events"]) == (True, 2)
    (hit,) = hits["found"]
    assert (hit["session_id"], hit["seq"]) == ("s-1", 1)
    marked = [hit["snippet"][start:end] for start, end in hit["marks"]]
    assert [word.lower() for word in marked] == ["build", "fail"]
    assert (hits["total"], hits["total_is_exact"]) == (1, True)
    assert (state, costs) == ({}, {"costs": []})


def test_a_search_returns_few_hits_of_each_session(
    ada: TestClient, store: SessionStore
) -> None:
    for name in ("s-1", "s-2"):
        session = store.session(user_id="ada", session_id=name)
        session.append([refold.UserInput(text="brew tea")] * 9)

    def counts(**parameters: int) -> list[tuple[str, int]]:
        response = ada.get("/v1/search", params={"words": "tea", **parameters})
        places: list[tuple[str, int]] = []
        for hit in response.json()["found"]:
            places.append((hit["session_id"], hit["more_in_session"]))
        return places

    assert sorted(counts(limit=10)) == [("s-1", 4)] * 5 + [("s-2", 4)] * 5
    assert sorted(counts(limit=4, per_session=2)) == [("s-1", 7)] * 2 + [("s-2", 7)] * 2
    assert counts(limit=9, per_session=0) == [("s-2", 0)] * 9


def test_a_proof_is_checked_with_the_public_key_alone(
    ada: TestClient, store: SessionStore
) -> None:
    create_session(ada)
    unsealed = ada.get("/v1/sessions/s-1/proof", params={"seq": 2})
    store.seal()

    proof = ada.get("/v1/sessions/s-1/proof", params={"seq": 2})

    assert unsealed.status_code == 404
    assert proof.status_code == 200
    stream = store.session(user_id="ada", session_id="s-1").stream
    assert proof.json() == store.seals.prove(stream, 2, size=None)


def test_memory_is_shown_and_refused(ada: TestClient) -> None:
    create_session(ada)
    allowed = ada.put(
        "/v1/memory/consent", json={"scope": "declarative_memory", "granted": True}
    )

    out = ada.put("/v1/memory/opt-out", json={"memory_opt_out": True})

    assert allowed.json()["declarative_memory"] is True
    assert out.json()["memory_opt_out"] is True
    assert ada.get("/v1/memory").json()["items"] == []
    back = ada.put("/v1/memory/opt-out", json={"memory_opt_out": False})
    assert back.json()["declarative_memory"] is True


def test_a_question_is_decided_once_and_needs_the_scope(
    ada: TestClient, client_for: ClientFor, store: SessionStore
) -> None:
    session = store.session(user_id="ada", session_id="s-1")
    question = refold.HumanReview(trigger="low_confidence", question="Is it right?")
    seq = session.append(question).last_seq
    place = f"/v1/sessions/s-1/reviews/{seq}"
    accepts = {"decision": "accept"}

    listed = ada.get("/v1/reviews").json()["reviews"]
    refused = client_for("ada", "append", "read").post(place, json=accepts)
    smuggled = client_for("ada", "append").post(
        EVENTS,
        json={
            "events": [
                {
                    "type": "hitl",
                    "payload": {
                        "trigger": "x",
                        "decision": "accept",
                        "decided_by": "ada",
                        "refers_to": seq,
                    },
                }
            ]
        },
    )
    decided = ada.post(place, json=accepts)
    again = ada.post(place, json={"decision": "reject"})

    assert [each["seq"] for each in listed] == [seq]
    assert "bundle" not in listed[0]
    assert (refused.status_code, smuggled.status_code) == (403, 422)
    assert (decided.status_code, again.status_code) == (201, 409)
    assert ada.get(place).json()["decided"]["by"] == "ada"


def test_an_erased_user_is_gone_and_has_a_certificate(ada: TestClient) -> None:
    create_session(ada)
    plan = ada.post("/v1/erasures", json={"reason": "asked", "dry_run": True})

    erased = ada.post("/v1/erasures", json={"reason": "asked on 3 May"})

    assert plan.json()["counts"]["events"] == 2
    assert erased.status_code == 200, erased.text
    assert sum(erased.json()["left"].values()) == 0
    assert erased.json()["certificate"]["act"] == "erased"
    assert "backups" in [entry["place"] for entry in erased.json()["outside"]]
    assert ada.get(EVENTS).status_code == 410
    assert ada.post(EVENTS, json={"events": [ASKS]}).status_code == 410
    listed = ada.get("/v1/erasures").json()["certificates"]
    assert len(listed) == 1


def test_a_salt_from_the_caller_survives_a_lost_answer(ada: TestClient) -> None:
    create_session(ada)
    request = {"reason": "asked", "salt": "5a" * 32}
    ada.post("/v1/erasures", json=request)  # its answer is lost

    again = ada.post("/v1/erasures", json=request).json()

    (listed,) = ada.get("/v1/erasures").json()["certificates"]
    expected = subject(bytes.fromhex("5a" * 32), "ada")
    assert again["already"]
    assert listed["certificate"]["subject"] == expected


@pytest.mark.parametrize("salt", ["", "5a", "5A" * 32, "zz" * 32])
def test_an_invalid_salt_erases_nothing(ada: TestClient, salt: str) -> None:
    create_session(ada)

    answered = ada.post("/v1/erasures", json={"reason": "asked", "salt": salt})

    assert answered.status_code == 422
    assert ada.get(EVENTS).status_code == 200


@pytest.mark.parametrize("grace", ["", "0", "soon", "-1d"])
def test_an_invalid_grace_erases_nothing(ada: TestClient, grace: str) -> None:
    create_session(ada)

    answered = ada.post("/v1/erasures", json={"reason": "asked", "grace": grace})

    assert answered.status_code == 422
    assert ada.get(EVENTS).status_code == 200


@pytest.mark.parametrize(
    ("place", "body"),
    [
        ("/v1/memory/consent", {"scope": "training", "granted": "yes"}),
        ("/v1/memory/opt-out", {"memory_opt_out": 1}),
    ],
)
def test_consent_and_opt_out_accept_booleans_only(
    ada: TestClient, place: str, body: object
) -> None:
    assert ada.put(place, json=body).status_code == 422


def test_a_download_is_listed_when_its_user_is_erased(ada: TestClient) -> None:
    create_session(ada)
    ada.get("/v1/export")

    plan = ada.post("/v1/erasures", json={"reason": "asked", "dry_run": True})
    erased = ada.post("/v1/erasures", json={"reason": "asked"})

    for answer in (plan.json(), erased.json()):
        assert [(copy["format"], copy["location"]) for copy in answer["copies"]] == [
            ("events", "HTTP")
        ]


def test_an_export_has_every_event_on_a_line(
    ada: TestClient, store: SessionStore
) -> None:
    create_session(ada, "a")
    create_session(ada, "b")

    lines = ada.get("/v1/export").text.splitlines()

    events = [refold.Envelope.model_validate_json(line) for line in lines]
    assert [(each.session_id, each.seq) for each in events] == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("b", 2),
    ]


def test_models_come_with_the_flags_of_history_summary(ada: TestClient) -> None:
    answer = ada.get("/v1/models").json()

    assert answer["history_summary_min_version"] == "3"
    assert '"trigger_on_history_size_chars":50000' in answer["history_summary_params"]
    assert any(model["name"].startswith("claude") for model in answer["models"])


@pytest.mark.parametrize(
    "query", ["limits=3", "limit=3&limit=4", "user_id=a&user_id=b"]
)
def test_a_misspelt_or_repeated_parameter_is_refused(
    ada: TestClient, query: str
) -> None:
    create_session(ada)

    assert ada.get(f"{EVENTS}?{query}").status_code == 422
    assert ada.get(f"{EVENTS}?limit=3&type=tool_call&type=final").status_code == 200


@pytest.mark.parametrize(
    ("name", "subject"), [("user", "user"), ("hunter2", "a parameter")]
)
def test_the_refusal_of_an_unknown_parameter_names_those_of_the_operation(
    ada: TestClient, name: str, subject: str
) -> None:
    refused = ada.get(f"/v1/sessions/s-1/proof?{name}=bob").json()

    known = "the parameters are user_id, seq:"
    assert refused["detail"].startswith(f"{subject} is not known here; {known}")
    assert "hunter2" not in str(refused)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 422),
        (b"{", 422),
        (b"[]", 422),
        (b"\xff\xfe", 422),
        (b'{"events": []}', 422),
        (b'{"events": [{"type": "nothing"}]}', 422),
        (b'{"events": [{"type": "user_input", "payload": {"text": 1}}]}', 422),
        (b'{"events": [{"type": "user_input", "payload": {"txt": "a"}}]}', 422),
        (b'{"events": [{"type": "summary", "payload": {}}]}', 422),
        (b'{"events": [{"type": "consent", "payload": {}}]}', 422),
        (b'{"events": [{"type": "tool_result", "payload": {"call_id": "x"}}]}', 422),
        (
            b'{"events": [{"type": "user_input", "payload": {"text": "a"}, "x": 1}]}',
            422,
        ),
        (b'{"events": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}", 422),
        (b'{"events": "' + b"a" * (17 << 20) + b'"}', 413),
    ],
)
def test_a_bad_body_is_refused_and_nothing_is_written(
    ada: TestClient, store: SessionStore, body: bytes, status: int
) -> None:
    answered = ada.post(EVENTS, content=body)

    assert answered.status_code == status
    assert answered.headers["content-type"] == "application/problem+json"
    assert store.sessions("ada") == []


def test_the_first_request_builds_no_route_again(
    ada: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters: list[TypeAdapter[Any]] = []
    prepare = TypeAdapter.__init__

    def count(adapter: TypeAdapter[Any], *args: Any, **options: Any) -> None:
        adapters.append(adapter)
        prepare(adapter, *args, **options)

    monkeypatch.setattr(TypeAdapter, "__init__", count)

    assert ada.get("/v1/sessions").status_code == 200
    assert adapters == []
