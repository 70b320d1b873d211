"""The values that the numbered placeholders of a session replace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from refold.domain.events import JsonObject
from refold.projections.context.view import View
from refold.store import vault
from refold.store.recorded import recorded, view_size
from refold.store.session.part import SessionPart


@dataclass(frozen=True, slots=True)
class SessionVault(SessionPart):
    """Replace numbered placeholders of this session by their values."""

    @recorded("session_context", measure=view_size)
    def reveal_view(self, view: View) -> View:
        """Return the view of this session with values in place of its placeholders.

        A placeholder stays if the vault has no value for it, if it is in a part that
        the caller passed, or if the session inherited it as a fork.
        """
        reveal = self._reveal_function()
        messages, types = vault.in_own_blocks(view, reveal)
        if not types:
            return view
        key = self.writer.log.session_proof_key(self.stream)
        mac = vault.mac_of(key, [self.session_id, view.system, messages])
        return replace(view, messages=messages, revealed=types, revealed_mac=mac)

    @recorded("session_load", "arguments")
    def reveal(self, arguments: JsonObject, *, tool: str) -> JsonObject:
        """Return the arguments of a call with values in place of placeholders.

        Only values of the types that the store's vault allows for this tool are
        revealed.
        """
        types = self.writer.vault.allowed(tool)
        revealed: JsonObject = self._reveal_function()(arguments, types=types).value
        return revealed

    def _reveal_function(self) -> Callable[..., vault.Revealed]:
        """Return the function that replaces placeholders of this session.

        The values come from the store's vault, or are kept with the session.
        """
        state = self.session.head().state
        now = self.writer.time.now()
        values = vault.unexpired(state.kept, self.writer.redactor.plan, now)
        return partial(
            self.writer.vault.reveal, self.stream, state.numbers, kept=values
        )
