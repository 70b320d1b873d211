"""Former names of ``Session``'s methods, which are methods of its parts now."""

from __future__ import annotations

from typing import Any


class FormerNames:
    """Each property returns the method that replaced the method of that name."""

    __slots__ = ()

    @property
    def append_items(self: Any) -> Any:
        """``session.native.append``."""
        return self.native.append

    @property
    def would_store(self: Any) -> Any:
        """``session.native.would_store``."""
        return self.native.would_store

    @property
    def put_bytes(self: Any) -> Any:
        """``session.native.put_bytes``."""
        return self.native.put_bytes

    @property
    def items(self: Any) -> Any:
        """``session.native.read``."""
        return self.native.read

    @property
    def fold(self: Any) -> Any:
        """``session.native.fold``."""
        return self.native.fold

    @property
    def pages(self: Any) -> Any:
        """``session.history.pages``."""
        return self.history.pages

    @property
    def timeline(self: Any) -> Any:
        """``session.history.timeline``."""
        return self.history.timeline

    @property
    def derived(self: Any) -> Any:
        """``session.history.derived``."""
        return self.history.derived

    @property
    def streams(self: Any) -> Any:
        """``session.history.streams``."""
        return self.history.streams

    @property
    def blob(self: Any) -> Any:
        """``session.history.blob``."""
        return self.history.blob

    @property
    def open_calls(self: Any) -> Any:
        """``session.history.open_calls``."""
        return self.history.open_calls

    @property
    def follow(self: Any) -> Any:
        """``session.history.follow``."""
        return self.history.follow

    @property
    def follow_async(self: Any) -> Any:
        """``session.history.follow_async``."""
        return self.history.follow_async

    @property
    def stats(self: Any) -> Any:
        """``session.history.stats``."""
        return self.history.stats

    @property
    def delegate(self: Any) -> Any:
        """``session.delegation.begin``."""
        return self.delegation.begin

    @property
    def parent(self: Any) -> Any:
        """``session.delegation.parent``."""
        return self.delegation.parent

    @property
    def hand_over(self: Any) -> Any:
        """``session.delegation.hand_over``."""
        return self.delegation.hand_over

    @property
    def revealed(self: Any) -> Any:
        """``session.vault.reveal_view``."""
        return self.vault.reveal_view

    @property
    def reveal(self: Any) -> Any:
        """``session.vault.reveal``."""
        return self.vault.reveal

    @property
    def advice(self: Any) -> Any:
        """``session.memory.advice``."""
        return self.memory.advice

    @property
    def review(self: Any) -> Any:
        """``session.reviews.ask``."""
        return self.reviews.ask

    @property
    def decide(self: Any) -> Any:
        """``session.reviews.decide``."""
        return self.reviews.decide

    @property
    def compactor(self: Any) -> Any:
        """``session.strategies.compactor``."""
        return self.strategies.compactor

    @property
    def activate(self: Any) -> Any:
        """``session.strategies.activate``."""
        return self.strategies.activate

    @property
    def retire(self: Any) -> Any:
        """``session.strategies.retire``."""
        return self.strategies.retire

    @property
    def default_fingerprint(self: Any) -> Any:
        """``session.strategies.default_fingerprint``."""
        return self.strategies.default_fingerprint

    @property
    def catch_up(self: Any) -> Any:
        """``session.strategies.catch_up``."""
        return self.strategies.catch_up

    @property
    def compare(self: Any) -> Any:
        """``session.proofs.compare``."""
        return self.proofs.compare

    @property
    def rerun(self: Any) -> Any:
        """``session.proofs.rerun``."""
        return self.proofs.rerun

    @property
    def replay(self: Any) -> Any:
        """``session.proofs.replay``."""
        return self.proofs.replay
