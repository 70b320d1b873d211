"""Checks an export by itself: that it is whole, and that each stream of it is a chain.

No store and no key is needed.  What a chain's hashes are made of is ciphertext, which
an export does not hold: they are checked to follow on each other up to the end that
the manifest names, not to be those of the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import orjson

from refold.domain.canonical import digest
from refold.domain.chain import GENESIS
from refold.domain.errors import InvalidConfiguration
from refold.domain.events import JsonObject
from refold.store.export_files import FORMAT, MANIFEST, digested, paths_in


class ExportProblem(NamedTuple):
    """Which file is not as the manifest says, and why."""

    path: str
    detail: str

    def to_json(self) -> JsonObject:
        return dict(self._asdict())


class ExportChecked(NamedTuple):
    """What the manifest says is there, and what does not fit."""

    user_id: str
    counts: JsonObject
    problems: list[ExportProblem]


def check_export(folder: Path) -> ExportChecked:
    """Check every file of an export against its manifest, and each stream's chain.

    Raises InvalidConfiguration where there is no manifest of an export: what was cut
    off has none.
    """
    manifest = _read(folder)
    try:
        problems = list(_problems(folder, manifest))
        return ExportChecked(manifest["user_id"], manifest["counts"], problems)
    except (AttributeError, KeyError, TypeError, ValueError):
        problem = ExportProblem(MANIFEST, "it does not say what an export's says")
        return ExportChecked("", {}, [problem])


def _read(folder: Path) -> dict[str, Any]:
    try:
        manifest = orjson.loads((folder / MANIFEST).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InvalidConfiguration(
            f"there is no {MANIFEST} of an export in {str(folder)!r}: name the "
            "directory that `refold export --out` made"
        )
    return manifest


def _problems(folder: Path, manifest: dict[str, Any]) -> Iterator[ExportProblem]:
    said = {name: value for name, value in manifest.items() if name != "digest"}
    if digest(said) != manifest.get("digest"):
        yield ExportProblem(MANIFEST, "it is not what was written")
        return
    listed = {file["path"]: file for file in manifest["files"]}
    for path in sorted(paths_in(folder) - set(listed) - {MANIFEST}):
        yield ExportProblem(path, "the manifest does not name it")
    wrong = {path: _wrong(folder, path, file) for path, file in listed.items()}
    for path, detail in wrong.items():
        if detail:
            yield ExportProblem(path, detail)
    for stream in (s for one in manifest["sessions"] for s in one["streams"]):
        path, detail = stream["file"], "the manifest does not name it"
        if path in wrong:
            detail = "" if wrong[path] else _broken(folder, stream)
        if detail:
            yield ExportProblem(path, detail)


def _wrong(folder: Path, path: str, file: JsonObject) -> str:
    """What is wrong with one file; empty if nothing is."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts:
        return "it is outside of the export"
    try:
        found = digested(folder, path)
    except OSError:
        return "it is missing, or cannot be read"
    if found.to_json() != file:
        return "it is not what was written"
    if path.startswith("blobs/") and pure.name != found.sha256:
        return "it is not the text of that digest"
    return ""


def _broken(folder: Path, stream: JsonObject) -> str:
    """Where a stream's events do not follow on each other; empty if they do."""
    seq, last = 0, GENESIS.hex()
    try:
        with (folder / str(stream["file"])).open("rb") as lines:
            for line in lines:
                event = orjson.loads(line)
                if (event["seq"], event["prev_hash"]) != (seq + 1, last):
                    return f"the event behind seq {seq} does not follow on it"
                seq, last = event["seq"], event["hash"]
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return f"what is behind seq {seq} is no event"
    if (seq, last) != (stream["seq"], stream["hash"]):
        return f"the chain ends at seq {seq}, the manifest says {stream['seq']}"
    return ""
