"""Everything that Refold raises on purpose."""

from refold.domain.errors import *  # noqa: F403  # what it names
from refold.domain.errors import __all__ as __all__
