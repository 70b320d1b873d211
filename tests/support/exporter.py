"""A process that exports all columns as Parquet, and dies at one step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import refold
from refold.adapters.importers.dataset import Tables
from refold.adapters.log import EncryptedLog
from refold.store import exports
from tests.support.compacting import die

# The steps of an export in order, and whether the process dies after the step.
STEPS: Final[dict[str, tuple[Any, str, bool]]] = {
    "the first rows are read": (EncryptedLog, "read", True),
    "a file is written": (Tables, "_write_file", True),
    "all is written but its name": (exports.Files, "finish", True),
}


def main(url: str, out: str, step: str) -> None:
    """Export the store at ``url`` to ``out`` up to ``step``, then die."""
    owner, name, after = STEPS[step]
    with refold.open(url) as store:
        die(owner, name, after=after)
        log = store.log
        assert isinstance(log, EncryptedLog)
        Tables(log.recorder, store).write(Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
