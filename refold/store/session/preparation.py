"""Prepare a model call: compact until the context fits the model's window."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Final

from refold.domain import errors
from refold.domain.tokens import estimate
from refold.projections.context.budget import ExtraArgs
from refold.projections.context.outline import Outline
from refold.projections.context.strategy import Strategy
from refold.projections.tokens import tokens_of
from refold.store import contexts
from refold.store.compactions import Compactor
from refold.store.session.core import SessionCore, read_snapshot, show

if TYPE_CHECKING:
    from refold.projections.context.compaction import Summarizer
    from refold.projections.context.view import View

# No tokenizer of a model makes more tokens than this of one estimated token.  Texts of
# line breaks come closest.
_MOST_TOKENS_PER_ESTIMATED: Final = 10


def prepare(
    session: SessionCore,
    strategy: str | Strategy | None,
    extras: ExtraArgs,
    *,
    summarizer: Summarizer | None,
    wait: bool,
    model: str | None,
) -> View:
    """Do what ``Session.prepare`` documents, without revealing placeholders."""
    parts = contexts.redact_parts(session.writer, session.user_id, extras)
    viewer, chosen, snapshot = read_snapshot(session, strategy, prepares=True)
    chosen_summarizer = summarizer or session.upkeep.summarizer
    compactor = Compactor.of(session.writer, viewer, chosen, chosen_summarizer)
    if not wait:
        name_of_work = (session.stream, chosen.fingerprint)
        session.upkeep.background.ask(name_of_work, compactor.step)
    outline = viewer.current(chosen, snapshot)
    if wait and compactor.is_due(outline):
        outline = compactor.catch_up(outline)
        view = show(session, viewer, chosen, parts, outline=outline)
    else:
        view = show(session, viewer, chosen, parts, snapshot=snapshot, outline=outline)
    window = parts.extras.window_tokens
    if chosen.manner.window:
        window = min(window, chosen.manner.window)
    # The provider shortens such a view with its edits of the context.
    is_shortened = "context_management" in view.api
    pressed: Outline | None = None  # the outline after the last forced compaction
    has_cut_inputs = False  # whether the user's own words were left out, too
    while True:
        excess = _excess(chosen, view, window, model)
        if not excess or is_shortened:
            return view
        pressed = compactor.press(excess, window, pressed) if wait else None
        if pressed is not None:
            view = show(session, viewer, chosen, parts)
            continue
        if not wait or not view.protected or has_cut_inputs:
            remedy = _remedy(
                chosen, view, parts, wait=wait, is_excluded=outline.excluded
            )
            raise errors.ContextTooLarge(window + excess, window, remedy=remedy)
        # Nothing else is left to compact.  A smaller window leaves out user inputs.
        smaller_window = max(1, view.tokens - excess)
        smaller = replace(parts.extras, window_tokens=smaller_window)
        parts = parts._replace(extras=smaller)
        view = show(session, viewer, chosen, parts)
        has_cut_inputs = True


def _excess(strategy: Strategy, view: View, window: int, model: str | None) -> int:
    """Return by how many estimated tokens a view exceeds the window, or 0.

    The window of the strategy applies in addition to that of the caller or model.

    model: count with this model's tokenizer; None counts only estimated tokens.
    """
    estimated = view.tokens - view.extras.window_tokens
    excess = max(0, estimated, strategy.over_window(view.tokens))
    # Counting is slow.  A view that is this small fits with any tokenizer.
    surely_fits = view.tokens * _MOST_TOKENS_PER_ESTIMATED < window
    if model is None or surely_fits:
        return excess
    real = tokens_of(view, model=model)
    # The excess is in real tokens: convert it to estimated ones.
    return max(excess, ceil((real - window) * view.tokens / max(real, 1)))


def _remedy(
    strategy: Strategy,
    view: View,
    parts: contexts.CallerParts,
    *,
    wait: bool,
    is_excluded: bool,
) -> str:
    """Return the remedy for a context that exceeds its window.

    is_excluded: whether the strategy excludes the agent of the newest response.
    """
    if not strategy.compacts:
        return f"{strategy.name} makes no summaries, turn_window does"
    if is_excluded:
        return (
            "nothing is compacted, because exclude_agents names the agent of the "
            "newest response"
        )
    if not wait:
        return "a summary is written in the background: wait=True waits for it"
    prompt = estimate(view.system or "")
    extras = estimate(parts.extras.dump())
    return (
        f"the system prompt has about {prompt:,} tokens, the sections of the caller "
        f"have {extras:,}, and the strategy cannot compact the rest further"
    )
