"""The commands in their groups: what each does, and the module that has it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_TABLE: Final = Path(__file__).parents[1] / "commands.toml"
# Shown without loading any of the modules.
GROUPS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    group: {name: (module, does) for name, (module, does) in commands.items()}
    for group, commands in tomllib.loads(_TABLE.read_text("utf-8")).items()
}
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    name: entry for group in GROUPS.values() for name, entry in group.items()
}
