"""What is remembered of users: procedural memory, profiles, advice and consent."""

from refold.projections.context.budget import Advice
from refold.projections.memory.items import Evidence, Item, Lift, set_lifetimes
from refold.projections.memory.labels import Taxonomy
from refold.projections.memory.profile import Profile
from refold.store.memory import ConsentStatus, Memories, Memory, User

__all__ = [
    "Advice",
    "ConsentStatus",
    "Evidence",
    "Item",
    "Lift",
    "Memories",
    "Memory",
    "Profile",
    "Taxonomy",
    "User",
    "set_lifetimes",
]
