"""``store.memory``: memory, profiles and advice, of one user or shared by many."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Unpack

from refold.domain import errors
from refold.domain.ids import check_id
from refold.projections.context.budget import Advice
from refold.projections.memory.advice import ChoiceArgs, choice_from
from refold.projections.memory.labels import Taxonomy
from refold.projections.memory.profile import Profile
from refold.projections.memory.sessions import Classifier
from refold.store.appends import Writer
from refold.store.memory.advice import FRESH, Adviser
from refold.store.memory.procedural import Memory, build_memory, shared_memory
from refold.store.memory.profile import profile_of
from refold.store.memory.sessions import Selection
from refold.store.recorded import recorded


@dataclass(frozen=True, slots=True)
class Memories:
    """The memory that sessions show together: of one user, or of many.

    shares: whether memory of many users is allowed.
    """

    writer: Writer
    shares: bool = False

    @recorded("memory_load")
    def of(
        self,
        user_id: str,
        *,
        classify: Classifier | None = None,
        agent: str | None = None,
        project: str | None = None,
    ) -> Memory:
        """Build a user's procedural memory: tools that worked, failed, or helped.

        Each item belongs to a scenario.  The items of ``general`` come from all
        sessions together.

        Memory is built from the log alone.  The facts of a session are stored until the
        session changes; with a classifier or an agent, every session is read again.
        The memory of a user who opted out is empty, and stored facts are dropped.

        classify: returns the scenario of a session that no ``meta.scenario`` tags.
        agent:    only the calls of this agent, if several agents share a session.
        project:  only sessions that are tagged with this ``meta.project``.

        Raises Erased.
        """
        user_id = check_id("user_id", user_id)
        selection = Selection(classify, agent, project, self.writer.clock())
        return build_memory(self.writer.log, user_id, selection)

    @recorded("memory_load")
    def profile(self, user_id: str, *, taxonomy: Taxonomy | None = None) -> Profile:
        """Build a user's profile: verdicts on their work, and their preferences.

        It is empty if the user has not allowed ``declarative_memory``, or opted out.

        taxonomy: the types of error; None is the taxonomy that Refold ships.

        Raises Erased.
        """
        user_id = check_id("user_id", user_id)
        now = self.writer.clock()
        return profile_of(self.writer.log, user_id, now, taxonomy=taxonomy)

    @recorded("memory_load")
    def advice(
        self,
        user_id: str,
        *,
        fresh: timedelta = FRESH,
        **choice_args: Unpack[ChoiceArgs],
    ) -> Advice:
        """Choose the advice from the user's memory that a model may be shown.

        Hand it in with ``session.context(advice=…)``.  ``session.memory.advice``
        returns the same advice until a compaction.

        fresh: a stored shortlist that is older is built again.

        Raises InvalidConfiguration, Erased.
        """
        adviser = Adviser(self.writer, check_id("user_id", user_id))
        choice = choice_from(choice_args)
        now = self.writer.clock()
        shortlist = adviser.shortlist(choice.scenario, fresh=fresh)
        return shortlist.advice(choice, now=now)

    @recorded("memory_load", named=False)
    def shared(self, *, k: int = 5) -> Memory:
        """Build the memory that the sessions of many users show; it names no user.

        The store must be opened with ``shared_memory=True``.  At least ``k`` users, and
        as many sessions, show each item.  Memory is built from the log at each call, so
        users who opted out or were erased do not count.  ``Memory.advice`` chooses what
        a model may be shown.

        Raises InvalidConfiguration if shared memory is off, and for ``k`` below 5.
        """
        if not self.shares:
            raise errors.InvalidConfiguration(
                "memory of many users is off: set REFOLD_SHARED_MEMORY=on, or open the "
                "store with shared_memory=True"
            )
        return shared_memory(self.writer.log, k, self.writer.clock())
