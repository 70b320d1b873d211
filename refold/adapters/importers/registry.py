"""The built-in importers: their names, the files that they read, and their modules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from refold.adapters.importers.base import Content, Importer
from refold.domain import plugins


class BuiltIn(NamedTuple):
    """A built-in importer, which loads on first use.

    name:          the name of its format, and of its entry point in ``pyproject.toml``.
    reads:         the kind of file that it reads.
    reads_also:    another kind.
    has_entry_ids: whether its entries have ids, so that several files may hold parts of
                   one session.
    """

    name: str
    reads: Content = "json"
    has_entry_ids: bool = False
    streams: bool = False
    reads_also: Content | None = None

    def load(self) -> Importer:
        """Import the module.  Raises InvalidConfiguration if it is not installed."""
        importer: Importer = plugins.load_own(plugins.IMPORTERS, self.name)
        return importer


# In the order in which lists show them.
BUILT_IN: Final = (
    BuiltIn("claude-code", has_entry_ids=True),
    BuiltIn("codex", has_entry_ids=True),
    BuiltIn("gemini-cli", has_entry_ids=True),
    BuiltIn("qwen-code", has_entry_ids=True),
    BuiltIn("copilot-cli", has_entry_ids=True),
    BuiltIn("opencode", "sqlite", has_entry_ids=True, reads_also="json"),
    BuiltIn("openhands", has_entry_ids=True),
    BuiltIn("cline"),
    BuiltIn("openai"),
    BuiltIn("anthropic"),
    BuiltIn("tau-bench"),
    BuiltIn("swe-agent"),
    BuiltIn("letta"),
    BuiltIn("inspect"),
    BuiltIn("atif"),
    BuiltIn("otlp"),
    BuiltIn("chatgpt", streams=True),
    BuiltIn("claude-ai", streams=True),
    BuiltIn("llm", reads="sqlite", streams=True),
    BuiltIn("aider", reads="text"),
    BuiltIn("openai-responses", has_entry_ids=True),
    BuiltIn("langfuse"),
    BuiltIn("langsmith"),
    BuiltIn("refold"),
)
NAMES: Final = tuple(importer.name for importer in BUILT_IN)
WITH_ENTRY_IDS: Final = frozenset(
    importer.name for importer in BUILT_IN if importer.has_entry_ids
)


STREAMING: Final = frozenset(importer.name for importer in BUILT_IN if importer.streams)
_STREAMED: Final = frozenset({"list", "zip"})


def load(name: str) -> Importer | None:
    """Load the built-in importer of that name; return None if there is none.

    Raises InvalidConfiguration if it is not installed.
    """
    for importer in BUILT_IN:
        if importer.name == name:
            return importer.load()
    return None


def reading(contents: Iterable[Content]) -> list[Importer]:
    """Load the importers that read files of these kinds.

    Raises InvalidConfiguration if one is not installed.
    """
    wanted = frozenset(contents)
    importers: list[Importer] = []
    for importer in BUILT_IN:
        reads = {importer.reads, importer.reads_also}
        if reads & wanted or (importer.streams and wanted & _STREAMED):
            importers.append(importer.load())
    return importers


def streaming() -> list[Importer]:
    """Load the importers that read the sessions of a list one after the other.

    Raises InvalidConfiguration if one is not installed.
    """
    return [importer.load() for importer in BUILT_IN if importer.streams]
