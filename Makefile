# Start with `make demo`, which runs the whole loop, and `make test`, which runs all tests.
PYTHON ?= python3
BIN := .venv/bin
# Compiling all modules would take as long as the rest of the installation: Python compiles those that it imports.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile
# Every file is checked against the hashes of the lock file. The project itself has none.
LOCKED := $(PIP) --require-hashes --requirement
# Index of PyTorch's CPU builds. It is used only for PyTorch, and only if pip's index has no CPU build.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

.PHONY: demo serve test test-fast test-all coverage soak lint lint-code lint-types lint-lanes audit sbom licenses lock bench bench-peers bench-train clean

# Compiled modules are kept even if the environment says otherwise: tests start hundreds of programs.
unexport PYTHONDONTWRITEBYTECODE
# Lists the slowest tests of 5 s and more.
PYTEST = $(BIN)/pytest --durations=40 --durations-min=5
# One more test process than cores, because many tests wait for a program; at most four. Idle processes take tests from
# busy ones, and expensive fixtures are built once for all of them.
PARALLEL := --numprocesses $(shell echo $$(($$(nproc) < 3 ? $$(nproc) + 1 : 4))) --dist worksteal
# At most two of the tests that run one at a time may need a second try; the summary names them as flaky.
RETRIED := --reruns 1 --max-suite-reruns 2

PEERS := $(wildcard requirements/peers/*.lock)
KUAIRAND ?= ../shared/data/kuairand-pure

demo: .venv/train
	$(BIN)/ranker demo --dir demo

serve: .venv/train
	@test -d demo/repository || { echo "no model has been published yet: run 'make demo' first"; exit 1; }
	$(BIN)/ranker serve demo/repository

# Runs both halves even if the first fails, and names the failed tests last. test-report/ keeps what they left behind.
test: .venv/dev
	@rm -rf test-report; failed=0; \
	$(PYTEST) -m "core or process" $(PARALLEL) --keep=test-report/parallel || failed=1; \
	$(PYTEST) -m "system and not nightly" $(RETRIED) --keep=test-report/system || failed=1; \
	cat test-report/*/summary.txt; exit $$failed

test-fast: .venv/dev
	$(PYTEST) -m core $(PARALLEL)

# Adds the long forms of the tests, and draws other examples for the property tests in each run.
test-all: PYTEST += --hypothesis-profile random
test-all: export TEST_TIMEOUT_FACTOR ?= 5
test-all: test .venv/engines/ready
	failed=0; \
	$(PYTEST) -m "nightly and not system" $(PARALLEL) --keep=test-report/nightly || failed=1; \
	$(PYTEST) -m "nightly and system" --keep=test-report/nightly-system || failed=1; \
	cat test-report/nightly*/summary.txt; exit $$failed

# Prints the line coverage of `make test-all` by package.
coverage: PYTEST := $(BIN)/coverage run -m pytest
coverage: test-all
	$(BIN)/coverage combine --quiet
	rm -f .coverage.*  # of killed processes, which cannot be read
	@for package in ranking service pipelines; do \
	  echo "$$package $$($(BIN)/coverage report --include="$$package/*" --format=total --precision=1) %"; done

# Sends ten minutes of mixed traffic to one process and then to two workers, and checks that memory and open files have
# not grown. Then runs the closed loop for ten minutes beside releases, loads, restarts and damaged files, and checks that
# its rows and sums agree with what was sent.
soak: .venv/dev
	RANKER_SOAK_SECONDS=600 $(BIN)/pytest -s -m nightly tests/service/test_soak.py tests/pipelines/loop/test_loop_soak.py

lint: lint-code lint-types lint-lanes

lint-code: .venv/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/python .ci/vocabulary.py

lint-types: .venv/dev
	$(BIN)/mypy

lint-lanes: .venv/dev
	$(BIN)/pytest --collect-only -qq --lint-lanes

# Checks the locked packages for known vulnerabilities. pip-audit does not read the files that a lock file includes, so that
# each one is named. The advisories list no CPU builds; cuda.lock pins the same version of PyTorch as torch.lock.
# AUDIT=--if-possible: do not fail if the advisories cannot be reached.
AUDIT_OF = $(BIN)/pip-audit --disable-pip --no-deps --progress-spinner off --timeout 10 --format json \
  $(addprefix --requirement ,$(1)) | $(BIN)/python .ci/audit.py $(AUDIT)
audit: .venv/audit
	$(call AUDIT_OF,$(filter-out %/torch.lock,$(wildcard requirements/*.lock)))
	$(call AUDIT_OF,requirements/engines/ray.lock requirements/engines/spark.lock)

# Writes the software bill of materials of each image as sbom/NAME.cdx.json, in CycloneDX.
sbom: .venv/sbom
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m requirements.sbom sbom

# Checks that every installed package has an allowed license. The list is in pyproject.toml.
licenses: .venv/sbom
	@$(BIN)/pip-licenses > /dev/null && echo "all licenses are allowed"

# Adds the hashes of pins that have none. PINS="idna==3.21" changes pins. FOLDER: folder of the lock files.
lock: .venv/update
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m requirements.lock --index $(TORCH_INDEX) \
	  $(if $(FOLDER),--folder $(FOLDER)) $(PINS)

# Options go into BENCH, such as BENCH="--only peers" or BENCH=--quick.
bench: .venv/bench
	$(BIN)/python -m benchmarks.serving $(BENCH)

# Installs the servers that `make bench` compares with and that need an environment of their own, because their requirements
# conflict with the project's.
bench-peers: $(PEERS:requirements/peers/%.lock=.venv/peers/%/ready)

# KUAIRAND is the folder of the original KuaiRand files. Options go into BENCH, such as BENCH=--ten-million,
# BENCH="--only score" or BENCH="--threads 1".
bench-train: .venv/bench
	$(BIN)/python -m benchmarks.training --kuairand $(KUAIRAND) --work bench $(BENCH)

clean:
	rm -rf .venv demo bench sbom test-report .coverage*

# Environments are installed from lock files: exact pins with hashes, no dependency resolution.
.venv/bin/python:
	$(PYTHON) -c 'import sys; (3, 11) <= sys.version_info < (3, 14) or sys.exit("Python 3.11 to 3.13 is required; select it with make PYTHON=...")'
	$(PYTHON) -m venv .venv

.venv/train: $(patsubst %,requirements/%.lock,torch slim serve train) pyproject.toml | .venv/bin/python
	@echo "installing the locked packages into .venv (a few minutes the first time)"
	@error=$$($(LOCKED) requirements/torch.lock 2>&1) || case "$$error" in \
	  *"No matching distribution"*) echo "pip's index has no CPU build of PyTorch: taking it from $(TORCH_INDEX)"; \
	    $(LOCKED) requirements/torch.lock --extra-index-url $(TORCH_INDEX);; \
	  *) echo "$$error" >&2; exit 1;; esac
	$(LOCKED) requirements/train.lock
	$(PIP) --no-build-isolation --editable .
	@touch $@

.venv/dev: requirements/dev.lock .venv/train
	$(LOCKED) requirements/dev.lock
	@touch $@

.venv/audit: requirements/audit.lock .venv/dev
	$(LOCKED) requirements/audit.lock
	@touch $@

.venv/sbom: requirements/sbom.lock .venv/dev
	$(LOCKED) requirements/sbom.lock
	@touch $@

# Does not depend on the other environments, whose lock files may lack hashes.
.venv/update: requirements/update.lock | .venv/bin/python
	$(LOCKED) requirements/update.lock
	@touch $@

.venv/bench: requirements/bench.lock .venv/dev
	$(LOCKED) requirements/bench.lock
	@touch $@

# Ray and Spark beside the packages of .venv.
.venv/engines/ready: requirements/engines/engines.lock | .venv/dev
	$(PYTHON) -m venv $(@D)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ranker.pth"
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $<
	@touch $@

.venv/peers/%/ready: requirements/peers/%.lock | .venv/bin/python
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $<
	@touch $@
