"""Protected content: what the user said, word for word, next to every summary.

A summary replaces the events of a span.  The words of the user in that span, the
decisions of people, and the newest plan stay, because they are short, nothing else in
the log says them again, and a run that forgets them does the wrong thing.  So do the
judgments of the agent, its reflections and verdicts, as far as they fit into a part of
the budget.  All are read from the log when a view is rendered, so no summarizer can
lose them and successive compactions cannot wear them down.

Material that a user pasted into a message (code, logs, documents) is cut by its
structure; the words around it never are, as long as everything fits into the budget.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from refold.domain import events
from refold.domain.envelope import Envelope
from refold.domain.tokens import estimate_text
from refold.projections.context.choices import subject_of
from refold.projections.context.excerpts import cut_to_sentences
from refold.projections.context.text import (
    task_change,
    tasks_of,
    value_text,
    verdict_text,
)
from refold.projections.context.units import Spans, holds

# A message up to this length is never treated as pasted.
_LONGEST_MESSAGE: Final = 2_000
# A message up to this length is shown again where it is repeated.
_LONGEST_REPETITION: Final = 40
# A pasted part keeps its two ends in this number of characters.
_PASTED_CHARS: Final = 400
# Prose beyond this length is a pasted document.
_LONGEST_PROSE: Final = 4_000
_LONGEST_PLAN: Final = 2_000
_LONGEST_CALL: Final = 120
# No protected event is explained by another one.
NO_SUBJECTS: Final[Mapping[int, int]] = MappingProxyType({})
_LONGEST_JUDGMENT: Final = 400
# Judgments may take this part of the budget.
_JUDGMENTS_SHARE: Final = 1 / 4
JUDGMENTS: Final = ("reflection", "verdict")
# The first words of an old message that is over the budget, and fewer of them.
_SHORT_MESSAGE: Final = 200
_TRIMMED_MESSAGE: Final = 60
_OVERHEAD: Final = 6  # tokens of the line that names a message


class Words(NamedTuple):
    """The words of one event.

    label:    what the event is: "user", "decision", "plan", "reflection", or "verdict".
    text:     the words as a view shows them.
    original: the words as the log has them.
    subject:  the words of the agent that a short answer is about; empty for others.
    is_repeated: whether a later message repeats the words, and the text only names it.
    repeated_in: the number of that message's turn, if views name turns.
    """

    seq: int
    label: str
    text: str
    original: str
    is_repeated: bool = False
    repeated_in: int | None = None
    subject: str = ""

    @property
    def constraints(self) -> list[str]:
        """The sentences of a user that state a constraint."""
        if self.label != "user":
            return []
        # Only content over its budget needs the patterns, which take a while to load.
        from refold.projections.context.constraints import constraints_in

        return [constraint.text for constraint in constraints_in(self.original)]

    @property
    def tokens(self) -> int:
        """The cost of the words in a view."""
        tokens = estimate_text(self.text) + _OVERHEAD
        if self.subject:
            tokens += estimate_text(self.subject)
        return tokens


@dataclass(frozen=True, slots=True)
class Protected:
    """The protected content of a view.

    words:    oldest first.
    left_out: the seqs of the messages that are not shown at all.
    left_out_judgments: the seqs of the reflections and verdicts that are not shown.
    tokens:   the cost before anything was left out or cut for the budget.
    budget:   the most tokens.
    turns:    the numbers of their turns by seq; None names events by their seqs.
    shortened: whether the budget shortened messages or plans.
    shortened_judgments: whether it shortened reflections or verdicts.
    """

    words: tuple[Words, ...] = ()
    left_out: tuple[int, ...] = ()
    tokens: int = 0
    budget: int = 0
    turns: Mapping[int, int] | None = None
    left_out_judgments: tuple[int, ...] = ()
    shortened: bool = False
    shortened_judgments: bool = False

    @property
    def seqs_left_out(self) -> tuple[int, ...]:
        """The seqs of everything that is not shown at all."""
        return tuple(sorted((*self.left_out, *self.left_out_judgments)))

    def number(self, seq: int) -> int:
        """Return the number by which a view names an event."""
        return seq if self.turns is None else self.turns.get(seq, 0)

    def runs(self) -> list[list[Words]]:
        """Return the words in order, with references of neighbors joined.

        These are references to one message, or each to the message after the one that
        its predecessor names.
        """
        runs: list[list[Words]] = []
        for part in self.words:
            if runs and self._continues(runs[-1], part):
                runs[-1].append(part)
            else:
                runs.append([part])
        return runs

    def _continues(self, run: Sequence[Words], part: Words) -> bool:
        """Whether a reference continues a run of references."""
        previous = run[-1]
        if part.repeated_in is None or previous.repeated_in is None:
            return False
        if self.number(part.seq) != self.number(previous.seq) + 1:
            return False
        step = part.repeated_in - previous.repeated_in
        if len(run) == 1:
            return step in (0, 1)
        is_rising = run[0].repeated_in != previous.repeated_in
        return step == (1 if is_rising else 0)

    @property
    def is_cut(self) -> bool:
        """Whether the budget took something away."""
        has_shorter = self.shortened or self.shortened_judgments
        return has_shorter or bool(self.left_out or self.left_out_judgments)


def protected(
    rows: Iterable[Envelope],
    budget: int,
    *,
    raw: Mapping[str, int] | None = None,
    turns: Mapping[int, int] | None = None,
    joins_plans: bool = False,
    has_notes: bool = False,
    keeps_newest_judgments: bool = True,
    subjects: Mapping[int, int] = NO_SUBJECTS,
    client_summaries: Sequence[str] = (),
    replaced: Spans = (),
    names_long_answers: bool = False,
    keeps_traces: bool = False,
) -> Protected:
    """Return the protected content of these events within a budget in tokens.

    rows:  oldest first; events that are not protected are ignored.
    raw:   the messages of the user that the view shows raw, with their seqs.  A long
           message that one of them or a later message repeats is then only named.
           With None, repetitions stay.
    turns: the numbers of turns by seq, by which the view names events.  With None, it
           names them by their seqs.
    joins_plans: whether changes of tasks are joined into one plan, and decisions have
           their reasons.
    has_notes: whether decisions have the notes of the people who made them.
    keeps_newest_judgments: whether each of the newest judgments stays that still has
                   room.  Otherwise the oldest go until all others have room, and a
                   long new one takes older ones with it.
    subjects: the seqs of events in ``rows`` that explain others, by the seqs of these:
                   the text of the agent that a short answer is about, and the call
                   that a decision is about.
    client_summaries: the texts of the client's summaries in the view.  A long message
                   that one of them quotes is only named.
    replaced: the events that the client replaced by these summaries.  Some clients say
                   a message again after a compaction; the first one is then only named.
    names_long_answers: whether long messages, too, have the options that they name.
    keeps_traces: whether pasted parts give way before reflections and verdicts do, and
                   the newest reflection and verdict keep a few words while messages
                   without a constraint are only shortened.
    """
    rows = list(rows)
    words = [part for row in rows if (part := words_of(row)) is not None]
    words = _with_calls(words, rows, subjects)
    if joins_plans:
        words = _with_joined_plan(words, rows)
    if has_notes:
        words = _with_notes(words, rows)
    if raw is not None:
        words = _without_repetitions(words, raw, turns)
    elif replaced:
        words = _without_repetitions(words, {}, turns, only=replaced)
    words = [_without_quote(part, client_summaries) for part in words]
    words = _with_subjects(words, rows, subjects, at_length=names_long_answers)
    content = Protected(tuple(words), (), _total(words), budget, turns)
    without_judgments = (
        _newest_judgments if keeps_newest_judgments else _without_oldest_judgments
    )
    if keeps_traces:
        return _within_budget(content)
    content = without_judgments(content, int(budget * _JUDGMENTS_SHARE))
    if _total(content.words) > budget:
        judgments = _total(_judgments_of(content))
        others = _total(content.words) - judgments
        content = without_judgments(content, max(0, budget - others))
    for reduced in _STEPS:
        if _total(content.words) <= budget:
            break
        content = reduced(content)
    return content


def _within_budget(content: Protected) -> Protected:
    """Return the content within its budget: the least important of it gives way first.

    These are the middle of pasted parts, then reflections and verdicts except a trace
    of the newest of each.  Then the oldest messages without a constraint are cut to
    their first words.  The traces give way before a message is left out.
    """
    budget = content.budget
    content = _newest_judgments(content, int(budget * _JUDGMENTS_SHARE), traces=True)
    if _total(content.words) > budget:
        content = _without_pasted(content)
    if _total(content.words) > budget:
        others = _total(content.words) - _total(_judgments_of(content))
        content = _newest_judgments(content, max(0, budget - others), traces=True)
    for reduced in (_shortened, _trimmed, _without_judgments, _only_constraints):
        if _total(content.words) <= budget:
            return content
        content = reduced(content)
    return _newest(content)


def _without_repetitions(
    words: Sequence[Words],
    raw: Mapping[str, int],
    turns: Mapping[int, int] | None,
    *,
    only: Spans | None = None,
) -> list[Words]:
    """Return the words, with a long message whole only where the user said it last.

    A budget takes the oldest words first, so it takes references before their words.

    turns: as in ``protected``.
    only:  the events to which this applies; None stands for all.
    """
    # By the text that is shown, which includes attachments, and the text of the log.
    seqs = {(without_long_pastes(text), text): seq for text, seq in raw.items()}
    newest_first: list[Words] = []
    for part in reversed(words):
        if part.label == "user" and len(part.text) > _LONGEST_REPETITION:
            last = seqs.setdefault((part.text, part.original), part.seq)
            may_change = only is None or holds(only, part.seq)
            if last != part.seq and may_change:
                reference = f"(as in {last})"
                turn = None if turns is None else turns.get(last)
                if turns is not None:
                    reference = _named_turn(turn)
                part = part._replace(text=reference, is_repeated=True, repeated_in=turn)
        newest_first.append(part)
    return newest_first[::-1]


def _without_quote(part: Words, client_summaries: Iterable[str]) -> Words:
    """Return the words, or a reference if a summary of the client quotes them all."""
    is_short = len(part.text) <= _LONGEST_REPETITION
    if part.label != "user" or part.is_repeated or is_short:
        return part
    whole = part.original.strip()
    # A message with attachments says more than its text.
    is_whole = part.text == part.original
    if is_whole and any(whole in text for text in client_summaries):
        return part._replace(text="(as in the client's summary)", is_repeated=True)
    return part


def _named_turn(turn: int | None) -> str:
    """Return a reference to the user's message of a turn."""
    return "(as in a later message)" if turn is None else f"(as in turn {turn})"


def _with_joined_plan(words: Iterable[Words], rows: Sequence[Envelope]) -> list[Words]:
    """Return the words, with the events of tasks as one plan at the newest of them.

    Decisions get the reasons that people gave.
    """
    reasons: dict[int, str] = {}
    prose: set[int] = set()
    for row in rows:
        match row.payload:
            case events.HumanReview(bundle=dict(bundle)):
                reason = bundle.get("reason")
                if isinstance(reason, str) and reason.strip():
                    reasons[row.seq] = reason.strip()
            case events.Planner(plan=str()):
                prose.add(row.seq)
    plan = joined_plan(rows)
    joined: list[Words] = []
    for part in words:
        if part.seq in reasons:
            text = f"{part.text}: {reasons[part.seq]}"
            part = part._replace(text=text, original=text)
        if part.label != "plan" or part.seq in prose:
            joined.append(part)
        elif plan is not None and part.seq == plan.seq:
            joined.append(plan)
    return joined


def _with_subjects(
    words: Sequence[Words],
    rows: Iterable[Envelope],
    subjects: Mapping[int, int],
    *,
    at_length: bool,
) -> list[Words]:
    """Return the words, and add to answers what they are about.

    subjects:  as in ``protected``.
    at_length: whether long answers have it, too.
    """
    if not subjects:
        return list(words)
    offers = {
        row.seq: row.payload.text
        for row in rows
        if isinstance(row.payload, events.AgentResponse | events.Final)
    }
    explained: list[Words] = []
    for part in words:
        offer = offers.get(subjects.get(part.seq, 0))
        if part.label == "user" and offer and not part.is_repeated:
            subject = subject_of(part.original, offer, at_length=at_length)
            part = part._replace(subject=subject)
        explained.append(part)
    return explained


def _with_calls(
    words: Sequence[Words], rows: Iterable[Envelope], subjects: Mapping[int, int]
) -> list[Words]:
    """Return the words, and add to decisions the calls that they are about.

    subjects: as in ``protected``.
    """
    if not subjects:
        return list(words)
    calls = {
        row.seq: row.payload for row in rows if isinstance(row.payload, events.ToolCall)
    }
    explained: list[Words] = []
    for part in words:
        call = calls.get(subjects.get(part.seq, 0))
        if part.label == "decision" and call is not None:
            # The registry of tools loads only if a person decided about a call.
            from refold.projections.context.abridged import call_line

            line = cut_to_sentences(" ".join(call_line(call).split()), _LONGEST_CALL)
            text = f"{part.text} {line}"
            part = part._replace(text=text, original=text)
        explained.append(part)
    return explained


def _with_notes(words: Iterable[Words], rows: Iterable[Envelope]) -> list[Words]:
    """Return the words, and add to decisions the notes of the people."""
    notes = {
        row.seq: row.note
        for row in rows
        if isinstance(row.payload, events.HumanReview) and row.note
    }
    noted: list[Words] = []
    for part in words:
        if part.seq in notes:
            text = f"{part.text} (note: {notes[part.seq]})"
            part = part._replace(text=text, original=text)
        noted.append(part)
    return noted


class _Task(NamedTuple):
    name: str
    status: str

    @property
    def is_open(self) -> bool:
        return self.status not in _CLOSED


_CLOSED: Final = frozenset({"completed", "done", "deleted", "cancelled"})


def joined_plan(rows: Iterable[Envelope]) -> Words | None:
    """Return the tasks after all changes of them, or None if there are none.

    A list of tasks replaces earlier ones.  Tasks that are made one by one are numbered
    in their order, and changes name them by their number.  If the plan is too long,
    only its open tasks are named.
    """
    tasks: dict[str, _Task] = {}
    newest: int | None = None
    for row in rows:
        if not isinstance(row.payload, events.Planner):
            continue
        plan = row.payload.plan
        listed = tasks_of(plan)
        change = task_change(plan)
        if listed is not None:
            tasks = {f"item {index}": task for index, task in enumerate(_tasks(listed))}
        elif change is not None:
            _change_task(tasks, change)
        else:
            continue
        newest = row.seq
    if newest is None or not tasks:
        return None
    lines = [f"- {task.name} ({task.status})" for task in tasks.values()]
    text = "\n".join(lines)
    if len(text) > _LONGEST_PLAN:
        open_tasks = [task for task in tasks.values() if task.is_open]
        lines = [f"- {task.name} ({task.status})" for task in open_tasks]
        closed = len(tasks) - len(open_tasks)
        lines.insert(0, f"({closed} of {len(tasks)} tasks are completed.)")
        text = cut_to_sentences("\n".join(lines), _LONGEST_PLAN)
    return Words(newest, "plan", text, text)


def _tasks(listed: Iterable[Mapping[str, Any]]) -> list[_Task]:
    return [_Task(_task_name(task), _task_status(task)) for task in listed]


def _change_task(tasks: dict[str, _Task], change: Mapping[str, Any]) -> None:
    """Add a task, or change the one that the change names."""
    if "taskId" not in change:
        number = sum(1 for key in tasks if key.isdigit()) + 1
        tasks[str(number)] = _Task(_task_name(change), _task_status(change))
        return
    key = str(change["taskId"])
    task = tasks.get(key, _Task(f"task {key}", "open"))
    name = _named(change, ("subject", "title", "content")) or task.name
    status = str(change.get("status") or task.status)
    reason = change.get("description")
    if isinstance(reason, str) and reason.strip():
        name = f"{name}: {cut_to_sentences(reason.strip(), _SHORT_MESSAGE)}"
    tasks[key] = _Task(name, status)


def _task_name(task: Mapping[str, Any]) -> str:
    return _named(task, ("subject", *_TASK_NAMES)) or value_text(dict(task))


def _task_status(task: Mapping[str, Any]) -> str:
    return str(task.get("status") or "open")


def _named(task: Mapping[str, Any], keys: Iterable[str]) -> str:
    """Return the first text under these keys; empty if there is none."""
    for key in keys:
        value = task.get(key)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return ""


def words_of(row: Envelope) -> Words | None:
    """Return the protected words of an event, or None if it has none."""
    match row.payload:
        case events.UserInput(text=text, attachments=attachments):
            pasted = [attachment.text for attachment in attachments if attachment.text]
            return _of_input(row.seq, text, pasted)
        case events.HumanReview(decision=str(decision), question=question):
            text = f"{question} {decision}".strip()
            return Words(row.seq, "decision", text, text) if text else None
        case events.Planner(plan=plan) if plan:
            text = plan_text(plan)
            return Words(row.seq, "plan", cut_to_sentences(text, _LONGEST_PLAN), text)
        case events.Reflection() as reflection:
            return _of_judgment(row.seq, "reflection", reflection_text(reflection))
        case events.Aggregate(results=results):
            return _of_judgment(row.seq, "verdict", verdicts_text(results))
    return None


def _of_judgment(seq: int, label: str, text: str) -> Words | None:
    """Return the words of a reflection or a verdict, within their limit."""
    if not text:
        return None
    return Words(seq, label, cut_to_sentences(text, _LONGEST_JUDGMENT), text)


def reflection_text(reflection: events.Reflection) -> str:
    """Return a reflection in one line: its result, the issues, and the suggestion."""
    results: list[str] = []
    if reflection.pass_ is not None:
        results.append("passed" if reflection.pass_ else "not passed")
    if reflection.confidence is not None:
        results.append(f"confidence {reflection.confidence:g}")
    remarks = [value_text(issue) for issue in reflection.issues]
    remarks.append(reflection.suggestion or "")
    lines = [" ".join(remark.split()) for remark in remarks if remark.strip()]
    return _joined_parts(", ".join(results), "; ".join(lines))


def verdicts_text(verdicts: Iterable[events.Verdict]) -> str:
    """Return verdicts in one line: their counts, and the items that are not correct."""
    verdicts = list(verdicts)
    counts = Counter(verdict.verdict for verdict in verdicts)
    totals = [f"{count} {name}" for name, count in sorted(counts.items())]
    problems = [
        verdict_text(verdict) for verdict in verdicts if verdict.verdict != "correct"
    ]
    return _joined_parts(", ".join(totals), "; ".join(problems))


def _joined_parts(*parts: str) -> str:
    """Return the parts that are not empty, with colons between them."""
    return ": ".join(part for part in parts if part)


def plan_text(plan: Any) -> str:
    """Return a plan as text: a list of tasks as one line each, with their state."""
    tasks = plan if isinstance(plan, list) else None
    if isinstance(plan, dict) and len(plan) == 1:
        (only,) = plan.values()
        tasks = only if isinstance(only, list) else None
    if not tasks or not all(isinstance(task, dict) for task in tasks):
        return value_text(plan)
    lines: list[str] = []
    for task in tasks:
        name = next((task[key] for key in _TASK_NAMES if task.get(key)), None)
        if not isinstance(name, str):
            return value_text(plan)
        lines.append(f"- {name} ({task.get('status') or 'open'})")
    return "\n".join(lines)


# The keys under which clients name a task of a plan.
_TASK_NAMES: Final = ("content", "step", "task", "title", "description")


def _of_input(seq: int, text: str, attachments: Sequence[str]) -> Words | None:
    shown = without_long_pastes(text)
    for attachment in attachments:
        excerpt = cut_to_sentences(attachment.strip(), _PASTED_CHARS)
        shown = f"{shown}\n{excerpt}".strip()
    if not shown.strip():
        return None
    return Words(seq, "user", shown, text)


_FENCED: Final = re.compile(
    r"^(?P<fence>```|~~~)[^\n]*\n.*?^(?P=fence)[ \t]*$", re.DOTALL | re.MULTILINE
)
_PARAGRAPH: Final = re.compile(r"\n[ \t]*\n")
# A line of code, of a log, of a table, or of other output of a program.
_OUTPUT_LINE: Final = re.compile(
    r"\s{4,}\S|\t|[-+>|<{}\[\]#/*$@]|\s*\d{4}-\d\d-\d\d|\s*\S+:\d+(?::\d+)?[: ]"
    r"|\s*(?:at|File|import|from|def|class|func|const|let|var|return|if|for)\b"
    r"|.*[;{}]\s*$"
)


def without_long_pastes(text: str) -> str:
    """Return a message with the middle of long pasted parts cut out.

    Short messages, and the words around pasted parts, stay as they are.
    """
    if len(text) <= _LONGEST_MESSAGE:
        return text
    parts: list[str] = []
    position = 0
    for fenced in _FENCED.finditer(text):
        parts.append(_prose(text[position : fenced.start()]))
        parts.append(_pasted(fenced[0]))
        position = fenced.end()
    parts.append(_prose(text[position:]))
    return _document("".join(parts))


def _pasted(text: str) -> str:
    return cut_to_sentences(text, _PASTED_CHARS)


def _prose(text: str) -> str:
    """Return text between fenced parts, with cuts in the output of programs."""
    paragraphs = _PARAGRAPH.split(text)
    shown: list[str] = []
    for paragraph in paragraphs:
        lines = paragraph.splitlines()
        output = sum(1 for line in lines if _OUTPUT_LINE.match(line))
        is_output = len(lines) > 2 and output * 2 > len(lines)
        is_long = len(paragraph) > 2 * _PASTED_CHARS
        shown.append(_pasted(paragraph) if is_output and is_long else paragraph)
    return "\n\n".join(shown)


def _document(text: str) -> str:
    """Return the beginning and the end of prose that is too long for a message."""
    return cut_to_sentences(text, _LONGEST_PROSE)


def _total(words: Iterable[Words]) -> int:
    return sum(part.tokens for part in words)


def _judgments_of(content: Protected) -> list[Words]:
    return [part for part in content.words if part.label in JUDGMENTS]


def _newest_judgments(
    content: Protected, most: int, *, traces: bool = False
) -> Protected:
    """Keep the newest reflections and verdicts, as far as they fit.

    most:   the tokens of all that stay.
    traces: whether the newest reflection and the newest verdict stay in a few words if
            they do not fit.
    """
    room = most
    left_out: set[int] = set()
    kinds_shown: set[str] = set()
    shorter: dict[int, Words] = {}
    for judgment in reversed(_judgments_of(content)):
        is_newest = judgment.label not in kinds_shown
        kinds_shown.add(judgment.label)
        if judgment.tokens <= room:
            room -= judgment.tokens
        elif traces and is_newest:
            trace = _cut(judgment, _TRIMMED_MESSAGE)
            shorter[judgment.seq] = trace
            room = max(0, room - trace.tokens)
        else:
            left_out.add(judgment.seq)
    if any(shorter[part.seq] != part for part in content.words if part.seq in shorter):
        words = [shorter.get(part.seq, part) for part in content.words]
        content = replace(content, words=tuple(words), shortened_judgments=True)
    return _without(content, left_out)


def _without_judgments(content: Protected) -> Protected:
    """Leave out the reflections and verdicts that still stand."""
    rest = _without(content, {part.seq for part in _judgments_of(content)})
    return replace(rest, shortened_judgments=False)


def _without_oldest_judgments(content: Protected, most: int) -> Protected:
    """Leave out the oldest reflections and verdicts until all others fit.

    most: the tokens of all that stay.
    """
    left_out: set[int] = set()
    judgments = _judgments_of(content)
    total = _total(judgments)
    for judgment in judgments:
        if total <= most:
            break
        total -= judgment.tokens
        left_out.add(judgment.seq)
    return _without(content, left_out)


def _without(content: Protected, judgments: Collection[int]) -> Protected:
    """Return the content without the judgments of these seqs."""
    words = [part for part in content.words if part.seq not in judgments]
    left_out = sorted((*content.left_out_judgments, *judgments))
    return replace(content, words=tuple(words), left_out_judgments=tuple(left_out))


def _without_pasted(content: Protected) -> Protected:
    """Cut everything that is longer than a message, from the longest on."""
    words = list(content.words)
    total = _total(words)
    by_length = sorted(range(len(words)), key=lambda index: -len(words[index].text))
    for index in by_length:
        part = words[index]
        if total <= content.budget or len(part.text) <= _LONGEST_MESSAGE:
            break
        words[index] = _cut(part, _LONGEST_MESSAGE // 2)
        total -= part.tokens - words[index].tokens
    return _with_shorter(content, words)


def _shortened(content: Protected) -> Protected:
    """Cut messages without a constraint to their first words, the oldest first."""
    return _with_first_words(content, _SHORT_MESSAGE)


def _trimmed(content: Protected) -> Protected:
    """Cut them to a few words."""
    return _with_first_words(content, _TRIMMED_MESSAGE)


def _with_first_words(content: Protected, chars: int) -> Protected:
    """Cut messages to this length, except the newest part that is no judgment."""
    words = list(content.words)
    total = _total(words)
    newest = max(
        (index for index, part in enumerate(words) if part.label not in JUDGMENTS),
        default=0,
    )
    for index, part in enumerate(words[:newest]):
        if total <= content.budget:
            break
        is_long = len(part.text) > chars
        if part.label == "user" and is_long and not part.constraints:
            words[index] = _cut(part, chars)
            total -= part.tokens - words[index].tokens
    return _with_shorter(content, words)


def _with_shorter(content: Protected, words: Sequence[Words]) -> Protected:
    """Return the content with these words in place of its own, some of them shorter."""
    is_shorter = content.shortened or tuple(words) != content.words
    return replace(content, words=tuple(words), shortened=is_shorter)


def _only_constraints(content: Protected) -> Protected:
    """Leave out old messages without a constraint; of others keep the constraints."""
    words: list[Words] = []
    left_out: list[int] = []
    shortened = content.shortened
    total = _total(content.words)
    for part in content.words:
        reduced: Words | None = part
        is_reducible = part.label == "user" and not part.is_repeated
        if total > content.budget and is_reducible:
            text = " ".join(part.constraints)
            reduced = part._replace(text=text) if text else None
            total -= part.tokens - (reduced.tokens if reduced else 0)
        if reduced is None:
            left_out.append(part.seq)
        else:
            words.append(reduced)
            if reduced != part:
                shortened = True
    return replace(
        content,
        words=tuple(words),
        left_out=tuple(left_out),
        shortened=shortened,
    )


def _newest(content: Protected) -> Protected:
    """Leave out the oldest words until the rest fits."""
    words = list(content.words)
    left_out = list(content.left_out)
    total = _total(words)
    while words and total > content.budget:
        oldest = words.pop(0)
        total -= oldest.tokens
        left_out.append(oldest.seq)
    return replace(content, words=tuple(words), left_out=tuple(sorted(left_out)))


def _cut(words: Words, chars: int) -> Words:
    return words._replace(text=cut_to_sentences(words.text, chars))


# After the judgments, a budget shortens other content in these steps: the least
# important content first.
_STEPS: Final = (
    _without_pasted,
    _shortened,
    _trimmed,
    _only_constraints,
    _newest,
)
