"""A strategy of an installed package is used by its name like a built-in one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar, Final

import pytest
from starlette.testclient import TestClient

import refold
from refold.adapters.server.access_tokens import SCOPES, verifier_of
from refold.adapters.server.app import application
from refold.domain import plugins
from refold.domain.errors import InvalidConfiguration, UnknownStrategy
from refold.projections.context.strategies import spec
from refold.projections.context.strategies.keep_all import KeepAll
from refold.projections.context.strategies.spec import STRATEGIES
from refold.store import Session, SessionStore
from refold.store.work.workers import Worker
from refold.strategies import register
from tests.support.packages import Install, run_refold, write_package

# The place of the strategy in the module ``pairs``.
PAIRS: Final = {"refold.strategies": {"pairs": "pairs:Pairs"}}
MODULE: Final = """
from refold.strategies import Strategy, batch, held_back, oldest_units

class Pairs(Strategy):
    name = "pairs"
    needs = "units"

    keep: int = 2

    def decide(self, outline, now):
        surplus = len(outline.units) - self.keep
        if surplus < 1 or held_back(outline, now):
            return None
        units = oldest_units(outline, surplus)
        return batch(
            outline, units, target=100, reason="more", absorbs=outline.summaries
        )
"""


@pytest.fixture
def session(store: SessionStore) -> Session:
    """A session of four turns."""
    return with_turns(store, "s-1")


def with_turns(store: SessionStore, name: str) -> Session:
    session = store.session(user_id="ada", session_id=name)
    for number in range(4):
        session.append(refold.UserInput(text=f"question {number}"))
        session.append(refold.Final(text=f"answer {number}"))
    return session


def failure(name: str = "pairs") -> str:
    with pytest.raises(InvalidConfiguration) as raised:
        spec.parse(name)
    return str(raised.value)


def test_a_strategy_of_a_package_has_the_notation_of_a_built_in_one(
    install: Install,
) -> None:
    install("pairs", PAIRS, MODULE)

    strategy = spec.parse("pairs:keep=3")

    assert strategy.definition == {
        "name": "pairs",
        "version": 1,
        "params": {"open_calls_after": 3, "keep": 3},
    }
    assert spec.parse(strategy.ref.model_dump()) == strategy
    assert spec.parse("tool_clearing+pairs").fingerprint
    with pytest.raises(UnknownStrategy, match=r"no such parameter \(there is: keep"):
        spec.parse("pairs:kept=3")


def test_listing_strategies_loads_none_of_a_package(install: Install) -> None:
    install("pairs", PAIRS, "raise AssertionError('it was loaded')")

    assert "pairs" in list(STRATEGIES)
    with pytest.raises(UnknownStrategy, match=r"there is: .*pairs.*did you mean pairs"):
        spec.parse("pair")


def test_a_session_continues_with_the_strategy_of_a_package(
    install: Install, session: Session
) -> None:
    install("pairs", PAIRS, MODULE)

    view = session.prepare("pairs")
    session.record_request(view)

    assert [span.kind for span in view.spans] == ["summary", "raw"]
    assert session.context().strategy == view.strategy
    assert session.why().strategy.name == "pairs"
    compared = session.proofs.compare()
    assert "pairs" in [outcome.name for outcome in compared.outcomes]
    assert not session.verify().problems


def test_a_session_whose_package_is_missing_names_its_strategy(
    install: Install, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("pairs", PAIRS, MODULE)
    session.record_request(session.prepare("pairs"))
    del STRATEGIES["pairs"]
    monkeypatch.setattr(plugins, "_entry_points", lambda _: [])

    with pytest.raises(
        UnknownStrategy,
        match=r"uses the strategy pairs: there is no such strategy .*; install the",
    ):
        session.context()

    assert session.context("keep_all").messages


def test_a_server_accepts_the_strategy_of_a_package(
    install: Install, session: Session, store: SessionStore
) -> None:
    install("pairs", PAIRS, MODULE)
    verifier = verifier_of()
    with TestClient(application(store, verifier)) as client:
        token = verifier.mint("ada", SCOPES[:4])
        client.headers["Authorization"] = f"Bearer {token}"

        compacted = client.post("/v1/sessions/s-1/compact", json={"strategy": "pairs"})
        context = client.get("/v1/sessions/s-1/context?strategy=pairs:keep=2")
        compared = client.get("/v1/sessions/s-1/compare?strategy=pairs")

    assert compacted.status_code == 200, compacted.text
    assert context.json()["strategy"] == "pairs"
    assert compared.json()["outcomes"][0]["strategy"] == "pairs"


def test_processes_of_rebuild_find_the_strategy_of_a_package(tmp_path: Path) -> None:
    folder = tmp_path / "packages"
    write_package(folder, "pairs", PAIRS, MODULE)
    url = f"sqlite:///{tmp_path}/agent.db"
    with refold.open(url) as store:
        with_turns(store, "a")
        with_turns(store, "b")

    rebuilt = run_refold(
        folder, "rebuild", "--strategy=pairs", "--jobs=2", "--json", "--db", url
    )

    assert rebuilt.stderr == ""
    report = json.loads(rebuilt.stdout)
    assert (report["sessions"], report["problems"]) == (2, [])
    assert report["compactions"] > 0


def test_a_worker_compacts_by_the_strategy_of_a_package(
    install: Install, session: Session, store: SessionStore
) -> None:
    install("pairs", PAIRS, MODULE)
    session.record_request(session.prepare("pairs"))
    session.append([refold.UserInput(text="and?"), refold.Final(text="That is all.")])
    before = session.context().spans

    Worker(store).round()

    after = session.context().spans
    assert [span.kind for span in before] == ["summary", "raw"]
    assert [span.kind for span in after] == ["summary", "raw"]
    assert [before[0].last, after[0].last] == [6, 9]


def test_an_object_that_is_no_strategy_is_refused(install: Install) -> None:
    places = {
        "function": "pairs:batch",
        "module": "pairs",
        "renamed": "pairs:Pairs",
    }
    install("pairs", {"refold.strategies": places}, MODULE)

    assert failure("function") == (
        "the strategy function of the package pairs is not a subclass of Strategy: "
        "pairs:batch: update or remove the package"
    )
    assert "is not a subclass of Strategy: pairs:" in failure("module")
    assert "must have name = 'renamed': pairs:Pairs" in failure("renamed")


def test_a_strategy_that_cannot_be_imported_is_named_with_its_package(
    install: Install, session: Session
) -> None:
    install("pairs", PAIRS, "1 / 0")

    compared = session.proofs.compare()

    assert failure() == (
        "the strategy pairs of the package pairs cannot be loaded from pairs:Pairs "
        "(ZeroDivisionError): update or remove the package"
    )
    skipped = {entry.strategy: entry.why for entry in compared.skipped}
    assert skipped["pairs"] == failure()
    assert "keep_all" in [outcome.name for outcome in compared.outcomes]


def test_a_built_in_name_stays_refolds(install: Install) -> None:
    names = {"keep_all": "pairs:Pairs", "pipeline": "pairs:Pairs"}
    install("pairs", {"refold.strategies": names}, MODULE)

    with pytest.raises(UnknownStrategy) as raised:
        spec.parse("unknown")

    assert type(spec.parse("keep_all")).__module__.startswith("refold.")
    for name in names:
        assert (
            f"the strategy {name} of the package pairs is refused, because the name "
            f"{name} is Refold's: rename it"
        ) in str(raised.value)


def test_a_strategy_that_two_packages_add_is_refused(install: Install) -> None:
    install("pairs", PAIRS, MODULE)
    install("others", PAIRS)

    assert "several packages add it (others and pairs): remove all but one" in failure()


def test_a_package_may_register_the_strategy_that_it_names(install: Install) -> None:
    module = MODULE.replace("class Pairs", "@register\nclass Pairs")
    install("pairs", PAIRS, f"from refold.strategies import register\n{module}")

    assert spec.parse("pairs").name == "pairs"


@pytest.mark.parametrize("registers_first", [True, False])
def test_a_program_cannot_register_another_strategy_of_that_name(
    install: Install, *, registers_first: bool
) -> None:
    install("pairs", PAIRS, MODULE)

    class Other(KeepAll):
        name: ClassVar[str] = "pairs"

    if registers_first:
        register(Other)
        assert "because the program registers another strategy of that" in failure()
    else:
        spec.parse("pairs")
        with pytest.raises(UnknownStrategy, match="a strategy 'pairs' already"):
            register(Other)


@pytest.mark.parametrize("name", ["keep_all", "turn_window", "pipeline", "for_agent"])
def test_a_program_cannot_register_a_strategy_under_a_built_in_name(name: str) -> None:
    other = type("Other", (KeepAll,), {"name": name})

    with pytest.raises(UnknownStrategy, match=f"a strategy '{name}' already"):
        register(other)


def test_an_unexpected_error_of_a_strategy_names_its_package(tmp_path: Path) -> None:
    folder = tmp_path / "packages"
    failing = MODULE.replace("        surplus =", "        1 / 0\n        surplus =")
    write_package(folder, "pairs", PAIRS, failing)
    url = f"sqlite:///{tmp_path}/agent.db"
    with refold.open(url) as store:
        session = store.session(user_id="ada", session_id="s-1")
        session.append(refold.UserInput(text="Hello"))

    ran = run_refold(
        folder,
        "compact",
        "--user=ada",
        "--session=s-1",
        "--strategy=pairs",
        "--db",
        url,
    )

    assert ran.returncode == 1
    assert "unexpected ZeroDivisionError in pairs.py:" in ran.stderr
    assert "this is a bug in the package pairs; run it again" in ran.stderr
