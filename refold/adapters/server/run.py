"""What a page says of a run: its turns, and the context at any moment of it.

What a run holds was said by users, tools and models.  A template is only ever given it
as text, with controls and what turns the direction of text made visible.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from markupsafe import Markup, escape

from refold.adapters.display import events, values
from refold.domain.canonical import shipped
from refold.domain.envelope import STANDS_FOR, Envelope
from refold.domain.events import (
    DERIVED_TYPES,
    EVENT_CLASSES,
    Summary,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.domain.ids import MAIN
from refold.domain.ports import Head
from refold.projections.compare import Outcome
from refold.projections.context.outline import standing
from refold.projections.context.strategies import spec
from refold.projections.context.strategy import Strategy
from refold.projections.models import Spending, answers
from refold.store.history import merged
from refold.store.session.session import Session

Lang = Literal["en", "zh"]
FOLDER: Final = Path(__file__).parent
LIMIT: Final = 100  # events of a page
MANY: Final = 5_000  # events that are read for one page unasked
_OVER: Final = 40  # so many more, if a call's result is among them
_SCANNED: Final = 5_000  # events that are looked through for those that are wanted
_WHOLE: Final = 256  # entries of a derived stream that are read to find a page's
_LINES, _SHOWN, _HELD = 12, 1_200, 12_000  # of a text: lines, characters, with the rest
_APART: Final = (*DERIVED_TYPES, "consent", "forget")  # in no main stream of an agent
_FILE: Final = 5_000  # events of a file to send
_MOMENTS: Final = 50  # contexts in it


class Said(NamedTuple):
    """An event as a page tells it; a call with its result, if that is at hand."""

    envelope: Envelope
    preview: events.Preview
    marks: events.Marks
    result: Said | None = None

    @classmethod
    def of(cls, envelope: Envelope, result: Envelope | None = None) -> Said:
        """The event, told."""
        said = events.preview(envelope.payload), events.marks(envelope)
        return cls(envelope, *said, None if result is None else cls.of(result))

    @property
    def place(self) -> str:
        """What it is found by in a page: of its own kind for derived entries."""
        seq, stream = self.envelope.seq, self.envelope.stream
        return f"e{seq}" if stream == MAIN else f"s{stream[:8]}-{seq}"


class Turn(NamedTuple):
    """A user's input and all up to the next, as far as it is at hand.

    steps:  its entries in order; calls that were made side by side are one.
    begins: whether it begins here, and not before.
    answer: the last answer in it.
    """

    steps: tuple[tuple[Said, ...], ...]
    begins: bool
    spent: Spending
    answer: str

    @property
    def every(self) -> list[Said]:
        """All that is in it, results too."""
        said = [one for step in self.steps for one in step]
        return said + [one.result for one in said if one.result is not None]

    @property
    def redacted(self) -> str:
        """How often what was taken out of it."""
        counts = (Counter(one.marks.redacted) for one in self.every)
        return values.types(sum(counts, Counter()))

    @property
    def seqs(self) -> list[int]:
        """The seqs of the session's own events in it."""
        own = [one.envelope for one in self.every if one.envelope.stream == MAIN]
        return sorted(one.seq for one in own) or [0]


class Wanted(NamedTuple):
    """Which events of a run a page shows; by nothing, all of them."""

    types: tuple[str, ...] = ()
    agent: str = ""
    redacted: bool = False

    def takes(self, envelope: Envelope) -> bool:
        """Whether it is one of them, of those types."""
        if self.agent not in ("", envelope.agent):
            return False
        return not self.redacted or bool(events.marks(envelope).redacted)


EVERYTHING: Final = Wanted()


class Part(NamedTuple):
    """A page of a run: its turns, where it begins and ends, whether more is behind."""

    turns: list[Turn]
    first: int
    last: int
    more: bool
    head: Head


def part(
    session: Session,
    *,
    after: int = 0,
    before: int | None = None,
    seq: int | None = None,
    limit: int = LIMIT,
    wanted: Wanted = EVERYTHING,
) -> Part:
    """The events behind ``after``, those up to ``before``, or those around ``seq``.

    One read, of no more than a page needs: of those of an agent, and of redacted ones,
    it looks through so many events and no further.

    Raises SessionNotFound, Erased.
    """
    head, kinds, upto = session.head(), wanted.types, None
    if "tool_call" in kinds:
        kinds = (*kinds, "tool_result")
    if before is not None:
        after, upto = max(0, before - 1 - limit), before - 1
    elif seq is not None:
        after = max(0, seq - 1 - limit // 4)
    some = limit + _OVER if wanted[1:] == EVERYTHING[1:] else _SCANNED
    read = session.writer.log.read
    found = read(session.stream, after=after, upto=upto, limit=some, types=kinds)
    full, last = len(found) == some, found[-1].seq if found else after
    taken = [one for one in found if wanted.takes(one)]
    if (end := _end(taken, limit)) < len(taken):
        full, last, taken = True, taken[end - 1].seq, taken[:end]
    if seq is not None:
        at = [n for n, one in enumerate(taken) if _opens(one) and one.seq <= seq]
        taken = taken[at[-1] :] if at else taken  # from where its turn begins
    first = taken[0].seq if taken else after + 1
    if wanted == EVERYTHING and taken:
        taken = [*merged(taken, _decided(session, first, last), first - 1)]
    more = (full or upto is not None) and last < head.seq
    return Part(turns(taken), first, last, more, head)


def _end(found: Sequence[Envelope], limit: int) -> int:
    """Where a page ends: behind ``limit`` events, once no call of it is open."""
    waiting: set[str] = set()
    for index, one in enumerate(found):
        if index >= limit and not waiting:
            return index
        match one.payload:
            case ToolCall(call_id=call_id):
                waiting.add(call_id)
            case ToolResult(call_id=call_id):
                waiting.discard(call_id)
    return min(len(found), limit) if waiting else len(found)


def _decided(session: Session, first: int, last: int) -> list[Envelope]:
    """The entries of derived streams that were decided from ``first`` to ``last``.

    A long stream is not read to its end: its entries are in the order in which they
    were decided, so the first is looked for by halves.
    """
    found: list[Envelope] = []
    log = session.writer.log
    for name in session.history.streams()[1:]:
        stream = session.stream._replace(stream=name)
        low, high = 0, log.head(stream).seq
        is_long = high > _WHOLE
        while is_long and low < high:
            middle = (low + high) // 2
            (one,) = log.read(stream, after=middle, limit=1)
            low, high = (low, middle) if _at(one) >= first else (middle + 1, high)
        entries = log.read(stream, after=low, limit=_WHOLE)
        entries = entries if is_long else standing(entries)
        found += [one for one in entries if first <= _at(one) <= last]
    return found


def _opens(envelope: Envelope) -> bool:
    return isinstance(envelope.payload, UserInput)


def _at(entry: Envelope) -> int:
    return getattr(entry.payload, "decided_at_seq", None) or 0


def turns(envelopes: Sequence[Envelope]) -> list[Turn]:
    """These events as turns, each call with its result."""
    own = [one for one in envelopes if one.stream == MAIN]
    results, spent = _results(own), {one.first.seq: one for one in answers(own)}
    joined = {one.seq for one in results.values()}
    groups: list[list[Envelope]] = []
    for one in envelopes:
        if not groups or _opens(one):
            groups.append([])
        groups[-1].append(one)
    found: list[Turn] = []
    for group in groups:
        steps, sum_, answer, call = list[list[Said]](), Spending(), "", 0
        for one in group:
            place = one.seq if one.stream == MAIN else 0
            sum_ = sum_.with_(spent[place]) if place in spent else sum_
            if place in joined:
                continue
            if one.type in ("agent_response", "final"):
                answer = getattr(one.payload, "text", "").strip() or answer
            said = Said.of(one, results.get(place))
            beside = isinstance(one.payload, ToolCall) and call == place - 1 > 0
            if not beside:
                steps.append([])
            steps[-1].append(said)
            call = place if isinstance(one.payload, ToolCall) else 0
        if steps:
            told = tuple(map(tuple, steps))
            found.append(Turn(told, _opens(group[0]), sum_, answer))
    return found


def _results(envelopes: Iterable[Envelope]) -> dict[int, Envelope]:
    """The results among these events, by the seq of the call that each answers."""
    waiting: dict[str, int] = {}
    found: dict[int, Envelope] = {}
    for one in envelopes:
        match one.payload:
            case ToolCall(call_id=call_id):
                waiting[call_id] = one.seq
            case ToolResult(call_id=call_id) if call_id in waiting:
                found[waiting.pop(call_id)] = one
    return found


def strategies(session: Session) -> dict[str, Strategy]:
    """The strategies that the session was compacted by, by fingerprint."""
    found, log = dict[str, Strategy](), session.writer.log
    for name in session.history.streams()[1:]:
        for one in log.read(session.stream._replace(stream=name), limit=1, newest=True):
            if isinstance(one.payload, Summary):
                found[name] = spec.parse(one.payload.strategy.model_dump())
    return found


def chosen(session: Session, named: str) -> Strategy | None:
    """The strategy of this fingerprint, or of this spec; nothing is the session's own.

    Raises UnknownStrategy, for a file too: those of the server are nobody's to name.
    """
    return strategies(session).get(named) or (spec.parse(named) if named else None)


def plotted(outcome: Outcome) -> dict[str, Any]:
    """A strategy's requests for a plot: tokens of each, and dollars up to each."""
    sum_, dollars = 0.0, list[float]()
    if prices := outcome.model.prices:
        for one in outcome.sent:
            cost = prices.for_prompt(one.tokens).cost
            sum_ += cost(uncached=one.uncached, written=one.written, read=one.cached)
            dollars.append(round(sum_, 6))
    tokens = [one.tokens for one in outcome.sent]
    return {"label": outcome.label, "tokens": tokens, "dollars": dollars}


def file(session: Session, lang: Lang = "en") -> str:
    """A run as one HTML file that needs no network: its turns, and contexts in it.

    Of a long run it has the first events and some of the contexts, and says so.

    Raises SessionNotFound, Erased.
    """
    head, shown = session.head(), [*session.history.timeline(limit=_FILE)]
    last = max(one.seq for one in shown if one.stream == MAIN)
    began = [one.began for one in events.Numbering().number(shown)]
    requests = {one.seq for one in shown if one.type == "request"}
    found = requests or {seq - 1 for seq in began if seq and seq > 1}
    moments = sorted({*found, last})
    some = moments[:: -max(1, -(-len(moments) // _MOMENTS))][::-1]
    # Where no request says how it was sent, it is as it was compacted.
    by = None if requests else next(iter(strategies(session).values()), None)
    contexts = [session.why(by, at=seq, chains=False) for seq in some]
    told = {"session": session, "head": head, "turns": turns(shown), "shown": last}
    told |= {"contexts": contexts, "moments": moments, "made": session.writer.clock()}
    return rendered("file.html", lang, link=lambda *_, **__: "", **told)


_MARKED: Final = re.compile(f"({STANDS_FOR.pattern})|({values.STUB.pattern})")


def marked(text: str) -> Markup:
    """A text of the log for a page: what was redacted or cut stands out."""
    text, at, out = values.visible(text), 0, list[Markup]()
    for found in _MARKED.finditer(text):
        kind = "chip" if found[1] else "stub"
        out.append(escape(text[at : found.start()]))
        out.append(Markup('<mark class="{}">{}</mark>').format(kind, found[0]))
        at = found.end()
    return Markup("").join([*out, escape(text[at:])])


def cut(text: str, *, whole: bool = False) -> tuple[Markup, Markup, int, int]:
    """A text in as much room as a page has for it; no placeholder is parted.

    Its beginning, what more can be opened, in how many lines, and how many characters
    are in neither.
    """
    text = text.rstrip("\n")
    end = sum(map(len, islice(text.splitlines(keepends=True), _LINES)))
    end = len(text) if whole or len(text) <= end + _LINES else min(end, _SHOWN)
    for found in _MARKED.finditer(text, max(0, end - 200), end + 200):
        end = found.end() if found.start() < end < found.end() else end
    rest = text[end : None if whole else end + _HELD]
    left = len(text) - end - len(rest)
    return marked(text[:end]), marked(rest), rest.count("\n") + 1, left


def first_line(text: str, most: int = 200) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most else f"{line[:most]}…"


@cache
def texts(lang: Lang) -> Mapping[str, str]:
    """What pages say in a language, by name: ``table.key``."""
    tables = shipped("refold.adapters.server", "texts", f"{lang}.toml")
    return {f"{name}.{k}": v for name, keys in tables.items() for k, v in keys.items()}


@pass_context
def _say(context: Any, key: str, **values: Any) -> str:
    """What a page says in its language, of one or of many.  Raises KeyError."""
    said = texts(context["lang"])
    one = f"{key}_one" if values.get("n") in (1, "1") else key
    return said.get(one, said[key]).format(**values)


@cache
def static(name: str) -> str:
    """The text of a file that pages load."""
    return (FOLDER / "static" / name).read_text("utf-8")


def _digest(name: str) -> str:
    digest = sha256(static(name).encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


@cache
def _pages() -> Environment:
    """The templates; whatever a value is, it is escaped, and has no controls."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda one: values.visible(one) if type(one) is str else one,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"cut": cut, "marked": marked, "first_line": first_line}
    made.filters |= {"readable": events.readable, "content": events.content}
    made.filters |= {"said": Said.of, "pick": lambda seq, found: found[seq]}
    made.filters |= {one.__name__: one for one in (values.moment, values.rfc3339)}
    made.filters |= {"number": values.number, "types": values.types}
    made.filters["dollars"] = lambda n: f"${n:,.4f}" if n < 1 else f"${n:,.2f}"
    made.globals |= {"t": _say, "static": static, "digest": _digest}
    own = [one for one in EVENT_CLASSES if one not in _APART]
    made.globals |= {"everything": EVERYTHING, "kinds": own}
    made.globals |= {"strategies": [*spec.STRATEGIES]}
    return made


def rendered(template: str, lang: Lang, **values: Any) -> str:
    """The page that a template makes of these values."""
    return _pages().get_template(template).render(lang=lang, **values)
