# The two commands that a fresh machine needs: `make run` and `make test`.
# Both prepare .venv by themselves; see tools/setup.py. Needed beforehand: Python 3.11+ with pip.

.DEFAULT_GOAL := help
.PHONY: help setup ready run test test-fast test-sparks test-cluster check soak bench kafka-demo mutants clean

# python3 if it is new enough, otherwise the newest that is.
PYTHON ?= $(or $(shell for name in python3 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && \
	{ echo $$name; break; }; done),python3)
SETUP = command -v $(PYTHON) >/dev/null || { echo "set-up: no Python was found: install Python 3.11 \
or newer with pip, or name one with make PYTHON=..." >&2; exit 1; }; $(PYTHON) tools/setup.py
# Pipelines wait for disks and for one another's processes: two test processes keep a core busy.
CORES := $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
WORKERS ?= $(shell expr $(CORES) \* 2)
IN_VENV = JAVA_HOME="$$(cat .venv/java-home 2>/dev/null)" PATH="$(CURDIR)/.venv/bin:$$PATH"
PYTEST = $(IN_VENV) .venv/bin/python -m pytest --durations=10 --durations-min=1

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## prepare .venv with everything that tests and checks need (other targets do it themselves)
	@$(SETUP) dev

# Tests start Spark some thirty times; this takes a minute once.
ready: setup  ## set-up, and Spark's classes kept in .venv so that tests start it sooner (tests do it themselves)
	@$(IN_VENV) HOLDFAST_CACHE="$(CURDIR)/.venv/cache" JDK_JAVA_OPTIONS="-XX:TieredStopAtLevel=1" \
		.venv/bin/holdfast warmup || echo "tests go on without it, and take longer"
	@$(IN_VENV) .venv/bin/python -m tests.helpers.servers

run:  ## orders through a pipeline on Spark, checked against Spark's own answer; again: it goes on
	@$(SETUP) run
	@$(IN_VENV) .venv/bin/python examples/orders.py .holdfast-run

test: ready  ## all tests but the long series; WORKERS=n processes, TESTS=paths to choose
	@$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not soak" $(TESTS)

test-fast: setup  ## without Spark, servers, network and series of crashes: about a minute
	@HOLDFAST_FAST=1 $(PYTEST) -q -n $(CORES) --dist loadfile --no-loadscope-reorder \
		-m "not (soak or spark or server or network or crash)" $(TESTS)

# Each Spark has an environment of its own, made once: several hundred MB each.
test-sparks: setup  ## a short suite on PySpark 4.0 to 4.3; SPARKS="4.0 4.2" to choose
	@$(IN_VENV) .venv/bin/python tools/sparks.py $(SPARKS)

# A standalone cluster of two workers, Spark Connect on it and an S3 server, all on loopback.
test-cluster: ready  ## pipelines on a Spark cluster with the store on S3: 20 kills, all operators
	@HOLDFAST_SOAK=1 $(PYTEST) --timeout 7200 $(or $(TESTS),tests/integration/cluster)

check: setup  ## ruff, formatting, mypy --strict and the tests that look at the repository itself
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@test ! -d tests/tidy || $(PYTEST) -q tests/tidy

soak: ready  ## the long series: every test with more examples, and those marked soak
	@HOLDFAST_SOAK=1 $(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder --timeout 7200 $(TESTS)

bench:  ## benchmarks, one question per file; BENCH=paths to choose
	@$(SETUP) bench
	@for file in $(or $(BENCH),$(sort $(wildcard benchmarks/bench_*.py))); do \
		echo "== $$file"; $(IN_VENV) .venv/bin/python $$file || exit 1; done

kafka-demo: setup  ## a Kafka broker on this machine, and a pipeline through kill -9: every order exactly once
	@$(IN_VENV) HOLDFAST_CACHE="$(CURDIR)/.venv/cache" .venv/bin/python -m tests.helpers.kafka_broker \
		.venv/bin/python examples/kafka_exactly_once.py

mutants: setup  ## break the code on purpose and see whether a test notices
	@$(IN_VENV) .venv/bin/python tools/mutate.py

clean:  ## remove environments, caches and what `make run` has stored
	rm -rf .venv .venv-sparks .holdfast-run .bench .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
