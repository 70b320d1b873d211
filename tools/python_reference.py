"""Write the tables of calls in the Python reference from signatures and docstrings.

``python -m tools.python_reference`` writes the part of ``docs/reference/python.md``
between two marks; with ``--check`` it writes nothing and exits 1 if the page is out of
date.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import refold
from refold.domain.locks import computed_once
from refold.store import Session, SessionStore
from refold.store.erasure import Erasures, Keys
from refold.store.memory.consent import User
from refold.store.memory.memories import Memories
from refold.store.proofs.access_log import AccessLog
from refold.store.reviews import Reviews
from refold.store.session.delegation import Delegation
from refold.store.session.former import FormerNames
from refold.store.session.history import SessionHistory
from refold.store.session.memory import SessionMemory
from refold.store.session.native import NativeItems
from refold.store.session.part import SessionPart
from refold.store.session.proofs import SessionProofs
from refold.store.session.reviews import SessionReviews
from refold.store.session.strategies import SessionStrategies
from refold.store.session.vault import SessionVault
from refold.store.shares import Shares

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "python.md"
BEGIN: Final = "<!-- calls: `make fix` writes these tables from the docstrings -->\n"
END: Final = "<!-- end of calls -->\n"

# The objects of the API, in the order in which a reader meets them.
OBJECTS: Final[Mapping[str, type]] = {
    "SessionStore": SessionStore,
    "Session": Session,
    "session.native": NativeItems,
    "session.history": SessionHistory,
    "session.strategies": SessionStrategies,
    "session.proofs": SessionProofs,
    "session.memory": SessionMemory,
    "session.reviews": SessionReviews,
    "session.vault": SessionVault,
    "session.delegation": Delegation,
    "store.user(…)": User,
    "store.memory": Memories,
    "store.reviews": Reviews,
    "store.shares": Shares,
    "store.erasures": Erasures,
    "store.keys": Keys,
    "store.access_log": AccessLog,
}


def page(old: str) -> str:
    """Return the page with new tables between the marks."""
    before, _, rest = old.partition(BEGIN)
    _, _, after = rest.partition(END)
    return "".join([before, BEGIN, *_tables(), END, after])


def _tables() -> Iterator[str]:
    yield "\n### `refold`\n\n"
    yield f"{_sentence(refold.open)}\n\n"
    yield "| name | description |\n|---|---|\n"
    for name in sorted(set(dir(refold)) - {"__version__"}):
        value = getattr(refold, name)
        if inspect.isroutine(value) or inspect.isclass(value):
            yield f"| `{name}` | {_sentence(value)} |\n"
    for title, kind in OBJECTS.items():
        yield f"\n### `{title}`\n\n{_sentence(kind)}\n\n"
        yield "| call | description |\n|---|---|\n"
        yield from _calls(kind)
    yield "\n"


def _calls(kind: type) -> Iterator[str]:
    inherited: set[str] = set()
    for base in (SessionPart, FormerNames):
        if issubclass(kind, base):
            inherited |= set(dir(base))
    for name, value in inspect.getmembers_static(kind):
        if name.startswith("_") or name in inherited:
            continue
        if isinstance(value, property | computed_once):
            if value.__doc__:
                yield f"| `{name}` | {_sentence(value)} |\n"
        elif callable(value):
            yield f"| `{name}{_signature(value)}` | {_sentence(value)} |\n"


def _signature(method: Callable[..., Any]) -> str:
    """Return the parameters without types, and with their plain default values."""
    parts: list[str] = []
    keyword_only = False
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            parts.append(f"**{parameter.name}")
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parts.append("*")
        parts.append(parameter.name + _default(parameter))
    return f"({', '.join(parts)})"


def _default(parameter: inspect.Parameter) -> str:
    default = parameter.default
    if default is parameter.empty:
        return ""
    if default is None or isinstance(default, bool | int | float | str):
        return f"={default!r}"
    return "=…"


def _sentence(documented: Any) -> str:
    """The first line of a docstring, as Markdown in a cell."""
    line = (inspect.getdoc(documented) or "").partition("\n")[0]
    return line.replace("``", "`").replace("|", "\\|")


def main(arguments: Sequence[str]) -> int:
    """Write the page, or check it; return 1 if it is out of date."""
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if list(arguments) != ["--check"]:
        PAGE.write_text(new, encoding="utf-8")
    elif new != old:
        print(f"{PAGE}: out of date: `make fix` writes the tables of calls")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
