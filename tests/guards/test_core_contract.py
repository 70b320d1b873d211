"""The core of the store imports none of the rooms around it: no module escapes this.

The import contract in ``pyproject.toml`` names the modules of the core and the rooms.
A new module of ``refold/store`` must be in it, or be one that joins the two.
"""

import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
# The front doors load rooms on first use; the others belong to a room.
JOINING: Final = {
    "refold.store.session.former",
    "refold.store.session.imports",
    "refold.store.session.memory",
    "refold.store.session.proofs",
    "refold.store.session.proxied",
    "refold.store.session.reviews",
    "refold.store.session.session",
    "refold.store.store",
    "refold.store.work.indexing",
    "refold.store.work.workers",
}


def contract_of_the_core() -> dict[str, Any]:
    """Return the settings with which import-linter checks the core."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    [core] = [
        contract for contract in contracts if contract["name"].startswith("The core")
    ]
    return core


def test_each_module_of_the_store_is_core_or_belongs_to_a_room() -> None:
    core = contract_of_the_core()
    rooms = tuple(core["forbidden_modules"])

    outside_of_rooms: set[str] = set()
    for path in (ROOT / "refold" / "store").rglob("*.py"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        is_in_room = any(f"{name}.".startswith(f"{room}.") for room in rooms)
        if path.name != "__init__.py" and not is_in_room:
            outside_of_rooms.add(name)

    assert outside_of_rooms == {*core["source_modules"], *JOINING}
