"""Packs of rules, by the names that policies use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, TypeAlias

from refold.redaction.rules.rule import Rule, load

_Load: TypeAlias = Callable[[], tuple[Rule, ...]]


class Packs(Mapping[str, tuple[Rule, ...]]):
    """Packs by name.  The rules of a pack are read when it is first looked up."""

    def __init__(self, loaders: Mapping[str, _Load]) -> None:
        self._loaders = loaders
        self._packs: dict[str, tuple[Rule, ...]] = {}

    def __getitem__(self, name: str) -> tuple[Rule, ...]:
        rules = self._packs.get(name)
        if rules is None:
            # Two threads may read a pack at once; both get the same rules.
            rules = self._packs.setdefault(name, self._loaders[name]())
        return rules

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaders)

    def __len__(self) -> int:
        return len(self._loaders)

    def __contains__(self, name: object) -> bool:
        return name in self._loaders


def _pii_common() -> tuple[Rule, ...]:
    from refold.redaction.checks.names import IBANS

    return (
        *load("common", "pii_common", {"IBANS": IBANS}),
        *load("personal", "personal"),
        *load("network", "network_in_context"),
        *load("address", "address_en"),
    )


def _pii_cn() -> tuple[Rule, ...]:
    return (*load("china", "pii_cn"), *load("address", "address_cn"))


def _pii_us() -> tuple[Rule, ...]:
    return load("us", "pii_us")


def _secrets() -> tuple[Rule, ...]:
    from refold.redaction.rules import secrets

    return secrets.secrets()


def _pii_eu() -> tuple[Rule, ...]:
    return load("europe", "pii_eu")


def _network() -> tuple[Rule, ...]:
    return load("network", "network")


def _secrets_extended() -> tuple[Rule, ...]:
    from refold.redaction.rules import secrets

    return secrets.secrets_extended()


def _person() -> tuple[Rule, ...]:
    return load("person", "person")


PACKS: Final = Packs(
    {
        "pii-common": _pii_common,
        "pii-cn": _pii_cn,
        "pii-us": _pii_us,
        "secrets": _secrets,
        "pii-eu": _pii_eu,
        "network": _network,
        "secrets-extended": _secrets_extended,
        "person": _person,
    }
)
DEFAULT_PACKS: Final = ("pii-common", "pii-cn", "pii-us", "secrets")
