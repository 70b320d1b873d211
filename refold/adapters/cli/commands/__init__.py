"""The commands in their groups; each is loaded when it runs or its help is shown.

An installed package adds commands by entry points of the group ``refold.commands``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from inspect import isfunction
from typing import Any, Final, NamedTuple

from refold.domain import plugins


class Entry(NamedTuple):
    """A line of ``refold --help``, which loads no command.

    place:   ``module:function``, as an entry point is written.
    summary: the first sentence of the function's docstring.
    """

    place: str
    summary: str


def _own(place: str, summary: str) -> Entry:
    """Return the entry of a command in a module of this package."""
    return Entry(f"{__name__}.{place}", summary)


GROUPS: Final[Mapping[str, Mapping[str, Entry]]] = {
    "Look": {
        "sessions": _own(
            "log:sessions", "List sessions with what they are about, the newest first."
        ),
        "log": _own("log:log", "Show the timeline of a session."),
        "search": _own(
            "log:search", "Find events by words, phrases and filters, the best first."
        ),
        "view": _own(
            "operate:view", "Show a run in the terminal, or write it as one HTML file."
        ),
        "context": _own(
            "context:context",
            "Show the context that a model is sent, or was sent earlier.",
        ),
        "blame": _own(
            "blame:blame",
            "Show which events changed a file, which one wrote a line, or the changed "
            "files.",
        ),
        "why": _own("why:why", "Explain why a context is as it is, with proof."),
        "compare": _own("compare:compare", "Compare what strategies would have sent."),
        "rerun": _own(
            "compare:rerun", "Repeat the requests of a run, and report what differs."
        ),
        "memory": _own(
            "memory:memory", "Show what was learned from a user's sessions."
        ),
        "stats": _own(
            "operate:stats", "Show how much is stored, and how fast it grows."
        ),
        "audit": _own("operate:audit", "Show the access log: what was done, and when."),
    },
    "Change": {
        "import": _own("import_:import_", "Import transcripts, each as a session."),
        "capture": _own(
            "capture:capture", "Record what a coding agent writes, while it works."
        ),
        "run": _own(
            "proxy:run", "Run any agent, and record what it sends to its provider."
        ),
        "proxy": _own(
            "proxy:proxy",
            "Record agents that run elsewhere on this machine, until Ctrl-C.",
        ),
        "label": _own("log:label", "Set or remove labels of a session."),
        "compact": _own(
            "compact:compact", "Compact a session if its strategy decides to."
        ),
        "rebuild": _own(
            "compact:rebuild", "Make the summaries that a strategy would have made."
        ),
        "review": _own(
            "review:review", "Find, list, show and decide questions to humans."
        ),
        "replay": _own(
            "review:replay", "Show a review bundle and apply its rule again."
        ),
        "consent": _own("memory:consent", "Show or change what a user allows."),
    },
    "Protect": {
        "redact": _own("redact:redact", "Replace secrets and personal data in a text."),
        "erase": _own(
            "erase:erase", "Erase a user or one session, and sign a certificate."
        ),
        "restore": _own("erase:restore", "Undo an erasure during its grace period."),
        "readmit": _own(
            "erase:readmit",
            "Let the id of an erased user be used again, with a new key.",
        ),
        "hold": _own(
            "erase:hold", "Set or release a legal hold, which forbids erasing a user."
        ),
        "freeze": _own(
            "erase:freeze", "Refuse new events for a user; --lift ends the freeze."
        ),
        "retain": _own(
            "erase:retain",
            "Erase sessions that were unused for longer than a policy says.",
        ),
        "verify": _own("verify:verify", "Check that stored data is what was written."),
        "seal": _own("seal:seal", "Sign the end of every stream that has new events."),
        "prove": _own(
            "seal:prove", "Write a proof of an event, or that a tree only grew."
        ),
        "keys": _own("keys:keys", "Show the state of the keys, or replace them."),
    },
    "Operate": {
        "worker": _own(
            "compact:worker",
            "Run background work: compact, index, seal, erase, verify.",
        ),
        "export": _own(
            "operate:export", "Export the log, or everything stored about a user."
        ),
        "share": _own(
            "share:share",
            "Share a run with somebody else, after a check of its redaction.",
        ),
        "resume": _own(
            "resume:resume",
            "Continue a session in another program, in the current folder.",
        ),
        "repair": _own("verify:repair", "Report damage, and repair derived data."),
        "move": _own(
            "operate:move", "Migrate the store to PostgreSQL while agents write."
        ),
        "schema": _own("operate:schema", "Print the SQL of the tables or the roles."),
        "serve": _own(
            "operate:serve", "Serve the store over HTTP, with a page that shows runs."
        ),
        "mcp": _own(
            "log:mcp", "Let an agent read a user's sessions, by MCP over stdio."
        ),
        "warm": _own(
            "warm:warm",
            "Compile the rules of redaction, so that later processes load them.",
        ),
        "bench": _own(
            "bench:bench",
            "Run the benchmarks of redaction, store, memory or compaction.",
        ),
    },
}


def _all_commands() -> dict[str, Entry]:
    """Return the commands of all groups."""
    commands: dict[str, Entry] = {}
    for group in GROUPS.values():
        commands.update(group)
    return commands


COMMANDS: Final[Mapping[str, Entry]] = _all_commands()


def added() -> plugins.Installed:
    """Return the commands that installed packages add."""
    return plugins.installed(plugins.COMMANDS, COMMANDS)


def load(name: str) -> Callable[..., Any]:
    """Import the function of a command.

    Raises InvalidConfiguration if an installed package adds one that cannot be loaded.
    """
    if name in COMMANDS:
        module, _, function = COMMANDS[name].place.partition(":")
        own: Callable[..., Any] = getattr(import_module(module), function)
        return own
    plugin = added().usable[name]
    loaded = plugin.load()
    if not isfunction(loaded):
        raise plugin.failed(f"is not a function: {plugin.place}")
    return loaded
