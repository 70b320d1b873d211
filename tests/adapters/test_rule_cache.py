"""Compiled rules are shared by processes, and never used unless they are this user's.

Whatever is wrong with the cache, redaction goes on without it and finds the same.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

from refold.adapters import rule_cache
from refold.adapters.rule_cache import RuleCache
from refold.redaction import engines
from refold.redaction.engines import Trigger, Warming, engine_of
from refold.redaction.engines.vectorscan import Triggers, identity_of, serialized
from tests.support.waiting import PATIENCE_SEC, until

TRIGGERS: Final = (
    Trigger("token"),
    Trigger("sk-", then="[a-z0-9]{8}"),
    Trigger("号码"),
    Trigger(shape="[0-9]{3}-[0-9]{4}", run=7),
)
TEXTS: Final = [
    b"no match here",
    b"a token and sk-abcdefgh1",
    "号码 555-1234, token".encode(),
    b"555-1234 " * 100,
]
RULES: Final = identity_of(TRIGGERS)
# A policy with few rules, which compiles in a moment.
POLICY: Final = 'version = 1\npacks = ["network"]\n'
LARGE_TEXT: Final = "words of prose " * 4_000
REDACT: Final = [sys.executable, "-m", "refold", "redact", "--json"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "refold"


@pytest.fixture
def cache(folder: Path) -> RuleCache:
    return RuleCache(str(folder), fills=True)


@pytest.fixture
def stored(cache: RuleCache) -> Path:
    """The file of the compiled triggers."""
    assert cache.store(RULES, serialized(Triggers(TRIGGERS)))
    return cache.file_of(RULES)


@pytest.fixture
def environment(folder: Path, tmp_path: Path) -> dict[str, str]:
    """The environment of commands that use the cache, with few rules."""
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY, "utf-8")
    return {
        **os.environ,
        "REFOLD_CACHE": str(folder),
        "REFOLD_POLICY": str(policy),
        "REFOLD_HOME": str(tmp_path / "home"),
    }


@pytest.fixture(autouse=True)
def _no_cache_afterwards() -> Iterator[None]:
    yield
    engines.use_cache(None)


def run(
    command: Sequence[str], environment: dict[str, str], text: str = ""
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SEC,
    )


def engine_used(environment: dict[str, str]) -> str:
    """The engine that a command uses for a second large text, by its receipt."""
    lines = f'"{LARGE_TEXT}"\n' * 2
    ran = run([*REDACT, "--format", "jsonl"], environment, lines)
    assert ran.returncode == 0, ran.stderr
    return (
        "vectorscan"
        if '"engine":"vectorscan' in ran.stdout.replace('": "', '":"')
        else "stdlib"
    )


def files_in(folder: Path) -> list[str]:
    return sorted(file.suffix for file in folder.iterdir())


def test_a_loaded_engine_finds_what_a_compiled_one_finds(
    cache: RuleCache, stored: Path
) -> None:
    databases = cache.load(RULES)

    assert databases is not None
    compiled = Triggers(TRIGGERS)
    loaded = Triggers(TRIGGERS, databases)
    for text in TEXTS:
        assert sorted(loaded.scan(text)) == sorted(compiled.scan(text))
        assert loaded.in_json(text) == compiled.in_json(text)


def test_only_the_user_can_read_the_files(stored: Path, folder: Path) -> None:
    assert stored.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert files_in(folder) == [".compiled"]


def test_other_rules_have_another_file(cache: RuleCache, stored: Path) -> None:
    other = identity_of((*TRIGGERS, Trigger("password")))

    assert cache.load(other) is None
    assert cache.file_of(other) != stored
    assert cache.load(RULES) is not None


def test_rules_have_one_identity_in_every_process() -> None:
    program = (
        "from refold.redaction.engines import Trigger, identity_of\n"
        f"print(identity_of({TRIGGERS!r}))"
    )
    identities = set()
    for seed in ("1", "2"):
        ran = run(
            [sys.executable, "-c", program], os.environ | {"PYTHONHASHSEED": seed}
        )
        identities.add(ran.stdout.strip())

    assert identities == {RULES}


def allow_others_to_read(file: Path) -> None:
    file.chmod(0o640)


def give_it_a_second_name(file: Path) -> None:
    os.link(file, file.with_suffix(".copy"))


def replace_it_by_a_link(file: Path) -> None:
    target = file.rename(file.with_suffix(".target"))
    file.symlink_to(target)


def replace_it_by_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def replace_it_by_a_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o600)


def allow_others_to_write_the_folder(file: Path) -> None:
    file.parent.chmod(0o777)


def replace_the_folder_by_a_link(file: Path) -> None:
    target = file.parent.rename(file.parent.with_name("target"))
    file.parent.symlink_to(target)


@pytest.mark.parametrize(
    "change",
    [
        allow_others_to_read,
        give_it_a_second_name,
        replace_it_by_a_link,
        replace_it_by_a_folder,
        replace_it_by_a_pipe,
        allow_others_to_write_the_folder,
        replace_the_folder_by_a_link,
    ],
    ids=lambda change: change.__name__,
)
def test_a_file_that_others_may_have_written_is_not_used(
    change: Callable[[Path], None], cache: RuleCache, stored: Path
) -> None:
    change(stored)

    assert cache.load(RULES) is None


def test_a_file_of_another_user_is_not_used(
    cache: RuleCache, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)

    assert cache.load(RULES) is None


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip_a_bit(content: bytes) -> bytes:
    place = len(content) // 2
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def empty(content: bytes) -> bytes:
    return content[:0]


def lengthen(content: bytes) -> bytes:
    return content + b"x"


@pytest.mark.parametrize(
    "damage", [cut, flip_a_bit, empty, lengthen], ids=lambda damage: damage.__name__
)
def test_a_damaged_file_is_deleted_and_written_again(
    damage: Callable[[bytes], bytes], cache: RuleCache, stored: Path
) -> None:
    stored.write_bytes(damage(stored.read_bytes()))
    engines.use_cache(cache)

    assert cache.load(RULES) is None
    assert not stored.exists()
    assert engines.fill_cache(TRIGGERS)
    assert cache.load(RULES) is not None


def test_a_file_under_the_name_of_other_rules_is_not_used(
    cache: RuleCache, stored: Path
) -> None:
    other = identity_of((Trigger("password"),))
    stored.rename(cache.file_of(other))

    assert cache.load(other) is None


@pytest.mark.parametrize("databases", [[b"x" * 100] * 4, [b""], []])
def test_databases_that_vectorscan_refuses_are_replaced(
    databases: list[bytes], cache: RuleCache
) -> None:
    cache.store(RULES, databases)
    engines.use_cache(cache)

    assert engines.fill_cache(TRIGGERS)

    stored_databases = cache.load(RULES)
    assert stored_databases is not None
    assert stored_databases != databases


def test_few_files_are_kept(cache: RuleCache, folder: Path) -> None:
    start = time.time() - 100
    for number in range(12):
        cache.store(f"rules {number}", [b"x"])
        written_at = start + number
        os.utime(cache.file_of(f"rules {number}"), (written_at, written_at))

    assert cache.load("rules 11") == [b"x"]
    assert cache.load("rules 0") is None
    assert len(files_in(folder)) == 8


def test_files_that_nobody_used_for_a_month_are_deleted(
    cache: RuleCache, folder: Path
) -> None:
    long_ago = time.time() - 31 * 86_400
    for rules in ("of an earlier version", "in use"):
        cache.store(rules, [b"x"])
        os.utime(cache.file_of(rules), (long_ago, long_ago))

    assert cache.load("in use") == [b"x"]
    cache.store("new", [b"x"])

    assert cache.load("of an earlier version") is None
    assert cache.load("in use") == [b"x"]
    assert len(files_in(folder)) == 2


def test_a_folder_that_cannot_be_made_stores_nothing(tmp_path: Path) -> None:
    obstacle = tmp_path / "file"
    obstacle.touch()
    cache = RuleCache(str(obstacle / "cache"), fills=True)
    engines.use_cache(cache)

    assert not engines.fill_cache(TRIGGERS)
    cache.request(RULES, TRIGGERS)
    assert cache.load(RULES) is None
    assert engine_of("vectorscan", TRIGGERS).scan(b"a token") != []


FULL_DISK: Final = """
import resource, sys
from refold.adapters.rule_cache import RuleCache
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
cache = RuleCache(sys.argv[1], fills=True)
print(cache.store("rules", [b"x" * 10_000]), cache.load("rules"))
print(cache.store("others", [b"x"]), cache.load("others"))
"""


def test_a_full_disk_leaves_no_half_of_a_file(folder: Path) -> None:
    ran = run([sys.executable, "-c", FULL_DISK, str(folder)], dict(os.environ))

    assert ran.stdout.splitlines() == ["False None", "True [b'x']"], ran.stderr
    assert files_in(folder) == [".compiled"]


def test_processes_that_fill_at_once_store_one_file(
    environment: dict[str, str], folder: Path
) -> None:
    command = [sys.executable, "-m", "refold", "warm"]
    processes = [
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    ends = [(*process.communicate(), process.returncode) for process in processes]

    assert [status for _, _, status in ends] == [0, 0, 0], ends
    assert files_in(folder) == [".compiled"]


def test_a_process_that_is_killed_while_it_stores_leaves_a_usable_cache(
    environment: dict[str, str], folder: Path
) -> None:
    command = [sys.executable, "-m", "refold", "warm"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    until(folder.exists, "the folder of the cache")
    process.send_signal(signal.SIGKILL)
    process.wait()

    assert run(command, environment).returncode == 0
    assert engine_used(environment) == "vectorscan"


def test_warm_stores_what_later_commands_load(
    environment: dict[str, str], folder: Path
) -> None:
    command = [sys.executable, "-m", "refold", "warm"]

    first = run(command, environment)
    second = run(command, environment)

    assert first.stdout.startswith("compiled rules stored: "), first.stderr
    assert second.stdout.startswith("compiled rules found: "), second.stderr
    assert engine_used(environment) == "vectorscan"
    assert files_in(folder) == [".compiled"]


def test_warm_says_that_the_cache_is_off(environment: dict[str, str]) -> None:
    ran = run(
        [sys.executable, "-m", "refold", "warm"], environment | {"REFOLD_CACHE": "off"}
    )

    assert ran.returncode != 0
    assert "REFOLD_CACHE is off" in ran.stderr


def test_warm_says_that_it_cannot_store(
    environment: dict[str, str], tmp_path: Path
) -> None:
    obstacle = tmp_path / "file"
    obstacle.touch()

    ran = run(
        [sys.executable, "-m", "refold", "warm"],
        environment | {"REFOLD_CACHE": str(obstacle)},
    )

    assert ran.returncode == 1
    assert f"cannot be stored in {obstacle}" in ran.stderr


def test_a_command_has_another_process_fill_the_cache(
    environment: dict[str, str], folder: Path
) -> None:
    assert engine_used(environment) == "stdlib"

    until(
        lambda: files_in(folder) == [".compiled"],
        "the compiled rules alone",
        state=lambda: files_in(folder),
    )
    assert engine_used(environment) == "vectorscan"


def test_a_command_with_little_text_starts_no_process(
    environment: dict[str, str], folder: Path
) -> None:
    assert run(REDACT, environment, "a line").returncode == 0
    assert not folder.exists()


def test_without_a_cache_a_command_writes_nothing(
    environment: dict[str, str], folder: Path, tmp_path: Path
) -> None:
    home = tmp_path / "user"
    home.mkdir()
    off = environment | {"REFOLD_CACHE": "off", "HOME": str(home)}

    assert engine_used(off) == "stdlib"
    assert not folder.exists()
    assert list(home.iterdir()) == []


def test_one_process_at_a_time_is_asked(cache: RuleCache, folder: Path) -> None:
    folder.mkdir(parents=True, mode=0o700)
    name = cache.file_of(RULES).with_suffix(".requested").name
    request = folder / name
    request.write_text("[]", "utf-8")
    request.chmod(0o600)

    cache.request(RULES, TRIGGERS)

    assert request.read_text("utf-8") == "[]"


def test_a_request_that_nobody_answers_is_repeated(
    cache: RuleCache, folder: Path
) -> None:
    folder.mkdir(parents=True, mode=0o700)
    request = folder / cache.file_of(RULES).with_suffix(".requested").name
    request.write_text("[]", "utf-8")
    long_ago = time.time() - 3_600
    os.utime(request, (long_ago, long_ago))

    cache.request(RULES, TRIGGERS)

    until(lambda: cache.load(RULES) is not None, "the compiled triggers")


def test_a_request_that_others_may_have_written_is_not_answered(
    cache: RuleCache, folder: Path
) -> None:
    folder.mkdir(parents=True, mode=0o700)
    request = folder / "rules.requested"
    request.write_text('[["token", "", "", "", 0, "", false]]', "utf-8")
    request.chmod(0o666)

    assert rule_cache.fill(request) == 1
    assert files_in(folder) == [".requested"]


LIBRARY: Final = """
import subprocess, sys, refold
from refold.adapters import rule_cache

def refuse(*arguments, **options):
    raise AssertionError("a process was started")

subprocess.Popen.__init__ = refuse
with refold.open("memory://") as store:
    session = store.session(user_id="ada", session_id="s")
    for _ in range(20):
        session.append(refold.UserInput(text="words of prose " * 2_000))
    redactor = store.writer.redactor
    redactor.scanner._engine.join()
    print(redactor.engine.split("/")[0])
"""


def test_a_program_that_imports_refold_neither_fills_nor_starts_a_process(
    environment: dict[str, str], folder: Path
) -> None:
    ran = run([sys.executable, "-c", LIBRARY], environment)

    assert ran.stdout == "vectorscan\n", ran.stderr  # which it compiled for itself
    assert not folder.exists()


def test_a_program_uses_what_a_command_has_stored(
    environment: dict[str, str], folder: Path
) -> None:
    program = """
import refold
from refold.opener import make_redactor
redactor = make_redactor(refold.adapters.config.policy())
engines = []
for _ in range(3):
    redactor.text("words of prose " * 1_500)
    engines.append(redactor.engine.split("/")[0])
print(*engines)
"""
    program = program.replace("import refold\n", "import refold.adapters.config\n")
    run([sys.executable, "-m", "refold", "warm"], environment)

    ran = run([sys.executable, "-c", program], environment)

    assert ran.stdout == "stdlib vectorscan vectorscan\n", ran.stderr


def test_a_worker_fills_the_cache(
    environment: dict[str, str], folder: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "refold", "--db", f"sqlite:///{tmp_path}/a.db"]
    imported = tmp_path / "run.jsonl"
    imported.write_text('{"role": "user", "content": "hello"}\n', "utf-8")
    begun = run([*command, "import", str(imported), "--user", "ada"], environment)
    assert begun.returncode == 0, begun.stderr

    worker = subprocess.Popen(
        [*command, "worker"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        until(
            lambda: folder.exists() and files_in(folder) == [".compiled"],
            "the compiled rules",
        )
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.communicate()


def test_an_engine_looks_again_when_another_process_has_compiled(
    cache: RuleCache,
) -> None:
    engines.use_cache(RuleCache(cache.folder, fills=False))
    warming = Warming(
        engine_of("stdlib", TRIGGERS), None, lambda: engines._loaded(TRIGGERS)
    )
    warming.scan(b"x" * 40_000)
    assert warming.name.startswith("stdlib")
    cache.store(RULES, serialized(Triggers(TRIGGERS)))

    warming.scan(b"x" * 250_000)

    assert warming.name.startswith("vectorscan")


LOADING: Final = """
import sys
from refold.redaction import engines
from refold.adapters.rule_cache import RuleCache
triggers = [engines.Trigger(*fields) for fields in {triggers!r}]
engines.use_cache(RuleCache(sys.argv[1], fills=False))
assert engines._loaded(tuple(triggers)) is not None
print(sorted({{"importlib.metadata", "email", "zipfile"}} & set(sys.modules)))
"""


def test_loading_reads_no_metadata_of_packages(folder: Path, stored: Path) -> None:
    program = LOADING.format(triggers=[tuple(trigger) for trigger in TRIGGERS])

    ran = run([sys.executable, "-c", program, str(folder)], dict(os.environ))

    assert ran.stdout == "[]\n", ran.stderr


def test_the_version_is_that_of_the_package() -> None:
    assert Triggers(TRIGGERS).name == f"vectorscan/{version('hyperscan')}"


# A folder of a user who does not exist, and one that is relative to nothing.
@pytest.mark.parametrize("name", ["~nosuchuser/x", "relative"])
def test_redaction_goes_on_if_the_folder_cannot_be_resolved(
    environment: dict[str, str], tmp_path: Path, name: str
) -> None:
    program = """
import os, sys
gone = sys.argv[1]
os.mkdir(gone)
os.chdir(gone)
os.rmdir(gone)
from refold.opener import make_redactor
redactor = make_redactor()
for _ in range(3):
    text, _ = redactor.text("mail ada@example.org " + "words of prose " * 1_500)
print(text[:20])
"""
    ran = run(
        [sys.executable, "-c", program, str(tmp_path / "gone")],
        environment | {"REFOLD_CACHE": name},
    )

    assert ran.stdout.startswith("mail [REDACTED:EMAIL"), ran.stderr
    assert ran.stderr.count("REFOLD_CACHE does not name a folder") == 1


def test_warm_refuses_a_folder_that_cannot_be_resolved(
    environment: dict[str, str],
) -> None:
    ran = run(
        [sys.executable, "-m", "refold", "warm"],
        environment | {"REFOLD_CACHE": "~nosuchuser/x"},
    )

    assert ran.returncode == 2
    assert "REFOLD_CACHE does not name a folder: unset it" in ran.stderr


class BrokenCache:
    """A cache whose methods fail with errors of any kind."""

    fills = True

    def load(self, rules: str) -> Sequence[bytes] | None:
        raise RuntimeError("load")

    def discard(self, rules: str) -> None:
        raise TypeError("discard")

    def store(self, rules: str, databases: Sequence[bytes]) -> bool:
        raise KeyError("store")

    def request(self, rules: str, triggers: Sequence[Trigger]) -> None:
        raise LookupError("request")


class CacheThatCannotStore(BrokenCache):
    def load(self, rules: str) -> Sequence[bytes] | None:
        return None


class CacheOfDamage(BrokenCache):
    def load(self, rules: str) -> Sequence[bytes] | None:
        return [b"damaged"] * 4


@pytest.mark.parametrize("kind", [BrokenCache, CacheThatCannotStore, CacheOfDamage])
def test_no_error_of_a_cache_reaches_a_scan(kind: type[BrokenCache]) -> None:
    names: list[engines.EngineName] = ["auto", "vectorscan"]
    for name in names:
        engines.use_cache(kind())
        # Engines of the same triggers are made only once.
        word = Trigger(f"{kind.__name__}.{name}".lower())
        engine = engine_of(name, (*TRIGGERS, word))
        for _ in range(12):
            assert engine.scan(b"a token " + b"x" * 40_000) != []
        if isinstance(engine, Warming):
            engine.join()
        assert engine.name.startswith("vectorscan")
        assert engines.cache_in_use() is None


def test_no_error_of_the_faster_engine_reaches_a_scan(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def load() -> engines.Engine | None:
        raise ImportError("a library is missing")

    warming = Warming(engine_of("stdlib", TRIGGERS), None, load)

    for _ in range(12):
        assert warming.scan(b"a token " + b"x" * 40_000) != []
    assert caplog.text.count("cannot be loaded: ImportError") == 1


def test_abandoned_files_are_deleted_after_a_day(
    cache: RuleCache, folder: Path, stored: Path
) -> None:
    long_ago = time.time() - 100_000
    for name in ("old.part", "old.requested", "new.part", "new.requested", "notes"):
        (folder / name).touch()
        if not name.startswith("new"):
            os.utime(folder / name, (long_ago, long_ago))

    cache.store("other rules", [b"x"])

    stored.unlink()
    cache.file_of("other rules").unlink()
    names = sorted(file.name for file in folder.iterdir())
    assert names == ["new.part", "new.requested", "notes"]


KILLED: Final = """
import os, signal, sys
from refold.adapters.rule_cache import RuleCache
def kill(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
os.replace = kill
RuleCache(sys.argv[1], fills=True).store("rules", [b"x"])
"""


def test_a_killed_process_leaves_a_file_that_is_recognized(folder: Path) -> None:
    run([sys.executable, "-c", KILLED, str(folder)], dict(os.environ))

    assert files_in(folder) == [".part"]


def test_warm_says_that_it_compiled_instead_of_a_damaged_file(
    environment: dict[str, str], folder: Path
) -> None:
    command = [sys.executable, "-m", "refold", "warm"]
    run(command, environment)
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-1])

    ran = run(command, environment)

    assert ran.stdout.startswith("compiled rules stored: "), ran.stderr
    assert (
        json.loads(run([*command, "--json"], environment).stdout)["compiled"] is False
    )


@pytest.mark.parametrize(
    ("program", "starts"),
    [
        ("/usr/bin/python3.11", True),
        ("/opt/python3.13t", True),
        ("/opt/pypy3", True),
        ("/usr/bin/uwsgi", False),
        ("/opt/agent", False),
        ("", False),
        (None, False),
    ],
)
def test_only_python_is_started_to_fill_the_cache(
    cache: RuleCache,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str | None,
    starts: bool,
) -> None:
    started: list[Path] = []
    monkeypatch.setattr(rule_cache, "_start_filler", started.append)
    monkeypatch.setattr(sys, "executable", program)

    cache.request(RULES, TRIGGERS)

    assert bool(started) == starts
    assert folder.exists() == starts


@pytest.mark.parametrize("error", [OSError, RuntimeError, TypeError, ValueError])
def test_a_process_that_cannot_be_started_harms_nobody(
    cache: RuleCache, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "Popen", fail)

    cache.request(RULES, TRIGGERS)


def loads_in_a_child(warming: Warming) -> bool:
    """Fork, scan much text in the child, and return whether it has the fast engine."""
    child = os.fork()
    if child == 0:
        for _ in range(12):
            warming.scan(b"x" * 40_000)
        warming.join()
        os._exit(0 if warming.name.startswith("vectorscan") else 1)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks with threads
def test_a_child_loads_the_engine_that_a_thread_was_loading(stored: Path) -> None:
    databases = serialized(Triggers(TRIGGERS))
    is_loading = threading.Event()
    may_load = threading.Event()

    def load() -> Triggers:
        if threading.current_thread() is thread:
            is_loading.set()
            may_load.wait()
        return Triggers(TRIGGERS, databases)

    warming = Warming(engine_of("stdlib", TRIGGERS), None, load)
    thread = threading.Thread(target=warming.look_for_faster)
    thread.start()
    is_loading.wait()
    try:
        assert loads_in_a_child(warming)
    finally:
        may_load.set()
        thread.join()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks with threads
def test_a_child_compiles_the_engine_that_a_thread_was_compiling() -> None:
    parent = os.getpid()
    may_compile = threading.Event()

    def compile_() -> Triggers:
        if os.getpid() == parent:
            may_compile.wait()
        return Triggers(TRIGGERS)

    warming = Warming(engine_of("stdlib", TRIGGERS), compile_)
    for _ in range(12):
        warming.scan(b"x" * 40_000)
    try:
        assert loads_in_a_child(warming)
    finally:
        may_compile.set()
        warming.join()
