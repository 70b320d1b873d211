"""Writers of contexts in the forms of other programs: one module for each form."""

from __future__ import annotations

from importlib import import_module
from typing import Final, cast

from refold.adapters.exporters.base import Writer

# The modules by the names of their forms.  Each is imported when it is used.
_MODULES: Final = {
    "claude-code": "claude_code",
    "codex": "codex",
    "openai": "openai",
    "anthropic": "anthropic",
    "gemini": "gemini",
}
FORMS: Final = tuple(_MODULES)
"""The names of the forms, as ``refold export --format`` takes them."""


def writer(form: str) -> Writer:
    """Return the module that writes a form."""
    return cast(Writer, import_module(f"{__name__}.{_MODULES[form]}"))
