"""The types of events, what they hold, and what stands beside one."""

from refold.domain import events
from refold.domain.envelope import Draft, Envelope, Format, Meta, Native
from refold.domain.events import *  # noqa: F403  # what it names
from refold.projections.items import NativeItem

__all__ = ["Draft", "Envelope", "Format", "Meta", "Native", "NativeItem"]
__all__ += events.__all__
__all__.remove("Final")  # by star it would hide typing.Final: import it by name
