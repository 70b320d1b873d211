"""The memory of users: procedural memory, profiles, advice and consent."""

from refold.projections.context.budget import Advice as Advice
from refold.projections.memory.items import (
    Evidence as Evidence,
    Item as Item,
    Lift as Lift,
    set_lifetimes as set_lifetimes,
)
from refold.projections.memory.labels import Taxonomy as Taxonomy
from refold.projections.memory.profile import Profile as Profile
from refold.store.memory.consent import ConsentStatus as ConsentStatus, User as User
from refold.store.memory.memories import Memories as Memories
from refold.store.memory.procedural import Memory as Memory
