"""Compare the public API with the one of the last release.

``python -m tools.public_api`` writes the public API into ``tools/public_api.txt``, as
stubs.  With ``--check`` it writes nothing.  It prints each change that can break a
caller, and exits 1 if there are any.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

import griffe

from tools.python_reference import OBJECTS

DUMP: Final = Path(__file__).with_name("public_api.txt")
ROOT: Final = DUMP.parents[1]
MODULES: Final = (
    "refold",
    "refold.errors",
    "refold.events",
    "refold.memory",
    "refold.redaction",
    "refold.review",
    "refold.strategies",
)
# Classes whose objects the API returns, by a name that no module has.
PARTS: Final = "refold.parts"
_HEAD: Final = "# module "


def load(root: Path = ROOT) -> griffe.Module:
    """Read the sources of the package in a folder, without running them."""
    loader = griffe.GriffeLoader(search_paths=[root], allow_inspection=False)
    loader.load("refold")
    loader.resolve_aliases(external=False)
    package: griffe.Module = loader.modules_collection["refold"]
    return package


def dump(package: griffe.Module) -> str:
    """Return the public API of the package as stubs, module by module."""
    lines: list[str] = []
    for name in MODULES:
        module = package if name == "refold" else package[name.removeprefix("refold.")]
        lines += [f"{_HEAD}{name}", "", *_members(module, _exported(name))]
    lines += [f"{_HEAD}{PARTS}", ""]
    for kind in OBJECTS.values():
        path = f"{kind.__module__}.{kind.__qualname__}"
        lines += _class(package[path.removeprefix("refold.")], kind.__name__)
    return "\n".join(lines).rstrip() + "\n"


def breaking_changes(old: str, new: str) -> list[str]:
    """Return the changes between two dumps that can break a caller."""
    before = _parsed(old)
    after = _parsed(new)
    changes: list[str] = []
    for name, module in before.items():
        if name not in after:
            changes.append(f"{name}: the module was removed")
            continue
        for change in griffe.find_breaking_changes(module, after[name]):
            changes.append(_described(name, change))
    return changes


def _described(module: str, change: griffe.Breakage) -> str:
    path = change.obj.path.partition(".")[2]
    text = f"{module}.{path}: {change.kind.value}"
    details = [str(value) for value in (change.old_value, change.new_value) if value]
    plain = [detail for detail in details if not detail.startswith("<")]
    return f"{text} ({' -> '.join(plain)})" if plain else text


def _parsed(text: str) -> dict[str, griffe.Module]:
    modules: dict[str, griffe.Module] = {}
    for section in text.split(_HEAD)[1:]:
        name, _, code = section.partition("\n")
        modules[name] = griffe.visit("api", filepath=DUMP, code=code)
    return modules


def _exported(name: str) -> list[str]:
    module = import_module(name)
    if name == "refold":
        return sorted(set(dir(module)) - {"__version__"})
    listed = getattr(module, "__all__", None)
    return sorted(listed or [known for known in vars(module) if known[0] != "_"])


def _members(
    module: griffe.Object | griffe.Alias, names: Sequence[str]
) -> Iterator[str]:
    for name in names:
        member = module.members.get(name)
        if member is None or member.is_module:
            continue
        target = _target(member)
        if isinstance(target, griffe.Class):
            yield from _class(target, name)
        elif isinstance(target, griffe.Function):
            yield from [*_function(target, name, ""), "", ""]
        elif isinstance(target, griffe.Attribute):
            yield from [f"{name}: {_annotation(target.annotation)}", "", ""]


def _target(member: griffe.Object | griffe.Alias) -> griffe.Object | griffe.Alias:
    """Follow imports, and a second name of a function (``open = open_store``)."""
    target = member.final_target if isinstance(member, griffe.Alias) else member
    if isinstance(target, griffe.Attribute) and target.parent is not None:
        named = target.parent.members.get(str(target.value))
        if isinstance(named, griffe.Function):
            return named
    return target


def _class(described: griffe.Object | griffe.Alias, name: str) -> Iterator[str]:
    yield f"class {name}:"
    members = {**described.inherited_members, **described.members}
    empty = True
    for member_name in sorted(members):
        if member_name.startswith("_") and member_name != "__init__":
            continue
        member = members[member_name]
        target = member.final_target if isinstance(member, griffe.Alias) else member
        if isinstance(target, griffe.Function):
            empty = False
            yield from _function(target, member_name, "    ")
        elif isinstance(target, griffe.Attribute):
            empty = False
            yield f"    {member_name}: {_annotation(target.annotation)}"
    if empty:
        yield "    ..."
    yield from ["", ""]


def _function(function: griffe.Function, name: str, indent: str) -> Iterator[str]:
    for label in sorted(function.labels & {"classmethod", "staticmethod"}):
        yield f"{indent}@{label}"
    begin = "async def" if "async" in function.labels else "def"
    parameters = ", ".join(_parameters(function))
    returns = _annotation(function.returns)
    yield f"{indent}{begin} {name}({parameters}) -> {returns}: ..."


def _parameters(function: griffe.Function) -> Iterator[str]:
    marked = False
    for parameter in function.parameters:
        if parameter.kind is griffe.ParameterKind.var_positional:
            marked = True
            yield f"*{parameter.name}"
            continue
        if parameter.kind is griffe.ParameterKind.var_keyword:
            yield f"**{parameter.name}"
            continue
        if parameter.kind is griffe.ParameterKind.keyword_only and not marked:
            marked = True
            yield "*"
        default = "" if parameter.default is None else f" = {parameter.default}"
        yield f"{parameter.name}{default}"


def _annotation(expression: object) -> str:
    text = re.sub(r"\s+", " ", str(expression))
    return "object" if expression is None else text


def main(arguments: Sequence[str]) -> int:
    """Write the dump, or check it; return 1 if a change can break a caller."""
    now = dump(load())
    if list(arguments) != ["--check"]:
        DUMP.write_text(now, "utf-8")
        return 0
    changes = breaking_changes(DUMP.read_text("utf-8"), now)
    if changes:
        print(*changes, sep="\n")
        print(
            "The public API lost something.  If that is intended, describe it in "
            "CHANGELOG.md, and run `python -m tools.public_api`."
        )
    return 1 if changes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
