"""Refold stores every event of an agent session: append once, refold any time.

``refold.open`` returns a store, and ``store.session`` a session.  ``session.append``
records events, and ``session.context`` returns the context of the next model call.
Names that a first program does not need are in the modules ``refold.errors``,
``refold.events``, ``refold.redaction``, ``refold.strategies``, ``refold.memory``, and
``refold.review``.
"""

import lazy_loader

__version__ = "0.2.0"

# The names in ``__init__.pyi`` are loaded on first use, so that the import is fast.
__getattr__, _, _names = lazy_loader.attach_stub(__name__, __file__)
_ROOMS = {"errors", "events", "memory", "redaction", "review", "strategies"}
_OFFERED = sorted({*_names, "__version__"} - _ROOMS)
# By star these would hide the builtin ``open`` and ``typing.Final``: they are used as
# ``refold.open`` and ``refold.Final``.
_NOT_BY_STAR = {"open", "Final"}
__all__ = [name for name in _OFFERED if name not in _NOT_BY_STAR]


def __dir__() -> list[str]:
    return _OFFERED
