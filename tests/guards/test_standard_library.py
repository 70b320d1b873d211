"""The package uses no private module or name of the standard library."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from tests.support.stores import ROOT

_PUBLIC = {"os._exit"}  # documented, in spite of its name


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _private_uses(code: str) -> Iterator[str]:
    """Yield the private names of the standard library that a module uses."""
    tree = ast.parse(code)
    modules: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    if alias.name.split(".")[0] not in sys.stdlib_module_names:
                        continue
                    modules.add(alias.asname or alias.name.split(".")[0])
                    if any(_is_private(part) for part in alias.name.split(".")):
                        yield alias.name
            case ast.ImportFrom(module=str(module), names=names, level=0):
                if module.split(".")[0] not in sys.stdlib_module_names:
                    continue
                for alias in names:
                    path = f"{module}.{alias.name}"
                    if any(_is_private(part) for part in path.split(".")):
                        yield path
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            path = ast.unparse(node)
            if path.split(".")[0] in modules and path not in _PUBLIC:
                yield path


def test_no_module_uses_a_private_name() -> None:
    uses = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "refold").rglob("*.py"))
        for name in _private_uses(path.read_text("utf-8"))
    ]

    assert uses == []


def test_each_kind_of_private_use_is_found() -> None:
    code = (
        "import re._parser\n"
        "import threading\n"
        "from re import _compiler\n"
        "from __future__ import annotations\n"
        "threading._shutdown()\n"
    )

    assert list(_private_uses(code)) == [
        "re._parser",
        "re._compiler",
        "threading._shutdown",
    ]
