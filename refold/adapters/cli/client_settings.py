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
# Claude Code waits for the shell of a hook, which ends at once.  It would kill a hook
# with its own setting "async": true when it ends.
_IN_BACKGROUND: Final = " </dev/null >/dev/null 2>&1 &"
_MARK: Final = "# refold capture"
# Stands before the mark if the file was empty when the hook was installed.
_WAS_EMPTY: Final = "# of an empty file "
_UNDO_MARK: Final = " # before: "
_UNDO: Final = re.compile(
    _UNDO_MARK
    + r"(?P<at>\d+):(?P<length>\d+):(?P<text>[\w=-]*):(?P<digest>[0-9a-f]{16})$",
    re.ASCII,
)
_BETWEEN_VALUES: Final = " \t\r\n:,"
_INDENT: Final = re.compile(r'^([ \t]+)"', re.MULTILINE)


class _Client(NamedTuple):
    """A client and its settings.

    settings: the name of the file, which is in the parent of the transcripts' folder.
    edit:     takes the text of the file, and the command of the hook or None to remove
              the hook.  Returns the new text.  A text of None means no file.
    empty:    the text of settings without a value.
    """

    settings: str
    edit: Callable[[str | None, list[str] | None], str | None]
    empty: str


def install(client: str, *, url: str, user: str, folder: Path) -> Path:
    """Let the client run the hook for the files that it writes in ``folder``.

    Returns the path of the settings.

    Raises InvalidConfiguration for settings that cannot be changed; they stay the same.
    """
    command = [sys.executable, "-P", "-m", MODULE, client]
    command += ["--user", user, "--folder", str(folder)]
    # The URL of a server may contain a password, so it stays in the environment.
    if url.startswith("sqlite"):
        command += ["--db", url]
    # The client may start without this variable, and the keys are in that folder.
    if "REFOLD_HOME" in os.environ:
        command += ["--home", str(home().absolute())]
    return _change_settings(client, folder, command)


def uninstall(client: str, folder: Path) -> Path:
    """Remove Refold's hook from the client.  Returns the path of the settings.

    Raises InvalidConfiguration for settings that cannot be changed; they stay the same.
    """
    return _change_settings(client, folder, None)


def _change_settings(name: str, folder: Path, command: list[str] | None) -> Path:
    """Put a hook with this command in the settings of a client, or remove it."""
    client = _CLIENTS[name]
    path = folder.parent / client.settings
    file = path.resolve()  # settings may be a link
    try:
        before: str | None = None
        if file.exists():
            before = file.read_bytes().decode()
        after = client.edit(before, command)
    except (ValueError, RecursionError) as error:
        raise InvalidConfiguration(f"{path} is not changed: {error}") from None
    if after == before:
        return path
    if after is not None:
        _write(file, after)
    elif path.is_symlink():
        _write(file, client.empty)
    else:
        file.unlink()
    return path


def _write(file: Path, text: str) -> None:
    """Replace a file completely or not at all, and keep its permissions."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f"{file.name}.refold")
    try:
        with draft.open("wb") as stream:
            stream.write(text.encode())
            stream.flush()
            os.fsync(stream.fileno())
        if file.exists():
            draft.chmod(file.stat().st_mode)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def _edit_claude_code(text: str | None, command: list[str] | None) -> str | None:
    """Return ``settings.json`` with this command as Refold's only hook.

    Without a command, return the settings before the installation, byte for byte.
    """
    without_hook = _with_hook(text, None)
    original = _undone(without_hook, _undo_in(text))
    if command is None:
        return original
    shell_command = shlex.join(command) + _IN_BACKGROUND
    installed = _with_hook(text, shell_command)
    removed = _with_hook(installed, None)
    if removed == original or original is None:
        return installed
    # An empty object or list was filled, which the removal cannot see.
    undo = _Undo.between(removed or "", original)
    return _with_hook(text, shell_command + undo.comment())


class _Undo(NamedTuple):
    """The difference between settings after a removal and before the installation.

    It is a shell comment in the command of a hook.

    at:     the place of the characters to replace.
    length: their number.
    text:   the characters that replace them.
    digest: the digest of the settings before.  It differs if the settings were edited
            since the installation; then nothing is replaced.
    """

    at: int
    length: int
    text: str
    digest: str

    @classmethod
    def between(cls, removed: str, original: str) -> _Undo:
        shorter = min(len(removed), len(original))
        start = 0  # equal characters at the start
        while start < shorter and removed[start] == original[start]:
            start += 1
        end = 0  # equal characters at the end
        while end < shorter - start and removed[-1 - end] == original[-1 - end]:
            end += 1
        return cls(
            at=start,
            length=len(removed) - start - end,
            text=original[start : len(original) - end],
            digest=_digest(original),
        )

    def comment(self) -> str:
        """Return it as a shell comment."""
        text = base64.urlsafe_b64encode(self.text.encode()).decode()
        return f"{_UNDO_MARK}{self.at}:{self.length}:{text}:{self.digest}"


def _undo_in(text: str | None) -> _Undo | None:
    """Return the undo in the commands of Refold's hooks; None without one.

    text: valid settings.
    """
    for groups in _json_object(text).get("hooks", {}).values():
        for group in groups:
            for hook in group["hooks"]:
                if not _is_ours(hook):
                    continue
                comment = _UNDO.search(hook["command"])
                if comment is not None:
                    return _Undo(
                        at=int(comment["at"]),
                        length=int(comment["length"]),
                        text=base64.urlsafe_b64decode(comment["text"]).decode(),
                        digest=comment["digest"],
                    )
    return None


def _undone(text: str | None, undo: _Undo | None) -> str | None:
    """Return the settings before the installation, unless they were edited since."""
    if undo is None:
        return text
    removed = text or ""
    end = undo.at + undo.length
    original = removed[: undo.at] + undo.text + removed[end:]
    if _digest(original) != undo.digest:
        return text
    return original


def _digest(text: str) -> str:
    """Return a short digest of settings."""
    return sha256(text.encode()).hexdigest()[:16]


def _with_hook(text: str | None, command: str | None) -> str | None:
    """Return ``settings.json`` with this shell command as Refold's only hook."""
    before = _json_object(text)
    hooks = _hooks_without_ours(before)
    if command is None and hooks == before.get("hooks", {}):
        return text
    if command is not None:
        hook = {"type": "command", "command": command}
        for event in _EVENTS:
            groups = hooks.get(event, [])
            hooks[event] = [*groups, {"hooks": [hook]}]
    after = {**before, "hooks": hooks}
    if not hooks:
        del after["hooks"]
    if not after:
        return None
    if text is None or not text.strip():
        return _new_json(after, text)
    indent = _INDENT.search(text)
    step = indent[1] if indent else "  "
    start = text.index("{")
    end = text.rindex("}") + 1
    edited = _edited(text[start:end], before, after, step=step)
    return text[:start] + edited + text[end:]


def _hooks_without_ours(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the hooks in settings by event, without Refold's.

    An event that had only those is left out.  Raises ValueError for hooks of another
    form.
    """
    hooks = settings.get("hooks", {})
    if not isinstance(hooks, dict):
        raise ValueError("its hooks are no JSON object")
    others: dict[str, Any] = {}
    for event, groups in hooks.items():
        other_groups = _groups_without_ours(event, groups)
        if other_groups or not groups:
            others[event] = other_groups
    return others


def _groups_without_ours(event: str, groups: Any) -> list[Any]:
    """Return the groups of hooks of an event, without Refold's and without empty ones.

    Raises ValueError for hooks of another form.
    """
    if not isinstance(groups, list):
        raise ValueError(f"its hooks at {event} are not a list")
    others: list[Any] = []
    for group in groups:
        hooks = group.get("hooks") if isinstance(group, dict) else None
        if not isinstance(hooks, list):
            raise ValueError(f"a hook at {event} has no list of hooks")
        other_hooks = [hook for hook in hooks if not _is_ours(hook)]
        if other_hooks == hooks:
            others.append(group)
        elif other_hooks:
            others.append({**group, "hooks": other_hooks})
    return others


def _is_ours(hook: Any) -> bool:
    """Whether a hook is Refold's; hooks of older versions ran ``refold capture``."""
    command = hook.get("command") if isinstance(hook, dict) else None
    if not isinstance(command, str):
        return False
    try:
        words = shlex.split(command)
    except ValueError:
        return False
    if MODULE in words:
        return True
    words_of_old_hook = {"-m", "refold", "capture", "--folder", "--once"}
    return words_of_old_hook <= set(words)


def _json_object(text: str | None) -> dict[str, Any]:
    """Return the JSON object in a text; an empty one without a text.

    Raises ValueError for another text, and for a key that occurs twice.
    """
    if text is None or not text.strip():
        return {}
    settings = json.loads(text, object_pairs_hook=_unique_keys)
    if not isinstance(settings, dict):
        raise ValueError("it is no JSON object")
    return settings


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object with these keys and values.

    Raises ValueError for a key that occurs twice, because one value would be lost.
    """
    settings = dict(pairs)
    if len(settings) < len(pairs):
        raise ValueError("it has a key twice")
    return settings


def _new_json(settings: dict[str, Any], before: str | None) -> str:
    """Return settings as JSON for a file that did not exist, or was empty.

    The line is ended unless the empty file had a line without an end.
    """
    text = _dumped(settings, "  ")
    if before is None or before.endswith("\n"):
        text += "\n"
    return text


class _Part(NamedTuple):
    """The places of a member of a JSON object, or of an item of a list, in its text.

    start: of the key, or of the item.
    value: of the value; for an item the same.
    end:   after the value.
    key:   the member's key; empty for an item.
    """

    start: int
    value: int
    end: int
    key: str = ""


def _parts(text: str) -> list[_Part]:
    """Return the members or items in the text of a valid JSON object or list."""
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
    """Return the place after the spaces and separators that begin at ``at``."""
    while text[at] in _BETWEEN_VALUES:
        at += 1
    return at


def _edited(text: str, old: Any, new: Any, *, step: str, depth: int = 0) -> str:
    """Return the JSON ``text`` of ``old``, changed to ``new``.

    Parts that stay the same keep their bytes.

    step:  the indentation of the text.
    depth: the number of objects and lists around the value.
    """
    if _are_same(old, new):
        return text
    if isinstance(old, dict) and isinstance(new, dict):
        return _edited_object(text, old, new, step=step, depth=depth)
    if isinstance(old, list) and isinstance(new, list):
        return _edited_list(text, old, new, step=step, depth=depth)
    return _rendered(new, text, step=step, depth=depth)


def _edited_object(
    text: str, old: dict[str, Any], new: dict[str, Any], *, step: str, depth: int
) -> str:
    """Return the text of an object with changed, removed and added members."""
    for key, value in old.items():
        parts = _parts(text)
        index = [part.key for part in parts].index(key)
        if key not in new:
            text = _without(text, index)
            continue
        part = parts[index]
        changed = _edited(
            text[part.value : part.end], value, new[key], step=step, depth=depth + 1
        )
        text = text[: part.value] + changed + text[part.end :]
    for key, value in new.items():
        if key not in old:
            rendered = _rendered(value, text, step=step, depth=depth + 1)
            member = f"{json.dumps(key)}: {rendered}"
            text = _with_last(text, member, step=step, depth=depth)
    return text


def _edited_list(
    text: str, old: list[Any], new: list[Any], *, step: str, depth: int
) -> str:
    """Return the text of a list with removed items, and others added at its end."""
    kept_items = 0
    for item in old:
        if kept_items < len(new) and _are_same(item, new[kept_items]):
            kept_items += 1
        else:
            text = _without(text, kept_items)
    for item in new[kept_items:]:
        rendered = _rendered(item, text, step=step, depth=depth + 1)
        text = _with_last(text, rendered, step=step, depth=depth)
    return text


def _are_same(old: Any, new: Any) -> bool:
    """Whether two values are the same JSON: 1, 1.0 and true are not."""
    return json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True)


def _without(text: str, index: int) -> str:
    """Return the text of an object or a list without one part and its comma."""
    parts = _parts(text)
    part = parts[index]
    if index > 0:
        return text[: parts[index - 1].end] + text[part.end :]
    if len(parts) > 1:
        return text[: part.start] + text[parts[1].start :]
    return text[0] + text[-1]


def _with_last(text: str, part: str, *, step: str, depth: int) -> str:
    """Return the text of an object or a list with another part, laid out alike."""
    parts = _parts(text)
    if not parts:
        new_line = _line_end(text) + step * depth
        return f"{text[0]}{new_line}{step}{part}{new_line}{text[-1]}"
    gap = text[1 : parts[0].start]
    end_of_last = parts[-1].end
    return f"{text[:end_of_last]},{gap}{part}{text[end_of_last:]}"


def _rendered(value: Any, text: str, *, step: str, depth: int) -> str:
    """Return a value as JSON for a place at this depth in the text."""
    first, *others = _dumped(value, step).split("\n")
    lines = [first]
    for line in others:
        lines.append(step * depth + line)
    return _line_end(text).join(lines)


def _line_end(text: str) -> str:
    """Return the end of the lines in a text."""
    return "\r\n" if "\r\n" in text else "\n"


def _dumped(value: Any, indent: str) -> str:
    """Return a value as JSON with its characters, or with escapes if need be."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair, which only an escape can be
        return json.dumps(value, indent=indent)
    return text


def _edit_codex(text: str | None, command: list[str] | None) -> str | None:
    """Return ``config.toml`` with this command as notify program, or without one."""
    before = text or ""
    without_ours = ""
    for line in before.splitlines(keepends=True):
        is_ours = line.rstrip("\r\n").endswith(_MARK)
        if not is_ours:
            without_ours += line
    was_empty = text == "" or f"{_WAS_EMPTY}{_MARK}" in before
    other_program = tomllib.loads(without_ours).get("notify")
    if command is None:
        if without_ours == before:
            return text
        if without_ours or was_empty:
            return without_ours
        return None
    if other_program:
        raise ValueError(
            f"it has a notify program already: have that run\n  {shlex.join(command)}"
        )
    mark = _MARK
    if was_empty and not without_ours:
        mark = _WAS_EMPTY + _MARK
    setting = f"notify = {json.dumps(command)}  {mark}"
    return setting + _line_end(without_ours) + without_ours


_CLIENTS: Final = {
    "claude-code": _Client("settings.json", _edit_claude_code, "{}\n"),
    "codex": _Client("config.toml", _edit_codex, ""),
}
