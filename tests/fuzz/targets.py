"""Parsers of bytes that anybody may have written, as targets of the fuzzer."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from refold.adapters import importers
from refold.adapters.cli import main
from refold.domain.errors import ImportFailed, InvalidConfiguration, UnknownStrategy
from refold.projections.context.strategies import spec
from refold.projections.review.rules import ReviewRules
from refold.redaction.plan import Plan
from refold.redaction.policy import Policy, PolicyError
from refold.redaction.redactor import RedactionError, Redactor
from tests.fuzz import wire
from tests.importers import samples

SECRET: Final = "ghp_q7Zt0Kx3Vb9Lm2Np5Rs8Wd1Yf4Hj6CgTuEaX"  # made up
Target = Callable[[bytes], None]
# Grown together with other letters it is no token any more.
_APART: Final = re.compile(rf"(?<![A-Za-z0-9_-]){SECRET}(?![A-Za-z0-9_-])")
_REDACTOR: Final = Redactor(Plan(engine="stdlib"))


class Fault(AssertionError):
    """Something happened that must not."""


def redact_text(data: bytes) -> None:
    """Any text is redacted or refused, and a second pass changes nothing."""
    text = data.decode(errors="surrogateescape")
    with _refusing(RedactionError):
        clean, _ = _REDACTOR.text(text)
        if _REDACTOR.text(clean)[0] != clean:
            raise Fault("a second pass changes the text again")
        if _APART.search(clean):
            raise Fault("the secret is still there")


def redact_value(data: bytes) -> None:
    """Any JSON is redacted or refused, and a second pass changes nothing."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return
    with _refusing(RedactionError):
        clean, _ = _REDACTOR.value(value)
        if _REDACTOR.value(clean)[0] != clean:
            raise Fault("a second pass changes the value again")


def policy(data: bytes) -> None:
    """Any policy is read or refused."""
    with _refusing(PolicyError):
        Policy.parse(data.decode(errors="replace"))


def strategy(data: bytes) -> None:
    """Any SPEC is a strategy or refused; what was typed may be repeated."""
    text = data.decode(errors="replace")
    with contextlib.suppress(UnknownStrategy, InvalidConfiguration):
        spec.parse(text)
    with contextlib.suppress(
        UnknownStrategy, InvalidConfiguration, tomllib.TOMLDecodeError
    ):
        spec.parse(tomllib.loads(text))


def review_rules(data: bytes) -> None:
    """Any rules are read or refused."""
    with _refusing(InvalidConfiguration):
        ReviewRules.read(data)


def importer(form: str) -> Target:
    """Any file is read as this format or refused."""

    def read(data: bytes) -> None:
        with _file(data) as path, _refusing(ImportFailed):
            importers.read(path, format=form)

    return read


def command(*arguments: str) -> Target:
    """Returns a target: a command accepts any file or refuses it in one sentence."""

    def run(data: bytes) -> None:
        out = io.StringIO()
        err = io.StringIO()
        stdin = io.TextIOWrapper(io.BytesIO(data))
        with _file(data) as path, tempfile.TemporaryDirectory() as folder:
            named = [argument.format(file=path) for argument in arguments]
            before = sys.stdin
            sys.stdin = stdin
            try:
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    main(["--db", f"sqlite:///{folder}/none.db", *named])
            finally:
                sys.stdin = before
        errors = err.getvalue()
        if "fault of Refold" in errors or "Traceback" in errors or SECRET in errors:
            raise Fault(errors)

    return run


class Fuzzed(NamedTuple):
    """A target, inputs to begin with, and how many more are tried in a test."""

    target: Target
    seeds: tuple[bytes, ...]
    examples: int = 60


def _seed(document: Any) -> bytes:
    text = (
        "\n".join(json.dumps(line) for line in document)
        if isinstance(document, list)
        else json.dumps(document)
    )
    return text.replace("hunter2", SECRET).encode()


_TEXTS: Final = (
    f"the key is {SECRET}, call 13912345670 or mail lin.wei@mail.example.org".encode(),
    '密码：s3cr-t!x9，身份证号是110101199003071234 {"password": "hunter2"}'.encode(),
    b"postgres://ada:hunter2@db:5432/app Authorization: Bearer f3a9K2lq8Zt0Vb7Np5Rs",
    b"[REDACTED:PHONE] \\u0031\\u0033 %2B14155550132 \xff\xfe",
)
_POLICY: Final = b"""version = 1
name = "own"
packs = ["pii-eu"]
[[rules]]
id = "own.badge"
type = "BADGE"
pattern = "BADGE-[0-9]{6}"
examples = ["BADGE-123456"]
"""
_SPECS: Final = (
    b"turn_window:full_turns=4,cached_turns=3",
    b'for_agent:agent="lead",strategy="keep_all"',
    b'strategy = "turn_window"\nfull_turns = 2\n',
)
_RULES: Final = b"""[failing]
when = "tool_fails"
failures = 3
[risky]
when = "issue"
issues = ["data_loss"]
steps = []
"""
_BUNDLE: Final = {
    "format": "refold-review-bundle/1",
    "refold": "0.2.0",
    "rules": "0" * 64,
    "rule": {"name": "risky", "when": "issue", "issues": ["data_loss"], "steps": []},
    "figures": {"issues": ["data_loss"]},
    "where": {
        "user_id": "ada",
        "session_id": "s-1",
        "first_seq": 2,
        "at_seq": 2,
        "seqs": [2],
    },
    "events": [
        {
            "seq": seq,
            "ts": "2026-05-03T09:12:44.120000Z",
            "type": type_,
            "payload": payload,
            "hash": "0" * 64,
        }
        for seq, type_, payload in (
            (1, "user_input", {"text": "hunter2"}),
            (2, "reflection", {"issues": ["data_loss", {"code": "hunter2"}]}),
        )
    ],
}
FUZZED: Final[Mapping[str, Fuzzed]] = {
    "redact-text": Fuzzed(redact_text, _TEXTS),
    "redact-value": Fuzzed(
        redact_value,
        (
            *(_seed({"note": text.decode("latin-1")}) for text in _TEXTS),
            b'{"a":[1,{}]}',
        ),
    ),
    "policy": Fuzzed(policy, (_POLICY,)),
    "strategy": Fuzzed(strategy, _SPECS),
    **{
        f"import-{form}": Fuzzed(importer(form), (_seed(document),))
        for form, document in samples.DOCUMENTS.items()
    },
    **{name: Fuzzed(target, seeds) for name, target, seeds in wire.targets()},
    "import-auto": Fuzzed(
        importer("auto"), tuple(map(_seed, samples.DOCUMENTS.values()))
    ),
    "review-rules": Fuzzed(review_rules, (_RULES,)),
    "replay-bundle": Fuzzed(command("replay", "{file}"), (_seed(_BUNDLE),), 30),
    "redact-command": Fuzzed(command("redact", "--format", "jsonl"), _TEXTS, 30),
    "verify-proof": Fuzzed(command("verify", "--proof", "{file}"), (b"{}",), 30),
    "verify-certificate": Fuzzed(
        command("verify", "--certificate", "{file}"), (b'{"certificate": {}}',), 30
    ),
}


@contextlib.contextmanager
def _refusing(*errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        if SECRET in str(error) or SECRET in repr(error):
            raise Fault("the error repeats the secret") from None


@contextlib.contextmanager
def _file(data: bytes) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(data)
        file.flush()
        yield Path(file.name)
