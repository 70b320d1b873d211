"""A checkpointer of LangGraph: threads as sessions, states item by item.

What LangGraph keeps as msgpack is kept as JSON, so that each text in it is redacted;
the items of lists are kept once each, by the digest of what is left of them.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial, wraps
from hashlib import sha256
from itertools import takewhile
from operator import eq
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from refold.adapters.frameworks import import_extra
from refold.domain import events as kinds
from refold.domain.envelope import Format, Meta, Native
from refold.domain.errors import Erased
from refold.events import Draft
from refold.projections.items import NativeItem
from refold.store.session.session import Session
from refold.store.store import SessionStore

if TYPE_CHECKING:
    import langgraph.checkpoint.base as lg
    from langchain_core.runnables import RunnableConfig  # by it LangGraph hands it in
else:
    lg = import_extra("langgraph.checkpoint.base", "langgraph")
import orjson
import ormsgpack  # what the checkpointer's package brings

_Opaque: TypeAlias = Literal["refuse", "keep"]
_THREAD: Final = "langgraph_thread"
_FRAMEWORK: Final = {"framework": "langgraph"}
_KEYS: Final = ormsgpack.OPT_NON_STR_KEYS
_PYDANTIC: Final = 5  # the extension type of a message
_THREADS: Final = 1_000  # that stay in memory
_CHAIN: Final = 32  # so many versions of a list are told by what is new in them
_CACHED: Final = 10_000
_NEAR: Final = 64  # items of a thread that stay in memory as they were written
_AT = 4  # how long the place of a value is that is no list


class _Extension(NamedTuple):
    code: int
    value: Any
    packed: bool = True


def _unpacked(data: bytes) -> Any:
    return ormsgpack.unpackb(data, ext_hook=_extension, option=_KEYS)


def _extension(code: int, data: bytes) -> _Extension:
    try:
        return _Extension(code, _unpacked(data))
    except ValueError:
        return _Extension(code, bytes(data), packed=False)


def _clear(value: Any) -> Any:
    """What was unpacked as JSON; only bytes that are no msgpack stay bytes."""
    if isinstance(value, _Extension):
        return {"$ext": [value.code, _clear(value.value), value.packed]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if isinstance(value, list | tuple):
        return [_clear(item) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) and key[:1] != "$" for key in value):
            return {key: _clear(item) for key, item in value.items()}
        return {"$map": [[_clear(key), _clear(item)] for key, item in value.items()]}
    return value


def _unclear(value: Any) -> Any:
    if isinstance(value, list):
        return [_unclear(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$float" in value:
        return float(value["$float"])
    if "$map" in value:
        pairs = [(_unclear(key), _unclear(item)) for key, item in value["$map"]]
        return {tuple(k) if isinstance(k, list) else k: item for k, item in pairs}
    if "$ext" in value:
        code, inner, packed = value["$ext"]
        inner = _unclear(inner)
        data = ormsgpack.packb(inner, option=_KEYS) if packed else inner
        return ormsgpack.Ext(code, data)
    return {key: _unclear(item) for key, item in value.items()}


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = [part if isinstance(part, str) else part.get("text") for part in content]
    return "".join(part for part in parts if isinstance(part, str))


def _view(kind: str, tree: Any, calls: Mapping[str, Any]) -> Iterator[Draft]:
    """The events of a message; of anything else there are none."""
    if kind != "message":
        return
    _, name, message, *_ = tree[1]["$ext"][1]
    meta = Meta(response_id=message.get("id"), usage=message.get("usage_metadata"))
    match name.removesuffix("Chunk"):
        case "HumanMessage":
            yield Draft(kinds.UserInput(text=_text(message["content"])))
        case "SystemMessage":
            yield Draft(kinds.SystemPrompt(text=_text(message["content"])))
        case "AIMessage":
            if text := _text(message["content"]):
                yield Draft(kinds.AgentResponse(text=text), meta=meta)
                meta = Meta(response_id=message.get("id"))
            for call in message["tool_calls"]:
                given = {"tool_name": call["name"], "arguments": call["args"]}
                yield Draft(kinds.ToolCall(call_id=call["id"], **given), meta=meta)
                meta = Meta(response_id=message.get("id"))
        case "ToolMessage" if message["tool_call_id"] in calls:
            yield Draft(
                kinds.ToolResult(
                    call_id=message["tool_call_id"],
                    content=message["content"],
                    status="error" if message.get("status") == "error" else "ok",
                )
            )


FORMAT = Format("langgraph", _view)


_set, _hex = object.__setattr__, bytes.hex
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


_Kept: TypeAlias = tuple[str, bool]  # a digest, and whether a message has it


class _Recent(OrderedDict[Any, Any]):
    """What came last, so much of it."""

    def __init__(self, most: int = _CACHED) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        if len(self) > self._most:
            self.popitem(last=False)


def _step(state: dict[str, Any], item: NativeItem) -> dict[str, Any]:
    """Where the items of a thread are: by digest, version, checkpoint and task."""
    value = item.value
    state["seq"] = item.events[-1].seq if item.events else item.seq
    span = [item.seq, state["seq"]]
    match item.kind:
        case "part" | "message":
            state["parts"].setdefault(item.id, span)
            if item.kind == "message":
                state["said"][item.id] = True
        case "point":
            state["points"].setdefault(value["ns"], {})[value["id"]] = span
            for at, (channel, version, kept) in enumerate(value["blobs"]):
                name = json.dumps([value["ns"], channel, version])
                listed = kept and kept[0] == "list"
                state["blobs"][name] = [*span, at, ""]
                if listed:
                    before, *how = kept[1]
                    base = json.dumps([value["ns"], channel, before]) if before else ""
                    state["blobs"][name] = [base, *how]
                    state["last"][json.dumps([value["ns"], channel])] = name
        case "writes":
            name = json.dumps([value["ns"], value["id"]])
            state["writes"].setdefault(name, []).append(span)
        case "drop":
            for ns, checkpoint in value["points"]:
                state["points"].get(ns, {}).pop(checkpoint, None)
                state["writes"].pop(json.dumps([ns, checkpoint]), None)
    return state


class _Thread:
    """A thread as far as it was read; what is known of it stays in memory."""

    def __init__(self, session: Session) -> None:
        self.session = session
        names = ("parts", "said", "blobs", "last", "points", "writes")
        start: Any = {**{name: {} for name in names}, "seq": 0}
        self.state = session.native.fold("langgraph", step=_step, start=start)
        # Values by digest; the messages that were seen last, by their ids; what else
        # was seen, by its bytes; what was judged and written not long ago; and with
        # what messages the list of a channel begins.
        self.values, self.seen, self.known = _Recent(), _Recent(), _Recent()
        self.judged, self.near, self.lists = (_Recent(_NEAR) for _ in range(3))

    def read_on(self) -> None:
        """Take what came since; what was redacted again is read anew."""
        if self.session.writer.log.head(self.session.stream).seq <= self.state["seq"]:
            return
        for item in self.session.native.read(after=self.state["seq"], others=True):
            self._take(item)
            if item.kind == "redaction_applied":
                known = self.values, self.seen, self.known
                for memory in (*known, self.judged, self.near, self.lists):
                    memory.clear()

    def _take(self, item: NativeItem) -> None:
        self.state = _step(self.state, item)
        if item.kind in ("point", "writes"):
            self.near[item.seq] = item.value

    def append(self, natives: Sequence[Native], opaque: _Opaque) -> None:
        """Append what is new, and know of it what need not be read."""
        session, first = self.session, self.state["seq"] + 1
        new = [*session.writer.judged(session.stream, natives)]
        written = [native for native, _ in new]
        receipt = session.native.append(
            FORMAT, written, opaque=opaque, unscanned="stub"
        )
        events = first, first + len(new) - 1
        if receipt[:2] != events or session.writer.redactor.numbered:
            self.read_on()  # of one there are several events, or others wrote too
            return
        for seq, (native, told) in enumerate(new, first):
            name = FORMAT.name
            self._take(NativeItem(seq, name, native.kind, native.id, told, ()))

    def at(self, spans: Sequence[Sequence[int]]) -> list[Any]:
        """The values of the items at these places."""
        if not spans:
            return []
        away = sorted({(one, last) for one, last in spans if one not in self.near})
        found = {one: self.near[one] for one, _ in spans if one in self.near}
        if away:
            found |= {
                one.seq: one.value for one in self.session.native.read(spans=away)
            }
        return [found[first] for first, _ in spans]

    def listed(self, name: str) -> tuple[str, ...]:
        """The digests of a version of a list."""
        base, kept, added = self.state["blobs"][name]
        return (*(self.listed(base)[:kept] if base else ()), *added.split())

    def length(self, name: str) -> int:
        """How many versions a list is told by."""
        length = 0
        while name:
            name, length = self.state["blobs"][name][0], length + 1
        return length


def _threaded(method: Callable[..., Any]) -> Any:
    @wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(method, *args, **kwargs)

    call.__doc__ = f"``{method.__name__}`` for asyncio."
    return call


class RefoldSaver(lg.BaseCheckpointSaver[str]):
    """Keeps the checkpoints of one user's threads.

    What a graph reads back is what is stored: redacted.  Use ``pre_model_hook`` to have
    a model sent the same.

    opaque: what is done with bytes in a state, which no rule can read.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        user_id: str,
        serde: Any = None,
        opaque: _Opaque = "refuse",
    ) -> None:
        super().__init__(serde=serde)
        self._store, self._user_id, self._opaque = store, user_id, opaque
        self._threads = _Recent(_THREADS)
        self._lock = RLock()

    def put(
        self,
        config: Any,
        checkpoint: Any,
        metadata: Any,
        new_versions: Mapping[str, Any],
    ) -> Any:
        """Keep a checkpoint; messages in its state become events, in their order."""
        place = config["configurable"]
        ns, told = place.get("checkpoint_ns", ""), dict(checkpoint)
        values = told.pop("channel_values")
        about = lg.get_checkpoint_metadata(config, metadata)
        point = {"ns": ns, "id": checkpoint["id"], "parent": place.get("checkpoint_id")}
        point |= {"checkpoint": self._tree(told), "metadata": self._tree(about)}

        def made(thread: _Thread) -> Sequence[Native]:
            new = dict[str, Native]()
            kept = {
                name: self._kept(thread, values[name], new, (ns, name))
                for name in new_versions
                if name in values
            }
            blobs = [[*one, kept.get(one[0])] for one in new_versions.items()]
            value = {**point, "blobs": blobs}
            return [*new.values(), Native(FORMAT, "point", None, value)]

        self._append(place["thread_id"], made)
        return _config(place["thread_id"], ns, checkpoint["id"])

    def put_writes(
        self,
        config: Any,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Keep what a task wrote before its checkpoint."""
        place = config["configurable"]
        value = {"ns": place.get("checkpoint_ns", ""), "id": place["checkpoint_id"]}
        value |= {"task": task_id, "path": task_path}

        def made(thread: _Thread) -> Sequence[Native]:
            new = dict[str, Native]()
            rows = [
                [lg.WRITES_IDX_MAP.get(name, at), name, self._kept(thread, one, new)]
                for at, (name, one) in enumerate(writes)
            ]
            told = {**value, "writes": rows}
            return [*new.values(), Native(FORMAT, "writes", None, told)]

        self._append(place["thread_id"], made)

    def get_tuple(self, config: Any) -> Any:
        """The checkpoint that is named, or the newest; None if there is none."""
        place = config["configurable"]
        with self._lock:
            thread = self._thread(place["thread_id"])
            ns = place.get("checkpoint_ns", "")
            points = thread.state["points"].get(ns, {})
            found: Any = lg.get_checkpoint_id(config) or max(points, default=None)
            if found not in points:
                return None
            return self._tuple(thread, place["thread_id"], ns, found)

    def list(
        self,
        config: Any,
        *,
        filter: Mapping[str, Any] | None = None,  # noqa: A002  # LangGraph's word
        before: Any = None,
        limit: int | None = None,
    ) -> Iterator[Any]:
        """The checkpoints of a thread, or of all, the newest first."""
        place = config["configurable"] if config else {}
        wanted = lg.get_checkpoint_id(config) if config else None
        stop = lg.get_checkpoint_id(before) if before else None
        names = [place["thread_id"]] if config else self.threads()
        left = -1 if limit is None else max(limit, 0)
        for name in names:
            for ns, checkpoint in self._points(name, place.get("checkpoint_ns")):
                if wanted not in (None, checkpoint) or (stop and checkpoint >= stop):
                    continue
                with self._lock:
                    found = self._tuple(self._thread(name), name, ns, checkpoint)
                about = filter.items() if filter else ()
                if any(found.metadata.get(key) != value for key, value in about):
                    continue
                if left == 0:
                    return
                left -= 1
                yield found

    def threads(self) -> Sequence[str]:
        """The ids of the user's threads, redacted as all that is kept."""
        found = self._store.sessions(self._user_id, label=_FRAMEWORK)
        of = partial(self._store.session, user_id=self._user_id)
        return [of(session_id=one.session_id).labels()[_THREAD] for one in found]

    def delete_thread(self, thread_id: str) -> None:
        """Erase a thread; it may begin again.  Raises OnHold under a legal hold."""
        session = self._named(thread_id)
        if self._store.log.head(session.stream).seq:
            session.delete("deleted through LangGraph")
        self._threads.pop(thread_id, None)

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Show the checkpoints of these runs no more; the log keeps them."""

        def is_of(name: str, ns: str, checkpoint: str) -> bool:
            found = self._tuple(self._thread(name), name, ns, checkpoint)
            return found.metadata.get("run_id") in run_ids

        for name in self.threads():
            self._drop(name, is_of)

    def prune(
        self, thread_ids: Sequence[str], *, strategy: str = "keep_latest"
    ) -> None:
        """Show only the newest checkpoints; ``delete`` erases the threads."""
        for name in thread_ids:
            if strategy == "delete":
                self.delete_thread(name)
                continue
            points = self._thread(name).state["points"]
            newest = {(ns, max(some)) for ns, some in points.items() if some}
            self._drop(name, lambda _, *one, new=newest: one not in new)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Append what is kept of a thread to another."""
        items = [
            Native(FORMAT, item.kind, item.id, item.value)
            for item in self._named(source_thread_id).native.read()
        ]
        if items:
            target = self._named(target_thread_id)
            target.native.append(FORMAT, items, opaque="keep")

    def pre_model_hook(self, state: Any, config: RunnableConfig) -> dict[str, Any]:
        """For ``create_react_agent``: the model is sent what the log may keep."""
        with self._lock:
            thread = self._thread(config["configurable"]["thread_id"])
            found = [
                _seen_as(thread, one) or self._judged(thread, one)
                for one in state["messages"]
            ]
            (told,) = self._loaded(thread, [tuple(digest for _, (digest, _) in found)])
        return {"llm_input_messages": told}

    aput = _threaded(put)
    aput_writes = _threaded(put_writes)
    aget_tuple = _threaded(get_tuple)
    adelete_thread = _threaded(delete_thread)
    adelete_for_runs = _threaded(delete_for_runs)
    aprune = _threaded(prune)
    acopy_thread = _threaded(copy_thread)

    async def alist(self, config: Any, **how: Any) -> AsyncIterator[Any]:
        """``list`` for asyncio."""
        for one in await asyncio.to_thread(lambda: [*self.list(config, **how)]):
            yield one

    def get_next_version(self, current: Any, channel: None) -> str:  # noqa: ARG002
        """A version behind ``current``; two that are made at once differ."""
        number = 0 if current is None else int(str(current).split(".", 1)[0])
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311  # no secret

    def _named(self, thread_id: str) -> Session:
        labels = {**_FRAMEWORK, _THREAD: thread_id}
        name = f"langgraph\0{thread_id}"
        return self._store.named(name, user_id=self._user_id, labels=labels)

    def _thread(self, thread_id: str) -> _Thread:
        found: _Thread | None = self._threads.get(thread_id)
        with suppress(Erased):  # it was deleted, and may have begun again
            if found is not None:
                found.read_on()
                return found
        made = self._threads[thread_id] = _Thread(self._named(thread_id))
        made.read_on()
        return made

    def _append(
        self, thread_id: str, made: Callable[[_Thread], Sequence[Native]]
    ) -> None:
        """Append what is made of a thread, which need not be known to its end."""
        with self._lock:
            known = self._threads.get(thread_id)
            with suppress(Erased):
                if known is not None:
                    known.append(made(known), self._opaque)
                    return
            thread = self._thread(thread_id)
            thread.append(made(thread), self._opaque)

    def _tree(self, value: Any) -> Any:
        kind, data = self.serde.dumps_typed(value)
        if kind == "msgpack":
            return [kind, _clear(_unpacked(data))]
        return [kind, None if kind == "null" else data]

    def _value(self, tree: Any) -> Any:
        kind, data = tree
        if kind == "msgpack":
            data = ormsgpack.packb(_unclear(data), option=_KEYS)
        return self.serde.loads_typed((kind, b"" if data is None else data))

    def _kept(
        self,
        thread: _Thread,
        value: Any,
        new: dict[str, Native],
        channel: tuple[str, str] | None = None,
    ) -> Any:
        """A value as it is kept: of a list, the items apart, each once.

        channel: whose it is, of a checkpoint: its messages are events then.
        """
        if not isinstance(value, list) or not value:
            return self._tree(value)
        digests = self._digests(thread, value, new, channel)
        before = channel and thread.state["last"].get(json.dumps(channel))
        if not before or thread.length(before) >= _CHAIN:
            return ["list", ["", 0, " ".join(digests)]]
        kept = sum(takewhile(bool, map(eq, thread.listed(before), digests)))
        return ["list", [json.loads(before)[2], kept, " ".join(digests[kept:])]]

    def _digests(
        self,
        thread: _Thread,
        values: Sequence[Any],
        new: dict[str, Native],
        channel: tuple[str, str] | None,
    ) -> Sequence[str]:
        """The digests of what redaction leaves of these: the same on its return.

        What is not kept yet is put into ``new``, and messages that were not said.
        """
        spoken, parts = thread.state["said"], thread.state["parts"]
        states, names = thread.lists.get(channel, ([], []))
        if _states(values[: len(names)]) != states or not all(map(spoken.get, names)):
            states, names = [], []
        states, digests = [*states], [*names]
        for value in values[len(names) :]:
            found = _seen_as(thread, value) or self._judged(thread, value)
            seen, (digest, says) = found
            kind = "message" if channel and says else "part"
            if digest not in (spoken if kind == "message" else parts):
                native = thread.judged.get(digest)
                native = native or Native(FORMAT, "", digest, self._tree(value))
                new.setdefault(f"{kind} {digest}", replace(native, kind=kind))
            if says and len(states) == len(digests):
                states += _states([seen])
            digests.append(digest)
        if channel:
            thread.lists[channel] = states, digests[: len(states)]
        return digests

    def _judged(self, thread: _Thread, value: Any) -> tuple[Any, _Kept]:
        """What is kept of a value that was not seen yet, or changed since."""
        kind, data = self.serde.dumps_typed(value)
        raw = sha256(kind.encode() + b"\0" + data).digest()
        kept: _Kept | None = thread.known.get(raw)
        if kept is None:
            tree, session = self._tree(value), thread.session
            native = Native(FORMAT, "part", None, tree)
            ((native, told),) = session.writer.judged(session.stream, [native])
            digest = sha256(orjson.dumps(told, _hex, orjson.OPT_SORT_KEYS)).hexdigest()
            kept = digest, _is_message(tree)
            thread.judged[digest] = replace(native, id=digest)
            thread.values[digest] = _copies(self._value(told))
            if not session.writer.redactor.numbered:  # in which it may get others yet
                thread.known[raw] = kept
        clean = thread.values.get(kept[0], str)
        seen = (_copies(value)(), kept), (clean(), kept)
        if kept[1]:
            thread.seen[value.id] = seen
        return seen[0]

    def _loaded(self, thread: _Thread, kept: Sequence[Any]) -> Sequence[Any]:
        """The values of these trees, and of lists, which are digests, read at once."""
        lists = [part for part in kept if isinstance(part, tuple)]
        digests, values = [one for part in lists for one in part], thread.values
        there = {one: values[one] for one in digests if one in values}
        missing = [one for one in dict.fromkeys(digests) if one not in there]
        trees = thread.at([thread.state["parts"][one] for one in missing])
        for digest, tree in zip(missing, trees, strict=True):
            value = self._value(tree)
            there[digest] = values[digest] = _copies(value)
            if _is_message(tree):
                thread.seen[value.id] = ((value, (digest, True)),)
        return [
            [there[one]() for one in part]
            if isinstance(part, tuple)
            else self._value(part)
            for part in kept
        ]

    def _tuple(self, thread: _Thread, name: str, ns: str, checkpoint: str) -> Any:
        state = thread.state
        writes = state["writes"].get(json.dumps([ns, checkpoint]), [])
        point, *written = thread.at([state["points"][ns][checkpoint], *writes])
        made = self._value(point["checkpoint"])
        there = {
            channel: at
            for channel, version in made["channel_versions"].items()
            if (at := json.dumps([ns, channel, version])) in state["blobs"]
        }
        single = {at: b for at in there.values() if len(b := state["blobs"][at]) == _AT}
        alone = thread.at([(first, last) for first, last, *_ in single.values()])
        blobs = {
            at: one["blobs"][place[2]][2]
            for (at, place), one in zip(single.items(), alone, strict=True)
        }
        kept = {
            channel: blobs[at] if at in blobs else thread.listed(at)
            for channel, at in there.items()
            if blobs.get(at, at) is not None
        }
        loaded = self._loaded(thread, [*kept.values()])
        values: dict[str, Any] = dict(zip(kept, loaded, strict=True))
        parent = point["parent"]
        return lg.CheckpointTuple(
            _config(name, ns, checkpoint),
            {**made, "channel_values": values},
            self._value(point["metadata"]),
            _config(name, ns, parent) if parent else None,
            self._pending(thread, written),
        )

    def _pending(self, thread: _Thread, written: Sequence[Any]) -> Any:
        rows: dict[tuple[str, int], Any] = {}
        for one in written:
            for index, channel, value in one["writes"]:
                key = one["task"], index
                if index < 0 or key not in rows:
                    rows[key] = one["path"], channel, value
        order = sorted(rows, key=lambda key: lg.writes_sort_key(rows[key][0], *key))
        trees = [rows[key][2] for key in order]
        kept = [tuple(v[1][2].split()) if v[0] == "list" else v for v in trees]
        values = zip(order, self._loaded(thread, kept), strict=True)
        return [(key[0], rows[key][1], value) for key, value in values]

    def _points(self, name: str, ns: str | None) -> Sequence[tuple[str, str]]:
        with self._lock:
            points = self._thread(name).state["points"]
            return [
                (place, one)
                for place in points
                if ns in (None, place)
                for one in sorted(points[place], reverse=True)
            ]

    def _drop(self, name: str, goes: Callable[[str, str, str], bool]) -> None:
        with self._lock:
            gone = [[*at] for at in self._points(name, None) if goes(name, *at)]
            if gone:
                drop = Native(FORMAT, "drop", None, {"points": gone})
                self._thread(name).append([drop], self._opaque)


def _config(thread_id: str, ns: str, checkpoint: str) -> Any:
    place = {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": checkpoint}
    return {"configurable": place}


def _is_message(tree: Any) -> bool:
    match tree[1]:
        case {"$ext": [code, [module, _, {"id": name}, *_], *_]} if code == _PYDANTIC:
            return str(module).startswith("langchain_core.messages") and bool(name)
    return False


def _seen_as(thread: _Thread, value: Any) -> tuple[Any, _Kept] | None:
    """A message as it was when it was seen, if it is still, and what is kept of it."""
    name = getattr(value, "id", None)
    for known in thread.seen.get(name, ()) if isinstance(name, str) else ():
        if type(known[0]) is type(value) and known[0].__dict__ == value.__dict__:
            return known  # type: ignore[no-any-return]  # as it was put there
    return None


def _copies(value: Any) -> Callable[[], Any]:
    """What makes copies of a value: who changes one changes nothing that is kept."""
    if getattr(value, "__pydantic_private__", value) is not None:
        return partial(deepcopy, value)
    # As pydantic copies a model, but quicker: all of a thread's are, with each read.
    kind, state, given = type(value), value.__dict__, value.__pydantic_fields_set__
    held = [(name, one) for name, one in state.items() if one.__class__ not in _PLAIN]
    empty = [(name, one.copy) for name, one in held if one in ([], {})]
    deep = [name for name, one in held if one not in ([], {})]
    extra, new = value.__pydantic_extra__, object.__new__

    def made() -> Any:
        copy, parts = new(kind), state.copy()
        for name, begin in empty:
            parts[name] = begin()
        for name in deep:
            parts[name] = _copied(parts[name])
        _set(copy, "__dict__", parts)
        _set(copy, "__pydantic_fields_set__", given.copy())
        _set(copy, "__pydantic_extra__", _copied(extra) if extra else extra)
        _set(copy, "__pydantic_private__", None)
        return copy

    return made


def _copied(part: Any) -> Any:
    kind = part.__class__
    if kind is dict:
        return {name: _copied(one) for name, one in part.items()} if part else {}
    if kind is list:
        return [*map(_copied, part)] if part else []
    return part if kind in _PLAIN else deepcopy(part)


def _states(messages: Sequence[Any]) -> list[Any]:
    return [(type(one), getattr(one, "__dict__", None)) for one in messages]
