"""A redactor loads only the modules that it uses."""

import subprocess
import sys

import pytest

CHECKS = {
    f"refold.redaction.checks.{name}"
    for name in ("extents", "numbers", "people", "secrets")
}
UNUSED = {
    *CHECKS,
    "refold.redaction.engines.vectorscan",
    "refold.redaction.json_text",
    "refold.redaction.pieces",
    "refold.redaction.policy",
    "refold.redaction.recognizers",
    "refold.redaction.registered",
}


def loaded(text: str) -> set[str]:
    """The modules that a process has loaded after it redacted ``text``."""
    program = (
        "import sys\n"
        "from refold.redaction.plan import Plan\n"
        "from refold.redaction.redactor import Redactor\n"
        "redactor = Redactor(Plan(engine='stdlib'))\n"
        "clean, tally = redactor.value({'text': sys.argv[1]})\n"
        "redactor.receipt(tally)\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, text],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_a_clean_text_loads_no_check_and_no_other_part() -> None:
    assert not loaded("The weather is fine today.") & UNUSED


@pytest.mark.parametrize(
    ("text", "module"),
    [
        ("My card is 4111 1111 1111 1111.", "numbers"),
        ("Write to ada@example.org today.", "people"),
        ("password: hunter2secret!", "secrets"),
    ],
)
def test_a_match_loads_the_check_of_its_rule(text: str, module: str) -> None:
    assert f"refold.redaction.checks.{module}" in loaded(text)
