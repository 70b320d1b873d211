"""The outcomes of calls: failures in their results, and repetitions of commands."""

from __future__ import annotations

import re
from typing import Final

# A failure up to this length is stated whole.
_LONGEST_REASON: Final = 160
_MOST_REASONS: Final = 4
_EXIT: Final = re.compile(
    r"(?:exit|return|status)\w* (?:code|status)?:? ?-?\d+", re.IGNORECASE
)
# The lines of a program's output that say what failed and why: the names of tests, the
# assertions, and errors at a place.
_REASON: Final = re.compile(
    r"--- FAIL|^\s*(?:FAILED|ERROR) \S|^E\s{2,}|^\s*(?:not ok|✗|✕|×|●) |\bpanic\b"
    r"|\w:\d+(?::\d+)?: |^\s*\w*(?:Error|Exception)\b.*:|\b(?:fatal|error): |\bassert"
    r"|\b[Ee]xpected\b|undefined|not found|[Nn]o such file|[Pp]ermission denied",
    re.MULTILINE,
)
# Lines that state a failed test, check, or build, although the command exits with 0, as
# the last command of a pipe does.
_FAILED_CHECK: Final = re.compile(
    r"^\s*(?:--- FAIL\b|FAIL(?:ED)?\b|not ok \d|npm ERR!|make(?:\[\d+\])?: \*\*\* )"
    r"|\b[1-9]\d* (?:tests? |specs? |examples? )?(?:failed|failing|failures)\b"
    r"|\btest result: FAILED|^\s*(?:exit status|Exit code) [1-9]"
)
# Commands that run tests, checks, or builds.
_CHECK: Final = re.compile(
    r"\b(?:\w*tests?|pytest|tox|nox|jest|vitest|mocha|rspec|phpunit|lint\w*|ruff|mypy"
    r"|tsc|eslint|golangci-lint|check|build|make|cargo|gradle|mvn|bazel|ctest)\b"
)
# Programs whose output is text of files and of other programs.
_PRINTS_OTHER_TEXT: Final = re.compile(
    r"(?:cd [^;&|]+&& *)?(?:cat|head|tail|sed|awk|grep|rg|ls|find|less|git|gh|echo)\b"
)
# The tags around a reminder of a client in a result.  A tag that begins a line has an
# indent, which may be empty.
_NAME_OF_REMINDERS: Final = "system-reminder>"
_REMINDER_TAG: Final = re.compile(
    rf"(?P<indent>^[ \t]*+)?<(?P<closing>/)?{_NAME_OF_REMINDERS}", re.MULTILINE
)
# The sentences with which clients tell a model that a person rejected its call.
_REJECTION_OF_CLIENT: Final = re.compile(
    r"The user doesn't want to "
    r"(?:proceed with this tool use|take this action right now)\."
    r"|The tool use was rejected \(eg\. [^()\n]*\)\."
    r"|STOP what you are doing and wait for the user to tell you how to proceed\."
    r"|Permission for this tool use was denied\."
    r"|To tell you how to proceed, the user said:"
    r"|\A(?:exec command |patch )?rejected(?: by user)?\Z"
    r"|\Auser (?:rejected|cancelled) MCP tool call\Z"
    r"|\[Request interrupted by user(?: for tool use)?\]"
)
# The part of a command that only shortens its output.
_SHORTENS: Final = re.compile(
    r"(?<!\s)\s*+(?:2>&1|\|\s*(?:tail|head|grep|cat|tee)\b[^|;&]*)(?=\s|$)"
)


def reason_in(text: str) -> str:
    """Return the lines of a failed result that say what failed, or the whole text.

    text: of the result, with its lines.
    """
    if len(text) <= _LONGEST_REASON:
        return text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reasons = [line for line in lines if _REASON.search(line)]
    if not reasons:
        return text
    shown = lines[:1] if _EXIT.fullmatch(lines[0]) else []
    shown += [line for line in reasons if line not in shown][:_MOST_REASONS]
    return "\n".join(shown)


def failures_despite_success(command: str, output: str) -> str:
    """Return the lines of a successful command's output that state failures.

    Only commands that run tests, checks, or builds are read, because others quote the
    output of programs.  Returns an empty text if nothing failed.
    """
    if not _CHECK.search(command) or _PRINTS_OTHER_TEXT.match(command.strip()):
        return ""
    lines = [line.strip() for line in output.splitlines()]
    failures = [line for line in lines if _FAILED_CHECK.search(line)]
    return "\n".join(dict.fromkeys(failures[:_MOST_REASONS]))


def without_reminders(output: str) -> str:
    """Return the text of a result without the reminders that a client added to it.

    A reminder without its closing tag was cut, and is removed if its tag begins a line.
    Within a line, such a tag is text of the result.
    """
    if _NAME_OF_REMINDERS not in output:
        return output
    shown: list[str] = []
    position = 0
    opening: re.Match[str] | None = None
    for tag in _REMINDER_TAG.finditer(output):
        if tag["closing"] is None:
            if opening is None or opening["indent"] is None:
                opening = tag
        elif opening is not None:
            shown.append(output[position : opening.start()].rstrip())
            position = tag.end()
            opening = None
    if opening is not None and opening["indent"] is not None:
        shown.append(output[position : opening.start()].rstrip())
        position = len(output)
    shown.append(output[position:])
    return "".join(shown)


def words_of_rejection(output: str) -> str:
    """Return the words of a person in the result of a call that the person rejected.

    The sentences that clients write themselves are left out.
    """
    return " ".join(_REJECTION_OF_CLIENT.sub(" ", output).split())


def same_work(command: str) -> str:
    """Return a command without what only shortens its output."""
    return _SHORTENS.sub("", command).strip()
