"""The secret of ``refold proxy``, in a file that only its owner can read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from refold.adapters.keys.master import create_private, warn_of_mode
from refold.adapters.proxy.security import new_secret
from refold.domain.errors import InvalidConfiguration

NAME: Final = "proxy.secret"
"""The name of the file in ``REFOLD_HOME``."""

_SECRET: Final = re.compile(r"[A-Za-z0-9_-]{32,200}")


def secret_in(path: Path) -> str:
    """Return the secret in a file, which is made if it does not exist.

    Raises InvalidConfiguration if the file cannot be read or contains something else.
    """
    try:
        create_private(path, new_secret().encode())
        warn_of_mode(path)
        secret = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not ASCII"
        raise InvalidConfiguration(
            f"the secret in {path} cannot be used: {reason.lower()}"
        ) from None
    if not _SECRET.fullmatch(secret):
        raise InvalidConfiguration(
            f"{path} contains no secret: delete it, or write at least 32 letters, "
            "digits, - or _ into it"
        )
    return secret
