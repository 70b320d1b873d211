"""`refold export --endpoint` sends traces to an OTLP endpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Refold
from tests.support.otlp_collector import Answer, collector

SESSION = ("--user", "lin", "--session", "run")
PARTIAL = {
    "json": b'{"partialSuccess":{"rejectedSpans":"2","errorMessage":"too old"}}',
    "protobuf": b"\n\x0b\x08\x02\x12\x07too old",
}


def test_the_beginning_of_a_name_means_the_session(
    refold: Refold, sample: Path
) -> None:
    with collector() as endpoint:
        ran = refold(
            "export", "--user", "lin", "--session", "ru", "--format", "otlp",
            "--endpoint", endpoint.url,
        )  # fmt: skip

    assert ran.code == 0, ran.err
    assert "of 1 session" in ran.out


def test_the_traces_of_a_session_arrive(refold: Refold, sample: Path) -> None:
    with collector() as endpoint:
        ran = refold(
            "export", *SESSION, "--format", "otlp", "--endpoint", endpoint.url,
            "--content", "--header", "Authorization=Bearer hidden-key", "--json",
        )  # fmt: skip

    assert ran.code == 0
    report = ran.json()
    assert report["endpoint"] == f"{endpoint.url}/v1/traces"
    assert report["traces"] == len(endpoint.received) > 0
    assert report["rejected_spans"] == 0
    assert {received.path for received in endpoint.received} == {"/v1/traces"}
    first = endpoint.received[0]
    assert first.headers["content-type"] == "application/x-protobuf"
    assert first.headers["authorization"] == "Bearer hidden-key"
    assert "hidden-key" not in ran.out + ran.err
    exported = refold("export", *SESSION, "--format", "otlp", "--content").lines()
    names = [
        span["name"]
        for request in exported
        for span in request["resourceSpans"][0]["scopeSpans"][0]["spans"]
    ]
    assert [span["name"] for span in endpoint.spans] == names
    assert len({span["traceId"] for span in endpoint.spans}) == report["traces"]


def test_json_has_the_ids_of_the_exported_lines(refold: Refold, sample: Path) -> None:
    with collector() as endpoint:
        ran = refold(
            "export", *SESSION, "--format", "otlp", "--endpoint", endpoint.url,
            "--encoding", "json",
        )  # fmt: skip

    assert ran.code == 0
    exported = refold("export", *SESSION, "--format", "otlp").lines()
    assert [received.request for received in endpoint.received] == exported


def test_a_later_erasure_names_the_endpoint(refold: Refold, sample: Path) -> None:
    with collector() as endpoint:
        refold("export", *SESSION, "--format", "otlp", "--endpoint", endpoint.url)

    erased = refold("erase", "--user", "lin", "--reason", "test", "--yes", "--json")

    assert f"{endpoint.url}/v1/traces" in erased.out


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
def test_rejected_spans_are_counted_and_fail(
    refold: Refold, sample: Path, encoding: str
) -> None:
    with collector(Answer(body=PARTIAL[encoding])) as endpoint:
        ran = refold(
            "export", *SESSION, "--format", "otlp", "--endpoint", endpoint.url,
            "--encoding", encoding,
        )  # fmt: skip

    assert ran.code == 1
    assert "the endpoint rejected 2 spans: too old" in ran.out


def test_options_of_the_endpoint_need_it(refold: Refold, sample: Path) -> None:
    for arguments in (
        ["--endpoint", "http://h"],
        ["--format", "otlp", "--header", "a=b"],
        ["--format", "otlp", "--endpoint", "http://h", "--out", "x.jsonl"],
    ):
        assert refold("export", *SESSION, *arguments).code == 2
