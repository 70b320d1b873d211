"""Exit codes of commands, as the clients of shells write them into results.

The messages of OpenAI and Gemini do not say whether a call failed.  A command that
ends with another exit code than 0 failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from refold.adapters.importers import base

# Systems have 32 bits for it.  Python refuses to read numbers of thousands of digits.
_NUMBER: Final = r"-?[0-9]{1,10}"
# Codex writes some lines before the output of a command, one of them with the code.
_OUTPUT: Final = re.compile(r"(?m)^Output:")
_OF_CODEX: Final = re.compile(
    rf"(?m)^(?:Process exited with code|Exit code:) ({_NUMBER})[ \r]*$"
)
# Gemini CLI and Qwen Code write a line for each fact about a command.
_OF_GEMINI: Final = re.compile(rf"^Exit Code: ({_NUMBER})(?![0-9])", re.MULTILINE)
_OF_MINI_SWE_AGENT: Final = re.compile(rf"\s*<returncode>({_NUMBER})</returncode>")
_OF_OPENHANDS: Final = re.compile(
    rf"\[The command completed with exit code ({_NUMBER})\.\]\s*\Z"
)
_KEYS: Final = ("exit_code", "exitCode", "returncode", "return_code")
_STILL_RUNNING: Final = -1  # of OpenHands: the command has not ended


def states_failure(content: Any) -> bool:
    """Whether a result states that a command ended with another exit code than 0."""
    code = stated_exit_code(content)
    return code is not None and code not in (0, _STILL_RUNNING)


def stated_exit_code(content: Any) -> int | None:
    """Return the exit code that a result states; None without one.

    content: a text, JSON of a client, or a list of parts with texts.
    """
    if isinstance(content, Mapping):
        return _in_object(content)
    if isinstance(content, list):
        for part in content:
            code = _in_outcome(part)
            if code is not None:
                return code
        texts = [base.text(part, "text") for part in content]
        content = next((text for text in texts if text), None)
    if not isinstance(content, str):
        return None
    if content.lstrip().startswith("{") and any(f'"{key}"' in content for key in _KEYS):
        value, _ = base.parsed(content)
        return _in_object(value) if isinstance(value, dict) else None
    return of_codex(content) if "Output:" in content else _in_text(content)


def of_codex(text: str) -> int | None:
    """Return the exit code in the lines before a command's output; None without one."""
    output = _OUTPUT.search(text)
    if output is None:
        return None
    code = _OF_CODEX.search(text, 0, output.start())
    return None if code is None else int(code[1])


def of_gemini(text: str) -> int | None:
    """Return the exit code in a result of Gemini CLI's shell; None without one."""
    code = _OF_GEMINI.search(text)
    return None if code is None else int(code[1])


def _in_text(text: str) -> int | None:
    """Return the exit code that a client wrote before or after the output."""
    if "<returncode>" in text:
        code = _OF_MINI_SWE_AGENT.match(text)
        return None if code is None else int(code[1])
    if "exit code" in text:
        code = _OF_OPENHANDS.search(text)
        return None if code is None else int(code[1])
    return None


def _in_object(value: Mapping[str, Any]) -> int | None:
    """Return the exit code in the JSON of a client."""
    for place in (value, base.mapping(value, "metadata")):
        for key in _KEYS:
            code = base.number(place, key)
            if code is not None:
                return int(code)
    return None


def _in_outcome(part: Any) -> int | None:
    """Return the exit code in a part of the output of OpenAI's own shell."""
    code = base.number(part, "outcome", "exit_code")
    return None if code is None else int(code)
