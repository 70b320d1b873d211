"""The share of words, rules and files that survives a client's real compactions.

A compacted transcript of Claude Code has the history before each compaction, the
client's own summary, and the work after it.  At each such boundary, a strategy compacts
the history, and its context is compared with what the user had said and with what the
agent needed next.
"""

from __future__ import annotations

import random
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import refold
from refold.adapters.importers import read
from refold.domain.envelope import Draft, Envelope
from refold.domain.errors import ImportFailed
from refold.domain.events import JsonObject, ProviderEdit, ToolCall, UserInput
from refold.projections.compare import Moment, Walk
from refold.projections.context.abridged import TOOLS, Abridged
from refold.projections.context.budget import NO_EXTRAS
from refold.projections.context.identifiers import in_value
from refold.projections.context.strategies import spec
from refold.projections.context.strategy import Strategy
from refold.projections.context.text import leaves
from refold.redaction.policy import Policy
from refold.store import SessionStore

# A message above this length is mostly pasted; only its instruction must survive.
LONGEST_MESSAGE: Final = 2_000
_INSTRUCTION: Final = 400
_IN_A_ROW: Final = 3  # compactions
_EDITS: Final = ("created", "modified")
_ON_FILES: Final = (*_EDITS, "viewed")
# Constraints that are put into the first message of a session, one in each.
CONSTRAINTS: Final = (
    "Never edit anything under vendored/.",
    "Ask me before you install a package.",
    "Do not push to any remote.",
    "Always run the linter before you say that you are done.",
    "Only use the standard library.",
    "Write commit messages in the imperative.",
    "Do not change the public API.",
    "Keep every function under fifty lines.",
    "Never print the contents of an environment file.",
    "Answer in British English.",
    "Don't delete a test to make the suite pass.",
    "From now on, show me the diff before you commit.",
    "Use tabs in the Makefile, not spaces.",
    "Stay within the internal directory.",
    "No new dependencies.",
)


@dataclass(frozen=True, slots=True)
class Expected:
    """The content that a context should keep at a boundary.

    messages:    the user's messages up to ``LONGEST_MESSAGE``.
    pasted:      the user's longer messages.
    edited:      the files that were edited before.
    used_later:  the files from before that are used after.
    identifiers: the identifiers from before that calls use after.
    """

    messages: tuple[str, ...]
    pasted: tuple[str, ...]
    edited: frozenset[str]
    used_later: frozenset[str]
    identifiers: frozenset[str]


@dataclass(frozen=True)
class Boundary:
    """One compaction of a client.

    history:    the drafts before it, without the client's own summaries.
    summary:    the text with which the client replaced them.
    after:      the drafts up to the next compaction.
    constraint: the constraint that was added to the first message.
    number:     the number of the compaction in its session, from 1.
    recorded:   the drafts up to the next compaction as an import records them, with
                the client's own summaries and edits.
    following:  the drafts between the next compaction and the one after it.
    """

    session: str
    number: int
    history: tuple[Draft, ...]
    summary: str
    after: tuple[Draft, ...]
    constraint: str
    recorded: tuple[Draft, ...] = ()
    following: tuple[Draft, ...] = ()

    @cached_property
    def expected(self) -> Expected:
        """The content that a context should keep; the same for all strategies."""
        messages: list[str] = []
        pasted: list[str] = []
        for draft in self.history:
            event = draft.event
            if isinstance(event, UserInput) and event.text and not _is_injected(draft):
                is_short = len(event.text) <= LONGEST_MESSAGE
                (messages if is_short else pasted).append(event.text)
        before = set(_files(self.history, _ON_FILES))
        after = set(_files(self.after, _ON_FILES))
        identifiers = _identifiers(self.history) & _identifiers(self.after)
        return Expected(
            messages=tuple(messages),
            pasted=tuple(pasted),
            edited=frozenset(_files(self.history, _EDITS)),
            used_later=frozenset(before & after),
            identifiers=frozenset(identifiers),
        )


@dataclass(frozen=True, slots=True)
class Survival:
    """The content of one boundary that a context kept; None if there was none.

    words:       the share of the user's messages that it contains completely.
    pasted:      of messages with long pasted parts, the share whose instruction it has.
    constraint:  whether it has the added constraint.
    edited:      of the files edited before, the share that it names.
    used_later:  of the earlier files used afterwards, the share that it names.
    identifiers: of the earlier identifiers in later calls, the share that it has.
    characters:  the length of the context, or of the client's summary.
    again:       as ``words``, after three or more compactions in a row.
    summary:     the characters of the summaries in the context.
    named:       if messages are missing, whether the view's cuts say so.
    later_words, later_constraint: as ``words`` and ``constraint``, if the client's own
                 compaction is recorded and the strategy compacts the work after it.
    later_lines: of the lines of the client's summary, the share that the context has
                 then.
    later_edited, later_used: as ``edited`` and ``used_later``, for the files of the
                 whole log and the work after it.
    """

    session: str
    number: int
    words: float | None
    pasted: float | None
    constraint: bool
    edited: float | None
    used_later: float | None
    identifiers: float | None
    characters: int
    again: float | None = None
    summary: int = 0
    named: bool | None = None
    later_words: float | None = None
    later_constraint: bool | None = None
    later_lines: float | None = None
    later_edited: float | None = None
    later_used: float | None = None


# A transcript in JSON marks a compaction with a key or a value that contains one of
# these words, in any case of its first letter.
_MARKS: Final = (b"ompact", b"ondens", b"ontext_management")
# Such a key or value.  Inside of a longer text, its first quote has a backslash.
_MARK: Final = re.compile(
    rb'(?<!\\)"[\w.-]*(?:%b)[\w.-]*"(?!\s*:\s*null)' % b"|".join(_MARKS)
)


def may_have_compaction(path: Path) -> bool:
    """Whether a transcript may have a compaction; importing others takes long."""
    for line in path.read_bytes().splitlines():
        if any(mark in line for mark in _MARKS) and _MARK.search(line):
            return True
    return False


def boundaries(folder: Path) -> Iterator[Boundary]:
    """The compactions in the transcripts of a folder."""
    for number, path in enumerate(sorted(folder.iterdir())):
        is_json = path.suffix in (".json", ".jsonl") and path.is_file()
        if is_json and not may_have_compaction(path):
            continue
        try:
            transcripts = [transcript for transcript in read(path) if transcript.drafts]
        except (ImportFailed, OSError):
            continue
        for transcript in transcripts:
            constraint = CONSTRAINTS[number % len(CONSTRAINTS)]
            drafts = _with_constraint(transcript.drafts, constraint)
            yield from _boundaries_of(path.stem, drafts, constraint)


def _with_constraint(drafts: Sequence[Draft], constraint: str) -> list[Draft]:
    """The drafts with the constraint at the end of the first message of the user."""
    changed = list(drafts)
    for index, draft in enumerate(changed):
        event = draft.event
        if isinstance(event, UserInput) and event.text and not _is_injected(draft):
            text = f"{event.text}\n{constraint}"
            changed[index] = Draft(UserInput(text=text), draft.ts, key=draft.key)
            break
    return changed


def _boundaries_of(
    session: str, drafts: Sequence[Draft], constraint: str
) -> Iterator[Boundary]:
    places = [index for index, draft in enumerate(drafts) if _is_summary(draft)]

    def _end(number: int) -> int:
        """Return the end of the work after the compaction with this number."""
        return places[number] if number < len(places) else len(drafts)

    for number, place in enumerate(places, start=1):
        end = _end(number)
        event = drafts[place].event
        if not isinstance(event, UserInput):
            continue
        history = tuple(_plain(draft) for draft in _of_agent(drafts[:place]))
        if history:
            yield Boundary(
                session=session,
                number=number,
                history=history,
                summary=event.text,
                after=tuple(_of_agent(drafts[place + 1 : end])),
                constraint=constraint,
                recorded=tuple(drafts[:end]),
                following=tuple(_of_agent(drafts[end : _end(number + 1)])),
            )


def _is_summary(message: Draft | Envelope) -> bool:
    event = message.event if isinstance(message, Draft) else message.payload
    if not isinstance(event, UserInput):
        return False
    return bool(_source_of(message).get("compact_summary"))


def _is_injected(message: Draft | Envelope) -> bool:
    source = _source_of(message)
    return bool(source.get("compact_summary") or source.get("meta"))


def _source_of(message: Draft | Envelope) -> JsonObject:
    """The facts of the client's transcript that are recorded with a message."""
    if message.meta is None or message.meta.source is None:
        return {}
    return message.meta.source


def _of_agent(drafts: Iterable[Draft]) -> Iterator[Draft]:
    """The drafts without the client's own compactions."""
    for draft in drafts:
        if not _is_summary(draft) and not isinstance(draft.event, ProviderEdit):
            yield draft


def _plain(draft: Draft) -> Draft:
    return Draft(draft.event, draft.ts, meta=draft.meta)


@dataclass(frozen=True, slots=True)
class Compacted:
    """The context that a strategy, or another tool, gives for a history.

    text:    of the whole context.
    summary: of the summaries in it.
    again:   of the context after three or more compactions in a row; None with fewer.
    names:   whether the view's cuts say that it drops something.
    later:   the context after the client's own compaction and one by the strategy; None
             if the strategy does not compact the client's summary.
    spoken:  the user's messages in the log of ``later``, without those of branches that
             the client left.
    edited:  the files that calls of that log edited.
    used:    the files that calls of that log used.
    """

    text: str
    summary: str = ""
    again: str | None = None
    names: bool = False
    later: str | None = None
    spoken: tuple[str, ...] = ()
    edited: frozenset[str] = frozenset()
    used: frozenset[str] = frozenset()


def survival(boundary: Boundary, compacted: Compacted) -> Survival:
    """Measure how much of a boundary's history a context contains."""
    context = compacted.text
    again = compacted.again
    expected = boundary.expected
    words = _share([text.strip() in context for text in expected.messages])
    words_again: float | None = None
    if again is not None:
        words_again = _share([text.strip() in again for text in expected.messages])
    is_missing = words is not None and words < 1
    later = compacted.later
    later_words: float | None = None
    later_lines: float | None = None
    later_edited: float | None = None
    later_used: float | None = None
    if later is not None:
        following = set(_files(boundary.following, _ON_FILES))
        used_later = compacted.used & following
        later_edited = _share([_names(later, path) for path in compacted.edited])
        later_used = _share([_names(later, path) for path in used_later])
        later_words = _share([text.strip() in later for text in compacted.spoken])
        lines = [line.strip() for line in boundary.summary.splitlines()]
        later_lines = _share([line in later for line in lines if line])
    return Survival(
        session=boundary.session,
        number=boundary.number,
        words=words,
        pasted=_share([_instruction(text) in context for text in expected.pasted]),
        constraint=boundary.constraint in context,
        edited=_share([_names(context, path) for path in expected.edited]),
        used_later=_share([_names(context, path) for path in expected.used_later]),
        identifiers=_share([name in context for name in expected.identifiers]),
        characters=len(context),
        again=words_again,
        summary=len(compacted.summary),
        named=compacted.names if is_missing else None,
        later_words=later_words,
        later_constraint=None if later is None else boundary.constraint in later,
        later_lines=later_lines,
        later_edited=later_edited,
        later_used=later_used,
    )


def _names(context: str, path: str) -> bool:
    """Whether a context names a file, by its path or by the last part of it."""
    return path.rstrip("/").rpartition("/")[2] in context


def _instruction(text: str) -> str:
    """The first paragraph of a message, or its beginning."""
    paragraph = re.split(r"\n\s*\n", text.strip(), maxsplit=1)[0]
    return paragraph[:_INSTRUCTION].strip()


def _share(kept: Sequence[bool]) -> float | None:
    return sum(kept) / len(kept) if kept else None


def _files(
    messages: Iterable[Draft | Envelope], effects: Sequence[str]
) -> Iterator[str]:
    """The files that calls have this effect on."""
    for message in messages:
        call = message.event if isinstance(message, Draft) else message.payload
        if not isinstance(call, ToolCall) or isinstance(call.arguments, str):
            continue
        reader = TOOLS.get(call.tool_name)
        action = reader(call.arguments) if reader else None
        if action and action.target and action.effect in effects:
            yield action.target


def _identifiers(drafts: Iterable[Draft]) -> set[str]:
    names: set[str] = set()
    for draft in drafts:
        if isinstance(draft.event, ToolCall):
            names |= in_value(draft.event.arguments)
    return names


def _opened() -> SessionStore:
    """A store in memory without redaction, which would take half of the time."""
    return refold.open("memory://", policy=Policy(packs=()))


def compacted(boundary: Boundary, strategy: str) -> Compacted:
    """The context that a strategy sends after it compacted the history."""
    with _opened() as store:
        session = store.session(user_id="ada", session_id=boundary.session)
        session.append(list(boundary.history))
        view = session.prepare(strategy)
        envelopes = list(session.events())
    summaries: list[dict[str, object]] = []
    for message, origins in zip(view.messages, view.origins, strict=True):
        content = message["content"]
        blocks = content if isinstance(content, list) else []
        for block, origin in zip(blocks, origins, strict=False):
            if origin.span is not None and origin.span.kind == "summary":
                summaries.append({"content": [block]})
    later = _after_own(boundary, strategy)
    return Compacted(
        later=later.context,
        spoken=later.spoken,
        edited=later.edited,
        used=later.used,
        text=text_of(view.messages),
        summary=text_of(summaries),
        again=_after_three(envelopes, spec.parse(strategy)),
        names=any(cut.section in ("turns", "protected") for cut in view.cuts),
    )


class _Later(NamedTuple):
    """The context after the client's own compaction, and what it should keep.

    The fields are those of ``Compacted``.
    """

    context: str | None = None
    spoken: tuple[str, ...] = ()
    edited: frozenset[str] = frozenset()
    used: frozenset[str] = frozenset()


def _after_own(boundary: Boundary, strategy: str) -> _Later:
    """The context after the client's own compaction and one or more by a strategy.

    The work after the client's compaction comes in two parts.  The context is None if
    no summary of the strategy stands for the client's.
    """
    if not boundary.recorded:
        return _Later()
    with _opened() as store:
        session = store.session(user_id="ada", session_id=boundary.session)
        for drafts in _parts(boundary.recorded):
            session.append(drafts)
            view = session.prepare(strategy)
        envelopes = list(session.events())
    summaries = [envelope.seq for envelope in envelopes if _is_summary(envelope)]
    is_compacted = any(
        span.kind == "summary"
        and span.first is not None
        and span.last is not None
        and span.first <= summaries[-1] <= span.last
        for span in view.spans
    )
    if not is_compacted:
        return _Later()
    abandoned = _abandoned(envelopes)
    own = [envelope for envelope in envelopes if envelope.seq not in abandoned]
    return _Later(
        context=text_of(view.messages),
        spoken=tuple(_spoken(own)),
        edited=frozenset(_files(own, _EDITS)),
        used=frozenset(_files(own, _ON_FILES)),
    )


def _parts(drafts: Sequence[Draft]) -> list[list[Draft]]:
    """The drafts in two parts: the second one begins in the work after a compaction."""
    first = max(index for index, draft in enumerate(drafts) if _is_summary(draft))
    middle = (first + len(drafts)) // 2
    while middle < len(drafts) and not _begins_turn(drafts[middle]):
        middle += 1
    return [part for part in (list(drafts[:middle]), list(drafts[middle:])) if part]


def _begins_turn(draft: Draft) -> bool:
    return isinstance(draft.event, UserInput) and not draft.continues


def _abandoned(envelopes: Iterable[Envelope]) -> set[int]:
    """The seqs of the events in branches that the client left."""
    abandoned: set[int] = set()
    for envelope in envelopes:
        edit = envelope.payload
        if not isinstance(edit, ProviderEdit):
            continue
        for first, last in edit.left_out if edit.reason != "compaction" else ():
            abandoned.update(range(first, last + 1))
        for first, last in edit.restored:
            abandoned.difference_update(range(first, last + 1))
    return abandoned


def _spoken(envelopes: Iterable[Envelope]) -> Iterator[str]:
    """The user's short messages."""
    for envelope in envelopes:
        event = envelope.payload
        if not isinstance(event, UserInput) or _is_injected(envelope):
            continue
        if 0 < len(event.text) <= LONGEST_MESSAGE:
            yield event.text


def _after_three(envelopes: Sequence[Envelope], strategy: Strategy) -> str | None:
    """The context after three compactions in a row or more; None with fewer.

    The strategy decides at the ends of turns, and at three places in the log.
    """
    count = len(envelopes)
    places = sorted({count // 3, 2 * count // 3, count - 1})
    moments = [Moment(place, envelopes[place].seq) for place in places]
    walk = Walk(strategy, envelopes, moments, Abridged())
    walk.go_to_end()
    compactions = [compaction for compaction in walk.done if not compaction.failed]
    if len(compactions) < _IN_A_ROW:
        return None
    return text_of(walk.view(NO_EXTRAS).messages)


def text_of(messages: Iterable[dict[str, object]]) -> str:
    """The texts of messages, as the model reads them."""
    texts: list[str] = []
    for message in messages:
        content = message["content"]
        blocks = content if isinstance(content, list) else [{"text": content}]
        for block in blocks:
            texts += leaves(block, keys=False)
    return "\n".join(texts)


def by_command(boundary: Boundary, command: str) -> Compacted:
    """The summary that a command writes: the history on its standard input."""
    with _opened() as store:
        session = store.session(user_id="ada", session_id=boundary.session)
        session.append(list(boundary.history))
        history = text_of(session.context("keep_all").messages)
    process = subprocess.run(
        shlex.split(command), input=history.encode(), capture_output=True, check=True
    )
    return Compacted(process.stdout.decode(errors="replace"))


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95 % interval, by bootstrap over the boundaries."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[float], *, rounds: int = 1_000) -> Interval | None:
    """The mean of the values with its interval; None without values."""
    if not values:
        return None
    generator = random.Random(0)
    means = sorted(
        sum(generator.choices(values, k=len(values))) / len(values)
        for _ in range(rounds)
    )
    mean = sum(values) / len(values)
    return Interval(mean, means[int(rounds * 0.025)], means[int(rounds * 0.975) - 1])


def middle(survivals: Sequence[Survival]) -> float:
    """The median of the characters."""
    return median(survival.characters for survival in survivals)
