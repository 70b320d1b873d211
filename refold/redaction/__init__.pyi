# The public names of the package; each is loaded when it is first used.

from .checks import Candidate as Candidate
from .chokepoint import (
    redact_payload as redact_payload,
    skipped as skipped,
)
from .guard import (
    Guarded as Guarded,
    Limits as Limits,
    TooLarge as TooLarge,
    guard as guard,
)
from .pieces import (
    RedactingFilter as RedactingFilter,
    RedactingWriter as RedactingWriter,
    StreamRedactor as StreamRedactor,
    redacted_lines as redacted_lines,
)
from .plan import Plan as Plan
from .policy import Policy as Policy, PolicyError as PolicyError
from .recognizers import Span as Span
from .redactor import Redactor as Redactor
from .registered import Registered as Registered
from .rules.default import DEFAULT_RULES as DEFAULT_RULES
from .rules.rule import Rule as Rule
from .values import (
    NO_SKIP as NO_SKIP,
    JsonObject as JsonObject,
    JsonValue as JsonValue,
    RedactionError as RedactionError,
    Skip as Skip,
    Tally as Tally,
)

__all__: list[str]
