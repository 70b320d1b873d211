"""An agent at work on an imported session: live events after the transcript.

``python live.py URL USER SESSION``
"""

import sys

import refold

url, user, name = sys.argv[1:]
log = "\n".join(f"node-{n:04} card-reader restarted, queue empty" for n in range(2_000))
review = {"trigger": "production", "severity": "high"}

with refold.open(url) as store:
    session = store.session(user_id=user, session_id=name)
    say = refold.AgentResponse

    session.append(refold.UserInput(text="Roll it out. Ask me before production."))
    session.append(refold.Planner(plan=["deploy", "restart readers", "look again"]))
    asked = session.append(refold.HumanReview(question="Deploy release 318?", **review))
    yes = {
        "decision": "approved",
        "decided_by": "operator",
        "refers_to": asked.last_seq,
    }
    session.append(refold.HumanReview(**review, **yes), request_id="rollout")

    call = refold.ToolCall(call_id="d1", tool_name="deploy", arguments={"release": 318})
    session.append(
        [say(text="Deploying."), call], agent="release", request_id="rollout"
    )
    session.append(refold.AgentError(code="timeout", where="deploy", retryable=True))
    session.append(refold.ToolResult(call_id="d1", content=log, duration_ms=41_250))
    session.append(
        refold.Reflection(pass_=True, confidence=0.9, issues=["one timeout"])
    )
    session.append(refold.StateUpdate(set={"release": 318, "readers": 2_000}))
    session.append(say(text="Release 318 is live on all 2000 readers."))

    session.append(refold.UserInput(text="Is any reader still down?"))
    session.append(say(text="No: all 2000 answered within a minute."))
    session.append(refold.UserInput(text="Then close the task."))
    session.append(refold.Final(text="Closed.", outcome="success"))
