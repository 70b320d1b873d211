"""A law holds for every log under every strategy: a log is drawn once for all."""

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
    """Test a law on so many examples of what is drawn, under each strategy.

    To draw a log takes longer than most laws do.  A failure names the strategy.
    """

    def decorate(law: Law) -> Callable[[], None]:
        def test(values: dict[str, Any]) -> None:
            for name, strategy in strategies.items():
                try:
                    law(strategy, **values)
                except Exception as error:
                    error.add_note(f"under the strategy {name}")
                    raise

        test.__name__, test.__doc__ = law.__name__, law.__doc__
        few = settings(max_examples=examples, deadline=None)
        return given(st.fixed_dictionaries(drawn))(few(test))

    return decorate
