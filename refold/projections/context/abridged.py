"""abridged: what was asked, done, found and answered, turn by turn, without a model."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, model_serializer

from refold.domain import events
from refold.domain.canonical import shipped
from refold.domain.envelope import Envelope
from refold.domain.events import JsonObject, SummarizerRef, ToolCall
from refold.domain.tokens import estimate_text
from refold.projections.context import text as markup
from refold.projections.context.compaction import Source, Written, noted, shortened
from refold.projections.context.identifiers import in_value
from refold.projections.context.text import cut_middle, entry_of, leaves

Deed = Literal["created", "modified", "deleted", "viewed", "command"]


class Action(NamedTuple):
    """``what`` is a path or a command; None is the file that the agent has open."""

    deed: Deed
    what: str | None


Reader = Callable[[JsonObject], Action | None]
Tools = Mapping[str, Reader]
_KNOWN: Final = shipped("refold.projections", "data", "tools.toml")
_PATHS: Final = tuple[str, ...](_KNOWN["paths"])
_COMMANDS: Final = tuple[str, ...](_KNOWN["commands"])
_MAIN: Final = (*_PATHS, *_COMMANDS, *_KNOWN["telling"])
_PLAIN_RM: Final = re.compile(
    r"rm(?: -[rf]+)* ([^\s;&|<>*?$`'\"()-][^\s;&|<>*?$`'\"()]*)"
)


def on_file(deed: Deed) -> Reader:
    """A reader for tools that do this to the file they are given, or have open."""
    return partial(_to_file, deed)


def _to_file(deed: Deed, arguments: JsonObject) -> Action:
    return Action(deed, _first(arguments, _PATHS))


def shell(arguments: JsonObject) -> Action | None:
    """Read a shell command; only a plain ``rm FILE`` is taken for what it does."""
    command = _first(arguments, _COMMANDS)
    if command is None:
        return None
    removed = _PLAIN_RM.fullmatch(command.strip())
    return Action("deleted", removed[1]) if removed else Action("command", command)


def editor(arguments: JsonObject) -> Action | None:
    """Read a call of a text editor tool, whose ``command`` says what it does."""
    deed = _KNOWN["edits"].get(str(arguments.get("command")))
    path = _first(arguments, _PATHS)
    return Action(deed, path) if deed and path else None


_READERS: Final[Tools] = {
    **{deed: on_file(deed) for deed in get_args(Deed)},
    "editor": editor,
    "shell": shell,
}
TOOLS: Final[Tools] = {
    tool: _READERS[how] for how, some in _KNOWN["readers"].items() for tool in some
}


def _first(arguments: JsonObject, keys: tuple[str, ...]) -> str | None:
    values = (arguments.get(key) for key in keys)
    return next((value for value in values if isinstance(value, str) and value), None)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.strip():
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


_NOTE_TOKENS = 8
# A ledger may have this share of a summary, and a name in it so many characters.
_FOR_LEDGER, _LONGEST = 3, 120
_KIND: Final[Mapping[str, str]] = {
    **dict.fromkeys(("created", "modified", "deleted"), "changed"),
    "viewed": "read",
    "failed": "failed",
}
_KEPT: Final = re.compile(r"<(changed|failed|ids|read)>\n(.*?)\n</\1>", re.DOTALL)
_TOLD: Final = re.compile(
    r'^<turn first="-?\d+" last="(-?\d+)">(.*?)^</turn>', re.DOTALL | re.MULTILINE
)
_LISTED: Final = re.compile(
    r"^<(created|modified|deleted|viewed|failed)>(.*?)^</\1>", re.DOTALL | re.MULTILINE
)
_FAILURES: Final = re.compile(r"<failed>\n(.*?)\n</failed>", re.DOTALL)
_SEQ: Final = re.compile(r" \d+$")
_END: Final = 16  # of both ends of a line so much is left, however short it is cut
_SAID: Final = re.compile(r"^<(user|agent)>(.*?)</\1>$", re.DOTALL | re.MULTILINE)
# A summary of a batch has at most this share of its source's tokens, or so few.
_SHARE, _FEW = 3, 80
_TELLING = (
    *(events.UserInput, events.AgentResponse, ToolCall, events.Final),
    *(events.Planner, events.Reflection, events.Aggregate, events.AgentError),
)


class Limits(BaseModel):
    """How much of each turn is kept, in characters; longer fields lose their middle.

    listed: how many files of each kind, and how many commands; the newest are kept.
            ``modified``, ``created``, ``deleted``, ``viewed`` and ``commands`` say
            it of one kind.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    total_chars: int = Field(default=10_000, ge=1)
    user_chars: int = Field(default=1_000, ge=1)
    agent_chars: int = Field(default=2_000, ge=1)
    action_chars: int = Field(default=200, ge=1)
    listed: int = Field(default=10, ge=1)
    modified: int | None = Field(default=None, ge=0)
    created: int | None = Field(default=None, ge=0)
    deleted: int | None = Field(default=None, ge=0)
    viewed: int | None = Field(default=None, ge=0)
    commands: int | None = Field(default=None, ge=0)

    @model_serializer
    def _given(self) -> dict[str, int]:
        # What is not given came later, and is in no fingerprint.
        return {name: value for name, value in self if value is not None}

    def of(self, name: str) -> int:
        """How many of this kind."""
        most: int | None = getattr(self, name, None)
        return self.listed if most is None else most

    def scaled(self, scale: int) -> Limits:
        """Limits that keep about a ``scale``-th of each turn."""
        scales = {"user_chars": scale, "agent_chars": scale}
        scales |= dict.fromkeys(("action_chars", "listed"), min(scale, 4))
        less = {name: max(getattr(self, name) // n, 1) for name, n in scales.items()}
        return self.model_copy(update=less)


@dataclass(slots=True)
class Told:
    """What is told of one turn; ``end`` says so if it has no closing answer.

    plan:    the newest; reflection and ``verdicts`` are the last of theirs, as text.
    results: the newest of each tool.
    """

    first: int
    last: int
    user: str = ""
    agent: str = ""
    end: str = ""
    plan: str = ""
    reflection: str = ""
    verdicts: list[events.Verdict] = field(default_factory=list)
    judged: str = ""
    results: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True, slots=True)
class Abridged:
    """The summarizer that needs no model: deterministic, and exact in what it tells.

    ``tools`` says what a tool's calls did; ``{**TOOLS, "save": on_file("modified")}``
    extends it.  Tools it does not know are named, with their main argument.
    """

    costs: ClassVar[bool] = False

    limits: Limits = field(default_factory=Limits)
    tools: Tools = field(default_factory=lambda: TOOLS)

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        """Tell the source's turns in ``target_tokens``; the oldest go first."""
        if source.notes is not None:
            lines = shortened(noted(source), source.notes.lines)
            return Written("\n".join(lines), made_by(self.limits))
        turns = told(source.envelopes, self.tools, goes_on=source.goes_on)
        known = sum(map(estimate_text, source.summaries))
        share = known + max(0, estimate_text(source.text) - known) // _SHARE
        target_tokens = min(target_tokens, max(share, _FEW))
        ledger = Ledger.of(source.summaries, turns, source.envelopes)
        text = self._fitted(source, turns, target_tokens, self.limits)
        if ledger.missing(text):
            # So much of it is for what would be gone else.
            tokens = target_tokens - target_tokens // _FOR_LEDGER
            chars = self.limits.total_chars
            less = max(1, chars - chars // _FOR_LEDGER)
            limits = self.limits.model_copy(update={"total_chars": less})
            text = self._fitted(source, turns, tokens, limits)
            room = target_tokens - estimate_text(text) - 1
            shown = ledger.shown(text, min(room, (chars - len(text) - 1) // 4))
            text = "\n".join(filter(None, (shown, text)))
        if source.words and not markup.own_words(text):
            # All that the log says, for what has no place in a told turn.
            entries = (entry_of(envelope.payload) for envelope in source.envelopes)
            said = (leaf for one in entries if one for leaf in leaves(one.content))
            plain = " ".join((*source.summaries, *said))
            text = _cut(plain, target_tokens, self.limits)
        return Written(text, made_by(self.limits))

    def _fitted(
        self, source: Source, turns: Sequence[Told], tokens: int, limits: Limits
    ) -> str:
        if not source.summaries:
            return _fitted(turns, tokens, limits)
        new = [_shown(turn, limits.scaled(2)) for turn in turns]
        return _refitted([*source.summaries, *new], tokens, limits)


def ledger_beside(source: Source, text: str, *, most_tokens: int) -> str:
    """What a summary that a model wrote does not name, of files, failures and ids.

    It has no more words than the source has beside that text.
    """
    turns = told(source.envelopes, TOOLS, goes_on=source.goes_on)
    ledger = Ledger.of(source.summaries, turns, source.envelopes)
    shown = ledger.shown(text, most_tokens)
    room = source.words - markup.own_words(text)
    return shown if markup.own_words(shown) <= room else ""


class Ledger:
    """What was changed, read and named, with the seq at which that was last.

    It goes from summary to summary, and shows what the turns that are told do not.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, int]] = {}
        self._failed: dict[str, str] = {}

    @classmethod
    def of(
        cls,
        summaries: Iterable[str],
        turns: Iterable[Told],
        envelopes: Iterable[Envelope],
    ) -> Ledger:
        """Of summaries, then of turns and of what their calls name."""
        ledger = cls()
        for text in summaries:
            for kind, lines in _KEPT.findall(text):
                for line in lines.split("\n"):
                    name, _, seq = line.rpartition(" ")
                    if name and seq.isdigit():
                        ledger._note(name, kind, int(seq))
            for last, turn in _TOLD.findall(text):
                for name, lines in _LISTED.findall(turn):
                    for line in lines.strip("\n").split("\n"):
                        ledger._note(line, _KIND[name], int(last))
        for envelope in envelopes:
            if isinstance(envelope.payload, ToolCall):
                for name in sorted(in_value(envelope.payload.arguments)):
                    ledger._note(_short(name, _LONGEST), "ids", envelope.seq)
        for turn in turns:
            for name, kind in _KIND.items():
                for item in turn.lists.get(name, []):
                    line = _short(" ".join(item.split()), _LONGEST)
                    ledger._note(line, kind, turn.last)
        return ledger

    def _note(self, name: str, kind: str, seq: int) -> None:
        if kind == "failed":
            name = self._failed.setdefault(_ends(name), name)
        known = self._known.pop(name, ("ids", 0))[0]
        # What was changed stays so if it is read again.
        stays = known if known == "changed" or kind == "ids" else kind
        self._known[name] = (stays if known != "ids" else kind, seq)

    def missing(self, text: str) -> list[str]:
        """The names that ``text`` does not have, the newest first."""
        told, names = failures_of(text), reversed(self._known)
        return [one for one in names if one not in text and _ends(one) not in told]

    def shown(self, text: str, tokens: int) -> str:
        """What ``text`` lacks, as far as it fits; changes first, the newest first."""
        missing, room = self.missing(text), tokens - _NOTE_TOKENS * 2
        lists: dict[str, list[str]] = {}
        for wanted in ("changed", "failed", "ids", "read"):
            for name in missing:
                kind, seq = self._known[name]
                line = f"{name} {seq}"
                if kind == wanted == "failed" and estimate_text(line) >= room:
                    line = f"{_short(name, 3 * _END)} {seq}"
                if kind == wanted and (cost := estimate_text(line) + 1) <= room:
                    room -= cost
                    lists.setdefault(kind, []).append(line)
        if not lists:
            return ""
        parts = ("\n".join((f"<{k}>", *v, f"</{k}>")) for k, v in lists.items())
        return "\n".join(("<ledger>", *parts, "</ledger>"))


def made_by(limits: Limits) -> SummarizerRef:
    """What is recorded of an abridged history as its maker."""
    return SummarizerRef(kind="abridged", params=limits.model_dump())


def told(
    envelopes: Sequence[Envelope], tools: Tools, *, goes_on: bool = False
) -> list[Told]:
    """What is told of these turns, uncut; ``goes_on``: the last goes on behind them."""
    failed, asked = _failed(envelopes), markup.questions(envelopes)
    by_id = {call.call_id: call for call, _, _ in failed.values()}
    turns: list[Told] = []
    open_file: str | None = None
    for envelope in envelopes:
        payload = envelope.payload
        if not turns and not isinstance(payload, _TELLING):
            continue
        if isinstance(payload, events.UserInput) or not turns:
            turns.append(Told(envelope.seq, envelope.seq, end="interrupted"))
        turn = turns[-1]
        turn.last = envelope.seq
        match payload:
            case events.UserInput(text=text, attachments=attachments):
                attached = (attachment.text or "" for attachment in attachments)
                turn.user = "\n".join((text, *attached)).strip()
            case events.AgentResponse(text=text) | events.Final(text=text):
                turn.agent, turn.end = text.strip() or turn.agent, ""
            case ToolCall():
                turn.end = "interrupted"
                if envelope.seq not in failed:
                    open_file = _tell(turn, payload, tools, open_file)
            case _:
                _note(turn, payload, by_id, asked)
    if turns and turns[-1].end and goes_on:
        turns[-1].end = "goes_on"
    return turns


def _tell(turn: Told, call: ToolCall, tools: Tools, opened: str | None) -> str | None:
    """Note what a call did; return the file that is open afterwards."""
    reader, given = tools.get(call.tool_name), call.arguments
    action = None if reader is None or isinstance(given, str) else reader(given)
    what = (action.what or opened) if action else None
    if action is None or what is None:
        turn.lists["tools"].append(_named(call))
        return opened
    name = "commands" if action.deed == "command" else action.deed
    turn.lists[name].append(what)
    return opened if action.deed in ("command", "deleted") else what


def files_in(envelopes: Sequence[Envelope]) -> Iterator[tuple[int, str]]:
    """The files that calls read, wrote and deleted, if not failed, with their seqs."""
    failed, open_file = _failed(envelopes), None
    for envelope in envelopes:
        if isinstance(envelope.payload, ToolCall) and envelope.seq not in failed:
            one = Told(envelope.seq, envelope.seq)
            open_file = _tell(one, envelope.payload, TOOLS, open_file)
            for deed in ("created", "modified", "deleted", "viewed"):
                yield from ((envelope.seq, file) for file in one.lists.get(deed, ()))


def failures_in(envelopes: Iterable[Envelope]) -> Iterator[tuple[int, tuple[str, str]]]:
    """The calls that failed, by their results' seqs: call, and ends of what is told."""
    for call, seq, content in _failed(envelopes).values():
        yield seq, (failure(call), _ends(failure(call, markup.result_text(content))))


def failures_of(text: str) -> set[str]:
    """The ends of the lines in which summaries tell what failed."""
    lines = "\n".join(_FAILURES.findall(text)).split("\n")
    return {_ends(one) for line in lines if line for one in (line, _SEQ.sub("", line))}


def failure(call: ToolCall, text: str = "") -> str:
    """A call that failed and what came back, as they are told before any cut."""
    return markup.harmless(" ".join(f"{_named(call)}: {text}".split()))


def _ends(line: str) -> str:
    return f"{line[:_END]}\n{line[-_END:]}"


def _note(
    turn: Told,
    event: events.Event,
    failed: Mapping[str, ToolCall],
    asked: Mapping[int, str],
) -> None:
    """Note what was found, judged and decided."""
    match event:
        case events.ToolResult(call_id=call_id, status=status, content=content):
            text = " ".join(markup.result_text(content).split())
            if status == "ok":
                name = event.tool_name or "?"
                turn.results.pop(name, None)
                turn.results[name] = text
            elif status == "unknown":
                turn.lists[status].append(f"{event.tool_name or '?'}: {text}".strip())
            elif call_id in failed:
                turn.lists["failed"].append(f"{_named(failed[call_id])}: {text}")
        case events.Planner(plan=plan):
            turn.plan = markup.value_text(plan) if plan else turn.plan
        case events.Reflection(issues=issues, suggestion=suggestion):
            passed, sure = event.pass_, event.confidence
            turn.judged = "" if passed is None else f' pass="{str(passed).lower()}"'
            turn.judged += "" if sure is None else f' confidence="{sure:g}"'
            issue = (markup.value_text(one) for one in issues)
            turn.reflection = " ".join(filter(None, (*issue, suggestion)))
        case events.Aggregate(results=results):
            turn.verdicts += results
        case events.AgentError(is_transport=False, code=code, message=message):
            turn.lists["errors"].append(f"{code}: {message}" if message else code)
        case events.HumanReview(decision=str(decision), question=question):
            of = question or asked.get(event.refers_to or 0, "")
            turn.lists["decisions"].append(f"{of} {decision}".strip())


def _failed(envelopes: Iterable[Envelope]) -> dict[int, tuple[ToolCall, int, Any]]:
    """The calls whose result is an error, so not done; its seq and what it says."""
    made, failed = dict[str, tuple[int, ToolCall]](), {}
    for envelope in envelopes:
        match envelope.payload:
            case ToolCall(call_id=call_id) as call:
                made[call_id] = envelope.seq, call
            case events.ToolResult(call_id=id_, status="error", content=content):
                if id_ in made:
                    seq, call = made[id_]
                    failed[seq] = call, envelope.seq, content
    return failed


def _named(call: ToolCall) -> str:
    """A call by its tool and the one argument that says most about it."""
    main = call.arguments
    if not isinstance(main, str):
        main = _first(main, _MAIN) or next(_texts(main), "")
    return f"{call.tool_name}: {main}" if main else call.tool_name


def _shown(turn: Told, limits: Limits) -> str:
    lines = [f'<turn first="{turn.first}" last="{turn.last}">']
    if turn.user:
        lines.append(f"<user>{_short(turn.user, limits.user_chars)}</user>")
    if turn.plan:
        lines.append(f"<plan>{_short(turn.plan, 2 * limits.action_chars)}</plan>")
    results = [f"{tool}: {text}" for tool, text in turn.results.items()]
    for name in markup.LISTS:
        # The newest, each once, at the place of its newest mention.
        given = results if name == "results" else turn.lists.get(name, [])
        flat = (" ".join(item.split()) for item in reversed(given))
        newest = list(dict.fromkeys(filter(None, flat)))[: limits.of(name)]
        if newest:
            items = [_short(item, limits.action_chars) for item in reversed(newest)]
            lines += [f"<{name}>", *items, f"</{name}>"]
    if turn.reflection or turn.judged:
        text = _short(turn.reflection, 2 * limits.action_chars)
        lines.append(f"<reflection{turn.judged}>{text}</reflection>")
    lines += _counted(turn.verdicts, limits)
    if turn.agent:
        lines.append(f"<agent>{_short(turn.agent, limits.agent_chars)}</agent>")
    if turn.end:
        lines.append(f"<{turn.end}/>")
    return "\n".join((*lines, "</turn>"))


def _counted(verdicts: Sequence[events.Verdict], limits: Limits) -> list[str]:
    """How many items were judged how, and each that is not correct."""
    if not verdicts:
        return []
    counts = Counter(one.verdict for one in verdicts)
    said = "".join(f' {name}="{count}"' for name, count in sorted(counts.items()))
    wrong = [
        " ".join(filter(None, (one.item_id, one.verdict, one.error_type, one.topic)))
        for one in verdicts
        if one.verdict != "correct"
    ]
    items = [_short(item, limits.action_chars) for item in wrong[-limits.listed :]]
    return ["\n".join((f"<verdicts{said}>", *items, "</verdicts>"))]


def _short(text: str, chars: int) -> str:
    return markup.harmless(cut_middle(text, chars))


def _fitted(turns: Sequence[Told], tokens: int, limits: Limits) -> str:
    """All turns if they fit, with longer fields cut more; else the newest that do."""
    shown: list[str] = []
    # What was said gives way before what was found and done.
    for scale in (1, 2, 4, 8, 16, 32):
        shown = [_shown(turn, limits.scaled(scale)) for turn in turns]
        if _fits("\n".join(shown), tokens, limits):
            return "\n".join(shown)
    newest = _newest(shown, tokens, limits)
    return newest or (_cut(shown[-1], tokens, limits) if shown else "")


def _refitted(summaries: Sequence[str], tokens: int, limits: Limits) -> str:
    """Summaries joined to one: their newest turns, or of prose as much of each."""
    turns = [turn for summary in summaries for turn in markup.turns_in(summary)]
    earlier = sum(map(markup.left_out_in, summaries))
    whole = "\n".join(filter(None, (markup.left_out(earlier), *turns)))
    if _fits(whole, tokens, limits):
        return whole
    if all(turn.startswith("<turn ") for turn in turns):
        for chars in (400, 100, 24):
            turns = [_said(turn, chars) for turn in turns]
            whole = "\n".join(filter(None, (markup.left_out(earlier), *turns)))
            if _fits(whole, tokens, limits):
                return whole
        newest = _newest(turns, tokens, limits, earlier=earlier)
        return newest or _cut(turns[-1], tokens, limits)
    share = max(tokens // len(summaries), 1)
    return "\n".join(_cut(summary, share, limits) for summary in summaries)


def _said(turn: str, chars: int) -> str:
    """A turn as it was told, with less of what user and agent said in it."""
    return _SAID.sub(lambda it: f"<{it[1]}>{_short(it[2], chars)}</{it[1]}>", turn)


def _newest(
    shown: Sequence[str], tokens: int, limits: Limits, *, earlier: int = 0
) -> str:
    """As many of the newest turns as fit, after how many are left out; "" if none."""
    room, chars, first = tokens - _NOTE_TOKENS, limits.total_chars - 40, len(shown)
    for text in reversed(shown):
        room, chars = room - estimate_text(text) - 1, chars - len(text) - 1
        if room < 0 or chars < 0:
            break
        first -= 1
    if first == len(shown):
        return ""
    return "\n".join(filter(None, (markup.left_out(earlier + first), *shown[first:])))


def _cut(text: str, tokens: int, limits: Limits) -> str:
    """The text without markup, its middle left out until it fits."""
    plain = markup.stripped(text).strip()
    keep = min(len(plain), limits.total_chars)
    while keep and estimate_text(cut_middle(plain, keep)) > tokens:
        keep = keep * 9 // 10
    return cut_middle(plain, keep)


def _fits(text: str, tokens: int, limits: Limits) -> bool:
    return estimate_text(text) <= tokens and len(text) <= limits.total_chars
