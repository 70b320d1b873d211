"""Clients that honor no environment variable for the address of their provider."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Final

CODEX: Final = "codex"
_OPENAI_ADDRESS: Final = "OPENAI_BASE_URL"


def name_of(command: Sequence[str]) -> str:
    """Return the name of a client, without its folder."""
    return PurePath(command[0]).name


def environment_of(
    command: Sequence[str], environment: Mapping[str, str]
) -> dict[str, str]:
    """Return an environment with the addresses in the settings of the client.

    Codex reads ``openai_base_url`` from its settings, and no variable.
    """
    known = dict(environment)
    if name_of(command) == CODEX:
        known.pop(_OPENAI_ADDRESS, None)
        address = _codex_settings(environment).get("openai_base_url")
        if isinstance(address, str) and address:
            known[_OPENAI_ADDRESS] = address
    return known


def command_for(command: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Return the command with the options that lead the client to the proxy."""
    if name_of(command) != CODEX:
        return list(command)
    # A quoted text is the same in JSON and in TOML, which Codex parses.
    setting = f'openai_base_url="{variables[_OPENAI_ADDRESS]}"'
    return [command[0], "-c", setting, *command[1:]]


def _codex_settings(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of Codex; empty if there are none that it could read."""
    home = environment.get("CODEX_HOME") or "~/.codex"
    path = Path(home).expanduser() / "config.toml"
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
