"""Pack ``pii-common``: addresses, phones, cards and accounts of people anywhere."""

from itertools import groupby

from refold.redaction.checks import Candidate
from refold.redaction.checks.numbers import LENGTHS
from refold.redaction.rules.address import ADDRESS_EN
from refold.redaction.rules.network import NETWORK_IN_CONTEXT
from refold.redaction.rules.rule import load, pattern

_LOGIN = pattern(__name__, "_LOGIN")
# Without any of these, nobody logs in.
_LOGINS = (":", "ssh", "scp", "sftp", "rsync", "mosh")
_NO_DOMAIN = pattern(__name__, "_NO_DOMAIN")


def email(found: Candidate) -> bool:
    """An address; not a file, a package version, a call, or the user of a machine."""
    local, _, domain = found.value.replace("%40", "@").rpartition("@")
    *_, name, top = domain.split(".")
    known = name.isdigit() and domain.count(".") == 1 and top in ("com", "net", "cn")
    return not (
        local == "git"
        or (".." in local and "..." not in local)
        or domain in ("openssh.com", "libssh.org")  # names of algorithms
        or _NO_DOMAIN.fullmatch(top)
        or (name.isdigit() and not known)
        or found.after(1) in ("(", "_")
        or _logs_in(found.before(64))
    )


def _logs_in(before: str) -> bool:
    """Whether what stands before an address makes it the user of a machine."""
    return any(word in before for word in _LOGINS) and bool(_LOGIN.search(before))


def _iban_pattern() -> str:
    """Each country with its own length, so that no word after it is taken for more."""
    lengths = groupby(
        sorted(LENGTHS, key=lambda c: (LENGTHS[c], c)), LENGTHS.__getitem__
    )
    forms = [
        rf"(?:{'|'.join(countries)})[0-9]{{2}}(?:[ \-]?[0-9A-Za-z]){{{length - 4}}}"
        for length, countries in lengths
    ]
    return rf"(?i:{'|'.join(forms)})"


_IBANS = _iban_pattern()

PII_COMMON = (*load(globals(), "pii_common"), *NETWORK_IN_CONTEXT, *ADDRESS_EN)
