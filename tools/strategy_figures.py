"""Write the figures of docs/explanation/which-strategy.md from the bundled sample.

``python -m tools.strategy_figures`` writes them into the page; with ``--check`` it
writes nothing, and exits 1 if they are out of date.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

import refold
from refold.adapters.importers import read
from refold.projections.compare import Outcome
from refold.store.proofs.explanations import Compared

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "explanation" / "which-strategy.md"
SAMPLE: Final = ROOT / "examples" / "sample" / "agent_run.jsonl"
BEGIN: Final = "<!-- {}: figures that `make fix` writes -->\n"
END: Final = "<!-- end of {} -->\n"
MODEL: Final = "claude-sonnet-5-5"
TIMES: Final = 5
# The limits are scaled to the sample, which is shorter than the defaults expect.
SHORT: Final = (
    "keep_all",
    "turn_window:full_turns=2,cached_turns=2",
    "message_window:context_size=30,tail_keep_size=12,compression_window_size=8",
    "hybrid:threshold_low=1500,threshold_high=3000",
    "recursive_summary",
    "history_summary:trigger_on_history_size_chars=10000,"
    "trigger_on_history_size_chars_when_cache_expiring=8000,"
    "history_tail_size_chars_to_exclude=3000",
    "token_ratio:max_context_tokens=5000,keep_recent_turns=2",
    "tool_clearing:trigger_input_tokens=3000",
    "last_turns:n=3",
    "token_budget:max_tokens=3000",
)
LONG: Final = (
    "keep_all",
    "turn_window",
    "message_window",
    "hybrid",
    "recursive_summary",
    "history_summary",
    "token_ratio:max_context_tokens=30000",
    "tool_clearing:trigger_input_tokens=20000",
    "last_turns",
    "token_budget",
)


def short() -> Compared:
    """Compare strategies with scaled limits on the sample."""
    return _compared(1, SHORT)


def long() -> Compared:
    """Compare strategies with their defaults on the sample several times in a row."""
    return _compared(TIMES, LONG)


def _compared(times: int, specs: tuple[str, ...]) -> Compared:
    """Compare strategies on a session in memory with several runs, an hour apart."""
    (transcript,) = read(SAMPLE)
    with refold.open("memory://") as store:
        session = store.session(user_id="lin", session_id="run")
        for number in range(times):
            later = timedelta(hours=number)
            drafts = [
                replace(
                    draft,
                    ts=draft.ts + later if draft.ts else None,
                    key=None,  # an entry with a key is appended only once
                    continues=False,
                )
                for draft in transcript.drafts
            ]
            session.append(drafts)
        return session.proofs.compare(specs, model=MODEL)


def table(outcomes: tuple[Outcome, ...]) -> str:
    """Return the figures as a table."""
    head = (
        "| strategy | tokens | peak | cached | compactions "
        "| prompts | summaries | recall |\n|---|---:|---:|---:|---:|---:|---:|---:|\n"
    )
    return head + "".join(map(_row, outcomes))


def page(text: str) -> str:
    """Return the page with new figures."""
    for name, compared in (("short", short), ("long", long)):
        begin = BEGIN.format(name)
        end = END.format(name)
        before, rest = text.split(begin)
        after = rest.split(end)[1]
        text = before + begin + table(compared().outcomes) + end + after
    return text


def _row(outcome: Outcome) -> str:
    cells = (
        f"`{outcome.name}`",
        f"{outcome.tokens_total:,}",
        f"{outcome.tokens_peak:,}",
        f"{outcome.cached / outcome.tokens_total:.0%}",
        str(len(outcome.compactions)),
        f"{outcome.cost:.4f}",
        f"{outcome.summarizer_cost:.4f}" if outcome.done else "–",
        f"{outcome.reference_recall:.0%}",
    )
    return f"| {' | '.join(cells)} |\n"


def main(args: list[str]) -> int:
    """Write the page, or check it; return 1 if it is out of date."""
    text = PAGE.read_text("utf-8")
    new = page(text)
    if args != ["--check"]:
        PAGE.write_text(new, "utf-8")
    elif new != text:
        print(f"{PAGE.relative_to(ROOT)}: out of date: `make fix` writes the figures")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
