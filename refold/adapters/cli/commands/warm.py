"""``refold warm``: compiles the rules of redaction for later processes."""

from __future__ import annotations

from typing import Any

from refold.adapters import config, rule_cache
from refold.adapters.cli import options
from refold.adapters.cli.output import Result, Screen
from refold.domain.errors import InvalidConfiguration, RefoldError
from refold.opener import make_redactor
from refold.redaction import engines


def warm(
    call: options.Call,  # noqa: ARG001  # every command has one
    policy: options.PolicyOption = None,
) -> Result:
    """Compile the rules of redaction, so that later processes load them.

    Takes a few seconds the first time; does nothing if the compiled rules are stored
    already.  They are in the folder REFOLD_CACHE, by default in that of the user's
    caches.  Run it when you build an image or have installed a new version.
    """
    rule_cache.use(fills=True)
    cache = engines.cache_in_use()
    if not isinstance(cache, rule_cache.RuleCache):
        state = "is off" if rule_cache.is_off() else "does not name a folder"
        raise InvalidConfiguration(
            f"REFOLD_CACHE {state}: unset it, or name a folder to store compiled rules"
        )
    if not engines.installed():
        raise InvalidConfiguration(
            "Vectorscan is not installed here, and the standard library needs no "
            "compiled rules"
        )
    triggers = make_redactor(config.policy(policy)).scanner.triggers
    try:
        file = cache.file_of(engines.identity_of(triggers))
    except RuntimeError as error:
        raise InvalidConfiguration(f"{error}: name one in REFOLD_CACHE") from None
    was_stored = engines.is_cached(triggers)
    if not engines.fill_cache(triggers):
        raise RefoldError(
            f"the compiled rules cannot be stored in {cache.path}: check that you own "
            "this folder, that nobody else can write it, and that its disk has room"
        )
    figures: dict[str, Any] = {
        "file": str(file),
        "bytes": file.stat().st_size,
        "compiled": not was_stored,
    }
    verb = "found" if was_stored else "stored"

    def show(screen: Screen) -> None:
        screen.line(f"compiled rules {verb}: {file} ({figures['bytes']:,} bytes)")

    return Result(figures, show, changed=not was_stored)
