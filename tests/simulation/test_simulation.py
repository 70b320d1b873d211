"""Whatever happens between any two calls, the log keeps its promises."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import chain

import pytest

from refold.projections.context.outline import Outline
from refold.store import checkpoints
from tests.simulation import __main__ as command
from tests.simulation.history import History
from tests.simulation.mutants import MUTANTS, WritesNothing
from tests.simulation.roles import owner
from tests.support.warm import ROOT

# As many as a test run has time for; `make simulate` takes any number.
CHUNKS = 4
SIZE = 20
_MANY = 600


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_history_keeps_all_promises(chunk: int) -> None:
    for seed in range(chunk * SIZE, (chunk + 1) * SIZE):
        try:
            History(seed).run()
        except Exception as error:
            pytest.fail(f"{error!r}; replay it: {command.replay_command(seed)}")


def test_histories_with_many_checkpoints_keep_all_promises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoints, "SPACING", 4)
    monkeypatch.setattr("refold.store.contexts.SPACING", 4)
    stored: list[int] = []
    save = checkpoints.Checkpoints._save

    def counted(self: checkpoints.Checkpoints, outline: Outline, hash_: str) -> None:
        stored.append(outline.through_seq)
        save(self, outline, hash_)

    monkeypatch.setattr(checkpoints.Checkpoints, "_save", counted)

    for seed in range(SIZE):
        History(seed).run()

    assert len(stored) > SIZE


WANTED = {
    "refused",
    "lost",
    "dies before",
    "dies after",
    "acknowledged",
    "sent",
    "a duplicate",
    "a rewriting",
    "a lease",
    "a lease that ended badly",
    "a wasted call",
    "Moved",
    "write_exclusive",
    "save_view_row",
    "a group",
    "dies between two statements of a group",
    "was left to be written",
    "a fork",
    "a fork that another won",
    "a blob",
    "a blob of before",
    "erased",
    "an erasure that was taken up again",
    "an append in vain",
}


def occurrences(history: History) -> Iterator[str]:
    """Yield the names of everything that happened in a history."""
    yield from (str(word) for step in history.world.trace for word in step[2:])
    for request in history.requests:
        yield request.state
        yield from ("a duplicate" for receipt in request.receipts if receipt.duplicate)
    yield from ("a rewriting" for _ in history.world.rewritten)
    yield from kinds_of_parts(history)
    for term in history.world.terms:
        yield "a lease" if term.clean else "a lease that ended badly"
        if term.answers > term.summaries:
            yield "a wasted call"


def kinds_of_parts(history: History) -> Iterator[str]:
    """Yield the kinds of groups, forks, blobs and erasures in a history."""
    steps = Counter(str(step[2]) for step in history.world.trace)
    yield from ("a group" for _ in range(steps["write_group"]))
    for forker in history.forks:
        yield "a fork" if forker.forked else ""
        yield "a fork that another won" if forker.there and not forker.forked else ""
    if history.world.recorder.execute("SELECT 1 FROM blobs LIMIT 1"):
        yield "a blob"
        yield "a blob of before" if history.world.rewritten else ""
    erased = history.world.erasures
    yield from ("erased" for _ in erased.certificates)
    if erased.begun and steps["begin"] > 1:
        yield "an erasure that was taken up again"
    for request in history.requests:
        if erased.refuses(owner(request.session_id)) and request.state == "sent":
            yield "an append in vain"


def test_histories_contain_every_situation_of_the_promises() -> None:
    missing = set(WANTED)
    seed = 0

    while missing and seed < _MANY:
        history = History(seed)
        history.run()
        missing.difference_update(occurrences(history))
        seed += 1

    assert missing == set()


def trace_digest(first: int, count: int) -> str:
    """Return a digest of every step of these histories."""
    digest = hashlib.sha256()
    for seed in range(first, first + count):
        history = History(seed)
        history.run()
        digest.update(repr(history.world.trace).encode())
    return digest.hexdigest()


def test_a_seed_gives_the_same_history_in_any_process() -> None:
    code = (
        "from tests.simulation.test_simulation import trace_digest; "
        "print(trace_digest(0, 2))"
    )

    other = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert other.stdout.strip() == trace_digest(0, 2)
    assert trace_digest(0, 2) != trace_digest(1, 2)


# The seeds that detected these mutants before come first.
KNOWN = {
    "renews what is another's": 198,
    "takes views under any key": 8,
    "keeps views": 7,
    "commits one by one": 8,
    "knows not its own rows": 68,
    "locks as they come": 167,
    "lets the last key win": 183,
    "lets views go back": 1,
    "marks main streams alone": 9,
}


@pytest.mark.load
@pytest.mark.timeout(900)  # a search, whose length depends on every step
@pytest.mark.parametrize("rule", MUTANTS)
def test_a_recorder_that_breaks_a_rule_is_detected(rule: str) -> None:
    mutant = MUTANTS[rule]

    def is_detected(seed: int) -> bool:
        try:
            mutant.history(seed).run()
        except Exception:
            return True
        return False

    seeds = chain([KNOWN.get(rule, 0)], range(_MANY))
    caught = next((seed for seed in seeds if is_detected(seed)), None)

    assert caught is not None
    History(caught, full_of=mutant.full_of).run()


def test_a_broken_promise_is_reported_with_its_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "History", partial(History, recorder=WritesNothing))

    assert command.main(["--count", "3"]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("seed 0: ")
    assert command.main(printed.split("tests.simulation ")[1].split()) == 1
    assert "wrote ada/s-1/main 2" in capsys.readouterr().out


def test_histories_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--first", "7", "--count", "2"]) == 0

    assert "2 histories from seed 7" in capsys.readouterr().out
