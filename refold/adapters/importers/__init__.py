"""Transcripts of other programs as events: one reader for each format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from refold.adapters.importers.anthropic import Anthropic
from refold.adapters.importers.base import (
    Importer,
    Skipped,
    Source,
    Transcript,
    replaced,
    shown,
)
from refold.adapters.importers.claude_code import ClaudeCode
from refold.adapters.importers.inspect import Inspect
from refold.adapters.importers.letta import Letta
from refold.adapters.importers.openai import OpenAI
from refold.adapters.importers.swe_agent import SWEAgent
from refold.adapters.importers.tau_bench import TauBench
from refold.domain.errors import ImportFailed

__all__ = ["FORMATS", "Skipped", "Transcript", "read"]

IMPORTERS: tuple[Importer, ...] = (
    ClaudeCode(),
    OpenAI(),
    Anthropic(),
    TauBench(),
    SWEAgent(),
    Letta(),
    Inspect(),
)
AUTO = "auto"
FORMATS: tuple[str, ...] = (AUTO, *(importer.name for importer in IMPORTERS))


def read(
    path: Path,
    *,
    format: str = AUTO,  # noqa: A002  - named as the command line's option is
) -> list[Transcript]:
    """The transcripts in the file at ``path``, all of them whole.

    Raises ImportFailed for a file that cannot be read or is of no known format.
    """
    path = Path(path)
    try:
        source = Source(path)
        importer = _importer(source, format)
        transcripts = list(importer.read(source))
        if not any(found.drafts for found in transcripts) and (
            not importer.recognises(source)
        ):
            raise source.failed(
                f"holds nothing of the format {importer.name}: use --format {AUTO}, or "
                "another"
            )
    except RecursionError:
        raise ImportFailed(shown(path), "is nested too deeply: flatten it") from None
    named = _named_apart(transcripts)
    if source.repairs and named:  # the first tells what had to be replaced in the file
        repairs = source.repairs.items()
        told = (Skipped(source.at(place), replaced(count)) for place, count in repairs)
        named[0] = replace(named[0], skipped=(*named[0].skipped, *told))
    return named


def _importer(source: Source, name: str) -> Importer:
    if name not in FORMATS:
        raise source.failed(
            f"there is no such format: name one of {', '.join(FORMATS)}"
        )
    if name != AUTO:
        return next(importer for importer in IMPORTERS if importer.name == name)
    found = [importer for importer in IMPORTERS if importer.recognises(source)]
    if len(found) == 1:
        return found[0]
    formats = ", ".join(importer.name for importer in found or IMPORTERS)
    raise source.failed(
        "is JSON of no known transcript format: if it is a transcript, name its "
        f"format with --format ({formats})"
    )


def _named_apart(transcripts: Iterable[Transcript]) -> list[Transcript]:
    """Give a session that a file has twice a name of its own each further time."""
    seen: dict[str, int] = {}
    apart = []
    for transcript in transcripts:
        name = transcript.session_id
        seen[name] = seen.get(name, 0) + 1
        if name and seen[name] > 1:
            transcript = replace(transcript, session_id=f"{name}~{seen[name]}")
        apart.append(transcript)
    return apart
