"""Strategies, summarizers and token counters, which determine a model's context."""

from refold.opener import for_agent as for_agent
from refold.projections.context.abridged import Abridged as Abridged
from refold.projections.context.compaction import (
    Compaction as Compaction,
    Source as Source,
    Summarizer as Summarizer,
    Written as Written,
    batch as batch,
    held_back as held_back,
    oldest_turns as oldest_turns,
    oldest_units as oldest_units,
    over_budget as over_budget,
    side_by_side as side_by_side,
)
from refold.projections.context.outline import Detail as Detail, Outline as Outline
from refold.projections.context.strategies.spec import (
    STRATEGIES as STRATEGIES,
    parse as parse,
    register as register,
)
from refold.projections.context.strategy import (
    RULES as RULES,
    Manner as Manner,
    Shown as Shown,
    Strategy as Strategy,
)
from refold.projections.context.view import View as View
from refold.projections.models import (
    ModelInfo as ModelInfo,
    Prices as Prices,
    price_of as price_of,
    register_model as register_model,
    window_of as window_of,
)
from refold.projections.tokens import (
    Calibrated as Calibrated,
    TokenCounter as TokenCounter,
)
from refold.store.vault import Vault as Vault
