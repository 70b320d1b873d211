"""The command ``refold tickets``: tickets, and the side that must answer."""

from refold.adapters.cli.options import Call, UserOption
from refold.adapters.cli.output import Result


def tickets(call: Call, user: UserOption) -> Result:
    """List the tickets of a user, and who has to answer."""
    store = call.store()
    waiting_for: dict[str, str] = {}
    for info in store.sessions(user):
        session = store.session(user_id=user, session_id=info.session_id)
        for event in session.events(types=("user_input", "agent_response")):
            by_customer = event.type == "user_input"
            waiting_for[info.session_id] = "agent" if by_customer else "customer"
    lines = [f"{ticket}: the {role}" for ticket, role in waiting_for.items()]
    return Result(waiting_for, "\n".join(lines))
