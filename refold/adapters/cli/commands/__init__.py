"""The commands in their groups: what each does, and the module that has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

GROUPS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Look": {
        "sessions": ("log", "List sessions with their size and age."),
        "log": ("log", "Show the timeline of a session."),
        "search": ("log", "Find the events that have all of some words."),
        "context": ("context", "Show what the model is sent, or was sent earlier."),
        "why": ("why", "Explain why a context is as it is, with proof."),
        "compare": ("compare", "Compare what strategies would have sent."),
        "rerun": ("compare", "Make the requests of a run anew, and name what differs."),
        "memory": ("memory", "Show what was learned from a user's sessions."),
        "stats": ("operate", "Show how much is stored, and how fast it grows."),
        "audit": ("operate", "Show the access log: what was done, and when."),
    },
    "Change": {
        "import": ("import_", "Import transcripts, each as a session."),
        "capture": ("capture", "Append what a coding agent writes, while it works."),
        "label": ("log", "Give a session labels by which it is found."),
        "compact": ("compact", "Compact a session if a compaction is due."),
        "rebuild": ("compact", "Make the summaries a strategy would have made."),
        "review": ("review", "Find, list, show and decide questions to humans."),
        "replay": ("review", "Show a review bundle and apply its rule again."),
        "consent": ("memory", "Show or change what a user allows."),
    },
    "Protect": {
        "redact": ("redact", "Replace secrets and personal data in a text."),
        "erase": ("erase", "Erase a user or one session, and sign a certificate."),
        "restore": ("erase", "Undo an erasure whose grace is not over."),
        "readmit": ("erase", "Let an erased user come back, with a new key."),
        "hold": ("erase", "Forbid erasing a user: set or release a legal hold."),
        "freeze": ("erase", "Refuse new events for a user; --lift ends the freeze."),
        "retain": ("erase", "Erase what was unused for longer than a policy says."),
        "verify": ("verify", "Check that what is stored is what was written."),
        "seal": ("seal", "Sign the end of every stream that has new events."),
        "prove": ("seal", "Write a proof of an event, or that a tree only grew."),
        "keys": ("keys", "Show the keys, or replace them."),
    },
    "Operate": {
        "export": ("operate", "Export the log, or everything of a user."),
        "repair": ("verify", "Report damage, and repair what can be repaired."),
        "schema": ("operate", "Print the SQL of the tables or the roles."),
        "mcp": ("log", "Let an agent read a user's sessions, by MCP."),
        "bench": (
            "operate",
            "Run the benchmarks of redaction, store, memory or compaction.",
        ),
    },
}
"""The module that has the function of a command's name, and what it does.

That is the first sentence of the function's docstring: the list of commands is shown
without loading any.
"""
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    name: entry for group in GROUPS.values() for name, entry in group.items()
}
