"""One file checks a proof without Refold, and detects every change in it."""

from __future__ import annotations

import ast
import base64
import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, strategies as st

import refold
from refold import auditor
from refold.adapters.keys.signatures import public_pem
from refold.store import SessionStore
from refold.testing.event_log import user_inputs
from tests.support.engines import BOTH, one_engine
from tests.support.redacting import MAIL, aware, unaware
from tests.support.stores import open_at

AUDITOR = Path(auditor.__file__)


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> str:
    """An empty store on SQLite, or on each engine where a test says so."""
    return one_engine(request)


class Proofs(NamedTuple):
    """Proofs of one store, and the key that verifies them."""

    event: dict[str, Any]
    growth: dict[str, Any]
    key: bytes


@pytest.fixture(scope="module")
def proofs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proofs]:
    folder = tmp_path_factory.mktemp("proofs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFOLD_HOME", str(folder / "home"))
        with refold.open(f"sqlite:///{folder / 'refold.db'}") as store:
            yield make_proofs(store)


def make_proofs(store: SessionStore) -> Proofs:
    """Create proofs of the second event of a session that was sealed three times."""
    for number in range(3):
        for name in ("s-1", "s-2", "s-3"):
            store.session(user_id="ada", session_id=name).append(
                user_inputs(f"{number}", "y")
            )
        store.seal()
    stream = store.session(user_id="ada", session_id="s-2").stream
    event: Any = store.seals.prove(stream, 3, size=None)
    growth: Any = store.seals.prove_growth(3, 9)
    return Proofs(event, growth, store.seals.public_key())


@BOTH
@pytest.mark.parametrize("which", ["event", "growth"])
def test_a_proof_verifies_on_both_engines(store: SessionStore, which: str) -> None:
    proofs = make_proofs(store)

    assert auditor.check(getattr(proofs, which), proofs.key).startswith("holds: ")


@pytest.mark.parametrize("which", ["event", "growth"])
def test_one_file_checks_a_proof_by_itself(
    proofs: Proofs, tmp_path: Path, which: str
) -> None:
    ran = run_checker(proofs, tmp_path, getattr(proofs, which))

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("holds: ")


def test_one_file_refuses_a_wrong_proof(proofs: Proofs, tmp_path: Path) -> None:
    wrong = copy.deepcopy(proofs.event)
    wrong["event"]["ts"] += 1

    ran = run_checker(proofs, tmp_path, wrong)

    assert ran.returncode == 1
    assert ran.stdout.startswith("does not hold: ")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"proof": 1}', "[" * 100_000])
def test_one_file_reports_what_is_no_proof(
    proofs: Proofs, tmp_path: Path, text: str
) -> None:
    ran = run_checker(proofs, tmp_path, text)

    assert ran.returncode == 2
    assert ran.stderr.startswith("cannot be checked: ")
    assert "Traceback" not in ran.stderr


def run_checker(
    proofs: Proofs, folder: Path, proof: Any, *options: str, encoding: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a copy of the file outside of the project.

    encoding: that of its console; empty for the default of this machine.
    """
    shutil.copy(AUDITOR, folder / "auditor.py")
    text = proof if isinstance(proof, str) else json.dumps(proof)
    (folder / "proof.json").write_text(text)
    (folder / "key.pem").write_text(public_pem(proofs.key))
    # Isolated from the environment, Python ignores PYTHONIOENCODING.
    isolated = [] if encoding else ["-I"]
    command = [sys.executable, *isolated, "auditor.py", "proof.json"]
    command += ["--public-key", "key.pem", *options]
    return subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        encoding=encoding or "utf-8",
        env={**os.environ, "PYTHONIOENCODING": encoding},
        check=False,
    )


def test_the_file_is_short_and_imports_nothing_of_refold() -> None:
    source = AUDITOR.read_text()
    tree = ast.walk(ast.parse(source))
    names = {
        name.partition(".")[0]
        for node in tree
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    }

    assert source.count("\n") < 300
    assert names - set(sys.stdlib_module_names) == {"cryptography"}


def leaves_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each number and text in a proof."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in items:
            yield from leaves_of(part, (*path, key))
    else:
        yield path


def changed(proof: Any, path: tuple[Any, ...]) -> Any:
    """Return the proof with a small change of the value at that path."""
    proof = copy.deepcopy(proof)
    parent = proof
    for key in path[:-1]:
        parent = parent[key]
    old = parent[path[-1]]
    if isinstance(old, int):
        parent[path[-1]] = old + 1
    else:
        parent[path[-1]] = ("0" if old[:1] != "0" else "1") + old[1:]
    return proof


@pytest.mark.parametrize("which", ["event", "growth"])
def test_a_changed_proof_does_not_verify(proofs: Proofs, which: str) -> None:
    proof = getattr(proofs, which)
    unsigned = {("tree_head", "key_id"), ("old", "key_id"), ("new", "key_id")}
    paths = [path for path in leaves_of(proof) if path not in unsigned]

    accepted = []
    for path in paths:
        try:
            auditor.check(changed(proof, path), proofs.key)
        except (auditor.Refused, ValueError):
            continue
        accepted.append(path)

    assert len(paths) > 15
    assert accepted == []


@pytest.mark.parametrize("part", ["chain", "inclusion"])
def test_a_missing_or_repeated_part_is_detected(proofs: Proofs, part: str) -> None:
    for others in (proofs.event[part][1:], proofs.event[part] * 2):
        with pytest.raises(auditor.Refused):
            auditor.check({**proofs.event, part: others}, proofs.key)


def test_a_foreign_key_proves_nothing(proofs: Proofs) -> None:
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw()

    with pytest.raises(auditor.Refused, match="not signed with this key"):
        auditor.check(proofs.event, other)


def test_an_anchor_with_another_tree_wins_over_the_proof(
    proofs: Proofs,
) -> None:
    head = proofs.event["tree_head"]
    assert auditor.check(proofs.event, proofs.key, [head])

    with pytest.raises(auditor.Refused, match="anchor"):
        auditor.check(proofs.event, proofs.key, [{**head, "root": "00" * 32}])


@pytest.mark.parametrize("anchored", [[], [{"store_id": "other", "size": 1}]])
def test_a_tree_that_the_anchor_lacks_is_not_accepted(
    proofs: Proofs, anchored: list[Any]
) -> None:
    other = [{**proofs.event["tree_head"], **head} for head in anchored]

    for proof in (proofs.event, proofs.growth):
        with pytest.raises(auditor.Refused, match="no tree of"):
            auditor.check(proof, proofs.key, other)


def test_hex_digits_of_a_root_may_be_in_upper_case(proofs: Proofs) -> None:
    head = proofs.event["tree_head"]
    upper = {**head, "root": head["root"].upper()}

    assert auditor.check(proofs.event, proofs.key, [upper])
    assert auditor.check({**proofs.event, "tree_head": upper}, proofs.key, [head])


@pytest.mark.parametrize(
    "wrong", [{}, "", None, {"store_id": "x", "size": 1, "root": "00"}]
)
def test_a_malformed_anchor_is_reported_as_such(proofs: Proofs, wrong: Any) -> None:
    head = proofs.event["tree_head"]

    with pytest.raises(ValueError, match="anchor entry 2 is not a tree head"):
        auditor.check(proofs.event, proofs.key, [head, wrong])


def test_an_anchor_file_may_have_empty_lines(proofs: Proofs, tmp_path: Path) -> None:
    line = json.dumps(proofs.event["tree_head"])
    (tmp_path / "anchor.jsonl").write_text(f"\n{line}\n\n")

    ran = run_checker(proofs, tmp_path, proofs.event, "--anchor", "anchor.jsonl")

    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "utf-8"])
def test_the_exit_code_does_not_depend_on_the_encoding_of_the_console(
    tmp_path: Path, encoding: str
) -> None:
    with refold.open(f"sqlite:///{tmp_path / 'refold.db'}") as store:
        session = store.session(user_id="日本", session_id="s")
        session.append(user_inputs("x", "y"))
        store.seal()
        proof: Any = store.seals.prove(session.stream, 1, size=None)
        key = store.seals.public_key()
    proofs = Proofs(event=proof, growth={}, key=key)

    ran = run_checker(proofs, tmp_path, proof, encoding=encoding)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ("日本" if encoding == "utf-8" else r"\u65e5\u672c") in ran.stdout


def test_spaces_are_no_digits_of_a_hash(proofs: Proofs) -> None:
    body = proofs.event["event"]["body"]
    event = {**proofs.event["event"], "body": f"{body[:2]} {body[2:]}"}

    with pytest.raises(ValueError, match="64 hex digits"):
        auditor.check({**proofs.event, "event": event}, proofs.key)


def test_a_key_in_base64_has_no_other_characters(proofs: Proofs) -> None:
    key = base64.b64encode(proofs.key).decode()

    assert auditor.read_key(f"{key}\n") == proofs.key
    with pytest.raises(ValueError, match="base64"):
        auditor.read_key(f"!!!!{key}")


def test_growth_beyond_the_anchor_verifies(proofs: Proofs) -> None:
    assert auditor.check(proofs.growth, proofs.key, [proofs.growth["old"]])


def test_both_trees_of_a_growth_are_compared_with_an_anchor_read_once(
    proofs: Proofs,
) -> None:
    anchored = [proofs.growth["old"], {**proofs.growth["new"], "root": "00" * 32}]

    with pytest.raises(auditor.Refused, match="anchor"):
        auditor.check(proofs.growth, proofs.key, iter(anchored))


def test_a_proof_contains_no_text(proofs: Proofs) -> None:
    (_, *others) = proofs.event["chain"]

    assert set(proofs.event["event"]) == {
        "user_id",
        "session_id",
        "stream",
        "seq",
        "type",
        "ts",
        "event_id",
        "token_estimate",
        "schema_version",
        "prev_hash",
        "body",
    }
    assert all(len(part) == 64 for link in others for part in link)


def test_an_event_that_was_redacted_again_is_proved_by_its_first_ciphertext(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        writer = store.session(user_id="ada", session_id="s").writer
        blind = SessionStore(store.log, unaware(), writer.limits)
        blind.session(user_id="ada", session_id="s").append(
            user_inputs(f"mail {MAIL}", "b")
        )
        store.seal()
        stream = store.session(user_id="ada", session_id="s").stream
        before = store.seals.prove(stream, 1, size=None)

        list(SessionStore(store.log, aware(), writer.limits).reredact())

        assert store.seals.prove(stream, 1, size=None) == before
        assert auditor.check(before, store.seals.public_key())
        verified = store.verify_seals()
        assert verified is not None
        assert verified.problems == []


@pytest.mark.parametrize(
    ("seq", "size"), [(9, None), (0, None), (7, None), (1, 4), (5, 3)]
)
def test_an_unsealed_event_has_no_proof(
    store: SessionStore, seq: int, size: int | None
) -> None:
    make_proofs(store)
    store.session(user_id="ada", session_id="s-2").append(user_inputs("not sealed"))
    stream = store.session(user_id="ada", session_id="s-2").stream

    with pytest.raises(LookupError):
        store.seals.prove(stream, seq, size=size)


@pytest.mark.parametrize(("old", "new"), [(1, 9), (3, 4), (9, 3)])
def test_trees_that_were_not_signed_have_no_proof(
    store: SessionStore, old: int, new: int
) -> None:
    make_proofs(store)

    with pytest.raises((LookupError, ValueError)):
        store.seals.prove_growth(old, new)


@given(
    st.recursive(
        st.none() | st.integers() | st.text() | st.floats(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_other_values_are_no_proof(value: Any) -> None:
    for proof in (value, {"proof": "refold event proof 1", "event": value}):
        with pytest.raises(ValueError, match=r"not a proof|unknown kind of proof"):
            auditor.check(proof, bytes(32))


@BOTH
def test_a_tree_size_over_64_bits_is_refused(store: SessionStore) -> None:
    make_proofs(store)

    with pytest.raises(LookupError, match="no tree head of size 1000"):
        store.seals.prove_growth(3, 10**30)
