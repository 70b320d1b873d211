"""Redaction of JSON: every string, key and telling number, JSON in strings included."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

from refold.redaction.checks.names import LEXICON, PASSWORDS, patterns, programs, words
from refold.redaction.engines.fold import Folded
from refold.redaction.plan import Spellings, Tagger
from refold.redaction.scanner import FAST, Finding, KeyContext, Prepared
from refold.redaction.settler import Settler, Text
from refold.redaction.types import renamed
from refold.redaction.values import (
    FILE_BEGINNINGS,
    MAX_DEPTH,
    MAX_NESTED,
    NO_SKIP,
    JsonValue,
    Meter,
    OverBudget,
    RedactionError,
    Skip,
    Tally,
    TooDeep,
    below,
)


class Around(NamedTuple):
    """The surroundings of a value.

    key, parent: the key that it stands under, and the key of the object around that.
    depth:       how many objects and arrays are around it.
    nested:      how many strings of JSON are around it.
    context:     context for everything in it, such as ``untrusted``.
    """

    skip: Skip
    parent: str = ""
    key: str = ""
    depth: int = 0
    nested: int = 0
    context: str = ""


class Work(NamedTuple):
    """The settler, with the tagger and the meter for one value."""

    settler: Settler
    tag: Tagger | None = None
    meter: Meter | None = None


def redacted(value: JsonValue, work: Work, around: Around) -> tuple[JsonValue, Tally]:
    """``value`` without its findings, and the tally of them.

    The same object is returned if nothing was found.  Raises TooDeep, and
    RedactionError for what is not JSON.
    """
    if isinstance(value, dict | list):
        [result] = _Walk([_root(value, around)], work, around).results()
        return result
    # A text or number is redacted as the only item of an array.
    [(clean, tally)] = _Walk([_root([value], around)], work, around).results()
    return clean[0], tally  # type: ignore[index]  # it is that array


def _root(value: dict[str, JsonValue] | list[JsonValue], around: Around) -> Node:
    """The node of a whole value."""
    keys = (around.parent, around.key)
    node = Node(value, None, "", around.depth, around.skip, keys=keys)
    node.source = id(value)
    return node


class _KeyOfSeveral(Exception):
    """A key with a finding may stand in several values that are redacted together."""


class _Document(NamedTuple):
    """A text of an item that is JSON: one document, or one a line.

    place:  the index of the text.
    parsed: the source and the value of each document.
    """

    place: int
    parsed: list[tuple[str, JsonValue]]


class _Walk:
    """One pass over objects or arrays that are redacted together.

    around: what is the same around all of them.
    """

    def __init__(self, roots: list[Node], work: Work, around: Around) -> None:
        plan = work.settler.plan
        meter = work.meter
        if meter is None:
            meter = work.settler.scanner.whole_meter()
            work = work._replace(meter=meter)
        self._meter = meter
        self._work = work
        self._around = around
        self._plan = plan
        self._nests = around.nested < MAX_NESTED and plan.nested_json
        self._scanner = work.settler.scanner
        self._placeholders = work.settler.placeholders
        self._roots = roots
        self._flat = Flat(roots, plan.skip_keys)
        # The findings in each of them.
        self._tallies = [Tally() for _ in roots]
        # Registered values or a recognizer may find something in any text.
        self._finds_more = False
        # Keys that are not known to be without findings and context.
        self._new_keys: list[str] = []
        # The indexes of texts that may be JSON.
        self._documents: frozenset[int] = frozenset()
        # By key with a finding: the redacted key.
        self._names: dict[str, str] = {}
        # By id of a node with a ``value``: the name that another item gives it, or
        # nothing if the name has a finding.
        self._named: dict[int, str] = {}
        # The scan results of such names, and, by name and key, whether it is clean.
        self._scanned_names: dict[str, Prepared | None] = {}
        self._clean_names: dict[tuple[str, str], bool] = {}

    def results(self) -> list[tuple[JsonValue, Tally]]:
        """Each redacted value with its tally.

        Raises _KeyOfSeveral.
        """
        flat = self._flat
        texts = flat.texts
        settler = self._work.settler
        self._grow()
        if flat.files:
            self._judge_files()
        if texts and 4 * max(map(len, texts)) > self._plan.max_leaf_bytes:
            self._stub_long_texts()
        if flat.documents and self._nests:
            self._documents = frozenset(
                index for index in flat.documents if _MAY_BE_JSON.match(texts[index])
            )
        if settler.finds_more:
            keys = flat.keys if self._plan.keys else ()
            self._spend((sum(map(len, texts)) + sum(map(len, keys))) // FAST)
            self._finds_more = settler.finds_more_in([*keys, *texts])
        if self._finds_more:
            self._new_keys = [*flat.keys]
        elif not flat.keys.keys() <= settler.quiet:
            self._new_keys = [key for key in flat.keys if key not in settler.quiet]
        if self._new_keys or self._documents:
            prepared = self._surveyed()
        else:
            prepared = self._scanner.survey(texts, self._meter)
        indexes: Sequence[int]
        if self._new_keys or self._documents or self._finds_more or self._has_context:
            prepared = dict(prepared)
            indexes = self._to_redact(prepared)
        elif prepared:
            indexes = sorted(
                index for index, text in prepared.items() if text.findings != ()
            )
        else:
            indexes = ()
        if indexes:
            self._redact_texts(indexes, prepared)
        values: list[JsonValue] = [root.value for root in self._roots]
        if any(tally.types for tally in self._tallies):
            values = self._rebuilt()
        return list(zip(values, self._tallies, strict=True))

    def _grow(self) -> None:
        """Let the meter allow for all texts and keys, and count the walk over them."""
        flat = self._flat
        length = sum(map(len, flat.texts)) + sum(map(len, flat.keys))
        leaves = len(flat.places) + len(flat.keys) + len(flat.nodes)
        # A text is judged by itself, and again under its key.
        allowed = 2 * length + _OF_A_LEAF * leaves
        self._meter.limit += self._scanner.steps_for(allowed)
        self._spend(len(flat.nodes) + leaves // 8)

    def _spend(self, steps: int) -> None:
        """Count steps of the walk itself.

        With stubs for texts over the budget, these steps refuse nothing: the texts that
        follow become stubs.
        """
        if self._plan.over_budget == "stub":
            self._meter.add(steps)
            self._meter.check_time()
        else:
            self._meter.spend(steps)

    def _judge_files(self) -> None:
        """Search only the metadata of texts that are files in base64."""
        # Few events have files.
        from refold.redaction.files import declared_type

        flat = self._flat
        for index in flat.files:
            node, name = flat.places[index]
            around = node.parent.value if node.parent else None
            declared = declared_type(name, node.value, around)
            try:
                file = self._work.settler.file(flat.texts[index], declared, self._meter)
            except OverBudget:
                raise OverBudget(self._pointer(node, name)) from None
            if file is None:
                continue
            clean, tally = file
            if tally:
                self._count(tally, node, name)
                node.writes[name] = clean
            flat.texts[index] = ""

    def _stub_long_texts(self) -> None:
        """Replace texts over the limit of bytes by stubs."""
        texts = self._flat.texts
        for index, text in enumerate(texts):
            stub = self._work.settler.stub(text)
            if stub:
                self._write(index, *stub)
                texts[index] = ""

    @property
    def _has_context(self) -> object:
        """Whether anything besides keys of objects may give context to a text."""
        flat = self._flat
        named = flat.named or flat.pairs or flat.flags or flat.tables or flat.commands
        named = named or flat.objects
        return named or self._around.context or self._root_keys

    @property
    def _root_keys(self) -> set[tuple[str, str]]:
        """The keys around the whole values, if there are any."""
        return {root.keys for root in self._roots if root.keys} - {("", "")}

    def _to_redact(self, prepared: dict[int, Prepared]) -> Sequence[int]:
        """The texts that may have findings, by their hits or by context."""
        flat = self._flat
        if flat.named:
            self._name_values()
        if flat.pairs:
            self._name_seconds()
        if flat.tables:
            self._name_columns()
        if flat.commands:
            self._judge_arguments(prepared)
        if flat.objects and self._scanner.of_objects:
            self._judge_objects(prepared)
        if self._finds_more:
            return range(len(flat.texts))
        indexes = {*prepared, *self._documents}
        if self._new_keys or self._has_context:
            indexes.update(self._with_context())
        return sorted(indexes)

    def _surveyed(self) -> dict[int, Prepared]:
        """Scan keys and texts together; redact the keys and return the texts' results.

        Texts that may be JSON are left out.
        """
        texts = self._flat.texts
        if self._documents:
            texts = texts.copy()
            for index in self._documents:
                texts[index] = ""
        if not self._plan.keys or not self._new_keys:
            return self._scanner.survey(texts, self._meter)
        keys = self._new_keys
        prepared = self._scanner.survey([*keys, *texts], self._meter)
        first = len(keys)
        self._redact_keys(keys, prepared)
        self._remember_quiet(key for i, key in enumerate(keys) if i not in prepared)
        return {
            index - first: text for index, text in prepared.items() if index >= first
        }

    def _redact_keys(
        self, keys: Sequence[str], prepared: Mapping[int, Prepared]
    ) -> None:
        """Redact the keys, whose scan results come first in ``prepared``."""
        indexes: Iterable[int] = range(len(keys))
        if not self._finds_more:
            indexes = [index for index in prepared if index < len(keys)]
        jobs = [Text(keys[i], prepared.get(i), whole=False) for i in indexes]
        if not jobs:
            return
        for job, (clean, tally) in zip(jobs, self._settled(jobs), strict=True):
            if clean != job.text:
                if len(self._roots) > 1:
                    raise _KeyOfSeveral
                self._names[job.text] = clean
                self._count(tally, self._roots[0], "", place=False)

    def _remember_quiet(self, keys: Iterable[str]) -> None:
        """Remember those of ``keys``, which have no hits, that give no context."""
        quiet = self._work.settler.quiet
        for key in keys:
            if (
                len(quiet) < _QUIET
                and len(key) < 100
                and not self._scanner.key_context(key).rules
                and not self._placeholders.within(key)
            ):
                quiet.add(key)

    def _name_values(self) -> None:
        """Let the ``name`` in an object be the key of its ``value``, if it is clean."""
        self._spend(len(self._flat.named))
        naming: list[tuple[Node, str, str]] = []
        for node in self._flat.named:
            value: dict[str, JsonValue] = node.value  # type: ignore[assignment]  # one
            for key, name in value.items():
                if (
                    isinstance(name, str)
                    and key.lower() in NAMES
                    and self._scanner.key_context(name).rules
                ):
                    naming.append((node, key, name))
                    break
        self._scan_names([name for _, _, name in naming])
        for node, key, name in naming:
            self._named[id(node)] = name if self._is_clean(name, key) else ""

    def _name_seconds(self) -> None:
        """Let the first of two strings be the key of the second, if it is clean.

        A second string that gives context itself, or holds a placeholder, is left out,
        so that a second pass sees the same as the first.
        """
        key_context = self._scanner.key_context
        naming: list[tuple[Node, str]] = []
        for node, name, second in self._flat.pairs:
            self._spend(2)
            if (
                key_context(name).rules
                and not key_context(second).rules
                and not self._placeholders.within(second)
                and not self._key_context(node, 0).rules
            ):
                naming.append((node, name))
        self._scan_names([name for _, name in naming])
        for node, name in naming:
            if self._is_clean(name, ""):
                self._flat.flags[id(node), 1] = name

    def _name_columns(self) -> None:
        """Let the names of a table's columns be the keys of the items in its rows."""
        nodes = {node.source: node for node in self._flat.nodes}
        for table in self._flat.tables:
            value: dict[str, JsonValue] = table.value  # type: ignore[assignment]  # one
            for key, columns in value.items():
                if key.lower() not in _COLUMNS or not isinstance(columns, _ARRAYS):
                    continue
                self._spend(len(columns))
                names = [_column(column) for column in columns]
                self._scan_names(
                    [name for name in names if self._scanner.key_context(name).rules]
                )
                wanted = [
                    index for index, name in enumerate(names) if self._is_context(name)
                ]
                if not wanted:
                    continue
                for row in _rows(value, len(names)):
                    self._spend(len(wanted))
                    for index in wanted:
                        self._flat.flags[id(nodes[id(row)]), index] = names[index]

    def _is_context(self, name: str) -> bool:
        """Whether ``name`` gives context and has no finding."""
        return bool(self._scanner.key_context(name).rules) and self._is_clean(name, "")

    def _judge_arguments(self, prepared: dict[int, Prepared]) -> None:
        """Find in the arguments of a command what is found in the whole line."""
        flat = self._flat
        indexes = {
            (id(node), name): index for index, (node, name) in enumerate(flat.places)
        }
        lines = [" ".join(map(str, node.value)) for node in flat.commands]
        scanned = self._scanner.survey(lines, self._meter)
        for number, (node, line) in enumerate(zip(flat.commands, lines, strict=True)):
            self._spend(len(node.value) + len(line) // FAST)
            findings = scanned[number].findings if number in scanned else None
            if not findings:
                continue
            place = 0
            for name, item in enumerate(node.value):
                text = str(item)
                inside = [
                    finding._replace(
                        start=finding.start - place, end=finding.end - place
                    )
                    for finding in findings
                    if place <= finding.start and finding.end <= place + len(text)
                ]
                index = indexes.get((id(node), name))
                if inside and index is not None:
                    prepared[index] = Prepared(text, Folded(text), (), inside)
                place += len(text) + 1

    def _judge_objects(self, prepared: dict[int, Prepared]) -> None:
        """Find in the items of an object what its text in JSON shows."""
        flat = self._flat
        nodes = {node.source: node for node in flat.nodes}
        indexes = {
            (id(node), name): index for index, (node, name) in enumerate(flat.places)
        }
        of_objects = self._scanner.of_objects
        # Many short texts are scanned together far sooner than each by itself.
        written = [_Written(node.value) for node in flat.objects]
        scanned = self._scanner.survey([text.text for text in written], self._meter)
        for number, whole in scanned.items():
            for finding in whole.findings or ():
                if finding.rule not in of_objects:
                    continue
                for start, end, owner, name in written[number].places:
                    if end <= finding.start or finding.end <= start:
                        continue
                    index = indexes.get((id(nodes.get(owner)), name))
                    if index is not None:
                        self._add_finding(
                            prepared, index, finding, max(start, finding.start) - start
                        )

    def _add_finding(
        self, prepared: dict[int, Prepared], index: int, finding: Finding, start: int
    ) -> None:
        """Add a finding in an object, from ``start`` to the end of one of its texts."""
        text = self._flat.texts[index]
        own = finding._replace(start=start, end=len(text))
        previous = prepared.get(index)
        if previous is None:
            prepared[index] = Prepared(text, Folded(text), (), [own])
        else:
            findings = [*(previous.findings or ()), own]
            prepared[index] = previous._replace(findings=findings)

    def _is_clean(self, name: str, key: str) -> bool:
        """Whether nothing is found in ``name`` under ``key``."""
        if len(name) > _LONGEST_JUDGED or self._placeholders.within(name):
            return False
        clean = self._clean_names.get((name, key))
        if clean is None:
            clean = self._finds_nothing_in(name, key)
            self._clean_names[name, key] = clean
        return clean

    def _finds_nothing_in(self, name: str, key: str) -> bool:
        """Whether redaction leaves ``name`` as it is under ``key``."""
        self._spend(4)
        if name not in self._scanned_names:
            self._scan_names([name])
        prepared = self._scanned_names[name]
        key_context = self._scanner.key_context(key)
        if prepared is None and not key_context.rules and not self._finds_more:
            return True
        [(clean, _)] = self._settled([Text(name, prepared, key_context)])
        return clean == name

    def _scan_names(self, names: Iterable[str]) -> None:
        """Scan names together: that is far faster than one by one."""
        new: list[str] = []
        for name in dict.fromkeys(names):
            if len(name) <= _LONGEST_JUDGED and name not in self._scanned_names:
                new.append(name)
        scanned = self._scanner.survey(new, self._meter) if new else {}
        for index, name in enumerate(new):
            self._scanned_names[name] = scanned.get(index)

    def _settled(self, texts: list[Text]) -> list[tuple[str, Tally]]:
        return self._work.settler.settle(texts, self._work.tag, self._meter)

    def _with_context(self) -> list[int]:
        """The texts to which a key may give context."""
        flat = self._flat
        around = self._around
        key_context = self._scanner.key_context
        context_of = self._placeholders.context_of
        speaking: set[str] = set()
        self._spend(8 * len(self._new_keys) + len(flat.places) // 8)
        for key in self._new_keys:
            if key_context(context_of(self._names.get(key, key))).rules:
                speaking.add(key)
        if any(self._named.values()):
            speaking.update(key for key in flat.keys if key.lower() in VALUES)
        with_context: set[tuple[str, str]] = set()
        if around.context:
            with_context.add(("", ""))
        for parent, key in self._root_keys:
            both = key_context(f"{parent} {key}", around.context)
            if both.rules or key_context(key).rules:
                with_context.add((parent, key))
        for root in self._roots:
            root.has_context = root.keys in with_context
        flags = {place for place, flag in flat.flags.items() if key_context(flag).rules}
        if not (speaking or with_context or flags):
            return []
        for node in flat.nodes[len(self._roots) :]:
            above = node.parent
            node.has_context = node.name in speaking or (
                above is not None and above.has_context
            )
        indexes: list[int] = []
        for index, (node, name) in enumerate(flat.places):
            flagged = bool(flags) and (id(node), name) in flags
            if name in speaking or node.has_context or flagged:
                indexes.append(index)
        return indexes

    def _redact_texts(
        self, indexes: Iterable[int], prepared: Mapping[int, Prepared]
    ) -> None:
        flat = self._flat
        done: set[int] = set()
        scanned: Mapping[int, Prepared] = {}
        if self._documents:
            done, scanned = self._redacted_documents()
        jobs: list[tuple[int, Text]] = []
        for index in indexes:
            if index in done:
                continue
            job = self._job(index, scanned.get(index, prepared.get(index)))
            if job is not None:
                jobs.append((index, job))
        if not jobs:
            return
        # Equal texts under equal keys are settled once.
        numbers: dict[tuple[object, ...], int] = {}
        unique: list[tuple[int, Text]] = []
        places: list[int] = []
        for index, job in jobs:
            same = (job.text, id(job.prepared), job.key_context.numbers, job.number)
            place = numbers.setdefault(same, len(unique))
            places.append(place)
            if place == len(unique):
                unique.append((index, job))
        try:
            results = self._settled([job for _, job in unique])
        except OverBudget as error:
            node, name = flat.places[unique[error.index][0]]
            raise OverBudget(self._pointer(node, name)) from None
        for (index, job), place in zip(jobs, places, strict=True):
            clean, tally = results[place]
            if clean != job.text:
                self._write(index, clean, tally)

    def _job(self, index: int, prepared: Prepared | None) -> Text | None:
        """The text at ``index`` for the settler; None if there is nothing to settle."""
        flat = self._flat
        text = flat.texts[index]
        node, name = flat.places[index]
        key_context = self._key_context(node, name)
        depends_only_on_text = not (key_context.rules or self._finds_more)
        is_clean = prepared is None or prepared.is_clean
        if depends_only_on_text and (is_clean or self._only_counts(index)):
            return None
        number = index in flat.numbers and not self._numbers_like_text
        if number and (self._plan.numbers == "never" or text[0] == "-"):
            return None
        return Text(text, prepared, key_context, number=number)

    def _only_counts(self, index: int) -> bool:
        """Whether eleven digits count or name something, so that they are no phone.

        A number without a key is one, unless the plan judges numbers like texts.
        """
        # Few texts consist of digits.
        from refold.redaction.checks.numbers import is_count, is_mobile

        flat = self._flat
        text = flat.texts[index]
        if not is_mobile(text):
            return False
        node, name = flat.places[index]
        key = name if isinstance(name, str) else self._keys_of(node, name)[1]
        if key:
            return is_count(key, text)
        return index in flat.numbers and self._plan.numbers != "always"

    def _redacted_documents(self) -> tuple[set[int], dict[int, Prepared]]:
        """Redact the texts that are JSON.

        Returns their indexes with those of clean texts, and the scan results of the
        texts that turned out to be no JSON.
        """
        # Few events have JSON in a string.
        from refold.redaction.json_text import parsed

        texts = self._flat.texts
        done: set[int] = set()
        documents: list[_Document] = []
        others: list[int] = []
        by_text: dict[str, list[tuple[str, JsonValue]] | None] = {}
        for index in self._unproved_documents(done):
            text = texts[index]
            if text not in by_text:
                self._spend(1 + len(text) // FAST)
                by_text[text] = parsed(text)
            of_text = by_text[text]
            if of_text is None:
                others.append(index)
            else:
                documents.append(_Document(index, of_text))
        results = self._redacted_together(documents)
        for document, result in zip(documents, results, strict=True):
            if result is not None and self._write_document(document, result):
                done.add(document.place)
            else:
                others.append(document.place)
        prepared = self._scanner.survey([texts[index] for index in others], self._meter)
        return done, {others[place]: text for place, text in prepared.items()}

    def _unproved_documents(self, done: set[int]) -> list[int]:
        """The texts that may be JSON with findings; ``done`` gets the clean ones."""
        flat = self._flat
        unproved: list[int] = []
        small: list[int] = []
        for index in sorted(self._documents):
            node, name = flat.places[index]
            text = flat.texts[index]
            is_file = any(beginning in text for beginning in FILE_BEGINNINGS)
            if self._finds_more or is_file or self._key_context(node, name).rules:
                unproved.append(index)
            elif len(text) < _SMALL:
                small.append(index)
            elif self._scanner.clean(text):
                done.add(index)
            else:
                unproved.append(index)
        if small:
            # Many small texts are parsed sooner than each is scanned by itself.
            joined = "\n".join(dict.fromkeys(flat.texts[index] for index in small))
            if self._scanner.clean(joined):
                done.update(small)
            else:
                unproved += small
        return unproved

    def _redacted_together(
        self, documents: Sequence[_Document]
    ) -> list[list[tuple[JsonValue, Tally]] | None]:
        """The redacted values of each text; None if one is nested too deep."""
        if len(documents) > 1 or (documents and len(documents[0].parsed) > 1):
            try:
                return [*self._redacted_at_once(documents)]
            except (TooDeep, OverBudget, _KeyOfSeveral):
                # By itself, each raises what is right for it.
                pass
        return [self._redacted_alone(document) for document in documents]

    def _redacted_at_once(
        self, documents: Sequence[_Document]
    ) -> Iterator[list[tuple[JsonValue, Tally]]]:
        """The redacted values of each text, from one walk over all of them.

        Raises TooDeep, OverBudget, _KeyOfSeveral.
        """
        flat = self._flat
        # Equal texts under equal keys are redacted once.
        places: dict[tuple[str, tuple[str, str]], list[int]] = {}
        roots: list[Node] = []
        places_of: list[list[int]] = []
        for index, values in documents:
            node, name = flat.places[index]
            inside = self._inside(node, name, 1)
            same = (flat.texts[index], (inside.parent, inside.key))
            if same not in places:
                places[same] = []
                for _, value in values:
                    places[same].append(len(roots))
                    # An empty line has no value.
                    nested = value if isinstance(value, dict | list) else []
                    roots.append(_root(nested, inside))
            places_of.append(places[same])
        shared = Around(
            NO_SKIP,
            nested=self._around.nested + 1,
            context=self._around.context,
        )
        results = _Walk(roots, self._work, shared).results()
        for of_text in places_of:
            yield [results[place] for place in of_text]

    def _redacted_alone(
        self, document: _Document
    ) -> list[tuple[JsonValue, Tally]] | None:
        """The redacted values of a text; None if one is nested too deep."""
        node, name = self._flat.places[document.place]
        inside = self._inside(node, name, 1)
        try:
            return [redacted(value, self._work, inside) for _, value in document.parsed]
        except TooDeep:
            return None
        except OverBudget as error:
            raise OverBudget(f"{self._pointer(node, name)}{error.at}") from None

    def _write_document(
        self, document: _Document, results: Sequence[tuple[JsonValue, Tally]]
    ) -> bool:
        """Write the redacted text; False if a registered value is still in it."""
        from refold.redaction.json_text import patched

        tally = Tally()
        sources: list[str] = []
        for (source, value), (new, findings) in zip(
            document.parsed, results, strict=True
        ):
            if findings and new is not value:
                self._spend(1 + len(source) // FAST)
                source = patched(
                    source, value, new, self._placeholders, self._spellings
                )
            sources.append(source)
            tally.update(findings)
        clean = "\n".join(sources)
        registered = self._work.settler.registered
        if registered and registered.find(clean):
            return False
        if tally:
            node, name = self._flat.places[document.place]
            self._count(tally, node, name)
            node.writes[name] = clean
        return True

    @property
    def _spellings(self) -> Spellings | None:
        """The tagger, if its tags tell how a value is written."""
        tag = self._work.tag
        return cast(Spellings, tag) if hasattr(tag, "respelled") else None

    @property
    def _numbers_like_text(self) -> bool:
        """Whether numbers are judged like text, without context or a checksum.

        So are those of JSON in a string.
        """
        numbers = self._plan.numbers
        return numbers == "always" or (self._around.nested > 0 and numbers != "never")

    def _write(self, index: int, clean: str, tally: Tally) -> None:
        """Write the redacted text into its node, and count its findings."""
        node, name = self._flat.places[index]
        self._count(tally, node, name)
        spellings = self._spellings
        if spellings is not None and index in self._flat.numbers:
            # Few numbers have findings.
            from refold.redaction.json_text import compact_json, respelled_number

            number = node.value[name]  # type: ignore[index]  # of it
            clean = respelled_number(clean, compact_json(number), spellings)
        if self._nests and index in self._flat.documents:
            # It was no JSON, but without its findings it may have become JSON.
            from refold.redaction.json_text import parsed

            if parsed(clean) is not None:
                again, more = redacted(clean, self._work, self._inside(node, name, 0))
                self._count(more, node, name)
                clean = again if isinstance(again, str) else clean
        node.writes[name] = clean

    def _inside(self, node: Node, name: str | int, nested: int) -> Around:
        """The surroundings of the content of a text, ``nested`` strings further in."""
        parent, key = self._keys_of(node, name)
        return Around(
            NO_SKIP,
            parent,
            key,
            depth=node.depth + 1,
            nested=self._around.nested + nested,
            context=self._around.context,
        )

    def _key_context(self, node: Node, name: str | int) -> KeyContext:
        """The rules for which the keys of an item are context."""
        parent, key = self._keys_of(node, name)
        keys = f"{parent} {key}" if parent else key
        return self._scanner.key_context(keys, self._around.context)

    def _keys_of(self, node: Node, name: str | int) -> tuple[str, str]:
        """The key of the object around an item, and its own key.

        The items of an array have the keys of the array.
        """
        keys = node.keys
        if keys is None:
            # The keys of a whole value are known.
            keys = self._keys_of(node.parent, node.name) if node.parent else ("", "")
            node.keys = keys
        if isinstance(name, int):
            flag = self._flat.flags.get((id(node), name))
            return (keys[1], flag) if flag else keys
        if len(name) == 1 and name.isascii() and name.isalpha():
            # It gives no context of its own: {"student_ids": {"a": …, "b": …}}.
            return keys
        named = self._named.get(id(node), "")
        if named and name.lower() in VALUES:
            return keys[1], named
        return keys[1], self._placeholders.context_of(self._names.get(name, name))

    def _count(
        self, tally: Tally, node: Node, name: str | int, *, place: bool = True
    ) -> None:
        """Add ``tally`` to that of the whole value that holds ``node``.

        place: the path of the item is added too, if the plan wants paths.
        """
        if place and self._plan.audit == "paths" and tally:
            tally.paths[:] = [self._pointer(node, name)]
        self._tallies[node.root].update(tally)

    def _pointer(self, node: Node, name: str | int) -> str:
        """The JSON pointer of an item, with redacted keys."""
        steps: list[str] = []
        here: Node | None = node
        while here is not None:
            step = self._names.get(name, name) if isinstance(name, str) else str(name)
            steps.append(step.replace("~", "~0").replace("/", "~1"))
            name = here.name
            here = here.parent
        return "/" + "/".join(reversed(steps))

    def _rebuilt(self) -> list[JsonValue]:
        """The values with all that was written; unchanged parts are shared."""
        names = self._names
        self._spend(len(self._flat.nodes))
        values: list[JsonValue] = [root.value for root in self._roots]
        for node in reversed(self._flat.nodes):
            value = node.value
            writes = node.writes
            new: JsonValue
            if isinstance(value, dict):
                if not writes and names.keys().isdisjoint(value):
                    continue
                new = self._rebuilt_object(node, value)
            else:
                if not writes:
                    continue
                new = [writes.get(index, item) for index, item in enumerate(value)]
            if node.parent is None:
                values[node.root] = new
            else:
                node.parent.writes[node.name] = new
        return values

    def _rebuilt_object(self, node: Node, value: dict[str, JsonValue]) -> JsonValue:
        """The object with redacted keys, numbered where two would be the same."""
        taken = {name for name in value if name not in self._names}
        clean: dict[str, JsonValue] = {}
        copies: dict[str, int] = {}
        for name, item in value.items():
            new = self._names.get(name, name)
            if new != name:
                new = renamed(new, taken, copies)
                taken.add(new)
            clean[new] = node.writes.get(name, item)
        return clean


def _column(item: JsonValue) -> str:
    """The name of a column: a string, or the ``name`` of an object."""
    if isinstance(item, dict):
        item = item.get("name", item.get("Name"))
    return item if isinstance(item, str) else ""


# A program may hand in tuples as arrays.
_ARRAYS: Final = (list, tuple)


def _rows(
    table: dict[str, JsonValue], width: int
) -> Iterator[list[JsonValue] | tuple[JsonValue, ...]]:
    """The rows of a table: arrays with ``width`` items in its arrays."""
    for rows in table.values():
        if not isinstance(rows, _ARRAYS):
            continue
        for row in rows:
            if isinstance(row, _ARRAYS) and len(row) == width:
                yield row


# A text that begins like JSON may become JSON; only these forms may be JSON already.
_BEGINS = "{[ \t\r\n"
_OPENS = re.compile(r"\s*[\[{]")
_MAY_BE_JSON = re.compile(r"\s*(?:\{\s*[\"}]|\[\s*[\[\]{\"0-9\-tfn])")
# The beginnings of texts that may be files in base64.
_FILES: Final = (*FILE_BEGINNINGS, "data:")
_FILE_LETTERS: Final = frozenset(beginning[:3] for beginning in _FILES)
# A text, a key, or an object may take as many steps as this many characters more.
_OF_A_LEAF: Final = 16
# Texts that may be JSON and are shorter than this are looked at together.
_SMALL: Final = 2048
# The most quiet keys that a settler remembers.
_QUIET: Final = 1000
# {"name": "DB_PASSWORD", "value": "…"}: the name is the key of the value.
VALUES = frozenset(words("of_values"))
NAMES = frozenset(words("of_names"))
# Keys of what a name may belong to, besides values.
_PAIRED = VALUES | frozenset(words("of_pairs"))
# {"columns": ["user", "password"], "rows": [["ada", "…"]]}: the names of columns.
_COLUMNS = frozenset(words("of_columns"))
# {"passwords": {"db": "…"}}: keys of objects that are judged as they stand in JSON.
_STRUCTURES = re.compile(
    rf"(?i)(?:{'|'.join(words('of_structures'))})|.*-oauth|[a-z0-9_]*_keys"
)
_SECRET_NAME = re.compile(
    "(?i)" + "|".join(map(re.escape, (*LEXICON["gates"]["pairs"], *PASSWORDS.gate)))
)
# A longer string is not the name of another.
_LONGEST_JUDGED: Final = 256
# ["X-Api-Key", "…"]: the first is the key of the second, if that is no name itself.
_LONGEST_NAME = 48
_MOST_BEFORE = 8  # strings of an array, one of which may be a program
_SECOND = re.compile(r"(?=[^0-9]{0,64}[0-9])(?:\S{4,}|[^A-Za-z]{4,64}\Z)")


@dataclass(slots=True, eq=False)
class Node:
    """An object or an array of a value, and the new items that are written into it.

    name:        its key or index in ``parent``.
    keys:        the key of the object around it and its own, once they are known.
    root:        the place of the whole value that holds it, among those.
    has_context: a key around it may give context to its items.
    source:      the id of the object or the array itself, of which ``value`` may be a
                 copy.
    """

    value: dict[str, JsonValue] | list[JsonValue]
    parent: Node | None
    name: str | int
    depth: int
    skip: Skip
    keys: tuple[str, str] | None = None
    root: int = 0
    has_context: bool = False
    writes: dict[str | int, JsonValue] = field(default_factory=dict)
    source: int = 0


class _Kinds(NamedTuple):
    """The properties of an object that its keys show.

    has_value:   whether one of them is a ``value``.
    has_columns: whether one of them has the columns of a table.
    is_judged:   whether the object is judged in its form as JSON.
    paired:      the keys whose strings may name another item.
    sessions:    the keys of sessions, which a token opens.
    """

    has_value: bool
    has_columns: bool
    is_judged: bool
    paired: tuple[str, ...]
    sessions: tuple[str, ...]


def _kinds(shape: tuple[str, ...]) -> _Kinds:
    """Return the properties of an object with these keys."""
    lower = {key.lower() for key in shape}
    paired: tuple[str, ...] = ()
    if not _PAIRED.isdisjoint(lower):
        paired = tuple(key for key in shape if key.lower() in NAMES)
    return _Kinds(
        has_value=not VALUES.isdisjoint(lower),
        has_columns=not _COLUMNS.isdisjoint(lower),
        is_judged=any(map(_STRUCTURES.fullmatch, lower)),
        paired=paired,
        sessions=tuple(filter(_SESSIONS.fullmatch, shape)),
    )


def _has_token(value: dict[str, JsonValue], keys: Iterable[str]) -> bool:
    """Whether a string under one of ``keys`` is as long as a token, and no UUID."""
    for key in keys:
        token = value[key]
        if isinstance(token, str) and len(token) >= _TOKEN and token[8] != "-":
            return True
    return False


_TOKEN: Final = 24
_SESSIONS = re.compile(
    r"(?i)session(?:[_\-]?(?:id|token|key))?|[cx]srf(?:[_\-]?token)?|(?:connect\.)?sid"
)
# Most objects of a program have few keys, and the same ones again.
_MOST_KEYS: Final = 32
_kinds_of = lru_cache(maxsize=1024)(_kinds)


def _names_a_secret(value: dict[str, JsonValue], keys: Iterable[str]) -> bool:
    """Whether a string under one of ``keys`` may be the name of a secret."""
    for key in keys:
        name = value[key]
        if (
            isinstance(name, str)
            and len(name) <= _LONGEST_NAME
            and _SECRET_NAME.search(name)
        ):
            return True
    return False


class Flat:
    """The leaves of values that may have findings, and their places.

    texts:     strings, and numbers without a fraction as text.
    places:    the node and the name of each text.
    numbers:   the indexes of texts that are numbers.
    documents: the indexes of texts that may be JSON.
    files:     the indexes of texts that may be files in base64.
    keys:      every key, once, in order.
    named:     objects with a ``value`` that another item names.
    flags:     by array and index, the flag before a string, as in a command line.
    pairs:     arrays of two strings, with these; the first may name the second.
    commands:  arrays with a program at the front that takes secrets as arguments.
    tables:    objects that may hold the names of columns, and rows.
    objects:   objects that are judged as they stand in JSON.
    """

    def __init__(self, roots: Sequence[Node], skip_keys: frozenset[str]) -> None:
        self.texts: list[str] = []
        self.places: list[tuple[Node, str | int]] = []
        self.numbers: set[int] = set()
        self.keys: dict[str, None] = {}
        self.named: list[Node] = []
        self.flags: dict[tuple[int, int], str] = {}
        self.pairs: list[tuple[Node, str, str]] = []
        self.tables: list[Node] = []
        self.commands: list[Node] = []
        self.objects: list[Node] = []
        self._skip_keys = skip_keys
        # By the keys of an object: what they show.
        self._shapes: dict[tuple[str, ...], _Kinds] = {}
        for place, root in enumerate(roots):
            root.root = place
            if root.depth >= MAX_DEPTH:
                raise TooDeep
        # The loop adds the nodes in each node to the list.
        self.nodes = [*roots]
        for node in self.nodes:
            if isinstance(node.value, dict):
                self._object(node, node.value)
            else:
                self._array(node, node.value)
        self.documents: list[int] = []
        self.files: list[int] = []
        for index, text in enumerate(self.texts):
            if text[:1] in _BEGINS:
                if _OPENS.match(text):
                    self.documents.append(index)
            elif text[:3] in _FILE_LETTERS and text.startswith(_FILES):
                self.files.append(index)

    def _object(self, node: Node, value: dict[str, JsonValue]) -> None:
        shape = tuple(value)
        kinds = self._shapes.get(shape)
        if kinds is None:
            for key in shape:
                if not isinstance(key, str):
                    kind = type(key).__name__
                    raise RedactionError(f"a key is of type {kind}: JSON needs text")
            kinds = _kinds_of(shape) if len(shape) <= _MOST_KEYS else _kinds(shape)
            self._shapes[shape] = kinds
            self.keys.update(dict.fromkeys(shape))
        has_value, has_columns, is_judged, paired, sessions = kinds
        if (
            is_judged
            or (paired and _names_a_secret(value, paired))
            or (sessions and _has_token(value, sessions))
        ):
            self.objects.append(node)
        if has_value:
            self.named.append(node)
        if has_columns:
            self.tables.append(node)
        first = _first_steps(node.skip) if node.skip else _NONE
        items: Iterable[tuple[str, JsonValue]] = value.items()
        if self._skip_keys:
            items = [pair for pair in items if pair[0] not in self._skip_keys]
        self._items(node, items, first)

    def _array(self, node: Node, value: list[JsonValue]) -> None:
        kinds = set(map(type, value))
        if kinds == {float} and max(value) < 10**6:  # type: ignore[type-var, operator]  # floats
            return
        self._items(node, enumerate(value), None if node.skip else _NONE)
        if len(value) == 2:
            name, second = value
            if (
                isinstance(name, str)
                and isinstance(second, str)
                and len(name) <= _LONGEST_NAME
                and _SECOND.fullmatch(second)
            ):
                self.pairs.append((node, name, second))
        if str not in kinds:
            return
        # The program may stand behind another that runs it, such as sudo.
        for first in value[:_MOST_BEFORE]:
            if type(first) is str and _program(first) in programs():
                self.commands.append(node)
                break
        for index, item in enumerate(value[:-1]):
            if type(item) is not str or type(value[index + 1]) is not str:
                continue
            if item == "-u" or (item[:2] == "--" and item[2:3].isalpha()):
                self.flags[id(node), index + 1] = item

    def _items(
        self,
        node: Node,
        items: Iterable[tuple[str | int, JsonValue]],
        first: frozenset[str] | None,
    ) -> None:
        """Collect the items; ``first``: the names on paths to skip; None: any name."""
        texts = self.texts
        places = self.places
        is_deepest = node.depth + 1 == MAX_DEPTH
        for name, item in items:
            kind = type(item)
            if kind is bool or item is None:
                continue
            is_short = (kind is int or kind is float) and not long(item)  # type: ignore[arg-type]  # a number
            if is_short and not (
                kind is int and type(name) is str and _names_short(name)
            ):
                continue
            skip = NO_SKIP
            if first is None or name in first:
                skip = below(node.skip, str(name))
                if () in skip:
                    continue
            nests = kind is dict or kind is list
            if nests or (kind is not str and isinstance(item, (dict, list, tuple))):
                if is_deepest:
                    raise TooDeep
                if item:
                    value: Any = [*item] if isinstance(item, tuple) else item
                    inner = Node(
                        value, node, name, node.depth + 1, skip, None, node.root
                    )
                    inner.source = id(item)
                    self.nodes.append(inner)
                continue
            if kind is str or isinstance(item, str):
                texts.append(item)  # type: ignore[arg-type]  # a str, by its type
            elif not isinstance(item, (int, float)):
                raise RedactionError(f"a {kind.__name__} is not JSON")
            elif is_short or long(item):
                self.numbers.add(len(texts))
                texts.append(str(int(item)))
            else:
                continue
            places.append((node, name))


_NONE: Final[frozenset[str]] = frozenset()


@lru_cache(maxsize=256)
def _first_steps(skip: Skip) -> frozenset[str] | None:
    """The first keys of paths; None if any key may be one."""
    steps = frozenset(path[0] for path in skip if path)
    return None if "*" in steps else steps


def _program(command: str) -> str:
    """The name of the program that a command starts, without its folder."""
    if "\n" in command:
        return command
    return command.rpartition("/")[2].removesuffix(".exe")


class _Written:
    """An object as JSON writes it, with the places of its strings.

    Keys are sorted by their rank, so that a name stands before its value.  Long strings
    and items beyond a limit are left out.

    places: start, end, the id of the object or array around it, and its name there.
    """

    def __init__(self, value: dict[str, JsonValue] | list[JsonValue]) -> None:
        self.text = ""
        self.places: list[tuple[int, int, int, str | int]] = []
        self._parts: list[str] = []
        self._length = 0
        self._write_value(value, depth=0)
        self.text = "".join(self._parts)

    def _add(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)

    def _write_value(self, value: JsonValue, *, depth: int) -> None:
        if isinstance(value, dict):
            self._write_object(value, depth)
        elif isinstance(value, (list, tuple)):
            self._add("[")
            for index, item in enumerate(value):
                if self._length > _MOST_WRITTEN:
                    break
                if index:
                    self._add(", ")
                self._write_item(id(value), index, item, depth)
            self._add("]")
        else:
            self._add("null" if value is None else str(value).lower())

    def _write_object(self, value: dict[str, JsonValue], depth: int) -> None:
        self._add("{")
        is_first = True
        for key in sorted(value, key=_rank_of_key):
            if self._length > _MOST_WRITTEN or '"' in key or "\\" in key:
                continue
            if not is_first:
                self._add(", ")
            is_first = False
            self._add(f'"{key}": ')
            self._write_item(id(value), key, value[key], depth)
        self._add("}")

    def _write_item(
        self, owner: int, name: str | int, item: JsonValue, depth: int
    ) -> None:
        if not isinstance(item, str):
            if depth < _DEEPEST_WRITTEN or not isinstance(item, (dict, *_ARRAYS)):
                self._write_value(item, depth=depth + 1)
            else:
                self._add("{}")
            return
        is_written = len(item) <= _LONGEST_WRITTEN and not _ESCAPED.search(item)
        text = item if is_written else ""
        if text:
            start = self._length + 1
            self.places.append((start, start + len(text), owner, name))
        self._add(f'"{text}"')


def _rank_of_key(key: str) -> int:
    """The rank of a key: 0 for names, 1 for what they name, 2 for all others."""
    lower = key.lower()
    if lower in NAMES or lower in ("kind", "kty", "type"):
        return 0
    return 1 if _STRUCTURES.fullmatch(lower) or lower in _PAIRED else 2


# The characters of an object that are judged together, of a string, and levels.
_MOST_WRITTEN: Final = 4096
_LONGEST_WRITTEN: Final = 1024
_DEEPEST_WRITTEN: Final = 4
_ESCAPED = re.compile(r'[\x00-\x1f"\\]')


@lru_cache(maxsize=4096)
def _names_short(name: str) -> bool:
    """Whether a secret under this key may be a number of a few digits."""
    return _SHORT_SECRET.search(name) is not None


_SHORT_SECRET = patterns("numbers").SHORT_SECRET


def long(number: float) -> bool:
    """Whether it is an integer, or a float without a fraction, of 7 to 19 digits.

    Fewer digits tell nothing, more are no card.  Tables are often read as floats.
    """
    return 10**6 <= abs(number) < 10**19 and number == int(number)
