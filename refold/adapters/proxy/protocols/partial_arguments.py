"""Joins the function calls of Gemini whose arguments are streamed in parts.

Vertex AI sends such a call in several parts: first its name, then ``partialArgs``, each
with a path and a value.  A string with ``willContinue`` is continued by the next value
of the same path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from refold.domain.events import JsonObject

# A step of a JSON path: a name behind a dot, an index, or a quoted name.
_STEP: Final = re.compile(
    r"\.(?P<name>[^.\[\]]+)"
    r"|\[(?P<index>[0-9]{1,6})\]"
    r"|\[(?P<quote>['\"])(?P<quoted>(?:\\.|(?!(?P=quote))[^\\])*+)(?P=quote)\]"
)
_ESCAPE: Final = re.compile(r"\\(.)")
# No list of arguments gets longer than this by an index in a path.
_LONGEST_LIST: Final = 10_000
# No argument lies deeper than this.
_MOST_STEPS: Final = 100
_VALUES: Final = ("stringValue", "numberValue", "boolValue")


class _OpenString(NamedTuple):
    """A string that later parts of the call continue.

    container, step: its place in the arguments.
    """

    container: Any
    step: str | int
    pieces: list[str]


class PartialCall:
    """A call whose arguments are not complete yet.

    fields:   of the call, without its arguments.
    unread:   the paths that could not be read.
    """

    def __init__(self, call: Mapping[str, Any]) -> None:
        self.fields: JsonObject = {}
        self.unread: list[str] = []
        self._arguments: Any = {}
        self._open_strings: dict[str, _OpenString] = {}  # by path
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
        for path in [*self._open_strings]:
            self._close_string(path)
        return {**self.fields, "args": self._arguments}

    def _set(self, argument: Mapping[str, Any]) -> None:
        """Set an argument, or continue a string."""
        path = argument.get("jsonPath", argument.get("json_path"))
        steps = _steps(path) if isinstance(path, str) else None
        if not steps:
            self.unread.append(str(path))
            return
        value = _value_of(argument)
        open_string = self._open_strings.get(str(path))
        if open_string is not None and isinstance(value, str):
            open_string.pieces.append(value)
            if not continues(argument):
                self._close_string(str(path))
            return
        container: Any = self._arguments
        for step, next_step in zip(steps, [*steps[1:], None], strict=True):
            if not _has_room(container, step):
                self.unread.append(str(path))
                return
            before = container[step]
            if next_step is None:
                container[step] = value
                if isinstance(value, str) and continues(argument):
                    pieces = [value]
                    opened = _OpenString(container, step, pieces)
                    self._open_strings[str(path)] = opened
            elif not isinstance(before, dict | list):
                container[step] = [] if isinstance(next_step, int) else {}
            container = container[step]

    def _close_string(self, path: str) -> None:
        """Put the string at a path into the arguments."""
        container, step, pieces = self._open_strings.pop(path)
        container[step] = "".join(pieces)


def continues(part: Mapping[str, Any]) -> bool:
    """Whether another part of the call, or of the string, follows."""
    return bool(part.get("willContinue", part.get("will_continue")))


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
        if match is None or len(steps) == _MOST_STEPS:
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
