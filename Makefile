.POSIX:
.DELETE_ON_ERROR:
.PHONY: help demo test test-frameworks test-repeat coverage check fix lock bench bench-redaction bench-frameworks simulate soak soak-forks soak-capture bench-capture bench-parquet bench-server screenshots \
	fuzz clean

# The first Python that is new enough; PYTHON=... on the command line overrides it.
PYTHON ?= $(shell for python in python3.11 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
BIN = .venv/bin
# Processes that tests start load compiled modules, also where the shell says not to.
PYTHON_RUN = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python
# -qq: errors only.  A network that fails for a moment does not fail an installation.
PIP = $(BIN)/python -m pip -qq --disable-pip-version-check --no-input --retries 10 --timeout 60
UV = UV_HTTP_TIMEOUT=120 UV_HTTP_RETRIES=10 $(BIN)/uv
APT_GET = DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=5 -o DPkg::Lock::Timeout=120
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock"

help:
	@echo "make demo    import, redact, compact, erase: the whole tour on your machine"
	@echo "make test    all tests, on SQLite and on a PostgreSQL that they start;"
	@echo "             ARGS='-k word' or ARGS=tests/a_file.py for some of them"
	@echo "make test-frameworks"
	@echo "             only those of the adapters of frameworks"
	@echo "make test-repeat"
	@echo "             the tests of terminal, page, worker and server COUNT=50 times each"
	@echo "             under load; ARGS=tests/a_file.py for others"
	@echo "make coverage"
	@echo "             the same, and which lines no test reaches"
	@echo "make simulate"
	@echo "             histories of processes that die, race and lose answers, over"
	@echo "             memory; ARGS='--count 20000' or ARGS='--seed 7' for one, told"
	@echo "make soak    real processes, kills and restarts on a PostgreSQL of its own;"
	@echo "             SEED=1 EVENTS=2000000 SESSIONS=500 PROCESSES=8"
	@echo "make soak-forks"
	@echo "             families of processes that fork with a SQLite store open;"
	@echo "             COUNT=200 SEED=1"
	@echo "make soak-capture"
	@echo "             transcripts torn, moved, rewritten and swept away while what"
	@echo "             follows them is killed; COUNT=10000 SEED=1"
	@echo "make fuzz    what reads other people's bytes, guided by what it covers;"
	@echo "             TARGET=import-letta ARGS='--seconds 600'"
	@echo "make check   format, lint, types, layers, files and folders, documentation"
	@echo "make fix     format and repair what a machine can repair, the references"
	@echo "             of rules, models and tampering too"
	@echo "make lock    resolve the dependencies anew"
	@echo "make bench   what storing and reading cost, beside other stores (in an"
	@echo "             environment of their own); ARGS='--quick' or '--plot FILE.png'"
	@echo "make bench-redaction"
	@echo "             what redaction costs and finds, beside other tools"
	@echo "make bench-frameworks"
	@echo "             what items of frameworks and steps of LangGraph cost"
	@echo "make bench-capture"
	@echo "             what following transcripts costs"
	@echo "make bench-parquet"
	@echo "             what an export as Parquet costs"
	@echo "make bench-server"
	@echo "             what HTTP adds to an append, and how far tails are behind"
	@echo "make screenshots"
	@echo "             take the pictures of the page that the documentation shows"
	@echo "make clean   remove what these targets made"

# Two stamps: new dependencies reinstall them, a changed pyproject.toml only refold.
.venv/.dependencies: requirements/dev.txt
	@test -n "$(PYTHON)" || { echo "Refold needs Python 3.11 or newer: install it, or name one with PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing the dependencies into .venv"
	@$(PIP) install --no-compile --no-deps --require-hashes -r requirements/dev.txt
	@touch $@

.venv/.refold: .venv/.dependencies pyproject.toml
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

demo: .venv/.refold
	@mkdir -p build
	@PATH="$$PWD/$(BIN):$$PATH" sh examples/demo.sh build/demo.html </dev/null

# The page is tested in a real browser; where none can be installed, its tests say how.
.venv/.browser: .venv/.refold
	@for name in chromium chromium-browser google-chrome; do \
		command -v $$name >/dev/null 2>&1 && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		echo "installing Chromium for the tests of the page"; \
		$(APT_GET) update </dev/null && \
			$(APT_GET) install --yes --no-install-recommends chromium </dev/null >/dev/null; \
	else echo "the tests of the page need Chromium: sudo apt-get install chromium" >&2; fi
	@touch $@

# The tests of the frameworks run next to the others, and are printed behind them.  Both
# parts run to their end; either fails the target.
# Tests of pooled connections run a real PgBouncer; without it they fail and say how.
.venv/.pooler: .venv/.refold
	@command -v pgbouncer >/dev/null 2>&1 || test -x /usr/sbin/pgbouncer || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		echo "installing PgBouncer for the tests of pooled connections"; \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
			apt-get -qq install --yes --no-install-recommends pgbouncer >/dev/null; \
	else echo "the tests of a pooler need PgBouncer: sudo apt-get install pgbouncer" >&2; fi
	@touch $@

test: .venv/.refold .venv/.browser .venv/.pooler .venv/frameworks/.ready
ifdef ARGS
	@$(MAIN_TESTS) $(ARGS) </dev/null
else
	@mkdir -p build
	@$(FRAMEWORK_TESTS) >build/test-frameworks.txt 2>&1 </dev/null & \
	frameworks=$$!; \
	trap 'kill $$frameworks' INT TERM; \
	status=0; \
	$(MAIN_TESTS) </dev/null || status=$$?; \
	wait $$frameworks || status=$$?; \
	cat build/test-frameworks.txt; \
	exit $$status
endif

# One more than two cores have work for: tests wait for servers, disks, and processes.
WORKERS = 3
MAIN_TESTS = $(PYTHON_RUN) -m pytest -n $(WORKERS) --dist worksteal

# The adapters of frameworks, with all of these in one environment.
FRAMEWORK_TESTS = env -u PYTHONDONTWRITEBYTECODE .venv/frameworks/bin/python -m pytest tests/frameworks
.venv/frameworks/.ready: requirements/frameworks.txt pyproject.toml .venv/.refold
	@test -x .venv/frameworks/bin/python || $(PYTHON) -m venv .venv/frameworks
	@echo "installing the frameworks into .venv/frameworks"
	@$(UV) pip sync --quiet --require-hashes --python .venv/frameworks/bin/python requirements/frameworks.txt
	@$(UV) pip install --quiet --no-deps --python .venv/frameworks/bin/python -e .
	@touch $@

test-frameworks: .venv/frameworks/.ready
	@$(FRAMEWORK_TESTS) -n 2 $(ARGS) </dev/null

# Some tests fail only on a busy machine: these run with a load on every core.
COUNT = 50
REPEATED = tests/cli/test_terminal.py tests/cli/test_view.py tests/cli/test_watch.py \
	tests/cli/test_worker.py tests/server/test_browser.py tests/server/test_pages.py \
	tests/server/test_serving.py tests/server/test_tail.py tests/store/test_jobs.py \
	tests/store/test_working.py
test-repeat: .venv/.refold .venv/.browser
	@$(PYTHON_RUN) -m pytest -p tests.support.repeating --repeat $(COUNT) --quiet \
		-n 2 --dist worksteal $(or $(ARGS),$(REPEATED)) </dev/null

# Apart from the tests: counting lines doubles their time.
coverage: .venv/.refold
	@$(PYTHON_RUN) -m pytest -n 2 --cov --cov-report=term:skip-covered $(ARGS)

simulate: .venv/.refold
	@$(BIN)/python -m tests.simulation $(ARGS)

# An environment of its own: it instruments what it runs.
.venv/fuzz/.ready: pyproject.toml requirements/run.txt .venv/.refold
	@test -x .venv/fuzz/bin/python || $(PYTHON) -m venv .venv/fuzz
	@$(UV) pip install --quiet --python .venv/fuzz/bin/python --group fuzz -e . hypothesis pytest
	@touch $@

TARGET = redact-text
fuzz: .venv/fuzz/.ready
	@.venv/fuzz/bin/python -m tests.fuzz $(TARGET) $(ARGS)

# In /tmp, or where TMPDIR says: the whole size takes some GB and the better part of an hour.
SEED = 1
EVENTS = 2000000
SESSIONS = 500
PROCESSES = 8
soak: .venv/.refold
	@$(BIN)/python -m tests.soak --seed $(SEED) --events $(EVENTS) \
		--sessions $(SESSIONS) --processes $(PROCESSES)

soak-forks: COUNT = 200
soak-forks: .venv/.refold
	@$(BIN)/python -m tests.soak.forks --count $(COUNT) --seed $(SEED)

soak-capture: COUNT = 10000
soak-capture: .venv/.refold
	@$(BIN)/python -m tests.support.capturing $(COUNT) $(SEED)

check: .venv/.refold
	@$(BIN)/ruff format --check --quiet . || { $(BIN)/ruff format --diff --quiet .; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m tools.check_house
	@$(BIN)/python -m tools.check_docs
	@$(BIN)/python -m tools.rule_reference --check
	@$(BIN)/python -m tools.model_reference --check
	@$(BIN)/python -m tools.tampering_reference --check
	@$(BIN)/python -m tools.python_reference --check

fix: .venv/.refold
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .
	@$(BIN)/python -m tools.rule_reference
	@$(BIN)/python -m tools.strategy_figures
	@$(BIN)/python -m tools.model_reference
	@$(BIN)/python -m tools.python_reference
	@$(BIN)/python -m tools.tampering_reference

lock: .venv/.refold
	@$(COMPILE) --upgrade pyproject.toml --group dev -o requirements/dev.txt
	@$(COMPILE) --upgrade pyproject.toml -c requirements/dev.txt -o requirements/run.txt
	@$(COMPILE) --upgrade pyproject.toml --all-extras --group frameworks \
		-o requirements/frameworks.txt

# The tools it compares with want versions of their own.
.venv/bench/.ready: pyproject.toml .venv/.refold
	@test -x .venv/bench/bin/python || $(PYTHON) -m venv .venv/bench
	@echo "installing what the benchmark compares with into .venv/bench"
	@$(UV) pip install --quiet --python .venv/bench/bin/python --group bench -e .
	@touch $@

bench: .venv/bench/.ready
	@.venv/bench/bin/refold bench store $(ARGS)

bench-redaction: .venv/bench/.ready
	@.venv/bench/bin/refold bench redaction $(ARGS)

bench-frameworks: .venv/bench/.ready
	@$(UV) pip install --quiet --python .venv/bench/bin/python "langgraph>=1.2"
	@.venv/bench/bin/python -m benchmarks.frameworks

bench-capture: .venv/.refold
	@$(BIN)/python -m benchmarks.capture

bench-parquet: .venv/.refold
	@$(BIN)/python -m benchmarks.parquet

bench-server: .venv/.refold
	@$(BIN)/python -m benchmarks.server

screenshots: .venv/.browser
	@$(BIN)/python -m tools.screenshots

clean:
	@rm -rf .venv .coverage .coverage.* .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
