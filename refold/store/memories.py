"""Memory and advice: their part of the store's API."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, Unpack

from refold.domain.errors import InvalidConfiguration
from refold.domain.ids import check_id

if TYPE_CHECKING:
    from refold.projections.memory.advice import ChoosingArgs
    from refold.projections.memory.declared.profile import Profile
    from refold.projections.memory.declared.taxonomy import Taxonomy
    from refold.projections.memory.scenarios import Classifier
    from refold.projections.memory.section import Advice
    from refold.store.remembering import Memory
    from refold.store.writing import Writer

# What makes memory is imported by who asks for it: others need not wait for it.
_HOUR: Final = timedelta(hours=1)


class Remembers:
    """The part of a store that says what sessions show together."""

    _writer: Writer
    _shares_memory: bool

    def memory(
        self,
        user_id: str,
        *,
        classify: Classifier | None = None,
        agent: str | None = None,
        project: str | None = None,
    ) -> Memory:
        """What the user's sessions show: tools that worked, that failed, that helped.

        By scenario, and under ``general`` all together.

        Made of the log alone, and kept for each session until it moves on.  A user
        who opted out of memory has none, and what was kept of them is dropped.

        Raises Erased.

        classify: names the scenario of sessions that no ``meta.scenario`` tags.
        agent:    only of what this agent called, of several in a session.
        project:  only of sessions that are tagged with this ``meta.project``.

        With a classifier or an agent every session is read again.
        """
        from refold.store.remembering import Of, remember

        user_id = check_id("user_id", user_id)
        return remember(self._writer.log, user_id, Of(classify, agent, project))

    def profile(self, user_id: str, *, taxonomy: Taxonomy | None = None) -> Profile:
        """What verdicts on the user's work show, and what they prefer, if they consent.

        Empty of who has not allowed ``declarative_memory``, or opted out of memory.

        taxonomy: the types of error there are; None is the packaged one.

        Raises Erased.
        """
        from refold.store.declared import profile_of

        user_id, now = check_id("user_id", user_id), self._writer.clock()
        return profile_of(self._writer.log, user_id, now, taxonomy=taxonomy)

    def advice(
        self,
        user_id: str,
        *,
        fresh: timedelta = _HOUR,
        **how: Unpack[ChoosingArgs],
    ) -> Advice:
        """What of the user's memory may be said to a model, as ``context`` takes it.

        It is read from a short list, which is made anew if it is older than ``fresh``.
        ``session.advice`` gives the same all through a session until it is compacted.

        Raises InvalidConfiguration, Erased.
        """
        from refold.projections.memory.advice import chosen_by
        from refold.store.advising import Adviser

        adviser = Adviser(self._writer, check_id("user_id", user_id))
        choosing, now = chosen_by(how), self._writer.clock()
        listed = adviser.shortlist(choosing.scenario, fresh=fresh)
        return listed.advice(choosing, now=now)

    def shared_memory(self, *, k: int = 5) -> Memory:
        """What the sessions of many users show together, naming none of them.

        Off unless the store was opened with ``shared_memory=True``.  An item is in it
        only if ``k`` users or more, and as many sessions, show it.  Who opted out is
        not counted, nor who is erased: it is made of the log each time.
        ``Memory.advice`` says what of it may be said to a model.

        Raises InvalidConfiguration if it is off, and for ``k`` below 5.
        """
        if not self._shares_memory:
            raise InvalidConfiguration(
                "memory of many users is off: set REFOLD_SHARED_MEMORY=on, or open the "
                "store with shared_memory=True"
            )
        from refold.store.remembering import shared_memory

        return shared_memory(self._writer.log, k)
