# Everything here sets itself up: a Python >= 3.10 with venv is all that has to be there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
BENCH ?=
TESTS ?= tests
LAB ?=

.PHONY: help setup bench bench-harness test check unit lint format types lab clean

help: ## what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## the harness's own environment in .venv; quick when nothing changed

# The stamp is written last, so that a set-up which broke off is done again.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python >= 3.10 is needed; this is " + sys.version.split()[0] + ". Say which: make setup PYTHON=/path/to/python3")'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

bench: setup ## the main job: every suite at its small scale on the CPU, with a report (BENCH='-k glm' selects)
	$(BIN)/python -m pytest suites $(BENCH)

bench-harness: setup ## how fast the harness itself is, beside its goals; as root, it writes docs/performance.md
	$(BIN)/python -m benchmarks

test: setup ## all tests, the trainings among them
	$(BIN)/python -m tests $(TESTS)

check: lint unit ## the quick inner loop: lint, types, unit tests

unit: setup
	$(BIN)/python -m pytest tests -m 'not slow and not integration' -q -n auto

lint: setup types ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup
	$(BIN)/mypy

format: setup ## let ruff put the code in order
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lab: setup ## a cluster of hosts on this machine to play with, as root (LAB='8 --docker --gpus 8'); docs/lab.md
	$(BIN)/python -m tests.lab $(LAB)

clean: ## what make made here; the frameworks' environments stay in the cache
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build dist
