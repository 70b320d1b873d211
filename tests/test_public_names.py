"""The names of `import refold` and its modules are listed and documented."""

from __future__ import annotations

import ast
import builtins
import inspect
import subprocess
import sys
import typing
from importlib import import_module

import pytest

import refold
from refold.store import Session, SessionStore
from refold.store.erasure import Erasures, Keys
from refold.store.memory.consent import User
from refold.store.memory.memories import Memories
from refold.store.proofs.access_log import AccessLog
from refold.store.reviews import Reviews
from tests.support.stores import ROOT

ROOMS = ("errors", "events", "memory", "redaction", "review", "strategies")


@pytest.mark.parametrize("name", dir(refold))
def test_a_public_name_exists_and_is_documented(name: str) -> None:
    assert getattr(refold, name) is not None
    if name == "__version__":
        return
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    source = (ROOT / "refold" / "domain" / "errors.py").read_text("utf-8")
    assert getattr(refold, name).__doc__
    assert name in source or any(name in page.read_text("utf-8") for page in pages)


def test_a_first_page_of_code_has_few_names_to_choose_from() -> None:
    assert len(dir(refold)) <= 40
    assert len(set(dir(refold))) == len(dir(refold))


@pytest.mark.parametrize("room", ROOMS)
def test_public_names_exist_and_have_docstrings(room: str) -> None:
    module = import_module(f"refold.{room}")
    names = getattr(
        module, "__all__", [name for name in vars(module) if name[0] != "_"]
    )
    offered = {name: getattr(module, name) for name in names}

    assert getattr(refold, room) is module
    assert module.__doc__
    bare = [
        name
        for name, value in offered.items()
        if (inspect.isclass(value) or inspect.isroutine(value)) and not value.__doc__
    ]
    assert bare == []


@pytest.mark.parametrize("module", ["refold", *(f"refold.{room}" for room in ROOMS)])
def test_star_import_hides_nothing_of_python(module: str) -> None:
    names: dict[str, object] = {}

    exec(f"from {module} import *", names)  # noqa: S102  # the import is the test
    # ``exec`` adds it, and an evaluated annotation may add it to the module too.
    del names["__builtins__"]

    assert "RefoldError" in names or module not in ("refold", "refold.errors")
    assert not names.keys() & (set(dir(builtins)) - {"__doc__"})
    assert not names.keys() & set(typing.__all__)


def test_open_and_final_are_used_by_their_full_names() -> None:
    assert callable(refold.open)
    assert refold.Final(text="Done.").type == refold.events.Final(text="Done.").type
    assert {"open", "Final"} <= set(dir(refold))


def test_type_checkers_see_the_names_that_star_import_gives() -> None:
    stub = ast.parse((ROOT / "refold" / "__init__.pyi").read_text("utf-8"))
    (listed,) = (
        ast.literal_eval(node.value)
        for node in stub.body
        if isinstance(node, ast.Assign)
    )

    assert listed == refold.__all__


@pytest.mark.parametrize(
    "kind",
    [AccessLog, Erasures, Keys, Memories, Reviews, Session, SessionStore, User],
)
def test_a_session_is_named_by_keyword(kind: type) -> None:
    methods = vars(kind).items()
    positional = [
        name
        for name, method in methods
        if inspect.isfunction(method) and not name.startswith("_")
        for parameter in inspect.signature(method).parameters.values()
        if parameter.name == "session_id"
        and parameter.kind is not parameter.KEYWORD_ONLY
    ]

    assert positional == []
    for ids in ("session_id", "user_id"):
        parameter = inspect.signature(SessionStore.session).parameters[ids]
        assert parameter.kind is parameter.KEYWORD_ONLY


def test_private_names_are_no_attributes() -> None:
    assert set(refold.__all__) < set(dir(refold))
    with pytest.raises(AttributeError, match="attribute nothing"):
        refold.nothing  # type: ignore[attr-defined]  # noqa: B018  # the look-up is the test


def test_importing_refold_loads_nothing_heavy() -> None:
    heavy = {"pydantic", "sqlalchemy", "psycopg", "eventsourcing", "anthropic", "rich"}
    code = "import refold, sys; print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    assert not heavy & {module.split(".")[0] for module in loaded}
