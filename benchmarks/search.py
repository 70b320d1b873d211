"""How often a search finds the evidence of questions, and its cost in a large store.

``python -m benchmarks.search locomo FILE`` reads ``locomo10.json`` of the LoCoMo data
set (Maharana et al., ACL 2024; CC BY-NC 4.0), which is not part of the project:
https://github.com/snap-research/locomo.

``python -m benchmarks.search size --events 300000`` makes up sessions, and measures the
CPU of searches in them.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import refold
from refold.errors import InvalidEvent
from refold.store import SessionStore

_TOP: Final = 10  # events that a search returns
_SESSION: Final = re.compile(r"session_\d+")
_WORD: Final = re.compile(r"[^\W_]+")


class Question(NamedTuple):
    """A question about a dialogue, and the turns with its answer."""

    text: str
    evidence: frozenset[str]


class Dialogue(NamedTuple):
    """A dialogue of many sessions.

    turns: by session, the text of each turn by its id, in order.
    """

    name: str
    turns: Mapping[str, Mapping[str, str]]
    questions: Sequence[Question]


def dialogues(path: Path) -> list[Dialogue]:
    """Read the dialogues of LoCoMo and their questions with evidence."""
    samples: list[Dialogue] = []
    for sample in json.loads(path.read_bytes()):
        turns: dict[str, dict[str, str]] = {}
        for name, value in sample["conversation"].items():
            if _SESSION.fullmatch(name):
                turns[name] = {turn["dia_id"]: _said(turn) for turn in value}
        questions = []
        for question in sample["qa"]:
            if question["evidence"]:
                evidence = frozenset(question["evidence"])
                questions.append(Question(question["question"], evidence))
        samples.append(Dialogue(sample["sample_id"], turns, questions))
    return samples


def _said(turn: Mapping[str, Any]) -> str:
    """Return the text of a turn in the form that the paper's evaluation uses."""
    text = f'{turn["speaker"]} said, "{turn["text"]}"'
    if "blip_caption" in turn:
        text += f" and shared {turn['blip_caption']}."
    return text


def append_dialogue(store: SessionStore, dialogue: Dialogue) -> None:
    """Append each turn as an event of the user who is named after the dialogue."""
    for name, turns in dialogue.turns.items():
        session = store.session(user_id=dialogue.name, session_id=name)
        session.append([refold.UserInput(text=text) for text in turns.values()])


Search = Callable[[str], Iterable[str]]
"""Returns the ids of the best turns for a question."""


def search_of(store: SessionStore, dialogue: Dialogue) -> Search:
    """Return the search of the store, in the events of a dialogue."""
    ids = {name: list(turns) for name, turns in dialogue.turns.items()}

    def search(text: str) -> Iterable[str]:
        hits = store.search(dialogue.name, text, limit=_TOP)
        return [ids[hit.session_id][hit.seq - 1] for hit in hits]

    return search


def all_words(dialogue: Dialogue) -> Search:
    """Return a search for turns with all words of a question, the newest first."""
    documents = _documents(dialogue)

    def search(text: str) -> Iterable[str]:
        wanted = set(_words(text))
        matching = [turn for turn, words in documents.items() if wanted <= words.keys()]
        return matching[::-1][:_TOP]

    return search


def plain_bm25(dialogue: Dialogue) -> Search:
    """Return BM25 over the plain words of turns, with its usual parameters."""
    k1 = 1.2
    b = 0.75
    documents = _documents(dialogue)
    average = fmean(words.total() for words in documents.values())
    containing = Counter(word for words in documents.values() for word in words)

    def score(words: Counter[str], wanted: Iterable[str]) -> float:
        total = 0.0
        for word in wanted:
            if word in words:
                count = containing[word]
                rarity = log(1 + (len(documents) - count + 0.5) / (count + 0.5))
                norm = k1 * (1 - b + b * words.total() / average)
                total += rarity * words[word] * (k1 + 1) / (words[word] + norm)
        return total

    def search(text: str) -> Iterable[str]:
        wanted = set(_words(text))
        scores = {turn: score(words, wanted) for turn, words in documents.items()}
        return sorted(scores, key=lambda turn: -scores[turn])[:_TOP]

    return search


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _documents(dialogue: Dialogue) -> dict[str, Counter[str]]:
    documents: dict[str, Counter[str]] = {}
    for turns in dialogue.turns.values():
        for turn, text in turns.items():
            documents[turn] = Counter(_words(text))
    return documents


class Recall(NamedTuple):
    """The evidence that the first ten results of all questions have.

    share: the mean share of a question's evidence.
    any:   the share of questions with any of their evidence.
    """

    share: float
    any: float

    def __str__(self) -> str:
        return f"{self.share:.3f}   {self.any:.3f}"


def recall(pairs: Iterable[tuple[Search, Dialogue]]) -> Recall:
    """Ask all questions of the dialogues."""
    shares: list[float] = []
    for search, dialogue in pairs:
        for question in dialogue.questions:
            try:
                found_turns = set(search(question.text))
            except InvalidEvent:  # no word
                found_turns = set()
            shares.append(len(found_turns & question.evidence) / len(question.evidence))
    return Recall(fmean(shares), fmean(share > 0 for share in shares))


def locomo(path: Path) -> None:
    """Print the recall of the search, and of two searches of the plain text."""
    read = dialogues(path)
    count = sum(len(dialogue.questions) for dialogue in read)
    print(f"{len(read)} dialogues, {count} questions with evidence")
    print("                                    share   any")
    with (
        TemporaryDirectory() as folder,
        refold.open(f"sqlite:///{folder}/locomo.db") as store,
    ):
        for dialogue in read:
            append_dialogue(store, dialogue)
        keyed = recall((search_of(store, each), each) for each in read)
    print(f"refold, over the keyed index        {keyed}")
    plain = recall((plain_bm25(each), each) for each in read)
    print(f"plain BM25, over the plain text     {plain}")
    strict = recall((all_words(each), each) for each in read)
    print(f"all words, newest first             {strict}")


_VOCABULARY: Final = 50_000
_WORDS_OF_EVENT: Final = 60


def made_up_texts(count: int, seed: int = 1) -> Iterable[str]:
    """Yield texts whose words are as unequally frequent as those of a language."""
    draw = random.Random(seed)
    words = [f"w{number:x}" for number in range(_VOCABULARY)]
    weights = [1 / (rank + 10) for rank in range(_VOCABULARY)]
    cumulative: list[float] = []
    total = 0.0
    for weight in weights:
        total += weight
        cumulative.append(total)
    for _ in range(count):
        yield " ".join(draw.choices(words, cum_weights=cumulative, k=_WORDS_OF_EVENT))


def size(events: int, per_session: int) -> None:
    """Print the CPU of searches in the made-up sessions of one user."""
    with TemporaryDirectory() as folder:
        with refold.open(f"sqlite:///{folder}/size.db") as store:
            texts = iter(made_up_texts(events))
            for number in range(events // per_session):
                session = store.session(user_id="ada", session_id=f"s{number}")
                session.append(
                    [refold.UserInput(text=next(texts)) for _ in range(per_session)]
                )
            _timed("first search, which builds the index", store, "w1f4")
        with refold.open(f"sqlite:///{folder}/size.db") as store:
            _timed("first search of a process", store, "w1f4 w3e8")
            _timed("three rare words", store, "wafc8 w9c40 w7530")
            _timed("five words, some common", store, "w0 w5 w64 w3e8 w2710")
            _timed(
                "the twenty commonest words",
                store,
                " ".join(f"w{number:x}" for number in range(20)),
            )
            _timed("a filter and two words", store, "type:user_input w64 w3e8")
            _timed("a phrase", store, '"w64 w3e8"')


def _timed(name: str, store: SessionStore, query: str) -> None:
    before = _cpu()
    result = store.search_with_total("ada", query)
    print(f"{name:40} {_cpu() - before:7.2f} s   {result.total:,} events match")


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Run one of the two measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    of_locomo = commands.add_parser("locomo", help="recall of evidence")
    of_locomo.add_argument("file", type=Path, metavar="FILE")
    of_size = commands.add_parser("size", help="CPU of searches")
    of_size.add_argument("--events", type=int, default=300_000)
    of_size.add_argument("--per-session", type=int, default=1_000)
    arguments = parser.parse_args()
    if arguments.command == "locomo":
        locomo(arguments.file)
    else:
        size(arguments.events, arguments.per_session)


if __name__ == "__main__":
    main()
