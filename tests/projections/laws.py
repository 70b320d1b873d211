"""Laws that hold for every log under every strategy; each log is drawn once for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import given, settings, strategies as st

from refold.projections.context.strategy import Strategy

Law = Callable[..., None]


def under(
    strategies: Mapping[str, Strategy],
    *,
    examples: int,
    **drawn: st.SearchStrategy[Any],
) -> Callable[[Law], Callable[[], None]]:
    """Test a law under each strategy, with the same drawn values for all of them.

    Drawing a log takes longer than most laws do.  A failure names the strategy.

    examples: the number of draws.
    drawn:    the law's arguments besides the strategy.
    """

    def decorate(law: Law) -> Callable[[], None]:
        def test(values: dict[str, Any]) -> None:
            for name, strategy in strategies.items():
                try:
                    law(strategy, **values)
                except Exception as error:
                    error.add_note(f"under the strategy {name}")
                    raise

        test.__name__ = law.__name__
        test.__doc__ = law.__doc__
        limited = settings(max_examples=examples, deadline=None)
        return given(st.fixed_dictionaries(drawn))(limited(test))

    return decorate
