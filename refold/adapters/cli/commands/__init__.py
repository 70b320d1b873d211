"""The commands in their groups: what each does, and the module that has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Entry(NamedTuple):
    """A command: the module that has the function of its name, and what it does.

    ``does`` is the first sentence of the function's docstring: the list of commands
    is shown without loading any.
    """

    module: str
    does: str


GROUPS: Final[Mapping[str, Mapping[str, Entry]]] = {
    "Look": {
        "sessions": Entry("log", "List the sessions, with their size and age."),
        "log": Entry("log", "Show the timeline of a session."),
        "context": Entry("context", "Show what a model is sent, or was sent earlier."),
        "why": Entry("why", "Say why a context is as it is, and prove it."),
        "compare": Entry("compare", "Compare what strategies would have sent."),
        "memory": Entry("memory", "Show what a user's sessions show together."),
        "stats": Entry("operate", "Show how much is stored, and how fast it grows."),
        "audit": Entry("operate", "Show what was done with the store, and when."),
    },
    "Change": {
        "import": Entry(
            "import_", "Bring transcripts into the log, each as a session."
        ),
        "compact": Entry("compact", "Compact a session, if a strategy says so."),
        "rebuild": Entry(
            "compact", "Make the summaries of a strategy for all the past."
        ),
        "review": Entry("review", "List, show, decide or look for questions."),
        "replay": Entry("review", "Show a review bundle; does its rule fire again?"),
        "consent": Entry("memory", "Show or change what a user allows."),
    },
    "Protect": {
        "redact": Entry("redact", "Replace secrets and personal data in a text."),
        "erase": Entry(
            "erase", "Forget a user, or one session, and sign a certificate."
        ),
        "restore": Entry("erase", "Undo an erasure before its date."),
        "readmit": Entry(
            "erase", "Let a user who was erased come back with a new key."
        ),
        "hold": Entry("erase", "Forbid to erase a user, by a named legal hold."),
        "freeze": Entry("erase", "Take nothing of a user any more, or again."),
        "retain": Entry(
            "erase", "Erase what nobody used for as long as a policy says."
        ),
        "verify": Entry("verify", "Prove that what is stored is what was written."),
        "seal": Entry("seal", "Sign the ends of all streams that moved."),
        "prove": Entry(
            "seal", "Write the proof of an event, or that a tree only grew."
        ),
        "keys": Entry("keys", "Show which keys there are, or replace some."),
    },
    "Operate": {
        "export": Entry(
            "operate", "Write the log out again, as JSON lines of envelopes."
        ),
        "repair": Entry("verify", "Say what is damaged, and mend what can be."),
        "schema": Entry(
            "operate", "Print the SQL that makes the tables, or the roles."
        ),
        "bench": Entry(
            "operate", "Measure redaction, the store or memory on the same data."
        ),
    },
}
COMMANDS: Final[Mapping[str, Entry]] = {
    name: entry for group in GROUPS.values() for name, entry in group.items()
}
