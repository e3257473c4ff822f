# Every target installs what it needs; only Python >= 3.11 with venv is required.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
BENCHED := suites/bert suites/glm suites/resnet50 -k pytorch
BENCH ?=
TESTS ?= tests packages
LAB ?=
VENDOR ?= nvidia
SLICE ?= 9
ITEMS ?=

.PHONY: help setup bench bench-all bench-harness gpu gpu-publish test train check unit lint format docs lab clean

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create the harness's environment in .venv; quick if nothing changed

# The stamp is written last, so an interrupted setup is repeated.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "got Python " + sys.version.split()[0] + ", expected >= 3.11; pass another one: make setup PYTHON=/path/to/python3")'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

bench: setup ## train three models at their small scale on the CPU and write a report (BENCH='-k glm' selects)
	$(BIN)/python -m pytest $(BENCHED) $(BENCH)

bench-all: setup ## train all models as bench trains three
	$(BIN)/python -m pytest suites $(BENCH)

bench-harness: setup ## measure the harness against its goals; as root, it writes docs/performance.md
	$(BIN)/python -m benchmarks

gpu: setup ## measure this machine's GPUs, most valuable first, in slices (SLICE=9 minutes VENDOR=nvidia); docs/gpu.md
	$(BIN)/python -m benchmarks.gpu --vendor=$(VENDOR) --slice=$(SLICE) $(FROM_WHEELS) $(if $(ITEMS),--items='$(ITEMS)') $(if $(findstring file,$(origin PYTHON)),,--python='$(PYTHON)')

gpu-publish: setup ## copy what make gpu measured to reports/published, and write the tables of the documents
	$(BIN)/python -m benchmarks.gpu --publish

test: setup ## run all tests, including trainings
	$(BIN)/python -m tests $(TESTS)

check: lint unit ## run lint, types and unit tests: under two minutes

train: setup ## test all suites, train those beside bench's to their targets, and record in tests/trained.toml what they used
	$(BIN)/python -m pytest tests/suites --train-all -n 2
	$(BIN)/python -m pytest tests/test_trainings.py -k test_every_other_suite --train-all

unit: setup
	$(BIN)/python -m pytest $(TESTS) -m 'not slow and not integration' -q -n auto

lint: setup ## run ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: setup ## format the code with ruff
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: setup ## build the documentation site in build/site
	$(BIN)/python -m docsite

lab: setup ## start a test cluster on this machine, as root (LAB='8 --docker --gpus 8'); docs/lab.md
	$(BIN)/python -m tests.lab $(LAB)

clean: ## remove what make created; the frameworks' environments stay in the cache
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build dist
