"""Refold keeps everything an agent session did: append once, refold any time.

``refold.open`` gives a store, ``store.session`` a session, ``session.append``
records events and ``session.context`` shows what the next model call is sent.  What a
first page of code does not need is in rooms: ``refold.errors``, ``refold.events``,
``refold.redaction``, ``refold.strategies``, ``refold.memory``, ``refold.review``.
"""

import lazy_loader

__version__ = "0.2.0"

# What ``__init__.pyi`` lists is loaded when it is first used: importing stays fast.
__getattr__, _, _names = lazy_loader.attach_stub(__name__, __file__)
_ROOMS = {"errors", "events", "memory", "redaction", "review", "strategies"}
_OFFERED = sorted({*_names, "__version__"} - _ROOMS)
# By star these would hide the builtin ``open`` and ``typing.Final``: they are used as
# ``refold.open`` and ``refold.Final``.
_NOT_BY_STAR = {"open", "Final"}
__all__ = [name for name in _OFFERED if name not in _NOT_BY_STAR]


def __dir__() -> list[str]:
    return _OFFERED
