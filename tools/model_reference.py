"""Write the table of models in their reference from the packaged tables.

``python -m tools.model_reference`` writes the table in ``docs/reference/models.md``;
with ``--check`` it writes nothing, and exits 1 if the page is out of date.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from refold.projections.models import ModelInfo, Prices, packaged_models

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "models.md"

_MARK = (
    "<!-- models: `make fix` writes the table from refold/projections/data/models -->\n"
)
_HEADINGS = (
    "model", "window", "longest answer", "cached from", "tokenizer",
    "input", "write 5m", "write 1h", "read", "output",
)  # fmt: skip


def page(old: str) -> str:
    """Return the page with a new table."""
    text, _, _ = old.partition(_MARK)
    rows = [_row(_HEADINGS), "|---" * len(_HEADINGS) + "|\n"]
    for info in packaged_models():
        rows += _rows(info)
    return text + _MARK + "\n" + "".join(rows)


def _rows(info: ModelInfo) -> Iterator[str]:
    names = ", ".join(f"`{name}`" for name in (info.name, *info.aliases))
    cells = [
        names,
        _count(info.context_tokens),
        _count(info.max_output_tokens),
        _count(info.cache_min_tokens),
        f"`{info.tokenizer}`",
        *_prices(info.prices),
    ]
    yield _row(cells)
    if info.prices and info.prices.long:
        above = f"… prompts above {_count(info.prices.above)}"
        yield _row([above, "", "", "", "", *_prices(info.prices.long)])


def _prices(prices: Prices | None) -> list[str]:
    if prices is None:
        return ["—"] * 5
    cells = [f"{prices.input:g}"]
    for name in ("cache_write_5m", "cache_write_1h", "cache_read"):
        is_set = name in prices.model_fields_set
        cells.append(f"{getattr(prices, name):g}" if is_set else "—")
    cells.append(f"{prices.output:g}")
    return cells


def _count(number: int | None) -> str:
    return f"{number:,}" if number else "—"


def _row(cells: Sequence[str]) -> str:
    return "".join(f"| {cell} " if cell else "| " for cell in cells) + "|\n"


def main(arguments: Sequence[str]) -> int:
    """Write the page, or check it; return 1 if it is out of date."""
    old = PAGE.read_text(encoding="utf-8")
    if arguments != ["--check"]:
        PAGE.write_text(page(old), encoding="utf-8")
    elif page(old) != old:
        print(f"{PAGE}: out of date: `make fix` writes it")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
