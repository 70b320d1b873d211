"""Choosing where the audit log goes, by the words of a setting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from refold.adapters.audit.names import AuditNames
from refold.adapters.audit.trail import AuditTrail
from refold.adapters.keys import KeyRing
from refold.domain.audit import AuditRows, AuditSink
from refold.domain.errors import InvalidConfiguration
from refold.store.store import now

_FILE: Final = "file:"


def open_trail(
    chosen: str | AuditSink,
    rows: AuditRows,
    keys: KeyRing,
    *,
    clock: Callable[[], int] = now,
) -> AuditTrail:
    """The audit log of a store: its sinks as ``chosen``, its table to be read.

    Raises InvalidConfiguration for a word that is none, and a file that cannot be
    written.
    """
    sinks = sinks_of(chosen, rows) if isinstance(chosen, str) else [chosen]
    return AuditTrail(sinks, rows, AuditNames(keys), clock=clock)


def sinks_of(chosen: str, rows: AuditRows) -> list[AuditSink]:
    """The sinks that are named, each once."""
    if chosen.strip() == "off":  # as a rule: what writes lines takes time to load
        return []
    from refold.adapters.audit.lines import LinesSink

    sinks: dict[str, AuditSink] = {}
    for word in filter(None, map(str.strip, chosen.split(","))):
        if word == "table":
            sinks[word] = rows
        elif word == "log":
            sinks[word] = LinesSink()
        elif word.startswith(_FILE) and word != _FILE:
            path = Path(word.removeprefix(_FILE)).expanduser()
            sinks[word] = LinesSink.file(path)
        elif word != "off":
            raise InvalidConfiguration(
                f"the audit log goes to table, log or {_FILE}PATH, several with "
                f"commas, or is off: {word!r} is none of these"
            )
    return list(sinks.values())
