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
    """Where keys and settings of this user are: ``REFOLD_HOME``, else by platform."""
    if chosen := os.environ.get("REFOLD_HOME"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("APPDATA") or "~/AppData/Roaming"
    else:
        base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "refold"


def database() -> str:
    """The URL of the store: ``REFOLD_DB``, else a file in the working directory."""
    return os.environ.get("REFOLD_DB") or DEFAULT_DB


def access_log() -> str:
    """Where the access log goes: ``REFOLD_ACCESS_LOG``, else nowhere."""
    return os.environ.get("REFOLD_ACCESS_LOG") or "off"


def shared_memory() -> bool:
    """Whether memory of many users may be made: ``REFOLD_SHARED_MEMORY=on``, else not.

    Raises InvalidConfiguration for anything but on and off.
    """
    said = os.environ.get("REFOLD_SHARED_MEMORY") or "off"
    if said not in ("on", "off"):
        raise InvalidConfiguration(f"REFOLD_SHARED_MEMORY is on or off, not {said!r}")
    return said == "on"


def contexts() -> Settings:
    """What is set for contexts: ``[context]`` of the settings file, the environment.

    The file is ``REFOLD_CONFIG``, else ``refold.toml`` in the working directory.

    Raises InvalidConfiguration if it cannot be read or is not TOML.
    """
    from refold.store.settings import Settings

    return Settings(_table("context"), dict(os.environ), read_toml)


def register_models() -> None:
    """Make the models of the table ``[models]`` of the settings file known.

    Raises InvalidConfiguration if it cannot be read or an entry is wrong.
    """
    table = _table("models")
    if table:
        from refold.projections import models

        models.register_models(table, where=str(_settings_path()))


def register_lifetimes() -> None:
    """Have memory last as the table ``[memory]`` of the settings file says, by kind.

    Raises InvalidConfiguration if it cannot be read or an entry is wrong.
    """
    table = _table("memory")
    if table:
        from refold.domain.erasure import span
        from refold.projections.memory.items import set_lifetimes

        set_lifetimes(**{k: span(f"[memory] {k}", v) for k, v in table.items()})


def policy(given: str | os.PathLike[str] | Policy | None = None) -> Policy | None:
    """The policy that is given, or at that path, else at ``REFOLD_POLICY``, if any.

    Raises InvalidConfiguration with the line that cannot be used.
    """
    from_environment = os.environ.get("REFOLD_POLICY") or None
    chosen = from_environment if given is None else given
    if chosen is None:
        return None
    from refold.redaction.policy import Policy, PolicyError

    if isinstance(chosen, Policy):
        return chosen
    try:
        return Policy.parse(_read(Path(chosen)), where=os.fspath(chosen))
    except PolicyError as error:
        raise InvalidConfiguration(str(error)) from None


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file, or of a JSON one.  Raises InvalidConfiguration."""
    kind = "JSON" if path.suffix.lower() == ".json" else "TOML"
    text = _read(path)
    try:
        if kind == "JSON":
            found: Any = json.loads(text)
        else:
            import tomllib

            found = tomllib.loads(text)
    except ValueError as error:
        raise InvalidConfiguration(f"{path} is not {kind}: {error}") from None
    if not isinstance(found, dict):
        raise InvalidConfiguration(f"{path} holds no object")
    return found


def _table(name: str) -> dict[str, Any]:
    path = _settings_path()
    if not os.environ.get("REFOLD_CONFIG") and not path.exists():
        return {}
    table = read_toml(path).get(name, {})
    if not isinstance(table, dict):
        raise InvalidConfiguration(f"{path}: [{name}] must be a table")
    return table


def _settings_path() -> Path:
    return Path(os.environ.get("REFOLD_CONFIG") or "refold.toml")


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise InvalidConfiguration(f"{path} cannot be read: {reason}") from None
