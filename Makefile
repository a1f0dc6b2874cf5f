# KappaMQ. Everything happens in .venv, which is made when it is first needed.
#
#   make setup            environment, package and kernel
#   make run              a small shop on a broker of its own; DATA=dir keeps its data, ONCE=1 ends by itself
#   make test             ruff, mypy and the tests
#   make interop          the official C++ and Java clients and mqadmin against our servers (Maven, a JDK)
#   make peer             against Apache RocketMQ on this machine (Maven, a JDK)
#   make bench            our own figures
#   make clean            removes what was built, not .venv; make distclean removes that, too

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.ONESHELL:

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
WORKERS ?= 2

NATIVE := $(wildcard src/kappamq/native/*.pyx src/kappamq/native/*.pxd src/kappamq/native/*.c src/kappamq/native/*.h)
NATIVE := $(filter-out src/kappamq/native/_kernel.c,$(NATIVE))

.PHONY: setup run test lint interop peer bench clean distclean help

help:
	@sed -n 's/^#   //p' Makefile

setup: $(VENV)/.stamp-built

# What the package needs, from pyproject.toml. The kernel is built in a step of its own, so that a change in its
# sources does not ask pip for anything else.
$(VENV)/.stamp-dependencies: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "KappaMQ needs Python 3.11 or newer: make PYTHON=python3.x")'
	echo 'Setting up $(VENV): a virtual environment, and what KappaMQ and its tests need. The first time takes minutes.'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --upgrade pip 'setuptools>=77' wheel 'Cython>=3.0'
	$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --editable '.[dev]'
	touch $@

$(VENV)/.stamp-built: $(VENV)/.stamp-dependencies setup.py $(NATIVE)
	@echo 'Building the kernel and installing KappaMQ into $(VENV) ...'
	$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	if ! $(PY) -c 'import kappamq.native._kernel' 2>/dev/null; then echo '*** no compiled kernel: the pure-Python twin is used (make setup shows why with: $(PY) setup.py build_ext)'; fi
	# An editable install is not compiled by pip, and some environments forbid Python to do it by itself: every start would.
	$(PY) -m compileall -q src || true
	touch $@
	echo 'Done: $(VENV)/bin/kappamq is the program.'

run: setup
	@exec $(VENV)/bin/kappamq shop $(if $(DATA),--data '$(DATA)') $(if $(ONCE),--once)

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

test: lint
	$(PY) -m pytest -n $(WORKERS) --ignore tests/interop $(ARGS)

interop: setup
	$(PY) -m pytest tests/interop $(ARGS)

peer: setup
	$(PY) -m benchmarks.peer $(ARGS)

bench: setup
	$(PY) -m benchmarks $(ARGS)

clean:
	rm -rf build dist src/*.egg-info src/kappamq/native/_kernel.c src/kappamq/native/_kernel*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis $(VENV)/.stamp-built
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean
	rm -rf $(VENV)
