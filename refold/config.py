"""Settings from the environment and the user's configuration directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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
