"""Stores of agents' frameworks: each puts its own items into sessions of Refold."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from refold.domain.errors import InvalidConfiguration


def needed(module: str, extra: str) -> Any:
    """The module, which the extra installs.  Raises InvalidConfiguration."""
    try:
        return import_module(module)
    except ImportError as error:
        if error.name and not module.startswith(error.name):
            raise
        raise InvalidConfiguration(
            f"{module} is not installed: pip install 'refold[{extra}]'"
        ) from None
