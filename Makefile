.POSIX:
.DELETE_ON_ERROR:
.PHONY: help demo test test-frameworks test-clients test-repeat coverage check fix lock bench bench-redaction bench-frameworks simulate soak soak-forks soak-capture soak-proxy bench-capture bench-cold bench-parquet bench-proxy bench-server screenshots recording \
	fuzz release-check docs clean

# The first Python that is new enough; PYTHON=... on the command line overrides it.
PYTHON ?= $(shell for python in python3.11 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo $$python && break; done)
BIN = .venv/bin
# Subprocesses of tests use compiled modules, even if the shell turns them off.
PYTHON_RUN = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python
# -qq prints errors only.  Retries keep a short network failure from failing the target.
PIP = $(BIN)/python -m pip -qq --disable-pip-version-check --no-input --retries 10 --timeout 60
UV = UV_HTTP_TIMEOUT=120 UV_HTTP_RETRIES=10 $(BIN)/uv
APT_GET = DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=5 -o DPkg::Lock::Timeout=120
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-find-links \
	--custom-compile-command "make lock"

help:
	@echo "make demo    run the tour on your machine: import, redact, compact, erase"
	@echo "make test    run all tests, on SQLite and on a PostgreSQL that they start;"
	@echo "             ARGS='-k word' or ARGS=tests/a_file.py runs some of them"
	@echo "make test-frameworks"
	@echo "             run only the tests of the framework adapters"
	@echo "make test-clients"
	@echo "             run real clients under refold run, and compare their requests"
	@echo "             with the record; NEWEST=1 runs the newest versions"
	@echo "make test-repeat"
	@echo "             run the tests of terminal, page, worker and server COUNT=50"
	@echo "             times each under load; ARGS=tests/a_file.py runs others"
	@echo "make coverage"
	@echo "             run all tests and list the lines that none of them reaches"
	@echo "make simulate"
	@echo "             simulate processes that die, race and lose answers, in memory;"
	@echo "             ARGS='--count 20000', or ARGS='--seed 7' to print one history"
	@echo "make soak    run, kill and restart real processes on a PostgreSQL of their"
	@echo "             own; SEED=1 EVENTS=2000000 SESSIONS=500 PROCESSES=8"
	@echo "make soak-forks"
	@echo "             let processes fork while a SQLite store is open;"
	@echo "             COUNT=200 SEED=1"
	@echo "make soak-capture"
	@echo "             cut, move, rewrite and delete transcripts while the process"
	@echo "             that captures them is killed; COUNT=10000 SEED=1"
	@echo "make soak-proxy"
	@echo "             kill a client, its proxy and the store while it talks to a model;"
	@echo "             COUNT=100 SEED=1"
	@echo "make fuzz    feed parsers with inputs guided by coverage;"
	@echo "             TARGET=import-letta ARGS='--seconds 600'"
	@echo "make check   check format, lint, types, layers, files, folders, documentation"
	@echo "make fix     format the code, fix lint, and generate the references of rules,"
	@echo "             models, tampering, Python and the command line again"
	@echo "make lock    resolve the dependencies and write the lock files"
	@echo "make bench   measure writes and reads, and compare with other stores (in a"
	@echo "             separate environment); ARGS='--quick' or '--plot FILE.png'"
	@echo "make bench-redaction"
	@echo "             measure redaction, and compare with other tools"
	@echo "make bench-frameworks"
	@echo "             measure items of frameworks and steps of LangGraph"
	@echo "make bench-capture"
	@echo "             measure the capture of transcripts"
	@echo "make bench-cold"
	@echo "             measure what short processes cost before they work"
	@echo "make bench-parquet"
	@echo "             measure an export to Parquet"
	@echo "make bench-proxy"
	@echo "             measure what recording adds to a request through the proxy"
	@echo "make bench-server"
	@echo "             measure what HTTP adds to an append, and the delay of tails"
	@echo "make screenshots"
	@echo "             take the screenshots of the page for the documentation"
	@echo "make recording"
	@echo "             record the commands that the README shows"
	@echo "make docs    build the documentation's site into build/site, with the search and"
	@echo "             the reference of the public API"
	@echo "make release-check"
	@echo "             check a release: build the package, install and use it with each"
	@echo "             extra in an empty environment (ARGS='--extra tui' for one), lint"
	@echo "             containers and workflows, and list what is left to do by hand"
	@echo "make clean   remove everything that these targets created"

# Two stamps: changed requirements reinstall the dependencies; a changed pyproject.toml
# reinstalls only refold.  pip installs uv, which installs the others in a tenth of the
# processor time.
.venv/.dependencies: requirements/dev.txt
	@test -n "$(PYTHON)" || { echo "Refold needs Python 3.11 or newer: install it, or name one with PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing the dependencies into .venv"
	@sed -n '/^uv==/,/[^\\]$$/p' requirements/dev.txt >.venv/uv.txt
	@$(PIP) install --no-compile --no-deps --require-hashes -r .venv/uv.txt
	@$(UV) pip sync --quiet --require-hashes --python $(BIN)/python requirements/dev.txt
	@touch $@

.venv/.refold: .venv/.dependencies pyproject.toml
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

demo: .venv/.refold
	@mkdir -p build
	@PATH="$$PWD/$(BIN):$$PATH" sh examples/demo.sh build/demo.html </dev/null

# The tests of the page need a real browser.  If none can be installed, they fail and say
# how to install one.
.venv/.browser: .venv/.refold
	@for name in chromium chromium-browser google-chrome; do \
		command -v $$name >/dev/null 2>&1 && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		echo "installing Chromium for the tests of the page"; \
		$(APT_GET) update </dev/null && \
			$(APT_GET) install --yes --no-install-recommends chromium </dev/null >/dev/null; \
	else echo "the tests of the page need Chromium: sudo apt-get install chromium" >&2; fi
	@touch $@

# Without a Chinese font, Chromium draws boxes in place of Chinese characters.
.venv/.fonts: .venv/.refold
	@if [ -z "$$(fc-list :lang=zh 2>/dev/null)" ] && \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		echo "installing a Chinese font for the screenshots"; \
		$(APT_GET) update </dev/null && $(APT_GET) install --yes \
			--no-install-recommends fontconfig fonts-noto-cjk </dev/null >/dev/null; fi
	@touch $@

# Tests of pooled connections run a real PgBouncer.  Without one, they fail and say how to
# install it.
.venv/.pooler: .venv/.refold
	@command -v pgbouncer >/dev/null 2>&1 || test -x /usr/sbin/pgbouncer || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
		echo "installing PgBouncer for the tests of pooled connections"; \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
			apt-get -qq install --yes --no-install-recommends pgbouncer >/dev/null; \
	else echo "the tests of a pooler need PgBouncer: sudo apt-get install pgbouncer" >&2; fi
	@touch $@

# Node.js and npm, which install and run clients of models.
.venv/node/.ready: requirements/node.txt .venv/.refold
	@test -x .venv/node/bin/python || $(PYTHON) -m venv .venv/node
	@echo "installing Node.js into .venv/node"
	@$(UV) pip sync --quiet --require-hashes --python .venv/node/bin/python requirements/node.txt
	@touch $@

# Claude Code and Codex.  `make test-clients` installs the others.
PINS = tests/clients/pins
INSTALL_CLIENTS = $(BIN)/python -m tests.clients.install
.venv/clients/.%: $(PINS)/%/package-lock.json tests/clients/install.py .venv/node/.ready
	@echo "installing $* into .venv/clients"
	@$(INSTALL_CLIENTS) $* </dev/null >/dev/null
	@touch $@

# The tests of the frameworks run in parallel, and their output is printed last.  The
# target fails if either part fails.
test: .venv/.refold .venv/.browser .venv/.pooler .venv/frameworks/.ready \
	.venv/clients/.claude-code .venv/clients/.codex
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

# One more than two cores, because tests wait for servers, disks, and processes.
WORKERS = 3
MAIN_TESTS = $(PYTHON_RUN) -m pytest -n $(WORKERS) --dist worksteal

# The framework adapters, with all frameworks in one environment.
FRAMEWORK_TESTS = env -u PYTHONDONTWRITEBYTECODE .venv/frameworks/bin/python -m pytest tests/frameworks
.venv/frameworks/.ready: requirements/frameworks.txt pyproject.toml .venv/.refold
	@test -x .venv/frameworks/bin/python || $(PYTHON) -m venv .venv/frameworks
	@echo "installing the frameworks into .venv/frameworks"
	@$(UV) pip sync --quiet --require-hashes --python .venv/frameworks/bin/python requirements/frameworks.txt
	@$(UV) pip install --quiet --no-deps --python .venv/frameworks/bin/python -e .
	@touch $@

test-frameworks: .venv/frameworks/.ready
	@$(FRAMEWORK_TESTS) -n 2 $(ARGS) </dev/null

# All clients.  NEWEST=1 tests the newest versions from npm instead of the pinned ones.
CLIENTS = claude-code codex copilot gemini-cli opencode qwen-code
.venv/clients-python/.ready: requirements/clients.txt .venv/.refold
	@test -x .venv/clients-python/bin/python || $(PYTHON) -m venv .venv/clients-python
	@echo "installing clients into .venv/clients-python"
	@$(UV) pip sync --quiet --require-hashes --python .venv/clients-python/bin/python requirements/clients.txt
	@touch $@
.venv/clients-aider/.ready: requirements/aider.txt .venv/.refold
	@test -x .venv/clients-aider/bin/python || $(PYTHON) -m venv .venv/clients-aider
	@echo "installing aider into .venv/clients-aider"
	@$(UV) pip sync --quiet --require-hashes --python .venv/clients-aider/bin/python requirements/aider.txt
	@touch $@
ifdef NEWEST
.venv/.clients: .venv/node/.ready
	@echo "installing the newest clients into .venv/clients-newest"
	@$(INSTALL_CLIENTS) --newest $(CLIENTS) </dev/null
.PHONY: .venv/.clients
else
.venv/.clients: $(CLIENTS:%=.venv/clients/.%)
endif
test-clients: .venv/.clients .venv/clients-python/.ready .venv/clients-aider/.ready
	@env REFOLD_TEST_CLIENTS=$(if $(NEWEST),newest,pinned) \
		$(PYTHON_RUN) -m pytest -n 2 --dist worksteal $(or $(ARGS),tests/clients) </dev/null

# Some tests fail only on a busy machine.  These run while every core is loaded.
COUNT = 50
REPEATED = tests/cli/test_terminal.py tests/cli/test_view.py tests/cli/test_watch.py \
	tests/cli/test_worker.py tests/server/test_browser.py tests/server/test_pages.py \
	tests/server/test_serving.py tests/server/test_tail.py tests/store/test_jobs.py \
	tests/store/test_working.py
test-repeat: .venv/.refold .venv/.browser
	@$(PYTHON_RUN) -m pytest -p tests.support.repeating --repeat $(COUNT) --quiet \
		-n 2 --dist worksteal $(or $(ARGS),$(REPEATED)) </dev/null

# Not part of `make test`, because coverage doubles the time.
coverage: .venv/.refold
	@$(PYTHON_RUN) -m pytest -n 2 --cov --cov-report=term:skip-covered $(ARGS)

simulate: .venv/.refold
	@$(BIN)/python -m tests.simulation $(ARGS)

# A separate environment, because the fuzzer instruments the code.
.venv/fuzz/.ready: pyproject.toml requirements/run.txt .venv/.refold
	@test -x .venv/fuzz/bin/python || $(PYTHON) -m venv .venv/fuzz
	@$(UV) pip install --quiet --python .venv/fuzz/bin/python --group fuzz -e . hypothesis pytest
	@touch $@

TARGET = redact-text
fuzz: .venv/fuzz/.ready
	@.venv/fuzz/bin/python -m tests.fuzz $(TARGET) $(ARGS)

# Uses TMPDIR, or /tmp.  The full size needs several GB and most of an hour.
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

soak-proxy: COUNT = 100
soak-proxy: .venv/.refold
	@$(BIN)/python -m tests.soak.proxy --kills $(COUNT) --seed $(SEED)

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
	@$(BIN)/python -m tools.cli_reference --check
	@$(BIN)/python -m tools.public_api --check

fix: .venv/.refold
	@$(BIN)/ruff check --quiet --fix .
	@$(BIN)/ruff format --quiet .
	@$(BIN)/python -m tools.rule_reference
	@$(BIN)/python -m tools.strategy_figures
	@$(BIN)/python -m tools.model_reference
	@$(BIN)/python -m tools.python_reference
	@$(BIN)/python -m tools.cli_reference
	@$(BIN)/python -m tools.tampering_reference

lock: .venv/.refold
	@$(COMPILE) --upgrade pyproject.toml --group dev -o requirements/dev.txt
	@$(COMPILE) --upgrade pyproject.toml -c requirements/dev.txt -o requirements/run.txt
	@$(COMPILE) --upgrade pyproject.toml --all-extras --group frameworks \
		-o requirements/frameworks.txt
	@$(COMPILE) --upgrade pyproject.toml --extra server --extra mcp --extra otel \
		-c requirements/frameworks.txt -o requirements/image.txt
	@$(COMPILE) --upgrade --group docs -o requirements/docs.txt
	@$(COMPILE) --upgrade --group release -o requirements/release.txt
	@$(COMPILE) --upgrade --group node -o requirements/node.txt
	@$(COMPILE) --upgrade --group clients -o requirements/clients.txt
	@$(COMPILE) --upgrade --group aider -o requirements/aider.txt
	@$(MAKE) .venv/node/.ready
	@$(BIN)/python -m tools.client_pins

# A separate environment, because the compared tools need other versions.
.venv/bench/.ready: pyproject.toml .venv/.refold
	@test -x .venv/bench/bin/python || $(PYTHON) -m venv .venv/bench
	@echo "installing the tools to compare with into .venv/bench"
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

bench-cold: .venv/.refold
	@$(BIN)/python -m benchmarks.cold $(ARGS)

bench-parquet: .venv/.refold
	@$(BIN)/python -m benchmarks.parquet

bench-proxy: .venv/.refold
	@$(BIN)/python -m benchmarks.proxy

bench-server: .venv/.refold
	@$(BIN)/python -m benchmarks.server

screenshots: .venv/.browser .venv/.fonts
	@$(BIN)/python -m tools.screenshots

recording: .venv/.refold
	@$(BIN)/python -m tools.recording

# A separate environment, because only the site needs these packages.
.venv/docs/.ready: requirements/docs.txt .venv/.refold
	@test -x .venv/docs/bin/python || $(PYTHON) -m venv .venv/docs
	@echo "installing MkDocs into .venv/docs"
	@$(UV) pip sync --quiet --require-hashes --python .venv/docs/bin/python requirements/docs.txt
	@touch $@

docs: .venv/docs/.ready
	@NO_MKDOCS_2_WARNING=1 .venv/docs/bin/mkdocs build --quiet --strict
	@$(BIN)/python -m tools.site.check
	@echo "read it with: python3 -m http.server --directory build/site"

# A separate environment, because only a release needs these tools.
.venv/release/.ready: requirements/release.txt .venv/.refold
	@test -x .venv/release/bin/python || $(PYTHON) -m venv .venv/release
	@echo "installing the tools of a release into .venv/release"
	@$(UV) pip sync --quiet --require-hashes --python .venv/release/bin/python requirements/release.txt
	@touch $@

# Installs more than a gigabyte, so it is not part of `make test`.
RELEASE = .venv/release/bin
release-check: .venv/.refold .venv/release/.ready docs
	@$(PYTHON_RUN) -m pytest --quiet tests/release tests/test_publishing.py tests/adapters/test_golden_stores.py </dev/null
	@$(BIN)/python -m tools.public_api --check
	@$(RELEASE)/hadolint Dockerfile .devcontainer/Dockerfile
	@$(RELEASE)/zizmor --offline --quiet .github
	@rm -rf build/release
	@$(BIN)/python -m tests.release --out build/release $(ARGS)
	@$(RELEASE)/twine check --strict build/release/*
	@PYTHONWARNINGS=ignore $(RELEASE)/cyclonedx-py requirements requirements/run.txt \
		--pyproject pyproject.toml --output-reproducible \
		--output-file build/release/refold.cdx.json
	@echo "build/release has the package and its list of components"
	@$(BIN)/python -m tools.check_benchmarks
	@$(BIN)/python -m tests.release.checklist

clean:
	@rm -rf .venv .coverage .coverage.* .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
