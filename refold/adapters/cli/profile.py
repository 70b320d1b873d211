"""A user's profile on the screen: a section for each thing that it knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.adapters.cli.output import print_json
from refold.adapters.cli.screen import Screen, shown
from refold.adapters.cli.wording import counted
from refold.projections.memory.advice import Choosing
from refold.projections.memory.declared.said import place, told, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator

    from refold.projections.memory.declared.profile import Profile
    from refold.projections.memory.item import Item


def show_profile(profile: Profile, now: int, as_json: bool) -> None:
    """What is known of a user who consented; of others there is nothing.

    now: in microseconds since 1970, as the profile was made.
    """
    if as_json:
        print_json(profile.to_json())
        return
    screen = Screen()
    rows = [
        (
            one.memory_id,
            kind_of(one),
            shown(told(one)),
            str(one.sessions),
            f"{one.confidence:.2f}",
            "; ".join(unsaid(profile, one, now)),
        )
        for one in profile.items
    ]
    if rows:
        head = ("item", "kind", "what", "#sessions", "#confidence", "not said because")
        screen.table(head, rows)
    for area in profile.improvement_areas:
        because = ", ".join(area.because)
        screen.line("improve: ", shown(area.name), (f"  because of {because}", "dim"))
    for line in _levels(profile):
        screen.line(shown(line))
    screen.line(_summary(profile))


def kind_of(one: Item) -> str:
    """What kind of item it is, as people are told."""
    return f"{one.content['standing']} topic" if one.kind == "topic" else one.kind


def unsaid(profile: Profile, one: Item, now: int) -> list[str]:
    """Why an item is not said to a model that asks with nothing set."""
    return why_not(profile, one, now=now, threshold=Choosing().threshold)


def _levels(profile: Profile) -> Iterator[str]:
    """The three levels, a line a topic."""
    for subject, topics in sorted(profile.levels.items()):
        for topic, errors in sorted(topics.items()):
            where = place({"topic": topic, "subject": subject}) or "unnamed"
            made = ", ".join(f"{error} {n:,}×" for error, n in sorted(errors.items()))
            if made:
                yield f"{where}: {made}"


def _summary(profile: Profile) -> str:
    items = counted(len(profile.items), "item")
    whole = f"{items} of {counted(profile.sessions, 'session')} with verdicts"
    if profile.tainted_sessions:
        tainted = counted(profile.tainted_sessions, "of them", "of them")
        return f"{whole}, {tainted} may not speak"
    return whole
