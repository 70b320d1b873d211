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
    "refold.store.work.workers",
}


def contract() -> dict[str, Any]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    [core] = [each for each in contracts if each["name"].startswith("The core")]
    return core


def test_each_module_of_the_store_is_core_or_belongs_to_a_room() -> None:
    core = contract()
    rooms = tuple(core["forbidden_modules"])

    unassigned = {
        name
        for path in (ROOT / "refold" / "store").rglob("*.py")
        if path.name != "__init__.py"
        for name in [".".join(path.relative_to(ROOT).with_suffix("").parts)]
        if not any(name == room or name.startswith(f"{room}.") for room in rooms)
    }

    assert unassigned == {*core["source_modules"], *JOINING}
