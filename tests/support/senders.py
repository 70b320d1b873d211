"""The functions of the adapters that send statements to a database of sessions."""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
_SEND: Final = frozenset(
    {"read", "change", "run", "fetch", "rewrite", "hold_head", "pipeline"}
    | {"execute", "executemany", "exec_driver_sql", "_fetch"}
)
_TO: Final = frozenset({"database", "connection", "driver", "prepared", "c", "own"})
# Modules of other engines, of other databases, and of the schema.
_OTHERS: Final = frozenset(
    {"sqlite.py", "memory.py", "citus.py", "keystore.py", "schema.py"}
)
# Folders with an own database, and with readers of the databases of other programs.
_OTHER_FOLDERS: Final = frozenset({"eventsourcing", "importers"})

Function = tuple[str, str]
"""The file and the qualified name."""


def senders() -> set[Function]:
    """Return every function that calls a method that sends a statement."""
    functions = set[Function]()
    for path in (ROOT / "refold" / "adapters").rglob("*.py"):
        if path.name not in _OTHERS and path.parent.name not in _OTHER_FOLDERS:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            functions |= {(_named(path), name) for name in _within(tree, "")}
    return functions


def _within(node: ast.AST, name: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        inner = name
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{name}.{child.name}".removeprefix(".")
        elif isinstance(child, ast.Call) and _sends(child):
            yield name
        yield from _within(child, inner)


def _sends(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _SEND:
        return False
    receiver = ast.unparse(call.func.value).rpartition(".")[2]
    return receiver.lstrip("_") in _TO


@contextmanager
def called() -> Iterator[set[Function]]:
    """Collect the functions of the adapters that any thread calls in the block."""
    functions = set[Function]()
    ours = str(ROOT / "refold" / "adapters")

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ours):
            name = code.co_qualname.replace(".<locals>", "").replace(".<lambda>", "")
            functions.add((_named(Path(code.co_filename)), name))

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield functions
    finally:
        threading.setprofile(None)
        sys.setprofile(before)


def _named(path: Path) -> str:
    return str(path.relative_to(ROOT))
