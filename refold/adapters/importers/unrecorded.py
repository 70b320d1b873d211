"""Changes of Claude Code to its context that the session file does not record.

``Unrecorded`` follows the entries of a conversation, and returns for each the changes
before it.  The rules were found in the billed tokens of real sessions of versions
2.0.76 to 2.1.42.

Files that are sent again.  After the summary of a compaction, the client sends the
files that the agent read or changed last.  Later versions write them into the session
file, as attachments.

- The five files that were read or changed last, the newest first.  The next compaction
  counts from those that were sent whole.
- It sends a file of up to 5,000 tokens whole, as the disk had it.  Of a longer file, it
  sends only a note that it was read.
- The session's plan file is none of the five.  It follows them, whatever its length.
  A session that begins with a plan to implement has it in an entry (``planContent``).

A file of which the session file has only a part is left out.

Skills that are sent again.  After the files come the skills that were invoked since
the client started, the newest first.  A client that resumes a session has forgotten
them.

Results that are cleared.  When the context nears its limit, the client clears old
results of tools.  From version 2.1.12 on, an entry names them.  Earlier versions
cleared by the same rule: the newest results stay while they have at most 40,000 tokens
in all, at four characters a token.  The older ones are cleared if they have at least
20,000.  The bill of the next answer shows it, since it falls.

A session that is resumed.  The client reads its own file, so content that is not in the
file is gone: the files that were sent again, and queued messages.  Before version
2.1.22, results of parallel calls were gone too, except those that the next message
names as its parent.  A hook shows that a session is resumed; without one, the bill of
the answer to a user shows it, since it falls.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, Final, NamedTuple

from refold.adapters.importers import base

_Version = tuple[int, ...]
_VERSION: Final = re.compile(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})")
_FIRST_VERSION: Final = (2, 0, 76)
_FIRST_WITH_CLEARINGS: Final = (2, 1, 12)
_FIRST_WITH_PARALLEL_RESULTS: Final = (2, 1, 22)

_MOST_FILES: Final = 5
# The client's limit is 5,000 tokens as the provider counts.  In the files of the
# sessions above, the provider counts 1.13 tokens for one of ``starting_weights``.
_MOST_TOKENS: Final = 4_400
# A longer text is never counted, since it has more tokens than the limit.
_MOST_CHARACTERS_PER_TOKEN: Final = 20
_MOST_CONTENTS: Final = 100
# The first line of a skill that the client puts into the conversation.
_SKILL: Final = re.compile(r"Base directory for this skill: (?P<folder>[^\n]+)\n")

# Results of other tools are never cleared.
_CLEARED_TOOLS: Final = frozenset(
    {"Bash", "Edit", "Glob", "Grep", "Read", "WebFetch", "WebSearch", "Write"}
)
_CHARACTERS_PER_TOKEN: Final = 4
_NOT_CLEARED: Final = 40_000  # tokens
_LEAST_CLEARED: Final = 20_000
# A bill that falls by less may have other reasons.
_FALL: Final = 15_000
_FALL_AFTER_USER: Final = 8_000


class Before(NamedTuple):
    """The unrecorded changes of the client before an entry.

    files:   attachments that it sent, in the form in which later versions write them:
             files, and skills.
    cleared: the calls whose results it cleared.
    resumed: whether it read the conversation from its file.
    fell:    whether the bill of this answer to a user fell.  This means that the client
             resumed without a hook, or changed its history otherwise.
    loses_parallel_results: whether a client of this version, when it resumes, loses the
             results that the entry does not name as its parent.
    """

    files: tuple[dict[str, Any], ...] = ()
    cleared: tuple[str, ...] = ()
    resumed: bool = False
    fell: bool = False
    loses_parallel_results: bool = False


_NOTHING: Final = Before()


class Unrecorded:
    """Follows the entries of one conversation."""

    def __init__(self) -> None:
        self._files = _ReadFiles()
        self._bills = _Bills()
        self._resumed = False

    def take(self, entry: dict[str, Any]) -> Before:
        """Take the next entry; return the unrecorded changes before it."""
        if is_resumption(entry):
            self._resumed = True
            self._files.drop_pending()
            self._files.forget_skills()
            return _NOTHING
        is_message = entry.get("type") in ("user", "assistant")
        resumed = self._resumed and is_message
        if resumed:
            self._resumed = False
        files = self._files.take(entry)
        fall = self._bills.take(entry)
        if fall.fell:
            self._files.forget_skills()
        return Before(
            files=tuple(files),
            cleared=fall.cleared,
            resumed=resumed,
            fell=fall.fell,
            loses_parallel_results=_is_ruled_and_before(
                entry, _FIRST_WITH_PARALLEL_RESULTS
            ),
        )

    def next_may_need_before(self, entry: dict[str, Any]) -> bool:
        """Whether the client may have changed its context before the next entry.

        Then the next entry cannot be read without the entries before it.
        """
        if self._resumed or self._files.is_pending:
            return True
        return _is_ruled_and_before(entry, _FIRST_WITH_PARALLEL_RESULTS)


def is_resumption(entry: dict[str, Any]) -> bool:
    """Whether an entry shows that the session was resumed."""
    return base.text(entry, "data", "hookName") == "SessionStart:resume"


def _version(entry: dict[str, Any]) -> _Version | None:
    """Return the version of the client that wrote an entry; None without one."""
    match = _VERSION.match(base.text(entry, "version") or "")
    return None if match is None else tuple(map(int, match.groups()))


def _is_ruled_and_before(entry: dict[str, Any], end: _Version) -> bool:
    """Whether a client from ``_FIRST_VERSION`` on, and before ``end``, wrote an entry.

    The rules do not hold for earlier clients.
    """
    version = _version(entry)
    return version is not None and _FIRST_VERSION <= version < end


class _Call(NamedTuple):
    """A call that reads or changes a file."""

    tool: str
    path: str


class _ReadFiles:
    """Follows the files that the agent reads and changes, and the skills it invokes."""

    def __init__(self) -> None:
        self._calls: dict[str, _Call] = {}
        # By path; the file that was used last is at the end.
        self._contents: dict[str, str] = {}
        # The files since the last compaction, in the order of their last use.
        self._used: dict[str, None] = {}
        self._plan: str | None = None  # the plan that the session began with
        # The texts of the invoked skills by folder, the newest last.
        self._skills: dict[str, str] = {}
        self._has_attachments = False
        self._compacted = False  # whether a boundary came, but not its summary yet
        self._pending = False  # whether a summary came, but no message after it yet

    @property
    def is_pending(self) -> bool:
        """Whether the next message may show that files were sent before it."""
        return self._compacted or self._pending

    def drop_pending(self) -> None:
        """Send no files for the last compaction: the client has forgotten them."""
        self._pending = False
        self._compacted = False

    def forget_skills(self) -> None:
        """Forget the invoked skills, as a client does that starts again."""
        self._skills.clear()

    def take(self, entry: dict[str, Any]) -> list[dict[str, Any]]:
        """Take the next entry; return the attachments that were sent before it."""
        kind = entry.get("type")
        if kind == "attachment":
            self._has_attachments = True
        if entry.get("subtype") == "compact_boundary":
            self._compacted = _sends_files(entry)
            return []
        if kind not in ("user", "assistant"):
            return []
        if entry.get("isCompactSummary") is True:
            self._pending = self._compacted
            self._compacted = False
            return []
        attachments: list[dict[str, Any]] = []
        if self._pending and not self._has_attachments:
            attachments = self._sent_again(entry)
        self._compacted = False
        self._pending = False
        self._follow(entry)
        return attachments

    def _sent_again(self, entry: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the attachments that the client sent after a summary.

        entry: the first message after the summary.
        """
        plan = base.text(entry, "slug")
        newest_first = list(reversed(self._used))
        plans = [path for path in newest_first if plan and _is_plan(path, plan)]
        files = [path for path in newest_first if path not in plans][:_MOST_FILES]
        attachments: list[dict[str, Any]] = []
        sent_whole: list[str] = []
        for path in files:
            text = self._contents.get(path)
            if text is None:
                continue
            if _is_short(text):
                sent_whole.append(path)
                attachments.append(_file(path, text))
            else:
                attachments.append({"type": "compact_file_reference", "filename": path})
        self._used = dict.fromkeys(reversed(sent_whole))
        plan_path = f"plans/{plan}.md"
        plan_text = self._plan
        if plans:
            plan_path = plans[0]
            plan_text = self._contents.get(plan_path)
        if plan_text is not None:
            attachments.append(
                {
                    "type": "plan_file_reference",
                    "planFilePath": plan_path,
                    "planContent": plan_text,
                }
            )
        if self._skills:
            newest_skills = reversed(self._skills.items())
            skills = [_skill(folder, text) for folder, text in newest_skills]
            attachments.append({"type": "invoked_skills", "skills": skills})
        return attachments

    def _follow(self, entry: dict[str, Any]) -> None:
        """Remember the calls, files in results, skill and plan of an entry."""
        if entry.get("isMeta") is True:
            self._follow_skill(entry)
        self._plan = base.text(entry, "planContent") or self._plan
        result = base.mapping(entry, "toolUseResult")
        for block in base.each(entry, "message", "content"):
            if block.get("type") == "tool_use":
                call_id = base.text(block, "id")
                tool = base.text(block, "name")
                path = base.text(block, "input", "file_path")
                if call_id and tool and path:
                    self._calls[call_id] = _Call(tool, path)
            elif block.get("type") == "tool_result":
                call = self._calls.pop(base.text(block, "tool_use_id") or "", None)
                if call is not None and result:
                    self._use(call, result)

    def _follow_skill(self, entry: dict[str, Any]) -> None:
        """Remember the skill that an entry brought into the conversation, if any."""
        content = base.at(entry, "message", "content")
        texts = [content] if isinstance(content, str) else []
        for block in base.each(entry, "message", "content"):
            texts.append(base.text(block, "text") or "")
        for text in texts:
            match = _SKILL.match(text)
            if match is not None:
                folder = match["folder"].strip()
                self._skills.pop(folder, None)
                self._skills[folder] = text
                if len(self._skills) > _MOST_CONTENTS:
                    self._skills.pop(next(iter(self._skills)))

    def _use(self, call: _Call, result: dict[str, Any]) -> None:
        """Record that a call read or changed a file."""
        path = base.text(result, "filePath") or base.text(result, "file", "filePath")
        path = path or call.path
        if call.tool == "Read":
            if result.get("type") != "text":
                return
            text = _whole_read(base.mapping(result, "file"))
        elif call.tool == "Write":
            text = _string(result, "content")
        elif call.tool == "Edit":
            text = _edited(result, self._contents.get(path))
        else:
            return
        content_before = self._contents.pop(path, None)
        if text is None and call.tool == "Read":
            text = content_before
        if text is not None:
            self._contents[path] = text
            if len(self._contents) > _MOST_CONTENTS:
                self._contents.pop(next(iter(self._contents)))
        self._used.pop(path, None)
        self._used[path] = None


def _sends_files(boundary: dict[str, Any]) -> bool:
    """Whether the client that compacted sends files again without a record.

    A client that preserves messages writes attachments into its files.
    """
    version = _version(boundary)
    if version is None or version < _FIRST_VERSION:
        return False
    metadata = base.mapping(boundary, "compactMetadata")
    return not metadata.keys() & {"preservedMessages", "preservedSegment"}


def _is_plan(path: str, plan: str) -> bool:
    """Whether a file is the plan of the session; ``plan`` is its name."""
    # The path is of the machine of the client, which need not be this one.
    file = PureWindowsPath(path) if "\\" in path else PurePosixPath(path)
    return file.parent.name == "plans" and file.stem == plan


def _whole_read(file: dict[str, Any]) -> str | None:
    """Return the content of a file that was read whole; None if only a part was."""
    lines = file.get("numLines")
    if file.get("startLine", 1) != 1:
        return None
    if lines is None or lines != file.get("totalLines"):
        return None
    return _string(file, "content")


def _edited(result: dict[str, Any], content_before: str | None) -> str | None:
    """Return the content after an edit.

    content_before: the last content that was read or written; None if there is none.

    Returns None if the result does not have the content before the edit either.
    """
    before = _string(result, "originalFile")
    if before is None:
        before = content_before
    old = _string(result, "oldString")
    new = _string(result, "newString")
    if before is None or old is None or new is None:
        return None
    most = -1 if result.get("replaceAll") is True else 1
    return before.replace(old, new, most)


def _string(fields: dict[str, Any], name: str) -> str | None:
    """Return a text, which may be empty; None for another value."""
    value = fields.get(name)
    return value if isinstance(value, str) else None


def _is_short(text: str) -> bool:
    """Whether the client sends a file of this content whole."""
    # Imported late: loading is slow, and few sessions need it.
    from refold.projections.tokens import of_text, starting_weights

    if len(text) > _MOST_TOKENS * _MOST_CHARACTERS_PER_TOKEN:
        return False
    return starting_weights("claude-3").tokens(of_text(text)) <= _MOST_TOKENS


def _skill(folder: str, text: str) -> dict[str, Any]:
    """Return a skill as the client sends it again; its name is that of its folder."""
    # The path is of the machine of the client, which need not be this one.
    path = PureWindowsPath(folder) if "\\" in folder else PurePosixPath(folder)
    return {"name": path.name, "path": folder, "content": text}


def _file(path: str, text: str) -> dict[str, Any]:
    """Return the attachment of a whole file."""
    content = {"type": "text", "file": {"content": text, "startLine": 1}}
    return {"type": "file", "filename": path, "content": content}


class _Result(NamedTuple):
    """A result that the client may clear, and its tokens as the client counts."""

    call_id: str
    tokens: int


class _Fall(NamedTuple):
    """The changes that the bill of an answer shows.

    cleared: the calls whose results were cleared before the answer.
    fell:    whether the entry answers a user, and its bill is lower than the last one.
    """

    cleared: tuple[str, ...] = ()
    fell: bool = False


_NO_FALL: Final = _Fall()


class _Bills:
    """Finds cleared results and resumptions from falls of the billed input tokens."""

    def __init__(self) -> None:
        self._tools: dict[str, str] = {}
        self._results: list[_Result] = []
        self._response = ""
        self._bill = 0
        self._only_results = False  # whether only results came since the last answer

    def take(self, entry: dict[str, Any]) -> _Fall:
        """Take the next entry; return the changes that its bill shows."""
        kind = entry.get("type")
        is_boundary = entry.get("subtype") == "compact_boundary"
        if is_boundary or entry.get("isCompactSummary") is True:
            self._results = []
            self._bill = 0
        elif kind == "assistant":
            return self._take_answer(entry)
        elif kind == "user":
            self._take_results(entry)
        return _NO_FALL

    def _take_answer(self, entry: dict[str, Any]) -> _Fall:
        """Compare the bill of an answer with that of the answer before."""
        for block in base.each(entry, "message", "content"):
            call_id = base.text(block, "id")
            if block.get("type") == "tool_use" and call_id:
                self._tools[call_id] = base.text(block, "name") or ""
        response = base.text(entry, "message", "id") or ""
        bill = _billed(entry)
        if response == self._response or not bill:
            return _NO_FALL
        fall = self._bill - bill
        cleared: tuple[str, ...] = ()
        if self._only_results and fall >= _FALL:
            cleared = self._clear(entry)
        fell = fall >= _FALL_AFTER_USER and not self._only_results
        self._response = response
        self._bill = bill
        self._only_results = True
        may_lose = _is_ruled_and_before(entry, _FIRST_WITH_PARALLEL_RESULTS)
        return _Fall(cleared, fell and may_lose)

    def _clear(self, entry: dict[str, Any]) -> tuple[str, ...]:
        """Remove the results that the rule clears; return their calls."""
        if not _is_ruled_and_before(entry, _FIRST_WITH_CLEARINGS):
            return ()
        old = self._old_results()
        if sum(result.tokens for result in old) < _LEAST_CLEARED:
            return ()
        self._results = self._results[len(old) :]
        return tuple(result.call_id for result in old)

    def _old_results(self) -> list[_Result]:
        """Return the results before the newest ones that stay."""
        room = _NOT_CLEARED
        count = len(self._results)
        for result in reversed(self._results):
            room -= result.tokens
            if room < 0:
                break
            count -= 1
        return self._results[:count]

    def _take_results(self, entry: dict[str, Any]) -> None:
        """Remember the results in an entry that the client may clear later."""
        content = base.at(entry, "message", "content")
        blocks = content if isinstance(content, list) else [content]
        for block in blocks:
            call_id = base.text(block, "tool_use_id")
            if call_id is None:
                self._only_results = False
            elif self._tools.pop(call_id, "") in _CLEARED_TOOLS:
                length = _length(base.at(block, "content"))
                half = _CHARACTERS_PER_TOKEN // 2  # it rounds the quotient
                tokens = (length + half) // _CHARACTERS_PER_TOKEN
                self._results.append(_Result(call_id, tokens))


def _billed(entry: dict[str, Any]) -> int:
    """Return the input tokens that were billed for an answer."""
    from refold.projections.tokens import input_tokens

    return input_tokens(base.mapping(entry, "message", "usage"))


def _length(content: Any) -> int:
    """Return the number of characters in the texts of a result."""
    if isinstance(content, str):
        return len(content)
    return sum(len(base.text(part, "text") or "") for part in base.each(content))
