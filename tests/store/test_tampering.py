"""``verify`` finds and names every change that is made to a store behind its back."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from _pytest.mark import ParameterSet

from refold.domain.errors import RefoldError, SealBroken
from tests.support import tampering_acts as acts
from tests.support.postgres import Postgres
from tests.support.tampered import Tampered, fill
from tests.support.tampering import COLUMNS, NOT_PROVED, Tampering, columns, every


class Finding(NamedTuple):
    """A problem code with its session; a problem of the tree has an empty session."""

    session_id: str
    code: str


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def filled(
    request: pytest.FixtureRequest,
    postgres: Postgres,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Tampered]:
    """One store for each engine; every test restores it."""
    folder = tmp_path_factory.mktemp("tampered")
    name = f"test_{uuid.uuid4().hex[:12]}"
    sqlite = request.param == "sqlite"
    url = (
        f"sqlite:///{folder / 'refold.db'}"
        if sqlite
        else postgres.create_database(name)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFOLD_HOME", str(folder / "home"))
        patch.setenv("REFOLD_KEYS", "")
        case = Tampered(url, folder)
        fill(case)
        yield case
    if not sqlite:
        postgres.drop_database(name)


@pytest.fixture
def case(filled: Tampered) -> Iterator[Tampered]:
    yield filled
    filled.put_back("whole")


def problems_of(case: Tampered) -> set[Finding]:
    """Return the problems that ``refold verify`` finds."""
    try:
        with case.store() as store:
            problems = [p for _, verified in store.verify() for p in verified.problems]
            seals = store.verify_seals()
            assert seals is not None
            return {Finding(p.session_id, p.code) for p in [*problems, *seals.problems]}
    except RefoldError:
        return {Finding("", "opening")}


def test_an_untouched_store_has_no_problems(case: Tampered) -> None:
    assert problems_of(case) == set()


def cases() -> Iterator[ParameterSet]:
    """All cases on SQLite; on PostgreSQL the first case of each code.

    Each case names its engine: pytest runs tests with an equal parameter one after the
    other, and every change of engine fills a new store.
    """
    seen: set[str] = set()
    for tampering in every():
        assert tampering.engine in ("", "sqlite")
        on_sqlite = tampering._replace(engine="sqlite")
        yield pytest.param("sqlite", on_sqlite, id=f"sqlite-{tampering.what}")
        if tampering.engine:
            continue
        if tampering.code not in seen:
            on_postgresql = tampering._replace(engine="postgresql")
            name = f"postgresql-{tampering.what}"
            yield pytest.param("postgresql", on_postgresql, id=name)
        seen.add(tampering.code)


# Without the scope pytest treats ``filled`` as a fixture of each test and fills a store
# for each.
@pytest.mark.parametrize(
    ("filled", "tampering"), [*cases()], indirect=["filled"], scope="module"
)
def test_tampering_is_found_and_named(case: Tampered, tampering: Tampering) -> None:
    tampering.act(case)

    problems = problems_of(case)

    if not tampering.code:
        assert problems == set()
        return
    assert tampering.code in {problem.code for problem in problems}, problems
    if tampering.session is not None:
        assert Finding(tampering.session, tampering.code) in problems


def test_every_column_is_tampered_with_or_has_a_stated_reason() -> None:
    listed = [
        f"{table}.{name}"
        for table, (names, _) in NOT_PROVED.items()
        for name in names.split()
    ]

    assert sorted(columns()) == sorted([*COLUMNS, *listed])


def test_removed_seals_and_anchor_cannot_be_started_over(
    case: Tampered,
) -> None:
    acts.remove_seals_and_anchor(case)

    with case.store() as store, pytest.raises(SealBroken, match="key store remembers"):
        store.seal()


def test_an_accepted_loss_is_not_reported_again(case: Tampered) -> None:
    acts.remove_seals_and_anchor(case)
    acts.lower_generation(case)
    acts.remove("certificates", "body LIKE '%released%'")(case)

    with case.store() as store:
        store.seal(accept_loss=True)

    assert problems_of(case) == set()
