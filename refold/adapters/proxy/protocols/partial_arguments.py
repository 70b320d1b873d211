"""Joins the function calls of Gemini whose arguments are streamed in parts.

Vertex AI sends such a call in several parts: first its name, then ``partialArgs``, each
with a path and a value.  A string with ``willContinue`` is continued by the next value
of the same path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from refold.domain.events import JsonObject

# A step of a JSON path: a name behind a dot, an index, or a quoted name.
_STEP: Final = re.compile(
    r"\.(?P<name>[^.\[\]]+)"
    r"|\[(?P<index>[0-9]{1,6})\]"
    r"|\[(?P<quote>['\"])(?P<quoted>(?:\\.|(?!(?P=quote)).)*)(?P=quote)\]"
)
_ESCAPE: Final = re.compile(r"\\(.)")
# No list of arguments gets longer than this by an index in a path.
_LONGEST_LIST: Final = 10_000
_VALUES: Final = ("stringValue", "numberValue", "boolValue")


class PartialCall:
    """A call whose arguments are not complete yet.

    fields:   of the call, without its arguments.
    unread:   the paths that could not be read.
    """

    def __init__(self, call: Mapping[str, Any]) -> None:
        self.fields: JsonObject = {}
        self.unread: list[str] = []
        self._arguments: Any = {}
        self.take(call)

    def take(self, call: Mapping[str, Any]) -> None:
        """Take the next part of the call."""
        for name, value in call.items():
            if name in ("partialArgs", "partial_args"):
                for argument in value if isinstance(value, list) else ():
                    if isinstance(argument, dict):
                        self._set(argument)
            elif name == "args":
                if isinstance(value, dict):
                    self._arguments |= value
            elif name not in ("willContinue", "will_continue"):
                self.fields[name] = value

    def whole(self) -> JsonObject:
        """Return the call with the arguments that came so far."""
        return {**self.fields, "args": self._arguments}

    def _set(self, argument: Mapping[str, Any]) -> None:
        """Set an argument, or continue a string."""
        path = argument.get("jsonPath", argument.get("json_path"))
        steps = _steps(path) if isinstance(path, str) else None
        if not steps:
            self.unread.append(str(path))
            return
        value = _value_of(argument)
        container: Any = self._arguments
        for step, next_step in zip(steps, [*steps[1:], None], strict=True):
            if not _has_room(container, step):
                self.unread.append(str(path))
                return
            before = container[step]
            if next_step is None:
                if isinstance(before, str) and isinstance(value, str):
                    value = before + value
                container[step] = value
            elif not isinstance(before, dict | list):
                container[step] = [] if isinstance(next_step, int) else {}
            container = container[step]


def continues(call: Mapping[str, Any]) -> bool:
    """Whether another part of the call follows."""
    return bool(call.get("willContinue", call.get("will_continue")))


def is_partial(call: Mapping[str, Any]) -> bool:
    """Whether a call is one part of several."""
    return continues(call) or "partialArgs" in call or "partial_args" in call


def _value_of(argument: Mapping[str, Any]) -> Any:
    """Return the value in a part; None stands for null."""
    for name in _VALUES:
        underscored = name.replace("Value", "_value")
        for spelled in (name, underscored):
            if spelled in argument:
                return argument[spelled]
    return None


def _steps(path: str) -> list[str | int] | None:
    """Return the steps of a JSON path such as ``$.foo.bar[0]``; None for others."""
    if not path.startswith("$"):
        return None
    steps: list[str | int] = []
    at = 1
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None:
            return None
        if match["index"] is not None:
            steps.append(int(match["index"]))
        elif match["name"] is not None:
            steps.append(match["name"])
        else:
            steps.append(_ESCAPE.sub(r"\1", match["quoted"]))
        at = match.end()
    return steps


def _has_room(container: Any, step: str | int) -> bool:
    """Whether a container can have a value at this step, which may be new."""
    if isinstance(container, dict) and isinstance(step, str):
        container.setdefault(step, None)
        return True
    if not isinstance(container, list) or not isinstance(step, int):
        return False
    if step >= _LONGEST_LIST:
        return False
    container += [None] * (step + 1 - len(container))
    return True
