"""Adds the hook that captures to a client's settings, and removes only that."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

from refold.adapters.capture_hook import MODULE
from refold.adapters.config import home
from refold.domain.errors import InvalidConfiguration

_EVENTS: Final = ("Stop", "SubagentStop", "PreCompact", "SessionEnd")
# Claude Code waits for the shell of a hook alone, which ends at once.  Its own
# "async": true would not do: it kills such hooks when it ends.
_IN_BACKGROUND: Final = " </dev/null >/dev/null 2>&1 &"
_MARK: Final = "# refold capture"
_OF_EMPTY: Final = "# of an empty file "  # in front of the mark
_BEFORE: Final = " # before: "
_UNDO: Final = re.compile(
    _BEFORE + r"(?P<at>\d+):(?P<cut>\d+):(?P<text>[\w=-]*):(?P<digest>[0-9a-f]{16})$",
    re.ASCII,
)
_GAP: Final = " \t\r\n:,"  # what JSON has between its values
_INDENT: Final = re.compile(r'^([ \t]+)"', re.MULTILINE)
# From the text of settings, and the command of a hook or None to have none, to the text
# that they become; None is a file that is not there.
_Edit = Callable[[str | None, list[str] | None], str | None]


def install(client: str, *, url: str, user: str, folder: Path) -> Path:
    """Have the client run the hook for what it writes in ``folder``.

    Returns the settings' file.

    Raises InvalidConfiguration for settings that cannot be changed; they stay the same.
    """
    command = [sys.executable, "-P", "-m", MODULE, client]
    command += ["--user", user, "--folder", str(folder)]
    # The URL of a server is left to the environment, which keeps its password.
    if url.startswith("sqlite"):
        command += ["--db", url]
    # The keys are there, and the client may be started without this variable.
    if "REFOLD_HOME" in os.environ:
        command += ["--home", str(home().absolute())]
    return _change(client, folder, command)


def uninstall(client: str, folder: Path) -> Path:
    """Have the client run no hook of Refold.  Returns the settings' file.

    Raises InvalidConfiguration for settings that cannot be changed; they stay the same.
    """
    return _change(client, folder, None)


def _change(client: str, folder: Path, command: list[str] | None) -> Path:
    name, edit, empty = _CLIENTS[client]
    path = folder.parent / name
    file = path.resolve()  # people keep settings elsewhere, and link to them
    try:
        before = file.read_bytes().decode() if file.exists() else None
        after = edit(before, command)
    except (ValueError, RecursionError) as error:
        raise InvalidConfiguration(f"{path} is not changed: {error}") from None
    if after == before:
        return path
    if after is not None:
        _write(file, after)
    elif path.is_symlink():
        _write(file, empty)
    else:
        file.unlink()
    return path


def _write(file: Path, text: str) -> None:
    """Replace a file at once, and keep its permissions."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f"{file.name}.refold")
    try:
        with new.open("wb") as stream:
            stream.write(text.encode())
            stream.flush()
            os.fsync(stream.fileno())
        if file.exists():
            new.chmod(file.stat().st_mode)
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)


def _claude_code(text: str | None, command: list[str] | None) -> str | None:
    """``settings.json`` with this command as a hook, and no other one of ours.

    Without a command, the settings as they were before an install, byte for byte.
    """
    bare = _with_hook(text, None)
    original = _undone(bare, _undo_of(text))
    if command is None:
        return original
    line = shlex.join(command) + _IN_BACKGROUND
    installed = _with_hook(text, line)
    removed = _with_hook(installed, None)
    if removed == original or original is None:
        return installed
    # An empty object or list was filled, and the text no longer shows that.
    return _with_hook(text, line + _Undo.between(removed or "", original).comment())


class _Undo(NamedTuple):
    """What makes settings without our hooks the ones before an install.

    The command of a hook has it as a shell comment.

    at, cut: where so many characters are replaced.
    text:    what replaces them.
    digest:  of the settings before the install.  If others edited the settings since,
             the digest differs, and nothing is replaced.
    """

    at: int
    cut: int
    text: str
    digest: str

    @classmethod
    def between(cls, removed: str, original: str) -> _Undo:
        shorter = min(len(removed), len(original))
        at = 0  # characters at the front that both have
        while at < shorter and removed[at] == original[at]:
            at += 1
        behind = 0  # characters at the end that both have
        while behind < shorter - at and removed[-1 - behind] == original[-1 - behind]:
            behind += 1
        text = original[at : len(original) - behind]
        return cls(at, len(removed) - behind - at, text, _digest(original))

    def comment(self) -> str:
        text = base64.urlsafe_b64encode(self.text.encode()).decode()
        return f"{_BEFORE}{self.at}:{self.cut}:{text}:{self.digest}"


def _undo_of(text: str | None) -> _Undo | None:
    """What our hooks in these valid settings have to undo their install."""
    for groups in _json_object(text).get("hooks", {}).values():
        for group in groups:
            for hook in group["hooks"]:
                if not _is_ours(hook):
                    continue
                comment = _UNDO.search(hook["command"])
                if comment is not None:
                    return _Undo(
                        at=int(comment["at"]),
                        cut=int(comment["cut"]),
                        text=base64.urlsafe_b64decode(comment["text"]).decode(),
                        digest=comment["digest"],
                    )
    return None


def _undone(text: str | None, undo: _Undo | None) -> str | None:
    """The settings before the install, if nothing else was changed since."""
    if undo is None:
        return text
    removed = text or ""
    original = removed[: undo.at] + undo.text + removed[undo.at + undo.cut :]
    return original if _digest(original) == undo.digest else text


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def _with_hook(text: str | None, command: str | None) -> str | None:
    """``settings.json`` with this shell command as a hook, and no other one of ours."""
    settings = _json_object(text)
    hooks = settings.get("hooks", {})
    if not isinstance(hooks, dict):
        raise ValueError("its hooks are no JSON object")
    changed = command is not None
    for event in list(hooks):
        groups = _without_ours(event, hooks[event])
        if groups == hooks[event]:
            continue
        changed = True
        if groups:
            hooks[event] = groups
        else:
            del hooks[event]
    if not changed:
        return text
    if command is not None:
        hook = {"type": "command", "command": command}
        for event in _EVENTS:
            hooks.setdefault(event, []).append({"hooks": [hook]})
    if text is None or not text.strip():
        return _as_json({"hooks": hooks}, text) if hooks else None
    if not hooks and not settings.keys() - {"hooks"}:
        return None
    indent = _INDENT.search(text)
    step = indent[1] if indent else "  "
    before = _json_object(text)
    start = text.index("{")
    end = text.rindex("}") + 1
    after = {**before, "hooks": hooks}
    if not hooks:
        del after["hooks"]
    return (
        text[:start] + _edited(text[start:end], before, after, step=step) + text[end:]
    )


class _Part(NamedTuple):
    """A part of a JSON object or list: places in its text.

    start: of the key, or of an item of a list.
    value: where the value starts; in a list, the same.
    end:   behind the value.
    key:   of an object's member; "" of an item.
    """

    start: int
    value: int
    end: int
    key: str = ""


def _parts(text: str) -> list[_Part]:
    """The members or items of the valid JSON object or list that a text is."""
    decoder = json.JSONDecoder()
    is_object = text[0] == "{"
    parts: list[_Part] = []
    at = _after_gap(text, 1)
    while text[at] not in "]}":
        start = at
        key = ""
        if is_object:
            key, at = decoder.raw_decode(text, start)
            at = _after_gap(text, at)
        value = at
        _, end = decoder.raw_decode(text, value)
        parts.append(_Part(start, value, end, key))
        at = _after_gap(text, end)
    return parts


def _after_gap(text: str, at: int) -> int:
    while text[at] in _GAP:
        at += 1
    return at


def _edited(text: str, old: Any, new: Any, *, step: str, depth: int = 0) -> str:
    """The JSON ``text`` of ``old`` changed to ``new``; equal parts keep their bytes.

    step:  by which the text is indented.
    depth: how deep the value is nested.
    """
    if _are_same(old, new):
        return text
    if isinstance(old, dict) and isinstance(new, dict):
        for key, value in old.items():
            (place,) = [
                index for index, part in enumerate(_parts(text)) if part.key == key
            ]
            if key not in new:
                text = _without(text, place)
                continue
            part = _parts(text)[place]
            within = text[part.value : part.end]
            changed = _edited(within, value, new[key], step=step, depth=depth + 1)
            text = text[: part.value] + changed + text[part.end :]
        for key, value in new.items():
            if key not in old:
                rendered = _rendered(value, text, step=step, depth=depth + 1)
                text = _with_last(
                    text, f"{json.dumps(key)}: {rendered}", step=step, depth=depth
                )
        return text
    if isinstance(old, list) and isinstance(new, list):
        place = 0
        for item in old:
            if place < len(new) and _are_same(item, new[place]):
                place += 1
            else:
                text = _without(text, place)
        for item in new[place:]:
            rendered = _rendered(item, text, step=step, depth=depth + 1)
            text = _with_last(text, rendered, step=step, depth=depth)
        return text
    return _rendered(new, text, step=step, depth=depth)


def _are_same(old: Any, new: Any) -> bool:
    """Whether two values are the same JSON: 1, 1.0 and true are not."""
    return json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)


def _without(text: str, place: int) -> str:
    """The object or list without one of its parts, and without a comma."""
    parts = _parts(text)
    part = parts[place]
    if place > 0:
        return text[: parts[place - 1].end] + text[part.end :]
    if len(parts) > 1:
        return text[: part.start] + text[parts[1].start :]
    return text[0] + text[-1]


def _with_last(text: str, part: str, *, step: str, depth: int) -> str:
    """The object or list with another part at its end, laid out as the others."""
    parts = _parts(text)
    if not parts:
        end = _line_end(text)
        outer = end + step * depth
        return f"{text[0]}{outer}{step}{part}{outer}{text[-1]}"
    gap = text[1 : parts[0].start]
    end_of_last = parts[-1].end
    return f"{text[:end_of_last]},{gap}{part}{text[end_of_last:]}"


def _rendered(value: Any, text: str, *, step: str, depth: int) -> str:
    """A value as JSON for a place that is so deep in the settings."""
    first, *rest = _dumped(value, step).split("\n")
    return _line_end(text).join([first, *(step * depth + line for line in rest)])


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _dumped(value: Any, indent: str) -> str:
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which JSON holds as an escape
        return json.dumps(value, indent=indent)
    return text


def _json_object(text: str | None) -> dict[str, Any]:
    if text is None or not text.strip():
        return {}
    settings = json.loads(text, object_pairs_hook=_unique_keys)
    if not isinstance(settings, dict):
        raise ValueError("it is no JSON object")
    return settings


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these keys and values, of which none would be lost."""
    settings = dict(pairs)
    if len(settings) < len(pairs):
        raise ValueError("it has a key twice")
    return settings


def _without_ours(event: str, groups: Any) -> list[Any]:
    """The groups of hooks of an event, without our hooks and without empty groups."""
    if not isinstance(groups, list):
        raise ValueError(f"its hooks at {event} are no list")
    others = []
    for group in groups:
        hooks = group.get("hooks") if isinstance(group, dict) else None
        if not isinstance(hooks, list):
            raise ValueError(f"a hook at {event} has no list of hooks")
        kept = [hook for hook in hooks if not _is_ours(hook)]
        if kept == hooks:
            others.append(group)
        elif kept:
            others.append({**group, "hooks": kept})
    return others


def _is_ours(hook: Any) -> bool:
    """Whether a hook runs ours; older versions had it run the command itself."""
    command = hook.get("command") if isinstance(hook, dict) else None
    if not isinstance(command, str):
        return False
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    if MODULE in words:
        return True
    older = {"-m", "refold", "capture", "--folder", "--once"}
    return older <= set(words)


def _as_json(settings: dict[str, Any], before: str | None) -> str:
    """The settings as the JSON of a file that had none."""
    ended = before is None or before.endswith("\n")
    return _dumped(settings, "  ") + ("\n" if ended else "")


def _codex(text: str | None, command: list[str] | None) -> str | None:
    """``config.toml`` with this command as its notify program, or without ours."""
    before = text or ""
    lines = [
        line
        for line in before.splitlines(keepends=True)
        if not line.rstrip("\r\n").endswith(_MARK)
    ]
    others = "".join(lines)
    was_empty = text == "" or f"{_OF_EMPTY}{_MARK}" in before
    taken = tomllib.loads(others).get("notify")
    if command is None:
        if others == before:
            return text
        return others if others or was_empty else None
    if taken:
        raise ValueError(
            f"it has a notify program already: have that run\n  {shlex.join(command)}"
        )
    end = "\r\n" if "\r\n" in others else "\n"
    mark = _MARK
    if was_empty and not others:
        mark = _OF_EMPTY + _MARK
    return f"notify = {json.dumps(command)}  {mark}{end}{others}"


# The name of a client's settings, what changes them, and settings without a value.
_CLIENTS: Final[dict[str, tuple[str, _Edit, str]]] = {
    "claude-code": ("settings.json", _claude_code, "{}\n"),
    "codex": ("config.toml", _codex, ""),
}
