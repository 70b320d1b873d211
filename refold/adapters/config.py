"""Settings from the environment and the user's configuration directory."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refold.domain.errors import InvalidConfiguration

if TYPE_CHECKING:
    from refold.redaction.policy import Policy
    from refold.store.settings import Settings

DEFAULT_DB = "sqlite:///refold.db"


def home() -> Path:
    """Return the folder of keys and settings: ``REFOLD_HOME``, else by platform."""
    configured = os.environ.get("REFOLD_HOME")
    if configured:
        return Path(configured).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("APPDATA") or "~/AppData/Roaming"
    else:
        base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "refold"


def database() -> str:
    """Return the URL of the store: ``REFOLD_DB``, else a file in this directory."""
    return os.environ.get("REFOLD_DB") or DEFAULT_DB


def access_log() -> str:
    """Return the place of the access log: ``REFOLD_ACCESS_LOG``, else ``off``."""
    return os.environ.get("REFOLD_ACCESS_LOG") or "off"


def shared_memory() -> bool:
    """Whether memory may combine several users: only with ``REFOLD_SHARED_MEMORY=on``.

    Raises InvalidConfiguration for other values than on and off.
    """
    value = os.environ.get("REFOLD_SHARED_MEMORY") or "off"
    if value not in ("on", "off"):
        raise InvalidConfiguration(f"REFOLD_SHARED_MEMORY is on or off, not {value!r}")
    return value == "on"


def context_settings() -> Settings:
    """Return the settings of contexts, from ``[context]`` and from the environment.

    The settings file is ``REFOLD_CONFIG``, else ``refold.toml`` in the working
    directory.

    Raises InvalidConfiguration if it cannot be read or is not TOML.
    """
    from refold.store.settings import Settings

    return Settings(_table("context"), dict(os.environ), read_toml)


def register_models() -> None:
    """Register the models of the table ``[models]`` in the settings file.

    Raises InvalidConfiguration if the file cannot be read or an entry is invalid.
    """
    table = _table("models")
    if table:
        from refold.projections import models

        models.register_models(table, where=str(_settings_path()))


def register_lifetimes() -> None:
    """Set the lifetimes of memory from the table ``[memory]`` of the settings file.

    Raises InvalidConfiguration if the file cannot be read or an entry is invalid.
    """
    table = _table("memory")
    if table:
        from refold.domain.erasure import span
        from refold.projections.memory.items import set_lifetimes

        lifetimes = {}
        for kind, text in table.items():
            lifetimes[kind] = span(f"[memory] {kind}", text)
        set_lifetimes(**lifetimes)


def policy(policy: str | os.PathLike[str] | Policy | None = None) -> Policy | None:
    """Return this policy, or read it from its path.

    None means the policy at the path in ``REFOLD_POLICY``, if there is one.

    Raises InvalidConfiguration with the invalid line.
    """
    if policy is None:
        policy = os.environ.get("REFOLD_POLICY") or None
    if policy is None:
        return None
    from refold.redaction.policy import Policy, PolicyError

    if isinstance(policy, Policy):
        return policy
    try:
        return Policy.parse(_read(Path(policy)), where=os.fspath(policy))
    except PolicyError as error:
        raise InvalidConfiguration(str(error)) from None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML or JSON file.  Raises InvalidConfiguration."""
    kind = "JSON" if path.suffix.lower() == ".json" else "TOML"
    text = _read(path)
    content: Any
    try:
        if kind == "JSON":
            content = json.loads(text)
        else:
            import tomllib

            content = tomllib.loads(text)
    except ValueError as error:
        raise InvalidConfiguration(f"{path} is not {kind}: {error}") from None
    if not isinstance(content, dict):
        raise InvalidConfiguration(f"{path} holds no object")
    return content


def _table(name: str) -> dict[str, Any]:
    """Return a table of the settings file; empty if there is no such file or table."""
    path = _settings_path()
    if not os.environ.get("REFOLD_CONFIG") and not path.exists():
        return {}
    table = read_toml(path).get(name, {})
    if not isinstance(table, dict):
        raise InvalidConfiguration(f"{path}: [{name}] must be a table")
    return table


def _settings_path() -> Path:
    """Return the path of the settings file."""
    return Path(os.environ.get("REFOLD_CONFIG") or "refold.toml")


def _read(path: Path) -> str:
    """Return the text of a file.  Raises InvalidConfiguration."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise InvalidConfiguration(f"{path} cannot be read: {reason}") from None
