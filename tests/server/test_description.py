"""The server behaves as its OpenAPI description says, also for generated requests.

The tests do not require that every described request succeeds: a schema cannot say that
an event breaks a rule of its session, or that a strategy is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import schemathesis
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis.strategies import DataObject, data, sampled_from
from schemathesis import Case, GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

import refold
from refold.adapters.server.access_tokens import SCOPES, Verifier, verifier_of
from refold.adapters.server.app import Gate, Limits, application
from refold.adapters.server.routes import APPENDABLE, query_parameters, router
from refold.store import SessionStore

OPERATIONS = (
    "append",
    "events",
    "tail",
    "sessions",
    "session",
    "state",
    "files",
    "context",
    "context_by_body",
    "why",
    "compact",
    "compare",
    "verify",
    "prove",
    "search",
    "traces",
    "label",
    "export",
    "costs",
    "models",
    "turns",
    "save_turns",
    "memory",
    "consent",
    "memory_opt_out",
    "reviews",
    "review",
    "decide",
    "delete_user_data",
    "certificates",
)
# Each case has a token of its own user, so requests without a token are not tried.
UNCHECKED = [positive_data_acceptance, ignored_auth]
EXAMPLES = 50


class DescribedServer:
    """A server, and users with the session that the description's examples name."""

    def __init__(self, store: SessionStore, gate: Gate, verifier: Verifier) -> None:
        self._store = store
        self._verifier = verifier
        self._numbers = count()
        self.schema = schemathesis.openapi.from_asgi(
            "/v1/openapi.json", gate, headers=self.new_user_headers(closed=False)
        )
        self.operations = {}
        for operation in self.schema.get_all_operations():
            if isinstance(operation, Ok):
                name = operation.ok().definition.raw["operationId"]
                self.operations[name] = operation.ok()

    def new_user_headers(self, *, closed: bool) -> dict[str, str]:
        """Return headers with the token of a new user."""
        name = f"user{next(self._numbers)}"
        session = self._store.session(user_id=name, session_id="s-1")
        session.append(refold.UserInput(text="Why does the build fail?"))
        session.append(refold.HumanReview(trigger="x", question="Is it right?"))
        if closed:
            session.end()
        return {"Authorization": f"Bearer {self._verifier.mint(name, SCOPES)}"}


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DescribedServer]:
    """One server for all operations. The store lasts as long as the module's tests."""
    verifier = verifier_of()
    with refold.open("memory://") as store:
        gate = application(store, verifier, Limits(per_second=1e6, burst=1e6))
        yield DescribedServer(store, gate, verifier)


def test_every_operation_is_tried(described: DescribedServer) -> None:
    assert set(described.operations) == set(OPERATIONS)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_accepts_exactly_the_query_parameters_of_its_description(
    described: DescribedServer, name: str
) -> None:
    [function] = [
        route.endpoint
        for route in router.routes
        if isinstance(route, APIRoute) and route.operation_id == name
    ]

    repeatable = {
        parameter["name"]: parameter["schema"].get("type") == "array"
        for parameter in described.operations[name].definition.raw["parameters"]
        if parameter["in"] == "query"
    }
    assert query_parameters(function) == repeatable


@pytest.mark.parametrize("name", OPERATIONS)
def test_generated_requests_find_no_failure(
    described: DescribedServer, name: str
) -> None:
    operation = described.operations[name]
    modes = list(GenerationMode)  # requests that fit the description, and others
    requests = {mode: operation.as_strategy(mode) for mode in modes}
    tried = 0

    @settings(
        max_examples=EXAMPLES,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data())
    def check_request(drawn: DataObject) -> None:
        nonlocal tried
        mode = drawn.draw(sampled_from(modes))
        case: Case[Any] = drawn.draw(requests[mode])
        if case.path_parameters and drawn.draw(sampled_from([True, False])):
            case.path_parameters["session_id"] = "s-1"
        # A field that was not sent cannot violate the schema.
        assume(
            all(value not in (None, [], {}) for value in (case.query or {}).values())
        )
        tried += 1
        # A tail of an open session would never end.
        headers = described.new_user_headers(closed=name == "tail")
        case.call_and_validate(headers=headers, excluded_checks=UNCHECKED)

    check_request()
    assert tried >= EXAMPLES


def test_every_operation_has_examples(described: DescribedServer) -> None:
    schema = described.schema.raw_schema
    for path in schema["paths"].values():
        for operation in path.values():
            first_response = next(iter(operation["responses"].values()))
            (content,) = first_response["content"].values()
            assert content["example"] is not None, operation["operationId"]
            assert operation["summary"]
            for body in operation.get("requestBody", {}).get("content", {}).values():
                assert body["example"]


def test_every_event_type_that_clients_may_append_is_described(
    described: DescribedServer,
) -> None:
    shapes = described.schema.raw_schema["components"]["schemas"]
    kinds = shapes["Events"]["properties"]["events"]["items"]["oneOf"]

    assert {kind["properties"]["type"]["const"] for kind in kinds} == set(APPENDABLE)
    for kind in APPENDABLE.values():
        assert kind.__name__ in shapes
