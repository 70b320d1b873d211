"""Check the package against CONTRIBUTING: layout, import circles, docstrings, English.

``python -m tools.check_house [DIRECTORY]`` prints one problem a line and exits 1 if
there are any.
"""

import ast
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_ROW = re.compile(r"^\|(?P<places>[^|]*`[^|]*)\|", re.MULTILINE)
_PLACE = re.compile(r"`(refold/[^`]*)`")

# Folders whose docstrings and comments avoid the phrases below.
_PROSE_FOLDERS = ("refold", "tests", "benchmarks", "tools", "examples")
_CLAUSE_AS_NOUN = re.compile(r"(What|Who|Whoever)\b")
_SENTENCE_END = re.compile(r"(?<=[.?!])\s|\n\n")
_AVOIDED = re.compile(r"\b(meanwhile|but\s+for|anew|whoever)\b", re.IGNORECASE)

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One Python file of the package."""

    path: Path
    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        return ast.parse(self.text)


@dataclass(frozen=True)
class House:
    """The package under ``root``, and the pages that describe it."""

    root: Path

    @cached_property
    def modules(self) -> Mapping[str, Module]:
        """Every module by its dotted name."""
        modules = {}
        for path in sorted(self.root.glob("refold/**/*.py")):
            place = path.relative_to(self.root)
            name = ".".join(place.with_suffix("").parts).removesuffix(".__init__")
            modules[name] = Module(place, name, path.read_text(encoding="utf-8"))
        return modules

    @cached_property
    def entries(self) -> Mapping[Path, set[Path]]:
        """The entries of each folder, without caches, stubs and empty folders."""
        entries: dict[Path, set[Path]] = {}
        for path in self.root.glob("refold/**/*"):
            place = path.relative_to(self.root)
            if path.is_file() and not _cached(place) and place.suffix != ".pyi":
                for entry in [place, *place.parents][:-2]:
                    entries.setdefault(entry.parent, set()).add(entry)
        return entries

    @cached_property
    def imports(self) -> Mapping[str, set[str]]:
        """The modules of the package that each module imports, anywhere in it."""
        return {
            module.name: set(self._imported(module)) for module in self.modules.values()
        }

    def _imported(self, module: Module) -> Iterator[str]:
        for node in ast.walk(module.tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                imported = name if name in self.modules else name.rpartition(".")[0]
                if imported in self.modules and imported != module.name:
                    yield imported

    def page(self, name: str) -> str:
        """Return the text of a page; empty if the page does not exist."""
        path = self.root / name
        return path.read_text(encoding="utf-8") if path.exists() else ""


def check(house: House) -> Iterator[str]:
    """Yield the problems of the house, one sentence each."""
    yield from layout_differences(house)
    yield from circles(house)
    yield from undocumented(house)
    yield from odd_english(house)


def layout_differences(house: House) -> Iterator[str]:
    """Yield where CONTRIBUTING's layout and the tree differ."""
    page = house.page("CONTRIBUTING.md").partition("## Layout")[2].partition("\n## ")[0]
    named = Counter(
        place.rstrip("/")
        for row in _ROW.finditer(page)
        for place in _PLACE.findall(row["places"])
    )
    folders = {str(folder) for folder in house.entries if len(folder.parts) in (2, 3)}
    for place in sorted(folders - set(named)):
        yield f"CONTRIBUTING.md: the layout does not name {place}/"
    for place, times in sorted(named.items()):
        if not (house.root / place).exists():
            yield f"CONTRIBUTING.md: the layout names {place}, which does not exist"
        if times > 1:
            yield f"CONTRIBUTING.md: the layout names {place} {times} times"


def circles(house: House) -> Iterator[str]:
    """Yield each set of modules that import one another, directly or not."""
    reached = {name: _reachable(name, house.imports) for name in house.imports}
    seen: set[str] = set()
    for name in sorted(reached):
        circle = {other for other in reached[name] if name in reached[other]}
        if circle and name not in seen:
            seen |= circle
            yield f"modules import one another: {', '.join(sorted(circle))}"


def _reachable(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for other in edges[waiting.pop()] - reached:
            reached.add(other)
            waiting.append(other)
    return reached


def undocumented(house: House) -> Iterator[str]:
    """Yield the modules, public classes, functions and methods without a docstring.

    Tests need none.  A method of a class with bases is explained in its base, and a
    method of a protocol in the protocol.
    """
    protocol_methods = set(_protocol_methods(house))
    for module in house.modules.values():
        if ast.get_docstring(module.tree) is None:
            yield f"{module.path}: the module has no docstring"
        for name, node in _public(module.tree):
            if (
                ast.get_docstring(node) is None
                and name.partition(".")[2] not in protocol_methods
            ):
                yield f"{module.path}:{node.lineno}: {name} has no docstring"


def odd_english(house: House) -> Iterator[str]:
    """Yield docstrings and comments with phrases that CONTRIBUTING advises against.

    A text begins with a subject, not with a relative clause; a question may.
    """
    for folder in _PROSE_FOLDERS:
        for path in sorted(house.root.glob(f"{folder}/**/*.py")):
            place = path.relative_to(house.root)
            if _cached(place):
                continue
            for line, text in _prose(path):
                if clause := _clause_as_noun(text):
                    yield f'{place}:{line}: "{clause} ..." is no sentence'
                for avoided in _AVOIDED.findall(text):
                    yield f'{place}:{line}: use another word than "{avoided}"'


def _prose(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a file with their lines.

    Comments on neighboring lines are one text.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, Definition | ast.Module):
            text = ast.get_docstring(node)
            if text is not None:
                yield node.body[0].lineno, text
    first_line = last_line = -1
    comment = ""
    with tokenize.open(path) as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type != tokenize.COMMENT:
                continue
            line = token.start[0]
            if line != last_line + 1:
                if comment:
                    yield first_line, comment
                first_line = line
                comment = ""
            comment += token.string.lstrip("#")
            last_line = line
    if comment:
        yield first_line, comment


def _clause_as_noun(text: str) -> str:
    """The first word of a text that begins with a clause; empty if it does not."""
    first_sentence = _SENTENCE_END.split(text.strip(), maxsplit=1)[0]
    begin = _CLAUSE_AS_NOUN.match(first_sentence)
    if begin is None or first_sentence.endswith("?"):
        return ""
    return begin.group()


def _protocol_methods(house: House) -> Iterator[str]:
    for module in house.modules.values():
        for node in _definitions(module.tree.body):
            if isinstance(node, ast.ClassDef) and "Protocol" in map(_name, node.bases):
                yield from (method.name for method in _definitions(node.body))


def _public(tree: ast.Module) -> Iterator[tuple[str, Definition]]:
    for node in _definitions(tree.body):
        yield node.name, node
        if isinstance(node, ast.ClassDef) and not node.bases:
            for method in _definitions(node.body):
                yield f"{node.name}.{method.name}", method


def _definitions(body: Iterable[ast.stmt]) -> Iterator[Definition]:
    for node in body:
        if (
            isinstance(node, Definition)
            and not node.name.startswith(("_", "test_"))
            and "overload" not in map(_name, node.decorator_list)
        ):
            yield node


def _name(expression: ast.expr) -> str:
    """The last part of the name of a base or a decorator, without its arguments."""
    if isinstance(expression, ast.Subscript):
        expression = expression.value
    return ast.unparse(expression).rpartition(".")[2]


def _cached(place: Path) -> bool:
    return any(part == "__pycache__" or part.startswith(".") for part in place.parts)


def main(root: Path) -> int:
    """Print the problems; return 1 if there are any."""
    problems = list(check(House(root)))
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(Path(*sys.argv[1:2])))
