"""The modules that open, append, and context load: each needs a reason to be here.

A part of Refold that these three calls do not need loads on first use, inside the
function that needs it.  If this test fails for a new module, load it there; if the
three calls really need it, add it to the list with its reason in the commit.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

LOOP: Final = """
import sys, refold
with refold.open(sys.argv[1]) as store:
    session = store.session(user_id="ada", session_id="s-1")
    session.append(refold.UserInput(text="Hello"))
    session.context()
    print(*sorted(name for name in sys.modules if name.startswith("refold")))
"""
# Parts that must not load with the core, by the beginning of their modules' names.
ON_FIRST_USE: Final = (
    "refold.adapters.cli",
    "refold.adapters.erasure",
    "refold.adapters.importers",
    "refold.adapters.seals",
    "refold.adapters.server",
    "refold.adapters.sql.access_log",
    "refold.adapters.sql.compiled",
    "refold.adapters.sql.key_tables",
    "refold.adapters.sql.memory",
    "refold.adapters.sql.pools",
    "refold.adapters.sql.postgres",
    "refold.adapters.sql.tables",
    "refold.adapters.sql.tree",
    "refold.adapters.verification",
    "refold.projections.compare",
    "refold.projections.context.abridged",
    "refold.projections.context.strategies.hybrid",
    "refold.projections.context.strategies.turn_window",
    "refold.projections.context.why",
    "refold.projections.memory",
    "refold.projections.models",
    "refold.projections.review",
    "refold.projections.search",
    "refold.projections.tokens",
    "refold.store.compactions",
    "refold.store.erasure",
    "refold.store.exports",
    "refold.store.memory",
    "refold.store.proofs",
    "refold.store.reviews",
    "refold.store.search",
    "refold.store.session.imports",
    "refold.store.session.proxied",
)
LISTED: Final = Path(__file__).with_name("loaded_modules.txt")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("loaded")
    ran = subprocess.run(
        [sys.executable, "-c", LOOP, f"sqlite:///{folder / 'agent.db'}"],
        env={"REFOLD_HOME": str(folder), "REFOLD_CACHE": "off", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.split()


def test_only_listed_modules_load(loaded: list[str]) -> None:
    assert loaded == LISTED.read_text("utf-8").split()


@pytest.mark.parametrize("part", ON_FIRST_USE)
def test_a_part_loads_on_first_use(part: str, loaded: list[str]) -> None:
    assert not [name for name in loaded if name == part or name.startswith(f"{part}.")]
