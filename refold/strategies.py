"""What decides what a model is sent: strategies, summarizers, and how tokens count."""

from refold.opener import (
    for_agent,
)
from refold.projections.context.abridged import (
    Abridged,
)
from refold.projections.context.compaction import (
    Source,
    Summarizer,
    Written,
)
from refold.projections.context.strategies.spec import (
    STRATEGIES,
    parse,
    register,
)
from refold.projections.context.strategy import (
    Strategy,
)
from refold.projections.context.view import (
    View,
)
from refold.projections.models import (
    ModelInfo,
    Prices,
    price_of,
    register_model,
    window_of,
)
from refold.projections.tokens import (
    Calibrated,
    TokenCounter,
)

__all__ = [
    "STRATEGIES",
    "Abridged",
    "Calibrated",
    "ModelInfo",
    "Prices",
    "Source",
    "Strategy",
    "Summarizer",
    "TokenCounter",
    "View",
    "Written",
    "for_agent",
    "parse",
    "price_of",
    "register",
    "register_model",
    "window_of",
]
