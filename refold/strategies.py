"""What decides what a model is sent: strategies, summarizers, and how tokens count."""

from refold.opener import for_agent
from refold.projections.context.abridged import Abridged
from refold.projections.context.compaction import (
    Compaction,
    Source,
    Summarizer,
    Written,
    batch,
    held_back,
    oldest_turns,
    oldest_units,
    over_budget,
    side_by_side,
)
from refold.projections.context.outline import Detail, Outline
from refold.projections.context.strategies.spec import STRATEGIES, parse, register
from refold.projections.context.strategy import Manner, Shown, Strategy
from refold.projections.context.view import View
from refold.projections.models import (
    ModelInfo,
    Prices,
    price_of,
    register_model,
    window_of,
)
from refold.projections.tokens import Calibrated, TokenCounter
from refold.store.vault import Vault

__all__ = [
    "STRATEGIES",
    "Abridged",
    "Calibrated",
    "Compaction",
    "Detail",
    "Manner",
    "ModelInfo",
    "Outline",
    "Prices",
    "Shown",
    "Source",
    "Strategy",
    "Summarizer",
    "TokenCounter",
    "Vault",
    "View",
    "Written",
    "batch",
    "for_agent",
    "held_back",
    "oldest_turns",
    "oldest_units",
    "over_budget",
    "parse",
    "price_of",
    "register",
    "register_model",
    "side_by_side",
    "window_of",
]
