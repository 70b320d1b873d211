"""Texts that try to run in a browser, and events with them in every text field."""

from __future__ import annotations

from itertools import product
from typing import Any, Final

import refold
from refold.domain.events import Attachment, Thinking, Verdict
from refold.store import Session

# Markup that ends the element or attribute around a text.
_ENDS: Final = (
    "",
    '">',
    "'>",
    "</pre>",
    "</script>",
    "</style>",
    "</title>",
    "</textarea>",
    "-->",
    "]]>",
    "\x1b[2J\x1b]8;;javascript:ran()\x07",
    "\u202e\u2066",
    "{{ ''.__class__ }}{% for a in b %}",
)
# Markup that runs a script after it.
_RUNS: Final = (
    "<script>ran()</script>",
    "<img src=x onerror=ran()>",
    "<svg onload=ran()><animate onbegin=ran() attributeName=x dur=1s>",
    "<svg><script>ran()</script></svg>",
    '<iframe srcdoc="<script>parent.ran()</script>"></iframe>',
    '<a href="javascript:ran()" id=bait>read on</a>',
    "[read on](javascript:ran())",
    "<details open ontoggle=ran()>",
    "<input autofocus onfocus=ran()>",
    "<body onload=ran()>",
    "<video><source onerror=ran()></video>",
    '<meta http-equiv=refresh content="0;url=javascript:ran()">',
    "<math><mtext><style><img src=x onerror=ran()></style></mtext></math>",
    '<div hx-get="/login" hx-trigger="load" hx-on::load="ran()">x</div>',
    '<form action="javascript:ran()"><button autofocus>go</button></form>',
    '" autofocus onfocus="ran()" x="',
)
PAYLOADS: Final = tuple(end + run for end, run in product(_ENDS, _RUNS))

# Every element of Markdown that pages show.
MARKDOWN: Final = """# Title

*em* **strong** ~~gone~~ `code` [REDACTED:EMAIL] [link](https://a.example 't')
a line

> quote

- item

3. third

| a | b | c |
|---|:-:|--:|
| 1 | 2 | 3 |

```py
x = 1
```

---
"""
# Places of Markdown in which an address or markup may run.
_IN_MARKDOWN: Final = (
    "{}",
    "[read on]({})",
    "[read on](<{}>)",
    "![x]({})",
    "[![x]({})](/erase)",
    "<{}>",
    "[read on][a]\n\n[a]: {}",
    '[x](/a "{}")',
    "# {}",
    "> {}",
    "- {}",
    "1. {}",
    "| {} | b |\n|---|---|\n| c | {} |",
    "```{}\nx\n```",
    "    {}",
    "**{}**",
    "`{}`",
    "&lt;{}&gt;",
)
# Addresses that run a script or load a file.
_ADDRESSES: Final = (
    "javascript:ran()",
    "JaVaScRiPt:ran()",
    "java\tscript:ran()",
    "&#106;avascript&colon;ran()",
    "vbscript:ran()",
    "data:text/html,<script>ran()</script>",
    "data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9cmFuKCk+",
    "//elsewhere.example/x.png",
    "http://elsewhere.example/x.png",
    "file:///etc/passwd",
    'x" onerror="ran()',
    "x' style='background:url(//elsewhere.example)",
)
MARKDOWN_PAYLOADS: Final = tuple(
    place.replace("{}", run)
    for place, run in product(_IN_MARKDOWN, (*_RUNS, *_ADDRESSES))
)


def events_with(text: str) -> list[Any]:
    """Return the events that an agent records, with the text in every text field."""
    call = text[:200]
    named = {text[:60]: text, "list": [text, {"deep": text}]}
    return [
        refold.SystemPrompt(text=text),
        refold.UserInput(
            text=text,
            attachments=(
                Attachment(kind="file", name=text, media_type=text, url=text),
            ),
        ),
        refold.AgentResponse(
            text=text, thinking=(Thinking(thinking=text),), stop_reason=text
        ),
        refold.ToolCall(call_id=call, tool_name=text, arguments=named),
        refold.ToolCall(call_id=f"{call}2", tool_name=text, arguments=text),
        refold.ToolResult(call_id=call, content=named, status="error"),
        refold.ToolResult(
            call_id=f"{call}2", content=[{"type": "text", "text": text}, {"type": text}]
        ),
        *_calls_with_layouts(call, text),
        refold.Planner(plan=[text, {"step": text}]),
        refold.Reflection(issues=(text,), suggestion=text, pass_=False),
        refold.Aggregate(
            results=(Verdict(item_id=text, verdict="incorrect", error_type=text),)
        ),
        refold.AgentError(code=text, message=text, where=text, context={"x": text}),
        refold.HumanReview(trigger=text, question=text, bundle={text[:60]: text}),
        refold.StateUpdate(set={text[:60]: text}),
        refold.Final(text=text, result=named),
    ]


def _calls_with_layouts(call: str, text: str) -> list[Any]:
    """Return calls and results that pages show as diffs, tasks, commands and tables."""
    short = text[:200]
    calls = {
        "edit": ("Edit", {"file_path": text, "old_string": text, "new_string": "x"}),
        "patch": ("apply_patch", f"*** Begin Patch\n*** Add File: {text}\n+{text}"),
        "tasks": ("TodoWrite", {"todos": [{"content": text, "status": "pending"}]}),
        "shell": ("Bash", {"command": text, "description": text, "cwd": text}),
    }
    contents = {
        "edit": [{"name": short, short[:40] or "b": 1}, {"name": short}],
        "patch": f"diff --git a/{short} b/{short}\n@@ {text}\n-{text}\n+new",
        "tasks": {"rows": [{"a": short}, {"a": short}]},
        "shell": f"Exit code 2\n{text}",
    }
    events: list[Any] = []
    for kind, (tool_name, arguments) in calls.items():
        events.append(
            refold.ToolCall(
                call_id=f"{call}-{kind}", tool_name=tool_name, arguments=arguments
            )
        )
    for kind, content in contents.items():
        events.append(refold.ToolResult(call_id=f"{call}-{kind}", content=content))
    return events


def append_events_with(session: Session, text: str) -> None:
    """Append events with the text, also as the agent's name and a warning's code."""
    meta = {"warnings": [{"code": text, "detail": text}], "model": text}
    session.append(events_with(text), agent=text, meta=meta)
