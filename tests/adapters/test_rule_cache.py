"""Compiled rules are shared by processes, and never used unless they are this user's.

Whatever is wrong with the cache, redaction goes on without it and finds the same.
"""

import os
import signal
import subprocess
import sys
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
from tests.support.waiting import until

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
        timeout=120,
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
    for number in range(12):
        cache.store(f"rules {number}", [b"x"])
        os.utime(cache.file_of(f"rules {number}"), (number, number))

    assert cache.load("rules 11") == [b"x"]
    assert cache.load("rules 0") is None
    assert len(files_in(folder)) == 8


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
