# Start with `make demo`, which runs the whole loop, and `make test`, which runs all tests.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps

.PHONY: demo serve test test-fast soak lint audit bench bench-train clean

# One test process per core, at most four. Idle processes take tests from busy ones, and expensive fixtures are built once
# for all of them.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist worksteal

KUAIRAND ?= ../shared/data/kuairand-pure

demo: .venv/train
	$(BIN)/ranker demo --dir demo

serve: .venv/train
	@test -d demo/repository || { echo "no model has been published yet: run 'make demo' first"; exit 1; }
	$(BIN)/ranker serve demo/repository

test: .venv/dev
	$(BIN)/pytest $(PARALLEL)

test-fast: .venv/dev
	$(BIN)/pytest $(PARALLEL) -m "not slow"

# Sends ten minutes of mixed traffic and then checks that memory and open files have not grown.
soak: .venv/dev
	RANKER_SOAK_SECONDS=600 $(BIN)/pytest -s tests/service/test_soak.py

lint: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/vocabulary.py

# Checks the locked packages for known vulnerabilities.
# AUDIT=--if-possible: do not fail if the advisories cannot be reached.
audit: .venv/audit
	$(BIN)/pip-audit --disable-pip --no-deps --progress-spinner off --timeout 10 --format json \
	  --requirement requirements/dev.lock --requirement requirements/cuda-train.lock | $(BIN)/python .ci/audit.py $(AUDIT)

# Options go into BENCH, such as BENCH="--only litserve" or BENCH=--quick.
bench: .venv/bench
	$(BIN)/python -m benchmarks.serving $(BENCH)

# KUAIRAND is the folder of the original KuaiRand files. Options go into BENCH, such as BENCH=--ten-million,
# BENCH="--only score" or BENCH="--threads 1".
bench-train: .venv/bench
	$(BIN)/python -m benchmarks.training --kuairand $(KUAIRAND) --work bench $(BENCH)

clean:
	rm -rf .venv demo bench

# Environments are installed from lock files: exact pins, no dependency resolution.
.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is required; select it with make PYTHON=...")'
	$(PYTHON) -m venv .venv

.venv/train: requirements/serve.lock requirements/train.lock pyproject.toml | .venv/bin/python
	@echo "installing the locked packages into .venv (a few minutes the first time)"
	$(PIP) -r requirements/train.lock
	$(PIP) --no-build-isolation --editable .
	@touch $@

.venv/dev: requirements/dev.lock .venv/train
	$(PIP) -r requirements/dev.lock
	@touch $@

.venv/audit: requirements/audit.lock .venv/dev
	$(PIP) -r requirements/audit.lock
	@touch $@

.venv/bench: requirements/bench.lock .venv/dev
	$(PIP) -r requirements/bench.lock
	@touch $@
