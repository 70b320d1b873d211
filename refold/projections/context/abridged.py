"""The summarizer ``abridged``: quotes each turn's input, actions, results, and answer.

It needs no model.  ``abridged_turns`` reads events into turns, which are then cut until
they fit.  ``Ledger`` preserves the names that a cut would lose.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Final, Literal, NamedTuple, get_args, overload

from refold.domain import events
from refold.domain.canonical import load_packaged_toml
from refold.domain.envelope import Envelope
from refold.domain.events import JsonObject, SummarizerRef, ToolCall
from refold.domain.tokens import estimate_text, weight_of_text
from refold.projections.context import text as markup
from refold.projections.context.compaction import (
    Source,
    Written,
    lines_of_notes,
    shortened,
)
from refold.projections.context.excerpts import cut_to_sentences, gist
from refold.projections.context.git import Uncommitted, is_revert
from refold.projections.context.identifiers import Kind, in_value, is_title, kind_of
from refold.projections.context.limits import Limits
from refold.projections.context.outcomes import (
    failures_despite_success,
    reason_in,
    same_work,
    without_reminders,
    words_of_rejection,
)
from refold.projections.context.text import LeftOutTurns, entry_of, leaves
from refold.projections.context.units import is_restated

Effect = Literal["created", "modified", "deleted", "viewed", "command"]


class Action(NamedTuple):
    """The effect of a call.

    target: a path or a command; None for the file that the agent has open.
    """

    effect: Effect
    target: str | None


Reader = Callable[[JsonObject], Action | None]
"""Reads the arguments of a call; returns None if they do not show what it does."""
Tools = Mapping[str, Reader]

_DATA: Final = load_packaged_toml("refold.projections", "data", "tools.toml")
# The arguments that contain a path, a command, or otherwise say most about a call.
_PATHS: Final = tuple[str, ...](_DATA["paths"])
_COMMANDS: Final = tuple[str, ...](_DATA["commands"])
_MAIN: Final = (*_PATHS, *_COMMANDS, *_DATA["telling"])
# The arguments of an edit with the text before and after it.
_TEXTS_BEFORE: Final = ("old_string", "old_str")
_TEXTS_AFTER: Final = ("new_string", "new_str")
_PLAIN_RM: Final = re.compile(
    r"rm(?: -[rf]+)* ([^\s;&|<>*?$`'\"()-][^\s;&|<>*?$`'\"()]*)"
)


def on_file(effect: Effect) -> Reader:
    """Return a reader for tools with this effect on the file in their arguments.

    Without a file in the arguments, the effect is on the file that the agent has open.
    """
    return partial(_to_file, effect)


def _to_file(effect: Effect, arguments: JsonObject) -> Action:
    return Action(effect, _first(arguments, _PATHS))


def shell(arguments: JsonObject) -> Action | None:
    """Read the call of a shell.

    A plain ``rm FILE`` deletes that file.  Every other command is only named.
    """
    command = _first(arguments, _COMMANDS)
    if command is None:
        return None
    removed = _PLAIN_RM.fullmatch(command.strip())
    if removed:
        return Action("deleted", removed[1])
    return Action("command", command)


def editor(arguments: JsonObject) -> Action | None:
    """Read the call of a text editor, whose argument ``command`` names the effect."""
    effect = _DATA["edits"].get(str(arguments.get("command")))
    path = _first(arguments, _PATHS)
    if not effect or not path:
        return None
    return Action(effect, path)


_READERS: Final[Tools] = {
    **{effect: on_file(effect) for effect in get_args(Effect)},
    "editor": editor,
    "shell": shell,
}


def _known_tools() -> Tools:
    tools: dict[str, Reader] = {}
    for reader, names in _DATA["readers"].items():
        for name in names:
            tools[name] = _READERS[reader]
    return tools


TOOLS: Final[Tools] = _known_tools()


def _first(arguments: JsonObject, keys: tuple[str, ...]) -> str | None:
    """Return the first of these arguments that is a text and not empty."""
    for key in keys:
        value = arguments.get(key)
        if isinstance(value, str) and value:
            return value
    return None


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a JSON value that have more than white space."""
    if isinstance(value, str) and value.strip():
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


_NOTE_TOKENS: Final = 8  # the tokens of the two tags of a list
# The user's words come with an introduction, numbers, and an end of this many
# characters.
_INTRODUCTION: Final = 700
# A history of answers fills only this part of its room.  More text would say little,
# and every request would pay for it.
_FILLED: Final = 0.68
# If the shortest versions of all turns take more than this part of the filled part, the
# history gets the whole room.
_MOST_SHORTEST: Final = 0.8
_CHARS_PER_TOKEN: Final = 4
# A ledger may take this part of a summary.
_LEDGER_SHARE: Final = 1 / 3
# In a history of answers, it may take this number divided by the number of turns.
_TURNS_PER_SHARE: Final = 3
# Its files and failures alone may take this part.
_FILES_SHARE: Final = 1 / 2
# It may always take this part.
_SMALLEST_SHARE: Final = 0.15
# With fewer tokens, identifiers are not listed by kind.
_FEWEST_TOKENS_FOR_KINDS: Final = 250
_LONGEST_NAME: Final = 120  # characters of a name in a ledger
# The kinds of names in a ledger, in the order in which they get room.
_LEDGER_KINDS: Final = ("changed", "failed", "read")
_FILES: Final = ("changed", "read")
# The effects of calls that change files.
_CHANGES: Final = ("created", "modified", "deleted")
# The kinds of identifiers, and that of short arguments without an identifier, such as
# commands.
_NameKind = Kind | Literal["argument"]
# The tag of each kind, in the order of a ledger.
_ID_TAGS: Final[Mapping[_NameKind, str]] = {
    "url": "urls",
    "host": "hosts",
    "path": "paths",
    "hash": "hashes",
    "issue": "issues",
    "symbol": "symbols",
    "number": "numbers",
    "name": "names",
    "argument": "arguments",
}
# The lists of identifiers that short arguments may be in.
_WITH_ARGUMENTS: Final = ("ids", _ID_TAGS["argument"])
# The weight of a use of a name, by its kind.
_ID_WEIGHTS: Final[Mapping[_NameKind, float]] = {
    "url": 3,
    "host": 3,
    "path": 2.5,
    "hash": 3,
    "issue": 3,
    "symbol": 2,
    "number": 1,
    "name": 1,
    "argument": 0.5,
}
# The weight of a use is divided by this power of the number of later calls.
_FADING: Final = 0.6
# The place and the gap of a name take this number of characters.
_CHARS_BESIDE_NAME: Final = 4
# Identifiers may take this number of tokens beyond the room of a history of answers, as
# long as the summary stays within its limit.
_TOKENS_FOR_IDENTIFIERS: Final = 300
# This separates the identifiers in one line of a ledger.
_GAP: Final = "  "
# The folder of most files is written once.  Their names begin with this instead.
_FROM_ROOT: Final = "./"
_FEWEST_BELOW_ROOT: Final = 3
_FILE_LISTS: Final = ("created", "modified", "deleted", "viewed")
# A path in a list that lost its first folders.
_CUT_PATH: Final = re.compile(r"\[…\d+…\](/.+)")
# The lists of a turn whose items go into the ledger, with their kinds.
_KIND_OF_LIST: Final[Mapping[str, str]] = {
    "created": "changed",
    "modified": "changed",
    "deleted": "changed",
    "viewed": "read",
    "failed": "failed",
}
# Patterns that read earlier summaries.
_LEDGER: Final = re.compile(r"<ledger>\n(.*?)\n</ledger>", re.DOTALL)
_LEDGER_PART: Final = re.compile(
    r"<(root|changed|failed|read|ids|changed_since_last_commit"
    rf"|{'|'.join(_ID_TAGS.values())})>\n(.*?)\n</\1>",
    re.DOTALL,
)
_TURN: Final = re.compile(
    r'^<turn (?:first="-?\d+" last|number)="(-?\d+)"(?: \w+="\d+")*>(.*?)^</turn>',
    re.DOTALL | re.MULTILINE,
)
_TURN_LIST: Final = re.compile(
    r"^<(created|modified|deleted|viewed|failed)>(.*?)^</\1>", re.DOTALL | re.MULTILINE
)
_FAILURES: Final = re.compile(r"<failed>\n(.*?)\n</failed>", re.DOTALL)
_PLACE: Final = re.compile(r"[0-9]{1,18}")
_SEQ_AT_END: Final = re.compile(r" \d+$")
_LIST_OF_TURN: Final = re.compile(
    rf"^<({'|'.join(markup.LISTS)})>\n.*?^</\1>\n", re.DOTALL | re.MULTILINE
)
_TEXT_OF_TURN: Final = re.compile(
    r"^<(user|agent)>(.*?)</\1>$", re.DOTALL | re.MULTILINE
)
# Every cut of a line leaves this number of its first and of its last characters.
_EDGE: Final = 16


class _Level(NamedTuple):
    """The limits of one version of a turn, from the longest version to the shortest.

    inputs:  the divisor of the limit of texts of the user.
    texts:   the divisor of the limit of texts of the agent.
    lists:   the divisor of the limits of lists and of their items.
    steps:   the most steps of the agent.
    results: the most results.
    without: the other lists that it leaves out, which matter least.
    """

    inputs: int
    texts: int
    lists: int
    steps: int
    results: int
    without: tuple[str, ...] = ()


_READS: Final = ("viewed", "tools", "client_notes")
_ACTIONS: Final = (*_READS, "commands", "created", "modified", "deleted")
# The levels that are tried until a history fits.  What an answer says, what a person
# decided, and what failed stay longer than what a program printed.
_LEVELS: Final = (
    _Level(1, 1, 1, 12, 10),
    _Level(2, 1, 2, 12, 2),
    _Level(2, 1, 2, 10, 0, _READS),
    _Level(4, 2, 3, 8, 0, _READS),
    _Level(6, 3, 4, 6, 0, _READS),
    _Level(8, 4, 4, 4, 0, _READS),
    _Level(12, 6, 4, 3, 0, _ACTIONS),
    _Level(16, 8, 4, 1, 0, _ACTIONS),
    _Level(24, 12, 4, 0, 0, _ACTIONS),
    _Level(32, 18, 4, 0, 0, _ACTIONS),
    _Level(48, 32, 4, 0, 0, _ACTIONS),
)
# The levels of short summaries: texts shrink before names do, because a later call may
# need every name, and a short summary has no room for an answer.
_LEVELS_OF_NAMES: Final = (
    _Level(1, 1, 1, 4, 10),
    _Level(2, 2, 2, 1, 5),
    _Level(4, 4, 4, 0, 2),
    _Level(8, 8, 4, 0, 2),
    _Level(16, 16, 4, 0, 2),
    _Level(32, 32, 4, 0, 2),
    _Level(64, 80, 4, 0, 2),
)
# The level of turns that have their limits in full.
_WHOLE: Final = _Level(1, 1, 1, 0, 0)
# With fewer tokens, a history keeps names before answers.
_FEWEST_TOKENS_FOR_ANSWERS: Final = 500
# The newest turns get this level before older ones get one beyond ``_LAST_FULL``, and
# become no shorter before older ones are left out.
_NEWEST: Final = 2
_LAST_FULL: Final = 3
# A step is a text of the agent before its answer, of this many characters or more.
_SHORTEST_STEP: Final = 60
# A turn that continues after the summary shows this number of its newest steps, or
# more: nothing else tells how far the work is.
_FEWEST_STEPS_OF_UNFINISHED: Final = 8
_REJECTED: Final = "rejected"  # the decision
# The values of ``decided_by`` for a person.
_DECIDED_BY_PERSON: Final = (None, "", "user")
# The longest name of a call that a person rejected.
_LONGEST_REJECTED: Final = 100
_UNCOMMITTED: Final = "changed_since_last_commit"
_ALL_COMMITTED: Final = "(none)"
# A summary may have a third of its source's tokens, or this number.
_SOURCE_SHARE: Final = 3
_FEWEST_TOKENS: Final = 80
# The events that begin a turn if no user input has begun one.
_BEGINNINGS: Final = (
    events.UserInput,
    events.AgentResponse,
    ToolCall,
    events.Final,
    events.Planner,
    events.Reflection,
    events.Aggregate,
    events.AgentError,
)


@dataclass(slots=True)
class AbridgedTurn:
    """The contents of a turn before any cut.

    number:                the number by which views name it; None names its seqs.
    user_stays:            whether the user's words stand next to the summary.
    unfinished:            "interrupted" or "continues_below" if the turn has no final
                           answer.
    plan:                  the newest plan.
    reflection:            the newest reflection.
    reflection_attributes: of its tag, as text.
    calls, ok:             the number of its calls, and of those that succeeded.
    results:               by tool, the newest result, with its lines.
    lists:                 by the names in ``text.LISTS``, the items of each list.
    """

    first: int
    last: int
    number: int | None = None
    user: str = ""
    user_stays: bool = False
    agent: str = ""
    unfinished: str = ""
    plan: str = ""
    reflection: str = ""
    reflection_attributes: str = ""
    calls: int = 0
    ok: int = 0
    verdicts: list[events.Verdict] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def continues(self) -> bool:
        """Whether the turn continues after the summary."""
        return self.unfinished == "continues_below"

    @property
    def has_reflection(self) -> bool:
        """Whether the agent judged its work, with or without words."""
        return bool(self.reflection or self.reflection_attributes)

    @property
    def is_empty(self) -> bool:
        """Whether the turn has nothing that a summary can show."""
        return (
            not any((self.user, self.agent, self.plan))
            and not self.has_reflection
            and not self.verdicts
            and not self.results
            and not any(self.lists.values())
        )

    @property
    def says_only_what_stays(self) -> bool:
        """Whether the turn has nothing besides words of the user that stay."""
        return self.user_stays and self.is_empty


@dataclass(frozen=True, slots=True)
class Abridged:
    """The summarizer that needs no model: deterministic, and exact in its quotes.

    tools: readers of calls, by tool.  ``{**TOOLS, "save": on_file("modified")}`` adds
           one.  Calls of other tools are listed with their main argument.
    newest_first: whether the newest turns get the limits in full before older turns get
           more than a small part of theirs.  Such a history is one of answers.
    spare_chars: the characters that identifiers may take besides ``limits``.
    """

    costs: ClassVar[bool] = False

    limits: Limits = field(default_factory=Limits)
    tools: Tools = field(default_factory=lambda: TOOLS)
    newest_first: bool = False
    spare_chars: int = 0

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        """Abridge the turns of the source to ``target_tokens``.

        The oldest turns are left out first.
        """
        if source.notes is not None:
            lines = shortened(lines_of_notes(source), source.notes.lines)
            return Written("\n".join(lines), made_by(self.limits))
        if source.kind != "scope":
            # A digest of the scope takes in one turn or a few.  A share of their tokens
            # would leave out turns that fit in the limit of the digest.
            target_tokens = min(target_tokens, _most_tokens(source))
        turns = abridged_turns(
            source.envelopes,
            self.tools,
            ends_inside_turn=source.ends_inside_turn,
            first_turn=source.first_turn,
            summaries=source.summaries,
        )
        ledger = Ledger.of(
            source.summaries,
            turns,
            source.envelopes,
            self.tools,
            replaced=source.replaced,
        )
        if source.user_stays:
            turns = _without_words_of_user(turns)
        if source.judgments_stay:
            turns = _without_judgments(turns)
        versions = _Versions(self.limits)
        shortest = _shortest_chars(source, turns, versions)
        limited = self._with_room_for_user(source, shortest)
        text = limited._history(source, turns, versions, target_tokens, limited.limits)
        if ledger.missing(text) or (self.newest_first and ledger.knows_commits):
            share = limited._ledger_share(source, ledger, target_tokens, shortest)
            with_ledger = limited._with_ledger(
                source, turns, versions, ledger, target_tokens, share
            )
            # A ledger adds seqs, and a summary may not have more words than its source.
            if markup.own_words(with_ledger) <= source.words:
                text = with_ledger
        if source.words and not markup.own_words(text):
            text = self._plain(source, target_tokens)
        if not _is_accepted(text, source):
            text = _few_words(source)
        return Written(text, made_by(self.limits))

    def _with_room_for_user(self, source: Source, shortest: int) -> Abridged:
        """Return a summarizer that leaves room for the user's words in views.

        The history does not quote these words, so they take at most a quarter of its
        room.

        shortest: the characters of all turns in their shortest versions.
        """
        if not source.user_stays or self.limits.whole_turns:
            return self
        total_chars = self.limits.total_chars
        user_chars = _INTRODUCTION
        for envelope in source.envelopes:
            if isinstance(envelope.payload, events.UserInput):
                user_chars += len(envelope.payload.text)
        total_chars -= min(user_chars, total_chars // 4)
        filled = int(total_chars * _FILLED)
        if self.newest_first and shortest < filled * _MOST_SHORTEST:
            total_chars = filled
        total_chars = max(total_chars, 1)
        limits = self.limits.model_copy(update={"total_chars": total_chars})
        spare_chars = 0
        if self.newest_first:
            spare_chars = max(0, self.limits.total_chars - total_chars)
        return replace(self, limits=limits, spare_chars=spare_chars)

    def _with_ledger(
        self,
        source: Source,
        turns: Sequence[AbridgedTurn],
        versions: _Versions,
        ledger: Ledger,
        target_tokens: int,
        share: float,
    ) -> str:
        """Return a ledger of the names that the history lacks, and then the history.

        share: the part of the summary that the history leaves to the ledger.
        """
        total_chars = self.limits.total_chars
        if self.limits.whole_turns:
            history = self._history(source, turns, versions, target_tokens, self.limits)
            most = min(target_tokens, total_chars // _CHARS_PER_TOKEN)
            return _lines(ledger.shown(history, int(most * share)), history)
        history_tokens = target_tokens - int(target_tokens * share)
        history_chars = max(1, total_chars - int(total_chars * share))
        limits = self.limits.model_copy(update={"total_chars": history_chars})
        history = self._history(source, turns, versions, history_tokens, limits)
        tokens_left = target_tokens - estimate_text(history) - 1
        chars_left = total_chars - len(history) - 1
        ledger_tokens = min(tokens_left, chars_left // _CHARS_PER_TOKEN)
        # Identifiers may take spare room, as long as the summary meets its target.
        spare_tokens = min(
            self.spare_chars // _CHARS_PER_TOKEN, max(0, tokens_left - ledger_tokens)
        )
        shown = ledger.shown(
            history,
            ledger_tokens,
            spare_tokens=spare_tokens,
            names_uncommitted=self.newest_first,
        )
        return _lines(shown, history)

    def _ledger_share(
        self, source: Source, ledger: Ledger, target_tokens: int, shortest: int
    ) -> float:
        """Return the part of a summary that its ledger may take.

        Files and failures always get room.  In a history of answers, identifiers get
        less room if there are more turns.  There, only files may take room that the
        shortest versions of the turns need.

        shortest: the characters of these versions.
        """
        room = min(target_tokens, self.limits.total_chars // _CHARS_PER_TOKEN)
        if room < _FEWEST_TOKENS_FOR_KINDS:
            return _LEDGER_SHARE
        files_share = ledger.tokens_of(_FILES) / room
        failures_share = ledger.tokens_of(("failed",)) / room
        least_share = min(_FILES_SHARE, files_share + failures_share)
        if not self.newest_first:
            return max(_LEDGER_SHARE, least_share)
        turns = sum(len(_TURN.findall(text)) for text in source.summaries)
        turns += sum(1 for event in source.envelopes if _begins_turn(event))
        share_by_turns = min(_LEDGER_SHARE, _TURNS_PER_SHARE / max(turns, 1))
        share = max(share_by_turns, least_share)
        free_share = 1 - shortest / max(self.limits.total_chars, 1)
        return max(
            min(share, free_share),
            min(files_share, _LEDGER_SHARE),
            _SMALLEST_SHARE,
        )

    def _history(
        self,
        source: Source,
        turns: Sequence[AbridgedTurn],
        versions: _Versions,
        tokens: int,
        limits: Limits,
    ) -> str:
        """Return the absorbed summaries and the turns after them, cut to fit."""
        earlier: list[str] = []
        for summary in source.summaries:
            earlier += markup.turns_in(summary)
        has_prose = not all(turn.startswith("<turn ") for turn in earlier)
        if has_prose:
            new = [versions.of_turn(turn, _LEVELS[1]) for turn in turns]
            return _fitted_prose([*source.summaries, *new], tokens, limits)
        if limits.whole_turns:
            whole = [*earlier, *(versions.of_turn(turn, _WHOLE) for turn in turns)]
            return _newest_whole(
                whole, tokens, limits, left_out=markup.left_out_in(source.summaries)
            )
        has_room = self.newest_first and tokens >= _FEWEST_TOKENS_FOR_ANSWERS
        levels = _LEVELS if has_room else _LEVELS_OF_NAMES
        of_turns = [versions.of_text_at(turn, levels) for turn in earlier]
        of_turns += [versions.of_turn_at(turn, levels) for turn in turns]
        return _fitted_versions(
            of_turns,
            tokens,
            limits,
            left_out=markup.left_out_in(source.summaries),
            newest_first=self.newest_first,
        )

    def _plain(self, source: Source, target_tokens: int) -> str:
        """Return the words of a source whose events have no place in a turn."""
        return _cut(" ".join(_plain_texts(source)), target_tokens, self.limits)


def _plain_texts(source: Source) -> list[str]:
    """Return the texts of a source without any markup."""
    texts = list(source.summaries)
    for envelope in source.envelopes:
        entry = entry_of(envelope.payload)
        if entry is not None and not is_restated(envelope):
            texts += leaves(entry.content)
    return texts


def _is_accepted(text: str, source: Source) -> bool:
    """Whether a summary has words if its source has, and no more than the source."""
    words = markup.own_words(text)
    return words <= source.words and bool(words) == bool(source.words)


def _few_words(source: Source) -> str:
    """Return the first words of a source, for one that every other form lengthens."""
    parts: list[str] = []
    for part in " ".join(_plain_texts(source)).split():
        longer = " ".join([*parts, part])
        if markup.own_words(longer) > source.words:
            break
        parts.append(part)
    return " ".join(parts)


def _begins_turn(envelope: Envelope) -> bool:
    return isinstance(envelope.payload, events.UserInput)


def _shortest_chars(
    source: Source, turns: Iterable[AbridgedTurn], versions: _Versions
) -> int:
    """Return the characters of all turns of a source in their shortest versions."""
    shortest = _LEVELS[-1]
    chars = sum(len(versions.of_turn(turn, shortest)) + 1 for turn in turns)
    for summary in source.summaries:
        for turn in _TURN.finditer(summary):
            chars += len(versions.of_text(turn[0], shortest)) + 1
    return chars


def _without_words_of_user(turns: Iterable[AbridgedTurn]) -> list[AbridgedTurn]:
    """Return the turns with references to the words that follow the summary."""
    shown: list[AbridgedTurn] = []
    for turn in turns:
        turn.user_stays = bool(turn.user)
        turn.user = ""
        if not turn.says_only_what_stays:
            shown.append(turn)
    return shown


def _without_judgments(turns: Iterable[AbridgedTurn]) -> list[AbridgedTurn]:
    """Return the turns without reflections and verdicts, which follow the summary."""
    shown: list[AbridgedTurn] = []
    for turn in turns:
        had_judgments = bool(turn.verdicts or turn.has_reflection)
        turn.reflection = ""
        turn.reflection_attributes = ""
        turn.verdicts = []
        if not (had_judgments and turn.is_empty):
            shown.append(turn)
    return shown


def _most_tokens(source: Source) -> int:
    """Return the most tokens of a summary, by its earlier summaries and new events.

    The calls that the client replaced count as new events.
    """
    earlier = sum(map(estimate_text, source.summaries))
    new = max(0, estimate_text(source.text) - earlier)
    for envelope in source.replaced:
        if isinstance(envelope.payload, ToolCall):
            new += envelope.token_estimate
    return max(earlier + new // _SOURCE_SHARE, _FEWEST_TOKENS)


def _lines(*texts: str) -> str:
    """Return the texts that are not empty, one below the other."""
    return "\n".join(text for text in texts if text)


def with_ledger(source: Source, text: str, *, most_tokens: int) -> tuple[str, str]:
    """Return a model's summary, and a ledger of the names that it lacks.

    The ledger of files, failures, and identifiers is made without the model, so that no
    answer can lose them.  If both together have more words than the source, the summary
    is cut.  If the ledger alone has more, it is left out.

    text:        the summary.
    most_tokens: the limit of the ledger.
    """
    turns = abridged_turns(
        source.envelopes,
        TOOLS,
        ends_inside_turn=source.ends_inside_turn,
        first_turn=source.first_turn,
        summaries=source.summaries,
    )
    ledger = Ledger.of(
        source.summaries, turns, source.envelopes, replaced=source.replaced
    )
    shown = ledger.shown(text, most_tokens)
    room = source.words - markup.own_words(shown)
    cut = text
    while cut and markup.own_words(cut) > room:
        cut = cut_to_sentences(text, len(cut) * 3 // 4)
    if not markup.own_words(cut):
        return text, ""
    return cut, shown


class Ledger:
    """The names of files, failures, and ids, with the place of their last mention.

    A place is a seq, or the number of a turn if views name turns by numbers.
    Identifiers that calls used often and recently come first.  Each summary passes its
    ledger on to the next.  A summary shows only the names that its turns lack.
    """

    def __init__(self) -> None:
        # By name, the kind and the place; the newest mention last.
        self._mentions: dict[str, tuple[str, int]] = {}
        # By the edges of a failure, the line of its first mention.
        self._failures: dict[str, str] = {}
        # By identifier, the calls that used it, by their number.  Calls before an
        # earlier summary have numbers below 1.
        self._uses: dict[str, list[int]] = defaultdict(list)
        self._calls = 0
        self._uncommitted = Uncommitted()

    @classmethod
    def of(
        cls,
        summaries: Iterable[str],
        turns: Iterable[AbridgedTurn],
        envelopes: Iterable[Envelope],
        tools: Tools = TOOLS,
        *,
        replaced: Sequence[Envelope] = (),
    ) -> Ledger:
        """Make the ledger of summaries, and of the turns and calls after them.

        turns:    of ``envelopes``.
        tools:    the readers of calls, by tool.
        replaced: events before the summaries, of which it names the files.
        """
        ledger = cls()
        replaced_turns: list[AbridgedTurn] = []
        if replaced:
            replaced_turns = abridged_turns(replaced, tools, first_turn=1)
        for turn in replaced_turns:
            ledger._mention_items(turn, _FILE_LISTS)
        for text in summaries:
            ledger._read_ledger(text)
            ledger._read_turns(text)
        ledger._count_earlier_uses()
        if not ledger._uncommitted.has_commit:
            ledger._uncommitted.begin(ledger._places_of("changed"), has_commit=False)
            for seq, action in _actions_in(replaced, tools):
                ledger._read_action(action, _place_in(replaced_turns, seq))
        turns = list(turns)
        envelopes = list(envelopes)
        for envelope in envelopes:
            if isinstance(envelope.payload, ToolCall):
                ledger._calls += 1
                place = _place_in(turns, envelope.seq)
                ledger._read_call(envelope.payload, place)
        for seq, action in _actions_in(envelopes, tools):
            ledger._read_action(action, _place_in(turns, seq))
        for turn in turns:
            ledger._mention_items(turn, _KIND_OF_LIST)
        return ledger

    def _mention_items(self, turn: AbridgedTurn, lists: Iterable[str]) -> None:
        """Mention the items of these lists of a turn."""
        place = turn.last if turn.number is None else turn.number
        for name in lists:
            for item in turn.lists.get(name, []):
                line = _short(" ".join(item.split()), _LONGEST_NAME)
                self._mention(line, _KIND_OF_LIST[name], place)

    def _read_action(self, action: Action, place: int) -> None:
        """Follow the files that are changed, and the commits."""
        if action.target is None:
            return
        if action.effect == "command":
            self._uncommitted.run(action.target)
        elif action.effect in _CHANGES:
            self._uncommitted.change(markup.harmless(action.target), place)

    def _places_of(self, kind: str) -> dict[str, int]:
        """Return the names of a kind with their places, the newest mention last."""
        places: dict[str, int] = {}
        for name, (name_kind, place) in self._mentions.items():
            if name_kind == kind:
                places[name] = place
        return places

    def _count_earlier_uses(self) -> None:
        """Count each identifier of earlier ledgers as used once, at its place."""
        places = [place for kind, place in self._mentions.values() if kind == "ids"]
        newest = max(places, default=0)
        self._uses.clear()
        for name, (kind, place) in self._mentions.items():
            if kind == "ids":
                self._uses[name].append(place - newest)

    def _read_ledger(self, summary: str) -> None:
        for ledger in _LEDGER.findall(summary):
            root = ""
            for kind, lines in _LEDGER_PART.findall(ledger):
                if kind == "root":
                    root = lines
                elif kind == _UNCOMMITTED:
                    self._read_uncommitted(lines, root)
                else:
                    self._read_lines(kind, lines, root)

    def _read_lines(self, kind: str, lines: str, root: str) -> None:
        for name, place in _names_with_places(lines):
            if kind in _FILES:
                self._mention(_from_root(name, root), kind, place)
            elif kind in _LEDGER_KINDS:
                self._mention(name, kind, place)
            else:
                for identifier in name.split(_GAP):
                    self._mention_id(
                        identifier, place, is_argument=kind in _WITH_ARGUMENTS
                    )

    def _read_uncommitted(self, lines: str, root: str) -> None:
        newest_first = [
            (_from_root(name, root), place) for name, place in _names_with_places(lines)
        ]
        oldest_first = dict(reversed(newest_first))
        self._uncommitted.begin(oldest_first, has_commit=True)
        for file, place in oldest_first.items():
            self._mention(file, "changed", place)

    def _read_turns(self, summary: str) -> None:
        for last, turn in _TURN.findall(summary):
            for name, lines in _TURN_LIST.findall(turn):
                for line in lines.strip("\n").split("\n"):
                    whole = self._whole_path(line)
                    self._mention(whole, _KIND_OF_LIST[name], int(last))

    def _whole_path(self, name: str) -> str:
        """Return the path in the ledger that a shortened path stands for.

        Any other name is returned unchanged.
        """
        shortened_path = _CUT_PATH.fullmatch(name)
        if shortened_path is None:
            return name
        end = shortened_path[1]
        for path in self._mentions:
            if path.endswith(end) and len(path) > len(end):
                return path
        return name

    def _read_call(self, call: ToolCall, seq: int) -> None:
        arguments = {
            leaf.strip().rstrip("/") for leaf in leaves(call.arguments, keys=False)
        }
        for name in sorted(in_value(call.arguments)):
            self._mention_id(name, seq, is_argument=name in arguments)

    def _mention_id(self, name: str, seq: int, *, is_argument: bool) -> None:
        """Mention an identifier or a short argument.

        Titles count too.  Other quotes from the arguments are pieces of prose or code.
        """
        is_on_one_line = _GAP not in name and "\n" not in name
        is_short = len(name) <= _LONGEST_NAME
        if not is_on_one_line or not is_short:
            return
        if is_argument or kind_of(name) is not None or is_title(name):
            name = markup.harmless(name)
            self._mention(name, "ids", seq)
            self._uses[name].append(self._calls)

    def _worth(self, name: str) -> float:
        """Return the weight of an identifier's uses for each of its characters.

        A name that calls used often and recently is most likely to be used again.
        """
        uses = 0.0
        for use in self._uses.get(name, ()):
            later_calls = self._calls - use
            uses += 1 / (later_calls + 1) ** _FADING
        kind: _NameKind = kind_of(name) or "argument"
        return uses * _ID_WEIGHTS[kind] / (len(name) + _CHARS_BESIDE_NAME)

    def _mention(self, name: str, kind: str, seq: int) -> None:
        if kind == "failed":
            # The same failure may have been cut at another length.
            name = self._failures.setdefault(_edges(name), name)
        earlier_kind, _ = self._mentions.pop(name, ("ids", 0))
        # A changed file stays one if it is read again, and a file is more than an id.
        if earlier_kind == "changed" or (earlier_kind != "ids" and kind == "ids"):
            kind = earlier_kind
        self._mentions[name] = (kind, seq)

    def missing(self, text: str) -> list[str]:
        """Return the names that ``text`` does not contain, the newest first."""
        failures = failures_of(text)
        # Ledgers of earlier summaries name the newest first.
        oldest_first = sorted(self._mentions, key=lambda name: self._mentions[name][1])
        return [
            name
            for name in reversed(oldest_first)
            if name not in text and _edges(name) not in failures
        ]

    @property
    def files(self) -> set[str]:
        """The files that it names."""
        return {name for name, (kind, _) in self._mentions.items() if kind in _FILES}

    @property
    def knows_commits(self) -> bool:
        """Whether it names the files that changed since the last commit."""
        return self._uncommitted.has_commit

    def tokens_of(self, kinds: Collection[str]) -> int:
        """Return the least cost of the names of these kinds."""
        names = [name for name, (kind, _) in self._mentions.items() if kind in kinds]
        root = _root_of(names)
        weight = 0.0
        for name in names:
            line = name.removeprefix(root)
            weight += weight_of_text(f"{line[: 4 * _EDGE]} 1000\n")
        return int(weight)

    def shown(
        self,
        text: str,
        tokens: int,
        *,
        spare_tokens: int = 0,
        names_uncommitted: bool = False,
    ) -> str:
        """Return the ledger of names that ``text`` lacks, in at most ``tokens``.

        Changed files come first, then failures, files that were read, and identifiers.
        In each kind the newest names come first; of the identifiers, those come first
        that are most likely to be used again.

        spare_tokens: the tokens that identifiers may take besides ``tokens``.
        names_uncommitted: whether the files changed since the last commit are listed.
        """
        missing = self.missing(text)
        files = [name for name in missing if self._mentions[name][0] in _FILES]
        if names_uncommitted and self.knows_commits:
            files += self._uncommitted.files()
        root = _root_of(list(dict.fromkeys(files)))
        room: float = tokens - _NOTE_TOKENS * 2 - estimate_text(root)
        files_read = [name for name in missing if self._mentions[name][0] == "read"]
        tokens_of_read = sum(weight_of_text(f"{name} 1000\n") for name in files_read)
        reserved = _NOTE_TOKENS + tokens_of_read  # for the files that were read
        parts: list[str] = []
        uncommitted: set[str] = set()  # files that are listed only as uncommitted
        if names_uncommitted:
            parts, uncommitted = self._uncommitted_lines(root, room)
            room -= sum(weight_of_text(f"{line}\n") for line in parts)
        for kind in _LEDGER_KINDS:
            lines: list[str] = []
            for name in missing:
                name_kind, seq = self._mentions[name]
                if name_kind != kind:
                    continue
                if kind == "changed" and name in uncommitted:
                    continue
                shown_name = name
                if kind in _FILES:
                    shown_name = _below_root(name, root)
                line = f"{shown_name} {seq}"
                if kind == "failed" and estimate_text(line) >= room - reserved:
                    line = f"{_short(shown_name, 3 * _EDGE)} {seq}"
                cost = weight_of_text(f"{line}\n")
                if cost <= room:
                    room -= cost
                    lines.append(line)
            if lines:
                parts += [f"<{kind}>", *lines, f"</{kind}>"]
                room -= _NOTE_TOKENS
        room_with_spare = min(_TOKENS_FOR_IDENTIFIERS, max(room, 0) + spare_tokens)
        parts += self._identifiers(missing, max(room, room_with_spare))
        if not parts:
            return ""
        if root:
            parts = ["<root>", root, "</root>", *parts]
        return "\n".join(["<ledger>", *parts, "</ledger>"])

    def _uncommitted_lines(self, root: str, room: float) -> tuple[list[str], set[str]]:
        """Return the lines about files that no commit contains, and their names.

        Without any commit there are no such lines.  The next ledger knows only the
        listed files, so as many are listed as fit.

        room: the most tokens.
        """
        names: set[str] = set()
        if not self.knows_commits:
            return [], names
        newest_first = list(reversed(self._uncommitted.files().items()))
        lines: list[str] = []
        left = room - _NOTE_TOKENS
        for name, place in newest_first:
            line = f"{_below_root(name, root)} {place}"
            cost = weight_of_text(f"{line}\n")
            if cost <= left:
                left -= cost
                lines.append(line)
                names.add(name)
        if not newest_first:
            lines = [_ALL_COMMITTED]
        if not lines or left < 0:
            return [], set()
        return [f"<{_UNCOMMITTED}>", *lines, f"</{_UNCOMMITTED}>"], names

    def _identifiers(self, missing: Iterable[str], room: float) -> list[str]:
        """Return the lines of a ledger with identifiers by kind, the newest first.

        missing: names, the newest first.
        room:    the most tokens.
        """
        names = [name for name in missing if self._mentions[name][0] == "ids"]
        ranked = sorted(names, key=self._worth, reverse=True)
        if room < _FEWEST_TOKENS_FOR_KINDS:
            return self._without_kinds(ranked, room)
        by_line: dict[tuple[_NameKind, int], list[str]] = {}
        kinds: set[_NameKind] = set()
        for name in ranked:
            kind: _NameKind = kind_of(name) or "argument"
            seq = self._mentions[name][1]
            cost = weight_of_text(name + _GAP)
            if (kind, seq) not in by_line:
                cost += weight_of_text(f" {seq}\n")
            if kind not in kinds:
                cost += _NOTE_TOKENS
            if cost <= room:
                room -= cost
                kinds.add(kind)
                by_line.setdefault((kind, seq), []).append(name)
        parts: list[str] = []
        for kind, tag in _ID_TAGS.items():
            lines = [
                f"{_GAP.join(by_line[line])} {line[1]}"
                for line in sorted(by_line, key=lambda line: -line[1])
                if line[0] == kind
            ]
            if lines:
                parts += [f"<{tag}>", *lines, f"</{tag}>"]
        return parts

    def _without_kinds(self, names: Iterable[str], room: float) -> list[str]:
        """Return the lines of a short ledger with identifiers, the best of them first.

        Tags of all kinds would take the room of the names.
        """
        by_seq: dict[int, list[str]] = {}
        room -= _NOTE_TOKENS
        for name in names:
            seq = self._mentions[name][1]
            cost = weight_of_text(name + _GAP)
            if seq not in by_seq:
                cost += weight_of_text(f" {seq}\n")
            if cost <= room:
                room -= cost
                by_seq.setdefault(seq, []).append(name)
        if not by_seq:
            return []
        lines = [f"{_GAP.join(on_line)} {seq}" for seq, on_line in by_seq.items()]
        return ["<ids>", *lines, "</ids>"]


def _names_with_places(lines: str) -> Iterator[tuple[str, int]]:
    """Yield the name and the place in each line of a ledger."""
    for line in lines.split("\n"):
        name, _, place = line.rpartition(" ")
        if name and _PLACE.fullmatch(place):
            yield name, int(place)


def _below_root(path: str, root: str) -> str:
    """Return the name of a file in a ledger with this root; the inverse of the next."""
    if root and path.startswith(root):
        return _FROM_ROOT + path.removeprefix(root)
    return path


def _from_root(name: str, root: str) -> str:
    """Return the whole path of a file that a ledger names from its root."""
    if root and name.startswith(_FROM_ROOT):
        return root + name.removeprefix(_FROM_ROOT)
    return name


def _place_in(turns: Sequence[AbridgedTurn], seq: int) -> int:
    """Return the number of the turn of an event, or its seq if turns have none."""
    index = bisect_right(turns, seq, key=lambda turn: turn.first) - 1
    number = turns[index].number if index >= 0 else None
    return seq if number is None else number


def _root_of(paths: Sequence[str]) -> str:
    """Return the deepest folder that most of the absolute paths are in, with its slash.

    It is empty if there are few such paths, or if a path begins with "./" already.
    """
    if any(path.startswith(_FROM_ROOT) for path in paths):
        return ""
    counts: Counter[str] = Counter()
    for path in paths:
        parts = path.split("/")
        if path.startswith("/"):
            for depth in range(2, len(parts)):
                counts["/".join(parts[:depth]) + "/"] += 1
    fewest = max(_FEWEST_BELOW_ROOT, len(paths) * 2 // 3)
    roots = [root for root, count in counts.items() if count >= fewest]
    return max(roots, key=len, default="")


def made_by(limits: Limits) -> SummarizerRef:
    """Return the author that a summary with an abridged history records."""
    return SummarizerRef(kind="abridged", params=limits.model_dump())


class _FailedCall(NamedTuple):
    """A call whose result is an error.

    seq:     the seq of the result.
    content: the content of the result.
    """

    call: ToolCall
    seq: int
    content: Any


def abridged_turns(
    envelopes: Sequence[Envelope],
    tools: Tools,
    *,
    ends_inside_turn: bool = False,
    first_turn: int | None = None,
    summaries: Iterable[str] = (),
) -> list[AbridgedTurn]:
    """Read events into turns, without any cut.

    ends_inside_turn: whether the last turn continues after these events.
    first_turn: the number of the turn of the first event; None numbers no turns.
    summaries:  those before the events.
    """
    failed_calls = _failed_calls(envelopes)
    progress = _Progress(Ledger.of(summaries, (), ()).files)
    call_of_id = _unsuccessful_calls(envelopes)
    rejected = _rejected_calls(envelopes)
    reasons = _reasons_in_results(envelopes) if rejected else {}
    questions = markup.questions(envelopes)
    turns: list[AbridgedTurn] = []
    open_file: str | None = None
    number = first_turn
    for index, envelope in enumerate(envelopes):
        payload = envelope.payload
        if number is not None and index and isinstance(payload, events.UserInput):
            number += 1
        if is_restated(envelope):
            continue
        if not turns and not isinstance(payload, _BEGINNINGS):
            continue
        if not turns or isinstance(payload, events.UserInput):
            new_turn = AbridgedTurn(
                envelope.seq, envelope.seq, number, unfinished="interrupted"
            )
            turns.append(new_turn)
        turn = turns[-1]
        turn.last = envelope.seq
        match payload:
            case events.UserInput(text=text, attachments=attachments):
                attached = [attachment.text or "" for attachment in attachments]
                turn.user = "\n".join([text, *attached]).strip()
            case events.AgentResponse(text=text) | events.Final(text=text):
                _add_answer(turn, text.strip())
            case ToolCall():
                turn.unfinished = "interrupted"
                turn.calls += 1
                action = action_of(payload, tools, open_file)
                progress.begin(payload, action)
                if envelope.seq not in failed_calls:
                    open_file = _add_action(turn, payload, action, open_file)
                    progress.add_reverts(turn, payload, action, open_file)
            case _:
                _add_outcome(turn, payload, call_of_id, rejected, questions, reasons)
                if isinstance(payload, events.ToolResult):
                    progress.add_result(turn, payload)
    for turn in turns:
        for name, items in turn.lists.items():
            turn.lists[name] = [_clean_lines(item) for item in items]
    if ends_inside_turn and turns and turns[-1].unfinished:
        turns[-1].unfinished = "continues_below"
    return turns


class _Progress:
    """Finds fixes, reverts, and failures in the results of calls."""

    def __init__(self, files: Iterable[str]) -> None:
        # The files that calls read or changed.
        self._files: set[str] = set(files)
        # By id, each call and its effect, if that is known.
        self._call_of_id: dict[str, tuple[ToolCall, Action | None]] = {}
        # The work that failed and did not succeed since, each as a line.
        self._failed: set[str] = set()
        # The edits so far: the file, the text before, and the text after.
        self._edits: set[tuple[str, str, str]] = set()

    def begin(self, call: ToolCall, action: Action | None) -> None:
        """Remember a call and its effect; its result comes later."""
        self._call_of_id[call.call_id] = (call, action)

    def add_reverts(
        self,
        turn: AbridgedTurn,
        call: ToolCall,
        action: Action | None,
        open_file: str | None,
    ) -> None:
        """Name the call if it takes back earlier changes.

        action:    its effect, if that is known.
        open_file: the file that the agent has open after it.
        """
        if action is not None and action.target is not None:
            if action.effect == "command":
                if is_revert(action.target, self._files):
                    turn.lists["reverted"].append(action.target)
                return
            self._files.add(action.target)
        if isinstance(call.arguments, str):
            return
        before = _first(call.arguments, _TEXTS_BEFORE)
        after = _first(call.arguments, _TEXTS_AFTER)
        file = _first(call.arguments, _PATHS) or open_file
        if before is None or after is None or file is None:
            return
        if (file, after, before) in self._edits:
            self._edits.discard((file, after, before))
            folder, _, name = file.rpartition("/")
            parent = folder.rpartition("/")[2]
            place = f"{parent}/{name}" if parent else name
            turn.lists["reverted"].append(f"{call.tool_name}: an edit of {place}")
        else:
            self._edits.add((file, before, after))

    def add_result(self, turn: AbridgedTurn, result: events.ToolResult) -> None:
        """Name failures in a successful result, and work that succeeds at last."""
        if result.call_id not in self._call_of_id:
            return
        call, action = self._call_of_id[result.call_id]
        work = same_work(call_line(call))
        if result.status == "error":
            self._failed.add(work)
            return
        if result.status != "ok":
            return
        output = without_reminders(markup.result_text(result.content))
        failures = ""
        if action is not None and action.effect == "command" and action.target:
            failures = failures_despite_success(action.target, output)
        if failures:
            self._failed.add(work)
            turn.lists["failed"].append(f"{call_line(call)}: {failures}")
        elif work in self._failed:
            self._failed.remove(work)
            turn.lists["succeeded_later"].append(work)


def _add_answer(turn: AbridgedTurn, text: str) -> None:
    """Make a text of the agent the turn's answer; the previous one becomes a step."""
    turn.unfinished = ""
    if not text:
        return
    if len(turn.agent) >= _SHORTEST_STEP and turn.agent != text:
        turn.lists["steps"].append(turn.agent)
    turn.agent = text


def _add_action(
    turn: AbridgedTurn, call: ToolCall, action: Action | None, open_file: str | None
) -> str | None:
    """Add the action of a call to the turn's lists.

    action:    its effect, if that is known.
    open_file: the file that the agent has open before the call.

    Returns the file that the agent has open after it.
    """
    if action is None or action.target is None:
        turn.lists["tools"].append(call_line(call))
        return open_file
    if action.effect == "command":
        turn.lists["commands"].append(action.target)
        return open_file
    turn.lists[action.effect].append(action.target)
    if action.effect == "deleted":
        return open_file
    return action.target


def action_of(call: ToolCall, tools: Tools, open_file: str | None) -> Action | None:
    """Return the effect of a call; None if it is unknown.

    A call that names no file has its effect on the open file.
    """
    reader = tools.get(call.tool_name)
    if reader is None or isinstance(call.arguments, str):
        return None
    action = reader(call.arguments)
    if action is None:
        return None
    target = action.target or open_file
    if target is None:
        return None
    return Action(action.effect, target)


def files_in(envelopes: Sequence[Envelope]) -> Iterator[tuple[int, str]]:
    """Yield the seq and the file of each successful call that reads or writes one."""
    for seq, action in _actions_in(envelopes):
        if action.effect != "command" and action.target is not None:
            yield seq, action.target


def _actions_in(
    envelopes: Sequence[Envelope], tools: Tools = TOOLS
) -> Iterator[tuple[int, Action]]:
    """Yield the seq and the effect of each successful call, as far as it is known."""
    failed_calls = _failed_calls(envelopes)
    open_file: str | None = None
    for envelope in envelopes:
        call = envelope.payload
        if not isinstance(call, ToolCall) or envelope.seq in failed_calls:
            continue
        action = action_of(call, tools, open_file)
        if action is None:
            continue
        yield envelope.seq, action
        if action.effect in ("created", "modified", "viewed"):
            open_file = action.target


def files_of_ledgers(text: str) -> set[str]:
    """Return the files in the ledgers of a text, each with its folder."""
    ledger = Ledger()
    ledger._read_ledger(text)
    return ledger.files


def failures_in(envelopes: Sequence[Envelope]) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield each failed call: the result's seq, the call's line, and a failure's edges.

    ``failures_of`` recognizes the failure in a summary by its edges.  A call that a
    person rejected is no failure.
    """
    rejected = _rejected_calls(envelopes)
    for failed in _failed_calls(envelopes).values():
        if failed.call.call_id in rejected:
            continue
        output = without_reminders(markup.result_text(failed.content))
        line = failure_line(failed.call, output)
        yield failed.seq, (failure_line(failed.call), _edges(line))


def failures_of(text: str) -> set[str]:
    """Return the edges of all lines in which summaries state a failure."""
    edges: set[str] = set()
    for lines in _FAILURES.findall(text):
        for line in lines.split("\n"):
            if line:
                edges.add(_edges(line))
                edges.add(_edges(_SEQ_AT_END.sub("", line)))  # a line of a ledger
    return edges


def failure_line(call: ToolCall, text: str = "") -> str:
    """Return the line that states a failed call, before any cut.

    text: of the result.
    """
    line = f"{call_line(call)}: {reason_in(text)}"
    return markup.harmless(" ".join(line.split()))


def _edges(line: str) -> str:
    """Return the first and last characters of a line, which a cut leaves."""
    return f"{line[:_EDGE]}\n{line[-_EDGE:]}"


def _add_outcome(
    turn: AbridgedTurn,
    event: events.Event,
    calls: Mapping[str, ToolCall],
    rejected: Collection[str],
    questions: Mapping[int, str],
    reasons: Mapping[str, str],
) -> None:
    """Add a result, a plan, a judgment, an error, or a decision to the turn.

    reasons:   the words of people in the results of failed calls, by call id.
    calls:     the calls that were not successful, by call id.
    rejected:  the ids of the calls that a person rejected.
    questions: of reviews, by seq.
    """
    match event:
        case events.ToolResult(call_id=call_id, status=status, content=content):
            tool = event.tool_name or "?"
            whole = without_reminders(markup.result_text(content))
            text = _clean_lines(whole)
            if status == "ok":
                turn.ok += 1
                turn.results.pop(tool, None)  # so that the newest is last
                turn.results[tool] = text
            elif status == "unknown":
                call = calls.get(call_id)
                name = tool if call is None else call_line(call)
                turn.lists["unknown"].append(f"{name}: {text}".strip())
            elif call_id in calls and call_id not in rejected:
                line = f"{call_line(calls[call_id])}: {reason_in(whole)}"
                turn.lists["failed"].append(line)
        case events.Planner(plan=plan):
            if plan:
                turn.plan = markup.value_text(plan)
        case events.Reflection(issues=issues, suggestion=suggestion):
            attributes = ""
            if event.pass_ is not None:
                attributes += f' pass="{str(event.pass_).lower()}"'
            if event.confidence is not None:
                attributes += f' confidence="{event.confidence:g}"'
            turn.reflection_attributes = attributes
            texts = [markup.value_text(issue) for issue in issues]
            texts.append(suggestion or "")
            turn.reflection = " ".join(text for text in texts if text)
        case events.Aggregate(results=results):
            turn.verdicts += results
        case events.AgentError(is_transport=False, code=code, message=message):
            turn.lists["errors"].append(f"{code}: {message}" if message else code)
        case events.HumanReview(decision=str(decision), question=question):
            question = question or questions.get(event.refers_to or 0, "")
            parts = [question, decision, _reason_of(event, calls, reasons)]
            line = " ".join(part for part in parts if part)
            turn.lists["decisions"].append(line)
        case events.SystemPrompt(where="conversation", text=str(text)):
            is_note = markup.is_client_note(text)
            turn.lists["client_notes" if is_note else "system_messages"].append(text)


def _reason_of(
    review: events.HumanReview,
    calls: Mapping[str, ToolCall],
    reasons: Mapping[str, str],
) -> str:
    """Return the call that a decision is about, and the reason that the person gave.

    reasons: as of ``_add_outcome``.
    """
    bundle = review.bundle if isinstance(review.bundle, dict) else {}
    call = calls.get(str(bundle.get("call_id")))
    parts: list[str] = []
    if call is not None:
        # The reason says more than the end of a long call.
        line = _clean_lines(call_line(call))
        parts.append(_joined_lines(cut_to_sentences(line, _LONGEST_REJECTED)))
    reason = bundle.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        is_rejected = review.decision == _REJECTED
        reason = reasons.get(str(bundle.get("call_id")), "") if is_rejected else ""
    if reason.strip():
        parts.append(reason.strip())
    return ": ".join(parts)


def _reasons_in_results(envelopes: Iterable[Envelope]) -> dict[str, str]:
    """Return the words of a person in the result of each failed call, by call id."""
    reasons: dict[str, str] = {}
    for failed in _failed_calls(envelopes).values():
        output = without_reminders(markup.result_text(failed.content))
        words = words_of_rejection(output)
        if words:
            reasons[failed.call.call_id] = words
    return reasons


def _unsuccessful_calls(envelopes: Iterable[Envelope]) -> dict[str, ToolCall]:
    """Return the calls that were not successful or have no result yet, by call id."""
    calls: dict[str, ToolCall] = {}
    for envelope in envelopes:
        match envelope.payload:
            case ToolCall(call_id=call_id) as call:
                calls[call_id] = call
            case events.ToolResult(call_id=call_id, status="ok"):
                calls.pop(call_id, None)
    return calls


def _rejected_calls(envelopes: Iterable[Envelope]) -> set[str]:
    """Return the ids of the calls that a person rejected, and did not approve later.

    The result of a call that a hook or a setting rejected is the only place that says
    why, so such a call stays a failure.
    """
    rejected: set[str] = set()
    for envelope in envelopes:
        match envelope.payload:
            case events.HumanReview(
                decision=str(decision),
                decided_by=decided_by,
                bundle={"call_id": str(call_id), **details},
            ):
                has_reason = bool(details.get("reason"))
                is_explained = has_reason or decided_by in _DECIDED_BY_PERSON
                if decision == _REJECTED and is_explained:
                    rejected.add(call_id)
                else:
                    rejected.discard(call_id)
    return rejected


def _failed_calls(envelopes: Iterable[Envelope]) -> dict[int, _FailedCall]:
    """Return the calls whose result is an error, by the seq of the call."""
    call_envelopes: dict[str, tuple[int, ToolCall]] = {}
    failed: dict[int, _FailedCall] = {}
    for envelope in envelopes:
        match envelope.payload:
            case ToolCall(call_id=call_id) as call:
                call_envelopes[call_id] = (envelope.seq, call)
            case events.ToolResult(call_id=call_id, status="error", content=content):
                if call_id in call_envelopes:
                    seq, call = call_envelopes[call_id]
                    failed[seq] = _FailedCall(call, envelope.seq, content)
    return failed


def call_line(call: ToolCall) -> str:
    """Return a call as one line: its tool and its most important argument."""
    if isinstance(call.arguments, str):
        argument = call.arguments
    else:
        argument = _first(call.arguments, _MAIN) or next(_texts(call.arguments), "")
    return f"{call.tool_name}: {argument}" if argument else call.tool_name


def _turn_text(turn: AbridgedTurn, limits: Limits, level: _Level) -> str:
    """Return the turn between tags, within these limits at this level."""
    user_chars = max(limits.user_chars // level.inputs, 1)
    agent_chars = max(limits.agent_chars // level.texts, 1)
    action_chars = max(limits.action_chars // level.lists, 1)
    lines = [_turn_tag(turn)]
    if turn.user_stays and turn.number is None:
        lines.append(f'<user seq="{turn.first}"/>')
    if turn.user:
        lines.append(f"<user>{_short(turn.user, user_chars)}</user>")
    if turn.plan:
        lines.append(f"<plan>{_short(turn.plan, 2 * action_chars)}</plan>")
    for name in markup.LISTS:
        if name not in level.without:
            shown = _list_items(turn, name, limits, level)
            if shown:
                lines += [f"<{name}>", *shown, f"</{name}>"]
    if turn.has_reflection:
        text = _short(turn.reflection, 2 * action_chars)
        lines.append(f"<reflection{turn.reflection_attributes}>{text}</reflection>")
    if turn.verdicts:
        lines.append(_verdicts_text(turn.verdicts, limits, level))
    if turn.agent:
        lines.append(f"<agent>{_gist(turn.agent, agent_chars)}</agent>")
    if turn.unfinished:
        lines.append(f"<{turn.unfinished}/>")
    lines.append("</turn>")
    return "\n".join(lines)


def _list_items(
    turn: AbridgedTurn, name: str, limits: Limits, level: _Level
) -> list[str]:
    """Return the lines of a list of the turn within these limits at this level."""
    if name == "results":
        items = [f"{tool}: {text}" for tool, text in turn.results.items()]
    else:
        items = turn.lists.get(name, [])
    if not items:
        return []
    most = limits.of(name)
    if most:
        most = max(most // level.lists, 1)
    chars = max(limits.action_chars // level.lists, 1)
    if name == "steps":
        if turn.continues:
            newest = _newest_items(items, max(level.steps, _FEWEST_STEPS_OF_UNFINISHED))
            return [_short_line(step, 2 * chars) for step in newest]
        longest = _longest_items(items, level.steps)
        return [_short_line(step, 2 * chars) for step in longest]
    if name == "results":
        most = min(most, level.results)
    newest = _newest_items(items, most)
    if name in _FILE_LISTS:
        return [_short_path(item, chars) for item in newest]
    if name in ("failed", "decisions"):
        # The line that says why is in the second half.
        chars = min(2 * chars, limits.action_chars)
    return [_short_line(item, chars) for item in newest]


def _longest_items(items: Sequence[str], most: int) -> list[str]:
    """Return the longest items in their order, each once."""
    lines = list(dict.fromkeys(items))
    longest = sorted(lines, key=len, reverse=True)[:most]
    return [line for line in lines if line in longest]


def _turn_tag(turn: AbridgedTurn) -> str:
    """Return the opening tag of a turn: its place, and how many of its calls succeeded.

    A numbered turn leaves the second number out if all of its calls succeeded.
    """
    calls = f' calls="{turn.calls}" ok="{turn.ok}"' if turn.calls else ""
    if turn.number is not None:
        if turn.calls and turn.calls == turn.ok:
            calls = f' calls="{turn.calls}"'
        return f'<turn number="{turn.number}"{calls}>'
    return f'<turn first="{turn.first}" last="{turn.last}"{calls}>'


def _newest_items(items: Sequence[str], most: int) -> list[str]:
    """Return the newest items, each once, in the order of their newest mention."""
    newest_first: dict[str, None] = {}
    for item in reversed(items):
        if item:
            newest_first.setdefault(item)
    newest = list(newest_first)[:most]
    return newest[::-1]


def _verdicts_text(
    verdicts: Sequence[events.Verdict], limits: Limits, level: _Level
) -> str:
    """Return the number of verdicts of each kind, and the items that are wrong."""
    counts = Counter(verdict.verdict for verdict in verdicts)
    attributes = "".join(f' {name}="{count}"' for name, count in sorted(counts.items()))
    lines = [
        markup.verdict_text(verdict)
        for verdict in verdicts
        if verdict.verdict != "correct"
    ]
    most = max(limits.listed // level.lists, 1)
    chars = max(limits.action_chars // level.lists, 1)
    shown = [_short(line, chars) for line in lines[-most:]]
    return "\n".join([f"<verdicts{attributes}>", *shown, "</verdicts>"])


def _short_path(path: str, chars: int) -> str:
    """Return the path without its first folders, if it is too long."""
    start = path.find("/", max(len(path) - chars + len(_MARK), 0))
    if len(path) <= chars or start < 0 or len(path) - start <= 1:
        return _short(path, chars)
    return markup.harmless(f"[…{start}…]{path[start:]}")


_MARK: Final = "[…1000…]"


def _short(text: str, chars: int) -> str:
    """Return the text without its middle, and escape everything that looks like a tag.

    chars: the limit before the escapes, each of which adds a character.
    """
    return markup.harmless(cut_to_sentences(text, chars, least=_EDGE))


def _clean_lines(text: str) -> str:
    """Return the lines of a text that have words, with single spaces between words."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


def _joined_lines(text: str) -> str:
    return text.replace("\n", " ")


def _short_line(text: str, chars: int) -> str:
    """Return a text in one line, as ``_short``; it is cut between its own lines.

    text: as ``_clean_lines`` returns it.
    """
    return _joined_lines(_short(text, chars))


def _gist(text: str, chars: int) -> str:
    """Return the most telling sentences of an answer, escaped as in ``_short``."""
    return markup.harmless(gist(text, chars))


def _fitted_prose(summaries: Sequence[str], tokens: int, limits: Limits) -> str:
    """Join summaries, of which some are prose: whole, or a share of each."""
    parts: list[str] = []
    for summary in summaries:
        parts += markup.turns_in(summary)
    left_out = markup.left_out_in(summaries)
    whole = _lines(left_out.tag, *parts)
    if _fits(whole, tokens, limits):
        return whole
    share = max(tokens // len(summaries), 1)
    return "\n".join(_cut(summary, share, limits) for summary in summaries)


class _Versions:
    """The texts of turns at levels; each is made once, when it is first needed.

    Most histories fit at one of the first levels, and a source is abridged twice if it
    has a ledger.

    limits: those of the texts and lists of a turn.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # By level, and by the number of a turn's first event or the text of a turn.
        self._texts: dict[tuple[_Level, int | str], str] = {}

    def of_turn(self, turn: AbridgedTurn, level: _Level) -> str:
        """Return a turn of new events at a level."""
        key = (level, turn.first)
        text = self._texts.get(key)
        if text is None:
            text = _turn_text(turn, self._limits, level)
            self._texts[key] = text
        return text

    def of_text(self, turn: str, level: _Level) -> str:
        """Return a turn of an earlier summary at a level."""
        key = (level, turn)
        text = self._texts.get(key)
        if text is None:
            text = _version_of_text(turn, self._limits, level)
            self._texts[key] = text
        return text

    def of_turn_at(self, turn: AbridgedTurn, levels: Sequence[_Level]) -> Sequence[str]:
        """Return a turn of new events at each level, the longest version first."""
        return _AtLevels(levels, partial(self.of_turn, turn))

    def of_text_at(self, turn: str, levels: Sequence[_Level]) -> Sequence[str]:
        """Return a turn of an earlier summary, and its shorter versions."""

        def version(level: _Level) -> str:
            return turn if level is levels[0] else self.of_text(turn, level)

        return _AtLevels(levels, version)


class _AtLevels(Sequence[str]):
    """The versions of one turn at several levels, which are made on demand."""

    def __init__(
        self, levels: Sequence[_Level], version: Callable[[_Level], str]
    ) -> None:
        self._levels = levels
        self._version = version

    def __len__(self) -> int:
        return len(self._levels)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._version(level) for level in self._levels[index]]
        return self._version(self._levels[index])


def _version_of_text(turn: str, limits: Limits, level: _Level) -> str:
    shorter = _LIST_OF_TURN.sub(partial(_list_at, level), turn)
    return _with_short_texts(shorter, max(limits.agent_chars // level.texts, 1))


def _list_at(level: _Level, match: re.Match[str]) -> str:
    """Return a list of a turn at a level; empty if the level leaves it out."""
    name = match[1]
    if name in level.without:
        return ""
    most = {"steps": level.steps, "results": level.results}.get(name)
    if most is None:
        return match[0]
    lines = match[0].split("\n")[1:-2]
    newest = lines[-most:] if most else []
    if not newest:
        return ""
    return "\n".join([f"<{name}>", *newest, f"</{name}>\n"])


def _fitted_versions(
    turns: Sequence[Sequence[str]],
    tokens: int,
    limits: Limits,
    *,
    left_out: LeftOutTurns,
    newest_first: bool,
) -> str:
    """Return the turns in the longest versions that fit together.

    A turn is left out only if its shortest version does not fit beside newer turns
    that show no output of programs.

    turns:        the versions of each turn, the longest first.
    left_out:     the turns that earlier summaries left out.
    newest_first: whether the newest turns, in at most half of the room, become shorter
                  only after all older turns.
    """
    if not turns:
        return ""
    longest = [versions[0] for versions in turns]
    whole = _lines(left_out.tag, *longest)
    if _fits(whole, tokens, limits):
        return whole
    newest: list[Sequence[str]] = []
    if newest_first:
        newest = _newest_half(turns, tokens, limits)
    older = turns[: len(turns) - len(newest)]
    for level in range(1, len(turns[0])):
        newest_level = 0 if level <= _LAST_FULL else _NEWEST
        shown = [versions[level] for versions in older]
        shown += [versions[newest_level] for versions in newest]
        if _fits(_lines(left_out.tag, *shown), tokens, limits):
            longer = [versions[level - 1] for versions in older]
            return _with_longer(shown, longer, tokens, limits, left_out)
    shown = [versions[-1] for versions in older]
    shown += [versions[_NEWEST] for versions in newest]
    fitted = _newest_turns(shown, tokens, limits, left_out=left_out)
    return fitted or _cut(turns[-1][-1], tokens, limits)


def _newest_whole(
    turns: Sequence[str], tokens: int, limits: Limits, *, left_out: LeftOutTurns
) -> str:
    """Return the newest turns that fit, after a note on the others.

    If not even the newest turn fits, it is cut.

    left_out: the turns that earlier summaries left out.
    """
    whole = _lines(left_out.tag, *turns)
    if not turns or _fits(whole, tokens, limits):
        return whole
    newest = _newest_turns(turns, tokens, limits, left_out=left_out)
    return newest or _cut(turns[-1], tokens, limits)


def _newest_half(
    turns: Sequence[Sequence[str]], tokens: int, limits: Limits
) -> list[Sequence[str]]:
    """Return the newest turns whose longest versions fit into half of the room."""
    half = limits.model_copy(update={"total_chars": max(1, limits.total_chars // 2)})
    longest = [versions[0] for versions in turns]
    count = 0
    while count < len(turns) and _fits(
        _lines(*longest[-count - 1 :]), tokens // 2, half
    ):
        count += 1
    return list(turns[len(turns) - count :])


def _with_longer(
    shown: list[str],
    longer: Sequence[str],
    tokens: int,
    limits: Limits,
    left_out: LeftOutTurns,
) -> str:
    """Return the turns with longer versions of the newest ones, as far as these fit.

    longer: the longer versions of the first turns in ``shown``.
    """
    text = _lines(left_out.tag, *shown)
    for index in range(len(longer) - 1, -1, -1):
        candidate = [*shown]
        candidate[index] = longer[index]
        longer_text = _lines(left_out.tag, *candidate)
        if not _fits(longer_text, tokens, limits):
            break
        shown = candidate
        text = longer_text
    return text


def _with_short_texts(turn: str, chars: int) -> str:
    """Return a turn with its texts of the user and the agent cut to ``chars`` each."""
    return _TEXT_OF_TURN.sub(
        lambda match: f"<{match[1]}>{_gist(match[2], chars)}</{match[1]}>", turn
    )


def _newest_turns(
    turns: Sequence[str],
    tokens: int,
    limits: Limits,
    *,
    left_out: LeftOutTurns = markup.NONE_LEFT_OUT,
) -> str:
    """Return the newest turns that fit, after a note on the others; empty if none fits.

    left_out: the turns that earlier summaries left out.
    """
    # No part of the turns has a longer note.
    longest_note = left_out.and_then(markup.left_out(turns)).tag
    tokens -= estimate_text(longest_note) + 1
    chars = limits.total_chars - len(longest_note) - 1
    first = len(turns)
    for text in reversed(turns):
        tokens -= estimate_text(text) + 1
        chars -= len(text) + 1
        if tokens < 0 or chars < 0:
            break
        first -= 1
    if first == len(turns):
        return ""
    left_out = left_out.and_then(markup.left_out(turns[:first]))
    return _lines(left_out.tag, *turns[first:])


def _cut(text: str, tokens: int, limits: Limits) -> str:
    """Return the text without markup and without its middle, short enough to fit."""
    plain = markup.stripped(text).strip()
    chars = min(len(plain), limits.total_chars)
    while chars and estimate_text(cut_to_sentences(plain, chars)) > tokens:
        chars = chars * 9 // 10
    return cut_to_sentences(plain, chars)


def _fits(text: str, tokens: int, limits: Limits) -> bool:
    return estimate_text(text) <= tokens and len(text) <= limits.total_chars
