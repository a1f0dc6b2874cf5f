# KappaMQ. Everything happens in .venv, which is made when it is first needed.
#
#   make setup            environment, package and kernel
#   make run              a small shop on a broker of its own, and its orders in Spark; DATA=dir keeps its data, ONCE=1 ends by
#                         itself, LISTEN=0.0.0.0 lets other machines in
#   make test             ruff, mypy and the tests, in random order; ARGS=--randomly-seed=N has an order again
#   make test-long        what takes minutes: kills of Spark jobs and of a Raft group's leader, a pipeline project from init to Ctrl-C
#   make test-newest      the tests of broker, client, store and kernel with the newest Python of this machine
#   SPARK=0               with any of these: without Spark, and nothing of it is installed
#   make interop          the official Java, C++ and Go clients and mqadmin against our servers (Maven, a JDK, Go)
#   make peer             against Apache RocketMQ on this machine (Maven, a JDK)
#   make bench            our own figures
#   make bench-spark      the pipeline on Spark, against Parquet and Kafka (Maven and a JDK for the latter)
#   make sim              histories of the Raft core from SEEDS=200 seeds, in a simulated network on simulated disks, and of whole
#                         brokers from a twentieth as many; ARGS=--mutants and ARGS='--brokers --mutants': planted bugs are to be
#                         found, ARGS='--seed N' and ARGS='--brokers --seed N' have a history again
#   make chaos            kills, pauses and cut connections in a Raft group under load: ROUNDS=100
#   make hostile          what a client feels of others that send the worst requests the limits admit
#   make clean            removes what was built, not .venv; make distclean removes that, too

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.ONESHELL:

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# More than the cores of a small machine: many tests wait for a process, a socket or a disk.
WORKERS ?= 4
SPARK ?= 1
# What is left of it is empty with SPARK=0.
WITH_SPARK := $(filter-out 0,$(SPARK))

NATIVE := $(wildcard src/kappamq/native/*.pyx src/kappamq/native/*.pxi src/kappamq/native/*.pxd src/kappamq/native/*.c src/kappamq/native/*.h)
NATIVE := $(filter-out src/kappamq/native/_kernel.c,$(NATIVE))

.PHONY: setup run test test-long test-newest lint interop peer bench bench-spark sim chaos hostile clean distclean help

help:
	@sed -n 's/^#   //p' Makefile

setup: $(VENV)/.stamp-built $(if $(WITH_SPARK),$(VENV)/.stamp-spark)

# What the package needs, from pyproject.toml. The kernel is built in a step of its own, so that a change in its
# sources does not ask pip for anything else.
$(VENV)/.stamp-dependencies: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "KappaMQ needs Python 3.11 or newer: make PYTHON=python3.x")'
	echo 'Setting up $(VENV): a virtual environment, and what KappaMQ and its tests need. The first time takes minutes.'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --upgrade pip 'setuptools>=77' wheel 'Cython>=3.0'
	$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable '.[dev]'
	touch $@

$(VENV)/.stamp-spark: $(VENV)/.stamp-dependencies
	@$(PY) -c 'import pyspark' 2>/dev/null || echo 'Installing Spark, a download of about 600 MB (leave it out with SPARK=0) ...'
	$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable '.[dev-spark]'
	touch $@

$(VENV)/.stamp-built: $(VENV)/.stamp-dependencies setup.py $(NATIVE)
	@echo 'Building the kernel and installing KappaMQ into $(VENV) ...'
	# A kernel of older sources would pass for the new one if these cannot be compiled.
	rm -f "src/kappamq/native/_kernel$$($(PY) -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')"
	$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	if ! $(PY) -c 'import kappamq.native._kernel' 2>/dev/null; then echo '*** no compiled kernel: the pure-Python twin is used (make setup shows why with: $(PY) setup.py build_ext)'; fi
	# An editable install is not compiled by pip, and some environments forbid Python to do it by itself: every start would.
	$(PY) -m compileall -q src || true
	touch $@
	echo 'Done: $(VENV)/bin/kappamq is the program.'

run: setup
	@exec $(VENV)/bin/kappamq shop $(if $(DATA),--data '$(DATA)') $(if $(ONCE),--once) $(if $(LISTEN),--listen '$(LISTEN)') $(if $(WITH_SPARK),--spark)

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# pytest rewrites what it imports: once, beside the linters, and not in each worker.
test: setup
	PYTHONDONTWRITEBYTECODE= $(PY) -m pytest --collect-only --quiet --ignore tests/interop > /dev/null 2>&1 & rewriting=$$!
	$(MAKE) --no-print-directory lint
	wait $$rewriting || true
	$(PY) -m pytest -n $(WORKERS) --dist worksteal --ignore tests/interop -m 'not long$(if $(WITH_SPARK),, and not spark)' $(ARGS)

test-long: setup
	$(PY) -m pytest --ignore tests/interop -m 'long$(if $(WITH_SPARK),, and not spark)' $(ARGS)

# An environment of its own, made by the rules above; made anew when a newer Python has come.
test-newest: setup
	@newest=$${NEWEST:-$$($(PY) -m tests.newest_python)}
	version=$$("$$newest" --version)
	if [ "$$version" = "$$($(PY) --version)" ]; then
	    echo "$$version is the newest Python here: make test has used it, there is nothing more to test"
	    exit
	fi
	if [ -x $(VENV)-newest/bin/python ] && [ "$$($(VENV)-newest/bin/python --version || true)" != "$$version" ]; then rm -rf $(VENV)-newest; fi
	echo "$$version ($$newest):"
	$(MAKE) --no-print-directory setup VENV=$(VENV)-newest PYTHON="$$newest" SPARK=0
	$(VENV)-newest/bin/python -m pytest -n $(WORKERS) --dist worksteal -m 'not long' tests/broker tests/client tests/store tests/native $(ARGS)

# In the order in which they are written: servers and clients of other makers are started one after the other.
interop: setup
	$(PY) -m pytest -p no:randomly tests/interop $(ARGS)

peer: setup
	$(PY) -m benchmarks.peer $(ARGS)

bench: setup
	$(PY) -m benchmarks $(ARGS)

bench-spark: setup
	$(PY) -m benchmarks spark $(ARGS)

sim: setup
	$(PY) -m kappamq.sim $(if $(SEEDS),--seeds $(SEEDS)) $(ARGS)
	$(if $(ARGS),,$(PY) -m kappamq.sim --brokers --seeds $$(( ($(or $(SEEDS),200) + 19) / 20 )))

chaos: setup
	$(PY) -m benchmarks chaos $(if $(ROUNDS),--rounds $(ROUNDS)) $(ARGS)

hostile: setup
	$(PY) -m benchmarks hostile $(ARGS)

clean:
	rm -rf build dist src/*.egg-info src/kappamq/native/_kernel.c src/kappamq/native/_kernel*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis $(VENV)/.stamp-built $(VENV)-newest/.stamp-built
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean
	rm -rf $(VENV) $(VENV)-newest
