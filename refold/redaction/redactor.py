"""The redactor: takes a text or JSON, returns it without secrets and personal data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from time import perf_counter
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

import orjson

from refold.domain.locks import computed_once, forkable_lock
from refold.redaction.plan import Plan, Tagger
from refold.redaction.values import (
    FILE_BEGINNINGS,
    MAX_DEPTH,
    NO_SKIP,
    JsonObject,
    JsonValue,
    RedactionError,
    Skip,
    Tally,
)

if TYPE_CHECKING:
    from refold.redaction.documents import Around
    from refold.redaction.engines import EngineName
    from refold.redaction.learned import Learned
    from refold.redaction.rules.rule import Rule
    from refold.redaction.scanner import Scanner
    from refold.redaction.settler import Finds, Settler

__all__ = ["NO_SKIP", "RedactionError", "Redactor", "Skip", "Tally"]

_P = ParamSpec("_P")
_R = TypeVar("_R")
# Two threads that need the same rules at once wait for one to compile them.
_COMPILING: Final = forkable_lock()
# JSON has many leaves if it has at least one quote for this many bytes.
_DENSE: Final = 64
# The beginnings of texts that may be files, and of files in JSON.
_FILES: Final = (*FILE_BEGINNINGS, "data:")
_ENCODED_FILES: Final = tuple(beginning.encode() for beginning in FILE_BEGINNINGS)
# Objects that are no JSON must not pass as if they were scanned.
_STRICT: Final = (
    orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)


def _failing_closed(work: Callable[_P, _R]) -> Callable[_P, _R]:
    """Raise nothing but RedactionError, without any trace of the text."""

    @wraps(work)
    def closed(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return work(*args, **kwargs)
        except RedactionError as error:
            failure = error.with_traceback(None)
        except Exception as error:
            failure = RedactionError(f"redaction stopped with {type(error).__name__}")
        # Outside of `except`, so that no context is attached.
        raise failure

    return closed


class _ValueOptions(TypedDict, total=False):
    skip: Skip
    tag: Tagger | None
    data: bytes | None
    context: str


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Redactor:
    """A plan, ready to redact with.  Immutable: threads may share it.

    A second pass changes nothing: ``text(text(x)) == text(x)``, and so for ``value``.

    plan:       rules, and what is done with their findings.  Without one, the rules of
                Refold's own are read on the first use.
    registered: exact values that are redacted everywhere; they win over the plan's
                allow-lists.
    recognizer: a user's own model, called with every text after the rules.

    Raises ModuleNotFoundError if the plan names an engine that is not installed.
    """

    registered: Finds | None
    recognizer: Finds | None

    def __init__(
        self,
        plan: Plan | None = None,
        *,
        registered: Finds | None = None,
        recognizer: Finds | None = None,
    ) -> None:
        # The class is frozen, so its fields cannot be assigned.
        vars(self).update(registered=registered, recognizer=recognizer)
        if plan is not None:
            from refold.redaction.engines import check_installed

            check_installed(plan.engine)
            vars(self)["plan"] = plan

    @computed_once
    def plan(self) -> Plan:
        """Its rules, and what is done with their findings."""
        return Plan()

    @computed_once
    def rule_set(self) -> str:
        """The plan's name and a digest of all that decides what is redacted."""
        return f"{self.plan.name}-2:{self.plan.fingerprint}"

    @computed_once
    def numbered(self) -> bool:
        """Whether its placeholders carry numbers."""
        return self.plan.numbered

    @computed_once
    def _settler(self) -> Settler:
        """Rules and engine, compiled on first use."""
        from refold.redaction.settler import Settler

        plan = self.plan
        with _COMPILING:
            scanner = _compiled(
                plan.rules, plan.engine, plan.min_score, plan.work_per_kb
            )
        return Settler(plan, scanner, self.registered, self.recognizer)

    @computed_once
    def stubbing(self) -> Redactor:
        """This redactor, with stubs for texts over the budget of work."""
        if self.plan.over_budget == "stub":
            return self
        return self._with_plan(over_budget="stub")

    @computed_once
    def numbering(self) -> Redactor:
        """This redactor with numbered placeholders, unless its plan has other ones."""
        plan = self.plan
        if plan.numbered or plan.pseudonyms or plan.labels:
            return self
        return self._with_plan(numbered=True)

    def learning(self, learned: Learned) -> Redactor:
        """This redactor, which also finds the secrets that a session has shown."""
        redactor = object.__new__(Redactor)  # a copy that compiles nothing again
        vars(redactor).update(vars(self))
        settler = self._settler.learning(learned)
        vars(redactor).update(_settler=settler, registered=settler.registered)
        vars(redactor)["without_learned"] = self
        for derived in ("stubbing", "numbering"):
            vars(redactor).pop(derived, None)
        return redactor

    @computed_once
    def without_learned(self) -> Redactor:
        """This redactor without the secrets of a session."""
        return self

    def _with_plan(self, **changes: Any) -> Redactor:
        return Redactor(
            replace(self.plan, **changes),
            registered=self.registered,
            recognizer=self.recognizer,
        )

    @property
    def scanner(self) -> Scanner:
        """The scanner that runs its rules."""
        return self._settler.scanner

    @property
    def engine(self) -> str:
        """The name and version of the engine that runs its rules."""
        return self.scanner.engine

    @_failing_closed
    def text(
        self, text: str, *, key: str | None = None, tag: Tagger | None = None
    ) -> tuple[str, Tally]:
        """Redact ``text``, which stands under ``key``; also return the tally.

        ``tag`` makes the pseudonyms, if the plan wants any.  Raises RedactionError.
        """
        settler = self._settler
        scanner = settler.scanner
        meter = scanner.whole_meter(self._until())
        # A text is judged by itself, and again under its key.
        meter.limit += 2 * scanner.steps_for(len(text))
        if text.startswith(_FILES):
            file = settler.file(text, whole=meter)
            if file is not None:
                return file
        if stub := settler.stub(text):
            return stub
        prepared = scanner.look(text, meter)
        if meter.until:
            meter.check_time()
        key_context = scanner.key_context(key) if key else None
        is_clean = prepared is None or prepared.findings == ()
        if (
            is_clean
            and not (key_context and key_context.rules)
            and not (settler.finds_more and settler.finds_more_in((text,)))
        ):
            return text, Tally()
        from refold.redaction.settler import Text

        job = Text(text, prepared, key_context or scanner.key_context(""))
        return settler.settle([job], self._tag(tag), meter)[0]

    @overload
    def value(
        self, value: JsonObject, **options: Unpack[_ValueOptions]
    ) -> tuple[JsonObject, Tally]: ...

    @overload
    def value(
        self, value: JsonValue, **options: Unpack[_ValueOptions]
    ) -> tuple[JsonValue, Tally]: ...

    @_failing_closed
    def value(
        self,
        value: JsonValue,
        *,
        skip: Skip = NO_SKIP,
        tag: Tagger | None = None,
        data: bytes | None = None,
        context: str = "",
    ) -> tuple[JsonValue, Tally]:
        """Redact every string, key and telling number of ``value``.

        Only changed parts are copied; a clean value is returned itself.  A key, its
        parent, and the name in the same object as a ``value`` give context to the
        texts under them.  Strings that hold JSON are redacted as JSON.  Of images and
        PDF files in base64, only metadata and what follows their end is searched.

        skip:    paths that are left alone.
        tag:     makes the pseudonyms, if the plan wants any.
        data:    the compact JSON of ``value``, if the caller has it.
        context: a word, such as ``untrusted``, that is context everywhere in the value.

        Raises RedactionError, also for what is not JSON or nested too deep.
        """
        # The whole bytes also hold the skipped texts, which would be found in them.
        skips_texts = bool(skip) and data is None
        if not (context or skips_texts) and self._proves_clean(value, data):
            return value, Tally()
        from refold.redaction.documents import Work, redacted

        plan = self.plan
        if plan.skip:
            skip |= plan.skip
        # Every append comes through here, so each call that is not needed is left out.
        tag = self._tag(tag) if plan.pseudonyms or plan.numbered else None
        meter = self.scanner.whole_meter(self._until())
        around = _around(skip, context=context)
        return redacted(value, Work(self._settler, tag, meter), around)

    def _proves_clean(self, value: JsonValue, data: bytes | None) -> bool:
        """Whether the bytes of a ``value`` with many leaves prove that it is clean.

        If they cannot, each leaf must be searched.
        """
        if data is None:
            if not _is_nested(value):  # it has few leaves
                return False
            try:
                data = orjson.dumps(value, option=_STRICT)
            except orjson.JSONEncodeError:
                # Half of a surrogate pair, a very large integer, or no JSON at all.
                return False
        if data.count(b'"') * _DENSE <= len(data):
            return False
        for beginning in _ENCODED_FILES:
            if beginning in data:
                return False
        settler = self._settler
        plan = self.plan
        if plan.budget_ms or plan.on_error != "block":
            # Time may run out, or an error of a rule may replace only one text.
            return False
        return (
            settler.scanner.gates
            and not settler.finds_more
            and len(data) <= plan.max_leaf_bytes
            and data.count(b"[") + data.count(b"{") < MAX_DEPTH
            and settler.scanner.proves_clean(data)
        )

    def receipt(self, tally: Tally) -> JsonObject:
        """Return the record of an event's redaction: never a value or its length.

        The paths of findings, as JSON pointers, are recorded only if the plan's audit
        is ``paths``.  If it is ``silent``, not even their number is.
        """
        engine = self._settler.scanner.engine
        receipt: JsonObject = {"rules": self.rule_set, "engine": engine}
        if self.plan.audit == "silent":
            return receipt
        receipt["n"] = 0
        if tally.types:
            receipt["n"] = tally.n
            receipt["types"] = dict(sorted(tally.types.items()))
        if self.plan.audit == "paths" and tally.paths:
            receipt["paths"] = [*sorted(set(tally.paths))]
        return receipt

    def _tag(self, tag: Tagger | None) -> Tagger | None:
        """Return the tagger, if the plan uses it."""
        plan = self.plan
        makes_numbers = plan.numbered and hasattr(tag, "with_numbers")
        return tag if plan.pseudonyms or makes_numbers else None

    def _until(self) -> float:
        """Return the time at which the plan's budget of time ends; 0 without one."""
        budget = self.plan.budget_ms
        return perf_counter() + budget / 1000 if budget else 0.0


@lru_cache(maxsize=64)
def _around(skip: Skip, *, context: str) -> Around:
    """Return the surroundings of a value in which the paths ``skip`` are left alone."""
    from refold.redaction.documents import Around

    return Around(skip, context=context)


@lru_cache(maxsize=8)
def _compiled(
    rules: tuple[Rule, ...], engine: EngineName, min_score: float, work_per_kb: int
) -> Scanner:
    """Compile rules for an engine, once for all redactors that use them."""
    from refold.redaction.scanner import Scanner

    return Scanner(rules, engine, min_score, work_per_kb)


def _is_nested(value: JsonValue) -> bool:
    """Whether it is an object in which there are others, or arrays."""
    if isinstance(value, dict):
        for item in value.values():
            if item and (type(item) is dict or type(item) is list):
                return True
    return False
