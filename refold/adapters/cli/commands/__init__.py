"""The commands in their groups: what each does, and the module that has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

GROUPS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Look": {
        "sessions": ("log", "List the sessions, with their size and age."),
        "log": ("log", "Show the timeline of a session."),
        "context": ("context", "Show what a model is sent, or was sent earlier."),
        "why": ("why", "Say why a context is as it is, and prove it."),
        "compare": ("compare", "Compare what strategies would have sent."),
        "memory": ("memory", "Show what a user's sessions show together."),
        "stats": ("operate", "Show how much is stored, and how fast it grows."),
        "audit": ("operate", "Show what was done with the store, and when."),
    },
    "Change": {
        "import": ("import_", "Bring transcripts into the log, each as a session."),
        "compact": ("compact", "Compact a session, if a strategy says so."),
        "rebuild": ("compact", "Make the summaries of a strategy for all the past."),
        "review": ("review", "List, show, decide or look for questions."),
        "replay": ("review", "Show a review bundle; does its rule fire again?"),
        "consent": ("memory", "Show or change what a user allows."),
    },
    "Protect": {
        "redact": ("redact", "Replace secrets and personal data in a text."),
        "erase": ("erase", "Forget a user, or one session, and sign a certificate."),
        "restore": ("erase", "Undo an erasure before its date."),
        "readmit": ("erase", "Let a user who was erased come back with a new key."),
        "hold": ("erase", "Forbid to erase a user, by a named legal hold."),
        "freeze": ("erase", "Take nothing of a user any more, or again."),
        "retain": ("erase", "Erase what nobody used for as long as a policy says."),
        "verify": ("verify", "Prove that what is stored is what was written."),
        "seal": ("seal", "Sign the ends of all streams that moved."),
        "prove": ("seal", "Write the proof of an event, or that a tree only grew."),
        "keys": ("keys", "Show which keys there are, or replace some."),
    },
    "Operate": {
        "export": ("operate", "Export the log, or everything of a user."),
        "repair": ("verify", "Say what is damaged, and mend what can be."),
        "schema": ("operate", "Print the SQL that makes the tables, or the roles."),
        "bench": (
            "operate",
            "Measure redaction, the store or memory on the same data.",
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
