"""Rendering: makes a view from an outline and the events that the outline names.

``render`` collects pieces in this order: the caller's examples, the memory layers, the
summaries, the exchanges that stay raw after them, and the raw part of the session.
``ExchangeRenderer`` makes the pieces of an exchange.  ``_drafts`` joins pieces into
messages whose roles alternate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from refold.domain import events
from refold.domain.canonical import text_digest
from refold.domain.envelope import Envelope
from refold.domain.errors import counted
from refold.domain.parts import estimate_with_media
from refold.domain.stubs import Read, no_blobs
from refold.domain.tokens import MESSAGE_OVERHEAD, estimate, estimate_text
from refold.projections.context import budget, limits, text as markup, units, view
from refold.projections.context.compaction import note_lines, summary_text
from refold.projections.context.edits import Edit
from refold.projections.context.media import SECTION, Media
from refold.projections.context.outline import (
    CoveredEvent,
    Outline,
    PlanEvent,
    ProtectedEvent,
)
from refold.projections.context.provider import (
    ProviderBlocks,
    halves,
    is_of_provider,
)
from refold.projections.context.strategy import Manner, Shown, Strategy, user_text
from refold.projections.context.text import (
    THINKING,
    Block,
    Numbered,
    Role,
    tagged,
    text_block,
)
from refold.projections.context.view import Origin, View, ViewSpan

if TYPE_CHECKING:
    from refold.projections.context.client_summaries import ClientSummary
    from refold.projections.context.protected import Protected, Words

_Rows = Sequence[Envelope]
_SummaryPayloads = Mapping[int, events.Event]
OPENING: Final = "(The session begins with the agent.)"
_ONWARD: Final = "(The agent went on.)"
# Tells the agent that it wrote the summaries: it is the "I" in them.
# ``_AUTHOR_BEFORE`` is the sentence of earlier rules.
_AUTHOR: Final = "“I” in them is you, the agent. The task continues after them."
_AUTHOR_BEFORE: Final = "“I” in them is you, the agent; the task goes on behind them."
_INTRODUCTION: Final = "Earlier parts of this session, in short, oldest first."
# Explains the notation of summaries to a reader who sees one for the first time.
_NOTATION: Final = (
    "A turn is a message of the user and the work after it. A number after a name is "
    "the last turn that mentioned it, and […12…] stands for 12 characters left out."
)
# Introduces the protected content.  ``_PROTECTED_BY_TURN`` is for views without seqs.
_PROTECTED_INTRODUCTION: Final = (
    "Earlier words of the user, as they were, oldest first, each with its number in "
    "the log. Instructions and constraints in them hold until a later message changes "
    "them."
)
# The meanings of labels that are not clear by themselves.
_LABELS: Final = {
    "decision": "a decision is a person's answer to a question or to a call",
    "plan": "the plan is the current one",
    "reflection": "a reflection is your own judgment of your work",
    "verdict": "a verdict is the judgment of results, item by item",
}
_PROTECTED_BY_TURN: Final = (
    "Earlier words of the user, as they were, oldest first, each with the number of "
    "its turn. Instructions and constraints in them hold until a later message changes "
    "them."
)
_CLIENT_SUMMARY: Final = (
    "Before turn {}, the client replaced the history by this summary of its own, which "
    "stays as the client sent it:"
)
_OLDER_CLIENT_SUMMARY: Final = (
    "Before turn {}, the client replaced the history by this summary, which stays as "
    "the client sent it. Work that it calls open may be done since:"
)
_END_OF_CLIENT_SUMMARY: Final = "(Here the client's summary ends.)"
_BEGIN: Final = "===== EARLIER CONVERSATION, COMPRESSED ====="
_END: Final = "===== END OF THE COMPRESSED CONVERSATION ====="
_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]")
_ID_LENGTH: Final = 64
_NAME_LENGTH: Final = 128
_DIGEST_LENGTH: Final = 8
_PAUSED: Final = "pause_turn"
_CLEARED: Final = "its result was cleared"
# Under earlier rules, a view has only images of the Messages API, within the limit.
_RULES_WITH_MEDIA: Final = 2
# From these rules on, a message of the user is only named where a later one
# repeats it.
_RULES_WITH_REPETITIONS: Final = 3
# From these rules on, a view says so if it shows no word of the user.
_RULES_WITH_NOTES: Final = 4
# From these rules on, words of the user give way to a window only if the view then
# fits.
_RULES_WITH_USEFUL_CUTS: Final = 5
# From these rules on, neighboring messages that later ones repeat are named together.
_RULES_WITH_JOINED_REFERENCES: Final = 5
# From these rules on, headings explain the notation of what follows.
_RULES_WITH_EXPLANATIONS: Final = 6
# From these rules on, the heading has the plain sentence about the author.
_RULES_WITH_PLAIN_HEADING: Final = 7
# From these rules on, thinking that stands alone is shown with the rest of its answer.
_RULES_WITH_WHOLE_ANSWERS: Final = 8
# From these rules on, the heading of a client's summary says that it is old.
_RULES_WITH_OLD_CLIENT_SUMMARIES: Final = 8
# From these rules on, long results give way to a window before words of the user do.
_RULES_WITH_SHORT_RESULTS: Final = 8
# From these rules on, a trace of the newest judgments stays next to many words.
_RULES_WITH_TRACES: Final = 9
# From these rules on, a long message is never cut inside a placeholder.
_RULES_WITH_WHOLE_PLACEHOLDERS: Final = 4
_NO_WORDS: Final = (
    "(There is no room for earlier words of the user; the log has them all.)"
)
# The types of events that can contain a summary of the client.
_WITH_TEXT: Final = (events.UserInput, events.AgentResponse)
# A message may take this fraction of the window: one by this number.
_MESSAGES_PER_WINDOW: Final = 4
# The shortest results that make room for words of the user.
_SHORTEST_RESULT: Final = 250  # tokens
# If a view is still too large, the room for its results shrinks by at least this
# fraction: one by this number.
_FEWER_RESULTS: Final = 8
# If a strategy names a window smaller than this, messages are limited as for this one.
_SMALLEST_WINDOW: Final = 4_000  # tokens


def render(
    strategy: Strategy,
    outline: Outline,
    events: Iterable[Envelope],
    *,
    summaries: Iterable[Envelope] = (),
    extras: budget.Extras = budget.NO_EXTRAS,
    budgets: budget.Budgets | None = None,
    read: Read = no_blobs,
    remembered: dict[str, Any] | None = None,
    taken_ids: Collection[str] = (),
) -> View:
    """Render a session under ``strategy`` as a view that the Messages API accepts.

    events:    the events of the main stream, oldest first, at least those at
               ``outline.reads()``.  Others are ignored, so a whole log works with every
               outline of it.
    summaries: the entries of the derived stream, at least ``outline.shown_summaries``.
    budgets:   the most tokens of each section of ``extras``.  With budgets, even with
               an empty mapping, extras that exceed the window are left out too, and
               ``View.cuts`` names them.  With None, all extras are sent.
    read:      returns the blob of an image or document that the size guard moved.
    remembered: values of earlier calls for the same strategy and events, which are used
               again.  The caller passes a new one if a stored event changes.
    taken_ids: ids of calls in messages that the caller puts before the view, so no call
               of the view gets them.

    Budgets never cut the events of the session: ``View.over_budget`` is the number of
    tokens by which the whole exceeds the window.  ``View.extras`` are the extras that
    fit; rendering with them gives the same view again.  ``View.cuts`` also names each
    image or document that the view leaves out.

    Raises ValueError if the newest event or a summary is missing, and InvalidEvent for
    a budget below 0 or of an unknown section.
    """
    if budgets is None:
        return _render(
            strategy, outline, events, summaries, extras, read, remembered, taken_ids
        )
    events = list(events)
    summaries = list(summaries)
    fitting, cuts = extras.within_budgets(budgets)
    view = _render(
        strategy, outline, events, summaries, fitting, read, remembered, taken_ids
    )
    if view.over_budget:
        fitting, more_cuts = fitting.within_window(view.tokens)
        cuts += more_cuts
        if fitting != view.extras:
            view = _render(
                strategy,
                outline,
                events,
                summaries,
                fitting,
                read,
                remembered,
                taken_ids,
            )
    return replace(view, cuts=(*cuts, *view.cuts))


def _render(
    strategy: Strategy,
    outline: Outline,
    events: Iterable[Envelope],
    summaries: Iterable[Envelope],
    extras: budget.Extras,
    read: Read,
    remembered: dict[str, Any] | None,
    taken_ids: Collection[str],
) -> View:
    """Render, and shorten protected content if the view exceeds the window."""
    pieces = _Pieces.of(strategy, outline, events, summaries, extras, read, taken_ids)
    pieces = replace(pieces, remembered=remembered)
    has_note = strategy.rules >= _RULES_WITH_NOTES
    most = _protected_budget(outline, extras)
    pieces = pieces.with_client_summaries(limits.client_summary_tokens(most))
    whole = pieces.with_protected(most, has_note=has_note)
    if not whole.over_budget:
        return pieces.view(whole)
    has_content = whole.has_words or bool(pieces.client_summaries)
    if has_content and strategy.rules >= _RULES_WITH_USEFUL_CUTS:
        least = pieces.with_client_summaries(0).with_protected(None, has_note=False)
        if least.over_budget:
            # The view exceeds the window even without protected content.  So cutting
            # that content would not help.
            return pieces.view(whole)
        if strategy.rules >= _RULES_WITH_SHORT_RESULTS:
            whole_results = pieces
            sizes = whole_results.result_tokens
            room = sum(sizes) - whole.over_budget
            result_limit = _common_limit(sizes, room)
            while whole.over_budget and result_limit >= _SHORTEST_RESULT:
                pieces = whole_results.with_short_results(result_limit)
                whole = pieces.with_protected(most, has_note=has_note)
                # Images in results keep their size, so each round makes some progress.
                room -= max(whole.over_budget, room // _FEWER_RESULTS)
                result_limit = _common_limit(sizes, room)
            pieces = pieces.naming_short_results(whole_results)
    if pieces.client_summaries:
        # The user's own words matter more than the client's summary.
        room = max(0, pieces.client_summary_tokens - whole.over_budget)
        pieces = pieces.with_client_summaries(room)
        whole = pieces.with_protected(most, has_note=has_note)
    most = min(outline.protected_tokens, most)
    while whole.over_budget and whole.has_words:
        most = max(0, most - whole.over_budget)
        whole = pieces.with_protected(most, has_note=has_note)
    if whole.over_budget and has_note and not whole.has_words:
        # Not even the note about the words has room.
        whole = pieces.with_protected(most, has_note=False)
    return pieces.view(whole)


# The names of remembered values: protected content with what it depends on, newest
# first, and one content with its text.
_PROTECTED: Final = "protected"
_TEXT: Final = "protected text"
# A view that is over the window tries several lengths of protected content.
_MOST_CONTENTS: Final = 4


class _Basis(NamedTuple):
    """Everything that the protected content of a view depends on, besides its events.

    most:      its budget in tokens.
    events:    the events that summaries stand for.
    plans:     those of the current plan.
    edits:     the client's edits of its history.
    raw_seqs:  the events that stay raw behind the summaries.
    raw:       the messages of the user among them; None if repetitions stay.
    raw_turns: the numbers of their turns.
    client_summaries: the texts of the client's summaries in the view.
    """

    most: int
    events: Sequence[CoveredEvent]
    plans: Sequence[ProtectedEvent | PlanEvent]
    edits: Sequence[Edit]
    raw_seqs: frozenset[int | None]
    raw: Sequence[tuple[str, int]] | None
    raw_turns: Sequence[int | None]
    client_summaries: Sequence[str]


class _Whole(NamedTuple):
    """All pieces of a view, with protected content of some length.

    summaries:   the summaries, with the protected content after them.
    pieces:      all pieces of the view.
    content:     the words of people in the view.
    tokens:      the cost of the view.
    over_budget: the tokens by which the view exceeds a window or a limit.
    """

    summaries: Sequence[Piece]
    pieces: Sequence[Piece]
    content: Protected | None
    tokens: int
    over_budget: int

    @property
    def has_words(self) -> bool:
        """Whether the view shows words of people."""
        return self.content is not None and bool(self.content.words)


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The parts of a view, except the protected content.

    These parts are rendered once.  The protected content is then added in several
    lengths, if the view is too long.

    rows:             the events that the view needs.
    returned:         the blocks that go back to the provider, if the rules send any.
    before_summaries: the examples and the memory.
    behind_summaries: the compacted exchanges that stay raw, each with its pieces.
    raw:              the exchanges that no summary replaces.
    left_out:         the note that counts messages which are not shown.
    insertions:       the pieces that go into the last message of the user.
    cuts:             the parts of messages that the view leaves out.
    hidden:           the events that the view does not show at all.
    events:           the events of the session that were read.
    client_summaries: the client's summaries that summaries of Refold replace.
    remembered:       values of earlier views of the same events.
    """

    strategy: Strategy
    outline: Outline
    extras: budget.Extras
    rows: _Rows
    returned: ProviderBlocks | None
    before_summaries: Sequence[Piece]
    summaries: Sequence[Piece]
    behind_summaries: Sequence[Sequence[Piece]]
    left_out: Sequence[Piece]
    raw: Sequence[Piece]
    insertions: Sequence[Piece]
    system: _System
    cuts: Sequence[budget.Cut]
    hidden: Sequence[budget.Cut]
    events: _Rows
    client_summaries: Sequence[ClientSummary] = ()
    remembered: dict[str, Any] | None = None

    @classmethod
    def of(
        cls,
        strategy: Strategy,
        outline: Outline,
        events: Iterable[Envelope],
        summaries: Iterable[Envelope],
        extras: budget.Extras,
        read: Read,
        taken_ids: Collection[str],
    ) -> _Pieces:
        """Render everything except the protected content."""
        outline = strategy.as_shown(outline)
        shown = strategy.show(outline)
        manner = strategy.manner
        events = list(events)
        rows = _rows(strategy, outline, shown, events)
        payloads = {envelope.seq: envelope.payload for envelope in summaries}
        has_media = strategy.rules >= _RULES_WITH_MEDIA
        cuts: list[budget.Cut] = []
        returned = None
        if has_media:
            returned = ProviderBlocks.of(rows, manner.sends_back, read)
            for seq, kind, reason in returned.left_out:
                sentence = f"{kind} of seq {seq}: {reason}"
                cuts.append(budget.Cut("provider", 0, 0, sentence))
        shortener = markup.cut_middle
        if strategy.rules >= _RULES_WITH_WHOLE_PLACEHOLDERS:
            shortener = markup.cut_around_placeholders
        renderer = ExchangeRenderer(
            media=Media(read, cuts) if has_media else None,
            limit=_message_limit(manner, extras),
            questions=markup.questions(rows),
            is_cleared=shown.is_cleared,
            clears_inputs=shown.clears_inputs,
            provider_blocks=provider_blocks(rows, manner.sends_back),
            returned=returned,
            names_seqs=strategy.names_seqs,
            shows_notes=strategy.keeps_judgments,
            joins_answers=strategy.rules >= _RULES_WITH_WHOLE_ANSWERS,
            shortener=shortener,
            taken=set(taken_ids),
        )
        before_summaries = [
            # The examples come first, so that the ids of their calls stay unchanged.
            *_examples(extras, renderer),
            *_memory(outline, rows, payloads, extras),
        ]
        # The ids of calls depend on the order in which exchanges are rendered.
        behind_summaries = _raw_behind_summaries(
            outline, rows, renderer, manner.pin_tokens
        )
        raw_spans = units.without(shown.raw, units.joined(chain(*outline.kept)))
        raw = _raw(outline, _within(rows, raw_spans), renderer)
        hidden = _dropped_cuts(outline, shown)
        if has_media and outline.media:
            hidden += _media_cuts(outline, chain(raw, *behind_summaries))
        return cls(
            strategy=strategy,
            outline=outline,
            extras=extras,
            rows=rows,
            returned=returned,
            before_summaries=before_summaries,
            summaries=_summaries(
                manner,
                outline,
                payloads,
                names_seqs=strategy.names_seqs,
                about=_about_summaries(strategy.rules),
            ),
            behind_summaries=behind_summaries,
            left_out=_left_out(shown, names_seqs=strategy.names_seqs),
            raw=raw,
            insertions=_insertions(extras),
            system=_system(outline, rows, extras),
            cuts=cuts,
            hidden=hidden,
            events=events,
        )

    @property
    def protected_rows(self) -> list[Envelope]:
        """The events that protected content consists of."""
        return _protected_rows(self.strategy, self.outline, self.events)

    def with_protected(self, most: int | None, *, has_note: bool) -> _Whole:
        """Return all pieces with protected content in at most ``most`` tokens.

        most:     None leaves the words of people out.
        has_note: whether a note stands in the view if no words of the user have room.
        """
        content = None if most is None else self._protected_content(most)
        summaries = self._summaries_with(content, has_note=has_note)
        pieces = self._all(summaries)
        tokens = self._tokens_of(pieces)
        return _Whole(summaries, pieces, content, tokens, self._over(tokens))

    def _protected_content(self, most: int) -> Protected | None:
        """Return the words of people in the compacted part, in at most ``most`` tokens.

        Events that stay raw after the summaries are not part of it.  Returns None if no
        protected events are left.
        """
        outline = self.outline
        strategy = self.strategy
        if not outline.protected_seqs:
            return None
        whole_seqs: set[int | None] = set()
        for piece in chain.from_iterable(self.behind_summaries):
            if piece.span.kind != "stub":
                whole_seqs |= {seq for seq, _ in piece.blocks}
        raw: dict[str, int] | None = None
        if strategy.names_repetitions and strategy.rules >= _RULES_WITH_REPETITIONS:
            raw = {}
            for row in self.rows:
                if isinstance(row.payload, events.UserInput) and row.seq in whole_seqs:
                    raw[row.payload.text] = row.seq
        turns = None if strategy.names_seqs else outline.protected_turns
        basis = _Basis(
            most=most,
            events=outline.protected_before,
            plans=outline.covered_plans,
            edits=outline.edits,
            raw_seqs=frozenset(self._raw_seqs),
            raw=None if raw is None else tuple(raw.items()),
            raw_turns=tuple((turns or {}).get(seq) for seq in (raw or {}).values()),
            client_summaries=tuple(summary.text for summary in self.client_summaries),
        )
        if self.remembered is None:
            return self._protected_by(basis, raw, turns)
        contents = self.remembered.get(_PROTECTED, ())
        for known_basis, content in contents:
            if known_basis == basis:
                found: Protected = content
                return found
        content = self._protected_by(basis, raw, turns)
        newest_first = ((basis, content), *contents)
        self.remembered[_PROTECTED] = newest_first[:_MOST_CONTENTS]
        return content

    def _protected_by(
        self,
        basis: _Basis,
        raw: Mapping[str, int] | None,
        turns: Mapping[int, int] | None,
    ) -> Protected:
        """Return what people said in the compacted part.

        raw:   the messages of the user that stay raw, with their seqs.
        turns: the numbers of turns by seq; None if the view names seqs.
        """
        # A late import, because only compacted sessions need the module.
        from refold.projections.context.protected import protected

        outline = self.outline
        strategy = self.strategy
        seqs = set(outline.protected_seqs) - basis.raw_seqs
        subjects = {
            seq: subject
            for seq, subject in outline.protected_subjects.items()
            if seq in seqs
        }
        seqs.update(subjects.values())
        return protected(
            [row for row in self.protected_rows if row.seq in seqs],
            basis.most,
            raw=raw,
            turns=turns,
            joins_plans=outline.joins_plans,
            has_notes=outline.keeps_judgments,
            keeps_newest_judgments=strategy.shows_judgments_once,
            subjects=subjects,
            client_summaries=basis.client_summaries,
            replaced=self._replaced,
            names_long_answers=outline.names_long_answers,
            keeps_traces=strategy.rules >= _RULES_WITH_TRACES,
        )

    @property
    def _replaced(self) -> units.Spans:
        """The protected events that the client replaced by its summaries."""
        outline = self.outline
        if not (outline.edits and outline.keeps_client_summaries):
            return ()
        return outline.edited.replaced

    @property
    def _raw_seqs(self) -> set[int | None]:
        """The compacted events that stay raw behind the summaries."""
        seqs: set[int | None] = set()
        for piece in chain.from_iterable(self.behind_summaries):
            seqs.update(seq for seq, _ in piece.blocks)
        return seqs

    def with_client_summaries(self, most: int) -> _Pieces:
        """Return the pieces with the client's summaries, in at most ``most`` tokens.

        A summary that stays raw is not among them.
        """
        covered = {
            summary.seq: summary.turn
            for summary in self.outline.covered_client_summaries
            if summary.seq not in self._raw_seqs
        }
        if not covered:
            return self
        # A late import, because few sessions have a summary of the client.
        from refold.projections.context import client_summaries

        whole: list[ClientSummary] = []
        for row in self.protected_rows:
            if row.seq in covered and isinstance(row.payload, _WITH_TEXT):
                text = row.payload.text.strip()
                turn = covered[row.seq]
                whole.append(client_summaries.ClientSummary(row.seq, turn, text, text))
        return replace(self, client_summaries=client_summaries.shortened(whole, most))

    @property
    def result_tokens(self) -> list[int]:
        """The costs of the results that the view shows."""
        pieces = chain(self.raw, *self.behind_summaries)
        return [piece.tokens for piece in pieces if _is_result(piece)]

    def with_short_results(self, limit: int) -> _Pieces:
        """Return the pieces with each result in about ``limit`` tokens or fewer.

        A result keeps its two ends.
        """
        shorter = partial(
            _with_short_result,
            limit=limit,
            names_seqs=self.strategy.names_seqs,
        )
        return replace(
            self,
            raw=[shorter(piece) for piece in self.raw],
            behind_summaries=[
                [shorter(piece) for piece in group] for group in self.behind_summaries
            ],
        )

    def naming_short_results(self, before: _Pieces) -> _Pieces:
        """Return the pieces with an entry for results that are shorter than before."""
        seqs: list[int] = []
        tokens_before = 0
        tokens = 0
        groups = zip(before._groups(()), self._groups(()), strict=True)
        for whole_pieces, pieces in groups:
            for whole, piece in zip(whole_pieces, pieces, strict=True):
                if piece is not whole:
                    seqs.append(piece.span.first or 0)
                    tokens_before += whole.tokens
                    tokens += piece.tokens
        if not seqs:
            return self
        reason = f"long results were shortened to make room: seqs {_named(seqs)}"
        cut = budget.Cut("results", tokens_before, tokens, reason)
        return replace(self, cuts=(*self.cuts, cut))

    @property
    def client_summary_tokens(self) -> int:
        """The cost of the client's summaries."""
        return sum(summary.tokens for summary in self.client_summaries)

    def _summaries_with(
        self, content: Protected | None, *, has_note: bool
    ) -> list[Piece]:
        """Return the summaries, then those of the client and the protected content.

        has_note: as in ``with_protected``.
        """
        summaries = [*self.summaries]
        if not summaries:
            return summaries
        heading = _CLIENT_SUMMARY
        if self.strategy.rules >= _RULES_WITH_OLD_CLIENT_SUMMARIES:
            heading = _OLDER_CLIENT_SUMMARY
        for summary in self.client_summaries:
            text = _client_summary_text(summary, heading)
            if text:
                _add_protected(summaries, summary.seq, text)
        if content is not None and self._shows(content, has_note=has_note):
            first = content.words[0].seq if content.words else content.seqs_left_out[0]
            _add_protected(summaries, first, self._text_of(content))
        return summaries

    def view(self, whole: _Whole) -> View:
        """Return the view that consists of all these pieces."""
        strategy = self.strategy
        content = whole.content
        drafts = _drafts(whole.pieces)
        if self.insertions:
            _insert(drafts, self.insertions, self.outline.user_seq)
        messages: list[dict[str, Any]] = []
        origins: list[tuple[Origin, ...]] = []
        for draft in drafts:
            blocks = [block for _, block in draft.placed]
            messages.append({"role": draft.role, "content": blocks})
            origins.append(tuple([origin for origin, _ in draft.placed]))
        return View(
            messages=messages,
            system=self.system.text,
            tokens=whole.tokens,
            digest=view.view_digest(self.system.text, messages),
            spans=(
                *self.system.spans,
                *_spans(self._groups(whole.summaries)),
                *(piece.span for piece in self.insertions),
            ),
            over_budget=whole.over_budget,
            strategy=strategy.name,
            fingerprint=strategy.fingerprint,
            at=self.outline.through_seq,
            ref=strategy.ref,
            derived_seq=self.outline.derived_seq,
            raw_tokens=self._raw_tokens,
            origins=tuple(origins),
            extras=self.extras,
            protected=self._protected_seqs(content),
            tools=self.extras.tools,
            cuts=(
                *self.cuts,
                *_client_summary_cuts(self.client_summaries),
                *_protected_cuts(content),
                *self.hidden,
            ),
            stable=strategy.stable_prefix,
            api=_api_parameters(strategy.manner, self.returned),
        )

    def _protected_seqs(self, content: Protected | None) -> tuple[int, ...]:
        """Return the protected events that the view shows."""
        seqs = [summary.seq for summary in self.client_summaries if summary.text]
        if content is not None:
            seqs += [part.seq for part in content.words]
        return tuple(sorted(seqs))

    @property
    def _raw_tokens(self) -> int:
        return sum(piece.tokens for piece in self.raw)

    def _groups(self, summaries: Sequence[Piece]) -> list[Sequence[Piece]]:
        """Return the pieces in order; spans of different groups never join."""
        return [
            [*self.before_summaries, *summaries],
            *self.behind_summaries,
            self.left_out,
            self.raw,
        ]

    def _all(self, summaries: Sequence[Piece]) -> list[Piece]:
        """Return the pieces that the view consists of, with these summaries."""
        pieces = list(chain.from_iterable(self._groups(summaries)))
        if self.returned is None:
            return pieces
        return _without_halves(pieces)

    def _tokens_of(self, pieces: Iterable[Piece]) -> int:
        """Return the cost of the view with these pieces."""
        tokens = self.system.tokens + estimate(self.extras.tools)
        tokens += sum(piece.tokens for piece in pieces)
        return tokens + sum(piece.tokens for piece in self.insertions)

    def _over(self, tokens: int) -> int:
        """Return by how many tokens a view of this size exceeds a window or a limit."""
        return max(
            0,
            tokens - self.extras.window_tokens,
            self.strategy.over_limits(tokens, self._raw_tokens),
        )

    def _shows(self, content: Protected | None, *, has_note: bool) -> bool:
        """Whether the view shows protected content, or a note in its place."""
        if content is None or not self.summaries:
            return False
        if content.words:
            return True
        missing = content.left_out
        if self.strategy.shows_judgments_once:
            missing = content.seqs_left_out
        return has_note and bool(missing)

    def _text_of(self, content: Protected) -> str:
        """Return the protected content as one text."""
        remembered = {} if self.remembered is None else self.remembered
        known, text = remembered.get(_TEXT, (None, ""))
        if known is not content:
            text = self._written(content)
            remembered[_TEXT] = (content, text)
        return str(text)

    def _written(self, content: Protected) -> str:
        rules = self.strategy.rules
        return _protected_text(
            content,
            joins_references=rules >= _RULES_WITH_JOINED_REFERENCES,
            always_names_judgments=self.strategy.shows_judgments_once,
            explains=rules >= _RULES_WITH_EXPLANATIONS,
        )


def _api_parameters(
    manner: Manner, returned: ProviderBlocks | None
) -> events.JsonObject:
    """Return the request's parameters from the strategy and the provider's blocks."""
    parameters = dict(manner.api_parameters or {})
    if returned is not None and returned.container is not None:
        parameters["container"] = returned.container
    return parameters


def _without_halves(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces without calls of the provider's tools that lack their result.

    Results that lack their call are left out as well.  At the end of the view, calls of
    an answer that the provider paused stay, because it continues them.
    """
    whole: list[Piece] = []
    for role, run in groupby(pieces, lambda piece: piece.role):
        message = list(run)
        if role == "user":
            whole += message
            continue
        is_last = message[-1] is pieces[-1]
        blocks: list[Block] = []
        for piece in message:
            blocks += [block for _, block in piece.blocks]
        half = halves(blocks, paused=is_last and message[-1].paused)
        readable_pieces: list[Piece] = []
        for piece in message:
            readable = [
                (seq, block)
                for seq, block in piece.blocks
                if not any(block is other for other in half)
            ]
            if len(readable) == len(piece.blocks):
                readable_pieces.append(piece)
            elif any(block["type"] not in THINKING for _, block in readable):
                readable_pieces.append(piece._replace(blocks=readable))
        whole += _without_lone_thinking(readable_pieces)
    return whole


def _without_lone_thinking(pieces: Sequence[Piece]) -> list[Piece]:
    """Return the pieces of a message without thinking that no answer follows."""
    kept: list[Piece] = []
    is_continued = False
    for piece in reversed(pieces):
        is_thinking = all(block["type"] in THINKING for _, block in piece.blocks)
        if is_thinking and not is_continued:
            continue
        kept.append(piece)
        is_continued = piece.continues
    kept.reverse()
    return kept


def _common_limit(sizes: Iterable[int], room: int) -> int:
    """Return the largest limit such that sizes, each cut to it, fit into ``room``."""
    ascending = sorted(sizes)
    for index, size in enumerate(ascending):
        share = room // (len(ascending) - index)
        if size > share:
            return share
        room -= size
    return ascending[-1] if ascending else 0


def _is_result(piece: Piece) -> bool:
    """Whether the piece consists of results of calls."""
    return all(block["type"] == "tool_result" for _, block in piece.blocks)


def _with_short_result(piece: Piece, limit: int, *, names_seqs: bool) -> Piece:
    """Return the piece; a result over ``limit`` tokens keeps its two ends."""
    limit -= MESSAGE_OVERHEAD
    if piece.tokens - MESSAGE_OVERHEAD <= limit or not _is_result(piece):
        return piece
    shortened = budget.shorten(piece.blocks, limit, names_seqs=names_seqs)
    tokens = sum(estimate_with_media(block) for _, block in shortened)
    if tokens + MESSAGE_OVERHEAD >= piece.tokens:
        return piece
    span = piece.span._replace(kind="stub")
    return piece._replace(blocks=shortened, tokens=tokens + MESSAGE_OVERHEAD, span=span)


def _message_limit(manner: Manner, extras: budget.Extras) -> int:
    """Return the most tokens of one message."""
    window = extras.window_tokens
    if manner.window:
        named = max(manner.window, _SMALLEST_WINDOW)
        window = min(window, named)
    return window // _MESSAGES_PER_WINDOW


def _rows(
    strategy: Strategy, outline: Outline, shown: Shown, events: Iterable[Envelope]
) -> list[Envelope]:
    """Return the events that the view needs, as the strategy sees them."""
    spans = outline.reads(shown.raw)
    edited = outline.edited if outline.edits else None
    rows: list[Envelope] = []
    for event in units.among(spans, events):
        visible = strategy.sees(event)
        if visible is not None and edited is not None:
            visible = edited.shown(visible)
        if visible is not None:
            rows.append(visible)
    newest = rows[-1].seq if rows else None
    if outline.events and newest != outline.through_seq:
        raise ValueError(f"the event at seq {outline.through_seq} was not handed in")
    return rows


def _protected_rows(
    strategy: Strategy, outline: Outline, events: Iterable[Envelope]
) -> list[Envelope]:
    """Return the events with the protected content, as the strategy sees them.

    They include events that the client replaced by a summary.
    """
    spans = outline.protected_reads
    rows: list[Envelope] = []
    if not spans:
        return rows
    for event in units.among(spans, events):
        seen = strategy.sees(event)
        if seen is not None:
            rows.append(seen)
    return rows


def _within(rows: _Rows, spans: units.Spans) -> list[Envelope]:
    if not spans:
        return []
    return [row for row in rows if units.holds(spans, row.seq)]


def _raw(outline: Outline, rows: _Rows, renderer: ExchangeRenderer) -> list[Piece]:
    """Return the pieces of the exchanges that stay raw.

    Events that replace earlier ones come first.
    """
    arranged = units.arrange(rows, open_calls_after=outline.open_calls_after)
    exchanges = list(arranged)
    first = outline.edited.in_place
    if first:
        exchanges.sort(key=lambda exchange: not units.holds(first, exchange[0].seq))
    return [*chain.from_iterable(renderer.groups(exchanges))]


def _left_out(shown: Shown, *, names_seqs: bool) -> list[Piece]:
    """Return a note that counts the messages which are neither shown nor summarized."""
    left_out = shown.left_out
    if left_out is None or not left_out.messages:
        return []
    attributes = {"messages": left_out.messages}
    if names_seqs:
        attributes = left_out._asdict()
    text = tagged("left_out", "", **attributes)
    return [_note(text, ViewSpan("stub", left_out.first, left_out.last))]


def _examples(extras: budget.Extras, renderer: ExchangeRenderer) -> Iterator[Piece]:
    for message in extras.examples:
        content = message["content"]
        blocks = [text_block(content)] if isinstance(content, str) else list(content)
        for block in blocks:
            if block["type"] == "tool_use":
                renderer.take_id(block["id"], 0)
        numbered: Numbered = [(None, block) for block in blocks]
        tokens = estimate_with_media(blocks) + MESSAGE_OVERHEAD
        yield Piece(message["role"], numbered, tokens, ViewSpan("examples"))


def _memory(
    outline: Outline, rows: _Rows, payloads: _SummaryPayloads, extras: budget.Extras
) -> Iterator[Piece]:
    """Yield the memory before the summaries.

    It consists of the user's profile, advice and texts of the caller, the digest of the
    scope, and the agent's notes.  In each layer, texts from the user's other sessions
    come first.
    """
    layers = outline.layers
    yield from _from_other_sessions(extras, "user")
    facts = user_text(_within(rows, layers.facts_shown))
    if facts:
        yield _layer("user", facts, layers.facts_shown)
    if extras.advice_text.strip():
        yield _note(budget.framed(extras.advice_text), ViewSpan("memory"))
    for text in extras.memory:
        if text.strip():
            block = text_block(tagged("memory", text))
            tokens = estimate_text(text) + MESSAGE_OVERHEAD
            yield Piece("user", [(None, block)], tokens, ViewSpan("memory"))
    yield from _from_other_sessions(extras, "scope")
    if layers.scope_shown is not None:
        yield _layer_summary("scope", layers.scope_shown, payloads)
    yield from _from_other_sessions(extras, "notes")
    if layers.written_shown is not None:
        yield _layer_summary("notes", layers.written_shown, payloads)
    new_lines: list[str] = []
    for row in _within(rows, layers.notes_shown):
        new_lines += note_lines(row)
    if new_lines:
        yield _layer("notes", "\n".join(new_lines), layers.notes_shown)


def _from_other_sessions(extras: budget.Extras, layer: str) -> list[Piece]:
    if extras.layers is None:
        return []
    return [_note(text, ViewSpan("memory")) for text in extras.layers.of(layer)]


def _layer(about: str, body: str, spans: units.Spans) -> Piece:
    span = ViewSpan("memory", spans[0][0], spans[-1][1])
    return _note(tagged("memory", body, of=about), span)


def _layer_summary(
    about: str, live: units.LiveSummary, payloads: _SummaryPayloads
) -> Piece:
    text = summary_text(_summary_payload(payloads, live))
    return _note(tagged("memory", text, of=about), _summary_span(live, "memory"))


def _summary_span(live: units.LiveSummary, kind: view.SpanKind = "summary") -> ViewSpan:
    return ViewSpan(kind, live.first, live.last, live.seq)


def _note(
    text: str,
    span: ViewSpan,
    *,
    role: Role = "user",
    overhead: int = MESSAGE_OVERHEAD,
) -> Piece:
    """Return a piece with a text that does not come from an event.

    overhead: the tokens that it costs in addition to its text.
    """
    tokens = estimate_text(text) + overhead
    return Piece(role, [(None, text_block(text))], tokens, span)


def _protected_budget(outline: Outline, extras: budget.Extras) -> int:
    """Return the most tokens of protected content that strategy and window allow."""
    allowed_by_window = limits.protected_tokens(extras.window_tokens)
    return min(outline.protected_budget, allowed_by_window)


def _protected_text(
    content: Protected,
    *,
    joins_references: bool,
    always_names_judgments: bool,
    explains: bool,
) -> str:
    """Return the protected content as one text.

    joins_references: whether neighboring references share a line.
    always_names_judgments: whether judgments that are left out are named even if no
                      words fit.
    explains:         whether the heading explains the labels of the words.
    """
    judgments = _judgments_left_out(content)
    if not content.words:
        notes = [_NO_WORDS] if content.left_out else []
        if judgments and always_names_judgments:
            notes.append(judgments)
        return "\n".join(notes)
    turns = content.turns
    heading = _PROTECTED_INTRODUCTION if turns is None else _PROTECTED_BY_TURN
    if explains:
        heading += _meanings({part.label for part in content.words})
    lines = [heading]
    runs = [[part] for part in content.words]
    if joins_references:
        runs = content.runs()
    for run in runs:
        first = content.number(run[0].seq)
        last = content.number(run[-1].seq)
        if first != last:
            lines.append(f"[{first}-{last}] {_reference(run)}")
            continue
        for part in run:
            name = "" if part.label == "user" else f", {part.label}"
            if part.subject:
                name += f", in answer to: {part.subject}"
            lines.append(f"[{content.number(part.seq)}{name}] {part.text}")
    if content.left_out:
        left_out = _named([content.number(seq) for seq in content.left_out])
        subject = "messages" if turns is None else "messages of turns"
        lines.append(f"(Left out: {subject} {left_out}.)")
    if judgments:
        lines.append(judgments)
    lines.append("(Here the earlier words of the user end.)")
    return "\n".join(lines)


def _meanings(labels: Collection[str]) -> str:
    """Return a sentence that explains these labels; empty if none needs it."""
    meanings = [meaning for label, meaning in _LABELS.items() if label in labels]
    if not meanings:
        return ""
    sentence = "; ".join(meanings)
    return f" {sentence[0].upper()}{sentence[1:]}."


def _judgments_left_out(content: Protected) -> str:
    """Return a note that names the judgments which are not shown; empty if all are."""
    if not content.left_out_judgments:
        return ""
    numbers = dict.fromkeys(map(content.number, content.left_out_judgments))
    place = "" if content.turns is None else "of turns "
    return f"(Left out: reflections and verdicts {place}{_named([*numbers])}.)"


def _reference(run: Sequence[Words]) -> str:
    """Return a reference for neighboring messages that later messages repeat."""
    first = run[0].repeated_in
    last = run[-1].repeated_in
    if first == last:
        return run[0].text
    return f"(as in turns {first}-{last})"


def _client_summary_text(summary: ClientSummary, heading: str) -> str:
    """Return a summary of the client between its heading and the notes about it.

    heading: with ``{}`` for the number of the turn.
    """
    if not summary.text:
        return summary.notice
    parts = [
        heading.format(summary.turn),
        summary.text,
        summary.notice,
        _END_OF_CLIENT_SUMMARY,
    ]
    return "\n".join(part for part in parts if part)


def _client_summary_cuts(summaries: Iterable[ClientSummary]) -> list[budget.Cut]:
    """Name the summaries of the client that the view does not show completely."""
    cuts: list[budget.Cut] = []
    for summary in summaries:
        if summary.is_cut:
            lines = counted(summary.lines_left_out, "line")
            reason = f"the client's summary at seq {summary.seq}: {lines} left out"
            section = "client_summary"
            cuts.append(
                budget.Cut(section, summary.whole_tokens, summary.tokens, reason)
            )
    return cuts


def _add_protected(pieces: list[Piece], first: int, text: str) -> None:
    """Add a text of protected content to the last user piece of the summaries.

    first: the seq of the first event in the text.
    """
    last = max(index for index, piece in enumerate(pieces) if piece.role == "user")
    piece = pieces[last]
    pieces[last] = piece._replace(
        blocks=[*piece.blocks, (first, text_block(text))],
        tokens=piece.tokens + estimate_text(text),
    )


def _named(seqs: Sequence[int]) -> str:
    """Return seqs as they stand in a sentence: ``3, 5-9``."""
    return ", ".join(_named_span(first, last) for first, last in units.spans_of(seqs))


def _named_span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _protected_cuts(content: Protected | None) -> tuple[budget.Cut, ...]:
    if content is None or not content.is_cut:
        return ()
    reasons: list[str] = []
    if content.shortened:
        reasons.append("pasted parts and the oldest messages were shortened")
    if content.left_out:
        count = len(content.left_out)
        were = "was" if count == 1 else "were"
        reasons.append(f"{counted(count, 'message')} {were} left out")
    if content.shortened_judgments:
        reasons.append("the newest reflections or verdicts were shortened")
    if content.left_out_judgments:
        seqs = _named(content.left_out_judgments)
        reasons.append(f"reflections and verdicts were left out: seqs {seqs}")
    reason = "; ".join(reasons)
    return (budget.Cut("protected", content.tokens, content.budget, reason),)


def _dropped_cuts(outline: Outline, shown: Shown) -> list[budget.Cut]:
    """Name the events that are neither shown nor summarized, if there are any."""
    span = outline.raw_span
    if span is None:
        return []
    dropped = units.without((span,), units.joined(shown.raw))
    if outline.edits:
        dropped = units.without(dropped, outline.edited.left_out)
    if not dropped:
        return []
    tokens = outline.dropped_tokens
    for unit in outline.units:
        if units.holds(dropped, unit.first):
            tokens += unit.tokens
    if not tokens:
        return []
    seqs = ", ".join(_named_span(first, last) for first, last in dropped)
    reason = f"the strategy drops these turns without a summary: seqs {seqs}"
    return [budget.Cut("turns", tokens, 0, reason)]


def _media_cuts(outline: Outline, raw: Iterable[Piece]) -> list[budget.Cut]:
    """Name the images and documents in events that are not shown.

    raw: the pieces of events that are shown.
    """
    seqs: set[int | None] = set()
    for piece in raw:
        seqs.update(seq for seq, _ in piece.blocks)
    cuts: list[budget.Cut] = []
    for event in outline.media:
        if event.seq not in seqs:
            reason = f"{event.kind} of seq {event.seq}: its turn is not shown"
            cuts.append(budget.Cut(SECTION, event.tokens, 0, reason))
    return cuts


def _summaries(
    manner: Manner,
    outline: Outline,
    payloads: _SummaryPayloads,
    *,
    names_seqs: bool,
    about: str,
) -> list[Piece]:
    """Return the summaries, oldest first, and the agent's acknowledgement of them.

    about: sentences of the heading about their author and notation.
    """
    pieces: list[Piece] = []
    for index, live in enumerate(outline.summaries):
        summary = _summary_payload(payloads, live)
        if manner.form == "tool":
            pieces += _as_tool_result(live, summary, about)
        elif manner.template:
            pieces.append(_from_template(live, summary, manner.template))
        else:
            introduction = f"{_INTRODUCTION} {about}\n" if index == 0 else ""
            text = _as_text(live, summary, introduction, names_seqs=names_seqs)
            pieces.append(text)
    if not pieces:
        return []
    if manner.form == "acknowledged":
        span = _summary_span(outline.summaries[-1])
        pieces.append(_note(manner.acknowledgement, span, role="assistant"))
    return pieces


def _about_summaries(rules: int) -> str:
    """Return the sentences about the author and the notation of summaries."""
    author = _AUTHOR_BEFORE
    if rules >= _RULES_WITH_PLAIN_HEADING:
        author = _AUTHOR
    if rules < _RULES_WITH_EXPLANATIONS:
        return author
    return f"{author} {_NOTATION}"


def _summary_payload(
    payloads: _SummaryPayloads, live: units.LiveSummary
) -> events.Summary:
    summary = payloads.get(live.seq)
    if not isinstance(summary, events.Summary):
        raise ValueError(f"summary {live.seq} of the derived stream is missing")
    return summary


def _from_template(
    live: units.LiveSummary, summary: events.Summary, template: str
) -> Piece:
    """Return the summary in the words of the strategy's template."""
    text = summary.text
    if not text and "{abridged_history}" not in template:
        text = summary.abridged
    values = {"{summary}": text, "{abridged_history}": summary.abridged}
    # One pass, so that a value that contains a placeholder stays unchanged.
    placeholders = "|".join(map(re.escape, values))
    filled = re.sub(placeholders, lambda match: values[match[0]], template)
    tokens = live.tokens + estimate_text(template) + MESSAGE_OVERHEAD
    return Piece("user", [(None, text_block(filled))], tokens, _summary_span(live))


def _as_text(
    live: units.LiveSummary,
    summary: events.Summary,
    introduction: str,
    *,
    names_seqs: bool,
) -> Piece:
    body = summary_text(summary)
    if summary.abridged and summary.text:
        abridged = tagged("abridged", summary.abridged)
        body = "\n".join([abridged, tagged("text", summary.text)])
    place: dict[str, object] = {"first": live.first, "last": live.last}
    if not names_seqs:
        place = {}
    text = tagged("summary", body, **place, level=live.level)
    block = text_block(introduction + text)
    tokens = live.tokens + MESSAGE_OVERHEAD
    return Piece("user", [(None, block)], tokens, _summary_span(live))


def _as_tool_result(
    live: units.LiveSummary, summary: events.Summary, about: str
) -> list[Piece]:
    """Return the summary as the result of a call of ``memory_compress``.

    about: sentences about the author and the notation.
    """
    tool_use_id = f"toolu_refold_{live.seq}"
    call = {"type": "tool_use", "id": tool_use_id, "name": view.COMPRESS, "input": {}}
    result = {
        "type": "tool_result",
        "tool_use_id": tool_use_id,
        "content": f"{_BEGIN}\n{about}\n{summary_text(summary)}\n{_END}",
    }
    span = _summary_span(live)
    return [
        Piece("assistant", [(None, call)], 0, span),
        Piece("user", [(None, result)], live.tokens + 2 * MESSAGE_OVERHEAD, span),
    ]


def _raw_behind_summaries(
    outline: Outline, rows: _Rows, renderer: ExchangeRenderer, pin_tokens: int
) -> list[list[Piece]]:
    """Return the compacted exchanges that stay raw after the summaries, oldest first.

    These are exchanges that were open at the compaction, the newest user input, and
    pinned events.
    """
    if outline.compacted_through is None:
        return []
    stay_raw = list(outline.kept)
    newest = outline.kept_input
    if newest is not None and not any(units.holds(spans, newest) for spans in stay_raw):
        stay_raw.append(((newest, newest),))
    groups: list[list[Piece]] = []
    for spans in stay_raw:
        exchanges = units.arrange(_within(rows, spans))
        groups += renderer.groups([*exchanges])
    pinned = units.upto(outline.pinned, outline.compacted_through)
    pinned = units.without(pinned, units.joined(chain(*stay_raw)))
    groups += _pinned(_within(rows, pinned), renderer, pin_tokens)
    groups = [group for group in groups if group]
    return sorted(groups, key=lambda group: group[0].span.first or 0)


def _pinned(
    rows: _Rows, renderer: ExchangeRenderer, budget_tokens: int
) -> Iterator[list[Piece]]:
    """Yield the pieces of pinned exchanges, oldest first.

    An exchange that exceeds the budget becomes a stub.
    """
    for exchange in units.arrange(rows):
        pieces = renderer.pieces(exchange, partial=True)
        tokens = sum(piece.tokens for piece in pieces)
        if tokens <= budget_tokens:
            budget_tokens -= tokens
            yield [
                piece._replace(span=piece.span._replace(kind="pinned"))
                for piece in pieces
            ]
            continue
        first = exchange[0].seq
        last = exchange[-1].seq
        place: dict[str, object] = {"first": first, "last": last}
        if not renderer.names_seqs:
            place = {"call": _first_call_id(exchange)}
        text = tagged("pinned", "", **place, tokens=tokens, over_budget=True)
        yield [_note(text, ViewSpan("stub", first, last), overhead=0)]


def _first_call_id(exchange: units.Exchange) -> str | None:
    """Return the id of the first call of an exchange, or of the call it answers."""
    for envelope in exchange:
        if isinstance(envelope.payload, events.ToolCall | events.ToolResult):
            return envelope.payload.call_id
    return None


class _System(NamedTuple):
    """The system prompt, its cost, and its span; all empty without one."""

    text: str | None = None
    tokens: int = 0
    spans: Sequence[ViewSpan] = ()


def _system(outline: Outline, rows: _Rows, extras: budget.Extras) -> _System:
    """Return the system prompt of a view.

    A prompt that the caller provides replaces the session's own.
    """
    text = extras.system
    tokens = estimate_text(text or "")
    seq = None
    if text is None and outline.system_seq is not None:
        row = next(row for row in rows if row.seq == outline.system_seq)
        if isinstance(row.payload, events.SystemPrompt):
            text = row.payload.text
            tokens = row.token_estimate
            seq = row.seq
    if not text or not text.strip():
        return _System()
    return _System(text, tokens, [ViewSpan("system", seq, seq)])


def _insertions(extras: budget.Extras) -> list[Piece]:
    """Return evidence and working memory, which go into the last user message."""
    pieces: list[Piece] = []
    for document in extras.evidence:
        if document.strip():
            text = tagged("evidence", document)
            pieces.append(_note(text, ViewSpan("evidence"), overhead=0))
    if extras.state is not None:
        text = tagged("state", markup.value_text(extras.state))
        pieces.append(_note(text, ViewSpan("state"), overhead=0))
    return pieces


def _spans(groups: Iterable[Sequence[Piece]]) -> Iterator[ViewSpan]:
    """Yield the spans in the order of the view.

    Neighboring spans of events join if they are of the same kind and group.
    """
    for group in groups:
        spans = [piece.span for piece in group]
        for kind, run in groupby(spans, lambda span: span.kind):
            if kind in ("raw", "pinned", "stub"):
                seqs: list[int] = []
                for span in run:
                    seqs += [seq for seq in (span.first, span.last) if seq is not None]
                yield ViewSpan(kind, min(seqs), max(seqs))
            else:
                yield from run


class Piece(NamedTuple):
    """Neighboring blocks of one role.

    tokens: the cost of the blocks, with the overhead of a message.
    span:   the part of the session that they represent.
    paused: whether the provider paused the answer, and continues it in the next one.
    continues: whether the piece continues the answer of the piece before it.
    """

    role: Role
    blocks: Numbered
    tokens: int
    span: ViewSpan
    paused: bool = False
    continues: bool = False

    @property
    def placed(self) -> list[tuple[Origin, Block]]:
        """Each block with its origin."""
        return [(Origin(self.span, seq), block) for seq, block in self.blocks]


def _never_cleared(_: Envelope) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class ExchangeRenderer:
    """Makes the pieces of exchanges, with call ids that are unique in the view.

    limit:           the most tokens of one message.
    media:           shows images and documents; None under the rules before them.
    questions:       the questions that decisions may refer to, by their seq.
    is_cleared:      whether a result is shown as a stub.
    clears_inputs:   whether the calls of such results are shown without arguments.
    provider_blocks: blocks that go back to the provider, by the response's seq.
    returned:        the provider's blocks under rules that send back all of them.
    shortener:       cuts a message that is over the limit.
    taken:           the call ids that the view already contains.
    names_seqs:      whether texts name events by their seqs.
    shows_notes:     whether decisions have the notes of the people who made them.
    joins_answers:   whether the parts of one answer are shown as one message.
    """

    limit: int
    media: Media | None = None
    questions: Mapping[int, str] = field(default_factory=dict)
    is_cleared: Callable[[Envelope], bool] = _never_cleared
    clears_inputs: bool = False
    provider_blocks: Mapping[int, Numbered] = field(default_factory=dict)
    returned: ProviderBlocks | None = None
    shortener: budget.Shortener = markup.cut_around_placeholders
    taken: set[str] = field(default_factory=set)
    names_seqs: bool = False
    shows_notes: bool = False
    joins_answers: bool = False

    def groups(self, exchanges: Sequence[units.Exchange]) -> list[list[Piece]]:
        """Return the pieces of neighboring exchanges, by exchange.

        Some clients record one answer as several responses: its thinking, then its
        text and its calls.  The API refuses thinking alone, so such thinking is shown
        only if the next exchange shows more of the same answer.
        """
        groups = [self.pieces(exchange) for exchange in exchanges]
        if not self.joins_answers:
            return groups
        for index in reversed(range(len(exchanges) - 1)):
            exchange = exchanges[index]
            continuation = groups[index + 1]
            if not continuation or not _is_one_answer(exchange, exchanges[index + 1]):
                continue
            if not groups[index]:
                groups[index] = self._thinking(exchange)
            if groups[index]:
                continuation[0] = continuation[0]._replace(continues=True)
        return groups

    def pieces(self, exchange: units.Exchange, *, partial: bool = False) -> list[Piece]:
        """Return the pieces of an exchange, or an empty list if it shows nothing.

        partial: whether the log may have more events of the exchange.  A call without a
                 result is then shown as text, because its result may exist.
        """
        if isinstance(exchange[0].payload, events.AgentResponse | events.ToolCall):
            return self._response(exchange, partial=partial)
        (envelope,) = exchange
        if isinstance(envelope.payload, events.UserInput):
            if self.media is None:
                user_blocks = markup.user_blocks(envelope.payload)
            else:
                user_blocks = self.media.input_blocks(envelope.seq, envelope.payload)
            numbered: Numbered = [(envelope.seq, block) for block in user_blocks]
            return self._piece("user", numbered, exchange)
        entry = markup.entry_of(envelope.payload, self.questions)
        if entry is None or not (entry.body.strip() or any(entry.attributes.values())):
            return []
        note = ""
        if self.shows_notes and isinstance(envelope.payload, events.HumanReview):
            note = envelope.note
            entry = entry.with_note(note)
        text = entry.text(seq=envelope.seq) if self.names_seqs else entry.text()
        if entry.tag == "system":
            text = markup.system_text(entry.body)
        block = text_block(text)
        pieces = self._piece(entry.role, [(envelope.seq, block)], exchange)
        # The stored estimate does not count the note.
        more = estimate_text(note)
        return [piece._replace(tokens=piece.tokens + more) for piece in pieces]

    def _response(self, exchange: units.Exchange, *, partial: bool) -> list[Piece]:
        """Return the pieces of a response with its calls and their results."""
        first = exchange[0]
        as_text: list[CallWithResult] = []
        calls: list[CallWithResult] = []
        for call in _calls(exchange):
            if partial and call.result is None:
                as_text.append(call)
            else:
                calls.append(call)
        ids = [self.take_id(call.event.call_id, call.envelope.seq) for call in calls]
        own_events = [
            envelope
            for envelope in exchange
            if not isinstance(envelope.payload, events.ToolResult)
        ]
        if self.returned is not None:
            pieces = self._returned(first, own_events, ids, calls, as_text)
            for id_, call in zip(ids, calls, strict=True):
                pieces += self._result(id_, call)
            return pieces
        blocks: Numbered = []
        thinking: Numbered = []
        if isinstance(first.payload, events.AgentResponse):
            thinking = [
                (first.seq, block) for block in markup.thinking_blocks(first.payload)
            ]
            if first.payload.text.strip():
                # The API refuses a last text that ends in white space.
                blocks.append((first.seq, text_block(first.payload.text.rstrip())))
        blocks += [self._call_text(call) for call in as_text]
        blocks += [
            self._tool_use(id_, call) for id_, call in zip(ids, calls, strict=True)
        ]
        if blocks:  # thinking alone is no message
            blocks = [*thinking, *blocks]
        returned = self.provider_blocks.get(first.seq, [])
        pieces = self._piece("assistant", [*returned, *blocks], own_events)
        if returned and pieces:
            tokens = pieces[0].tokens + estimate([block for _, block in returned])
            pieces[0] = pieces[0]._replace(tokens=tokens)
        for id_, call in zip(ids, calls, strict=True):
            pieces += self._result(id_, call)
        return pieces

    def _thinking(self, exchange: units.Exchange) -> list[Piece]:
        """Return the piece of a response that is thinking alone."""
        first = exchange[0]
        numbered: Numbered = []
        if isinstance(first.payload, events.AgentResponse):
            for block in markup.thinking_blocks(first.payload):
                numbered.append((first.seq, block))
        return self._piece("assistant", numbered, exchange)

    def _returned(
        self,
        first: Envelope,
        own_events: _Rows,
        ids: Sequence[str],
        calls: Sequence[CallWithResult],
        as_text: Sequence[CallWithResult],
    ) -> list[Piece]:
        """Return the piece of a response with the provider's blocks in their places."""
        returned = self.returned or ProviderBlocks()
        response = first.payload
        thinking: Numbered = []
        texts: Numbered = []
        paused = False
        if isinstance(response, events.AgentResponse):
            paused = response.stop_reason == _PAUSED
            for block in markup.thinking_blocks(response):
                thinking.append((first.seq, block))
            if response.text.strip():
                # The API refuses a last text that ends in white space.
                texts.append((first.seq, text_block(response.text.rstrip())))
        uses = [self._tool_use(id_, call) for id_, call in zip(ids, calls, strict=True)]
        unanswered = [self._call_text(call) for call in as_text]
        content = returned.content.get(first.seq)
        blocks: Numbered = []
        if content is not None and not as_text:
            blocks = _sendable(_in_order(content, thinking, uses))
        # The API refuses thinking at the end.
        if not blocks or blocks[-1][1]["type"] in THINKING:
            before = returned.before.get(first.seq, [])
            behind = returned.behind.get(first.seq, [])
            blocks = _sendable(
                [*before, *thinking, *texts, *behind, *unanswered, *uses]
            )
        pieces = self._piece("assistant", blocks, own_events)
        tokens = 0
        for _, block in blocks:
            if is_of_provider(block):
                tokens += estimate(block)
        return [
            piece._replace(tokens=piece.tokens + tokens, paused=paused)
            for piece in pieces
        ]

    def _result(self, id_: str, call: CallWithResult) -> list[Piece]:
        """Return the piece of a call's result, or of the note that there is none."""
        if call.result is None:
            seq = call.envelope.seq
            block = markup.result_block(id_, None)
            return [Piece("user", [(None, block)], 0, ViewSpan("raw", seq, seq))]
        envelope, result = call.result
        is_cleared = self.is_cleared(envelope)
        content_of: Callable[[Any], str | list[Block]] = markup.result_content
        if self.media is not None:
            if is_cleared:
                self.media.leave_out_all(envelope.seq, result.content, _CLEARED)
            else:
                content_of = partial(self.media.result_content, envelope.seq)
        block = markup.result_block(id_, result, content_of)
        if not is_cleared:
            return self._piece("user", [(envelope.seq, block)], [envelope])
        text = markup.cleared_text(
            envelope.seq, envelope.token_estimate, names_seq=self.names_seqs
        )
        stub = {**block, "content": text}  # an error remains an error
        span = ViewSpan("stub", envelope.seq, envelope.seq)
        tokens = estimate_text(text) + MESSAGE_OVERHEAD
        return [Piece("user", [(envelope.seq, stub)], tokens, span)]

    def _tool_use(self, id_: str, call: CallWithResult) -> tuple[int | None, Block]:
        arguments = markup.call_input(call.event.arguments)
        if self.clears_inputs and call.result is not None:
            result_envelope, _ = call.result
            if self.is_cleared(result_envelope):
                arguments = {}
        block = {
            "type": "tool_use",
            "id": id_,
            "name": _legal(call.event.tool_name, _NAME_LENGTH, "unnamed"),
            "input": arguments,
        }
        return call.envelope.seq, block

    def _call_text(self, call: CallWithResult) -> tuple[int | None, Block]:
        """Return a call as text, for a call that is shown without its result."""
        seq = call.envelope.seq
        entry = markup.entry_of(call.event)
        if entry is None:
            text = call.event.tool_name
        elif self.names_seqs:
            text = entry.text(seq=seq)
        else:
            text = entry.text(call=call.event.call_id)
        return seq, text_block(text)

    def take_id(self, call_id: str, seq: int) -> str:
        """Return a new id for the call recorded at ``seq``: its call_id if possible.

        The ids depend on the order in which calls are shown.
        """
        legal = _legal(call_id, _ID_LENGTH)
        chosen = legal
        number = 0
        while chosen in self.taken:
            if not self.names_seqs:
                suffix = f"_{number + 2}"
            elif number:
                suffix = f"_{seq}_{number}"
            else:
                suffix = f"_{seq}"
            chosen = legal[: _ID_LENGTH - len(suffix)] + suffix
            number += 1
        self.taken.add(chosen)
        return chosen

    def _piece(self, role: Role, blocks: Numbered, events: _Rows) -> list[Piece]:
        """Return the piece with these blocks, shortened to the limit.

        Without blocks, the list is empty.

        events: the events that the blocks show.
        """
        if not blocks:
            return []
        tokens = sum(event.token_estimate for event in events)
        span = ViewSpan("raw", events[0].seq, events[-1].seq)
        if tokens > self.limit:
            shortened = budget.shorten(
                blocks, self.limit, self.shortener, names_seqs=self.names_seqs
            )
            if shortened is not blocks:
                tokens = sum(estimate_with_media(block) for _, block in shortened)
                blocks = shortened
                span = span._replace(kind="stub")
        return [Piece(role, blocks, tokens + MESSAGE_OVERHEAD, span)]


def _legal(text: str, length: int, empty: str = "") -> str:
    """Return the text if the API accepts it as an id or a name, else a legal one.

    A legal text ends with a digest, so that different texts stay different.

    empty: replaces an empty text, if it is given.
    """
    if not text and empty:
        return empty
    clean = _ILLEGAL.sub("_", text)
    if clean == text and 0 < len(text) <= length:
        return text
    short = clean[: length - _DIGEST_LENGTH - 1]
    return f"{short}_{text_digest(text)[:_DIGEST_LENGTH]}"


def _in_order(
    content: Iterable[tuple[int, Block]], thinking: Numbered, uses: Numbered
) -> Numbered:
    """Return the blocks of a response in the order in which the provider sent them.

    content:  blocks, and the numbers of calls and thinking.
    thinking: all thinking of the response; empty if redaction dropped some of it.
    uses:     the calls of the response.
    """
    places = [entry for _, entry in content if "thinking" in entry]
    keeps_thinking = len(thinking) == len(places)
    blocks: Numbered = [] if keeps_thinking else [*thinking]
    placed = 0
    for seq, entry in content:
        if "type" in entry:
            blocks.append((seq, entry))
        elif "call" in entry and placed < len(uses):
            use_seq, use = uses[placed]
            beside = {name: entry[name] for name in entry if name != "call"}
            blocks.append((use_seq, {**use, **beside}))
            placed += 1
        elif "thinking" in entry and keeps_thinking:
            blocks.append(thinking[int(entry["thinking"])])
    return [*blocks, *uses[placed:]]


def _is_one_answer(exchange: units.Exchange, following: units.Exchange) -> bool:
    """Whether both exchanges are parts of one answer of the model."""
    following_id = following[0].meta.response_id
    if not following_id:
        return False
    return any(
        envelope.meta.response_id == following_id
        for envelope in exchange
        if isinstance(envelope.payload, events.AgentResponse | events.ToolCall)
    )


def _sendable(blocks: Numbered) -> Numbered:
    """Return the blocks without empty texts; none if only thinking is left."""
    filled = [
        (seq, block)
        for seq, block in blocks
        if block["type"] != "text" or str(block.get("text", "")).strip()
    ]
    if all(block["type"] in THINKING for _, block in filled):
        return []
    seq, last = filled[-1]
    if last["type"] == "text" and last["text"] != last["text"].rstrip():
        # The API refuses a last text that ends in white space.
        filled[-1] = (seq, {**last, "text": last["text"].rstrip()})
    return filled


class CallWithResult(NamedTuple):
    """A call and its result, each with its envelope; the result may be missing."""

    envelope: Envelope
    event: events.ToolCall
    result: tuple[Envelope, events.ToolResult] | None = None


def _calls(exchange: units.Exchange) -> list[CallWithResult]:
    calls: list[CallWithResult] = []
    index_of: dict[str, int] = {}
    for envelope in exchange:
        match envelope.payload:
            case events.ToolCall() as call:
                index_of[call.call_id] = len(calls)
                calls.append(CallWithResult(envelope, call))
            case events.ToolResult() as result:
                index = index_of.pop(result.call_id)
                calls[index] = calls[index]._replace(result=(envelope, result))
    return calls


def provider_blocks(rows: _Rows, kinds: Collection[str]) -> dict[int, Numbered]:
    """Return the provider's blocks of these types, by the seq of their response.

    Redacted blocks, and blocks of which a part was moved to a blob, are left out.
    """
    blocks_of: dict[int, Numbered] = {}
    if not kinds:
        return blocks_of
    response = None
    for row in rows:
        match row.payload:
            case events.AgentResponse():
                response = row.seq
            case events.ProviderEdit(blocks=blocks):
                if not response or row.redaction.get("n"):
                    continue
                numbered: Numbered = [
                    (row.seq, block)
                    for block in blocks
                    if block.get("type") in kinds and _is_whole(block)
                ]
                if numbered:
                    blocks_of[response] = numbered
    return blocks_of


def _is_whole(block: Mapping[str, object]) -> bool:
    """Whether the size guard moved no part of the block to a blob."""
    return "[refold: " not in " ".join(map(str, block.values()))


class Draft(NamedTuple):
    """A message to which pieces are added, as blocks with their origins."""

    role: Role
    placed: list[tuple[Origin, Block]]


def _drafts(pieces: Iterable[Piece]) -> list[Draft]:
    """Join pieces into messages that begin with the user and alternate.

    A short user message goes before thinking that would follow an earlier answer of
    the agent, because the API accepts thinking only where the model wrote it: at the
    beginning of an answer, or between its parts.
    """
    drafts: list[Draft] = []
    paused = False
    for piece in pieces:
        previous_role = drafts[-1].role if drafts else None
        if piece.role == "assistant":
            follows_agent = previous_role == "assistant" and not paused
            if previous_role is None:
                drafts.append(Draft("user", [(Origin(), text_block(OPENING))]))
            elif follows_agent and not piece.continues and _begins_with_thinking(piece):
                drafts.append(Draft("user", [(Origin(), text_block(_ONWARD))]))
        if not drafts or drafts[-1].role != piece.role:
            drafts.append(Draft(piece.role, []))
        drafts[-1].placed.extend(piece.placed)
        paused = piece.paused
    return drafts


def _begins_with_thinking(piece: Piece) -> bool:
    _, block = piece.blocks[0]
    return block["type"] in THINKING


def _insert(drafts: list[Draft], pieces: Sequence[Piece], user_seq: int | None) -> None:
    """Insert pieces into the last user message, before the newest input.

    If the message does not have that input, they go after its results.
    """
    user_drafts = [draft for draft in drafts if draft.role == "user"]
    if not user_drafts:
        user_drafts = [Draft("user", [])]
        drafts += user_drafts
    placed = user_drafts[-1].placed
    seqs = [origin.seq for origin, _ in placed]
    if user_seq is not None and user_seq in seqs:
        at = seqs.index(user_seq)
    else:
        results = [block for _, block in placed if block["type"] == "tool_result"]
        at = len(results)
    placed[at:at] = chain(*(piece.placed for piece in pieces))
