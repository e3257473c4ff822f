# Every target installs what it needs; only Python >= 3.11 with venv is required.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
DEV_STAMP := $(VENV)/.complete-dev
# A folder of wheels instead of a package index: docs/offline.md.
WHEELS ?=
FROM_WHEELS := $(if $(WHEELS),--wheels='$(WHEELS)')
BENCHED := suites/bert suites/glm suites/resnet50 -k pytorch
BENCH ?=
TESTS ?= tests packages
LAB ?=
VENDOR ?= nvidia
SLICE ?= 9
ITEMS ?=
# The Python of make gpu's ranks, with PyTorch; PYTHON is that of the harness.
SITE_PYTHON ?=

.PHONY: help setup setup-dev wheel bench bench-all bench-harness gpu gpu-publish test train check unit lint format docs lab clean

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create the harness's environment in .venv; quick if nothing changed (WHEELS=DIR: without an index)

setup-dev: $(DEV_STAMP) ## add the tools of this project's tests to it

# A stamp is written last, so an interrupted setup is repeated.
$(STAMP): pyproject.toml
	$(PYTHON) tools/set_up.py $(VENV) --wheels='$(WHEELS)'
	@touch $@

$(DEV_STAMP): $(STAMP)
	$(PYTHON) tools/set_up.py $(VENV) --dev
	@touch $@

wheel: setup ## build the wheels of pytest-flagperf and its packages in dist/: pip installs them on another machine
	for file in pyproject.toml packages/*/pyproject.toml; do $(BIN)/uv build --quiet --wheel --out-dir dist $$(dirname $$file) || exit; done

bench: setup ## train three models at their small scale on the CPU and write a report (BENCH='-k glm' selects)
	$(BIN)/python -m pytest $(BENCHED) $(FROM_WHEELS) $(BENCH)

bench-all: setup ## train all models as bench trains three
	$(BIN)/python -m pytest suites $(FROM_WHEELS) $(BENCH)

bench-harness: setup-dev ## measure the harness against its goals; as root, it writes docs/performance.md and benchmarks/README.md
	$(BIN)/python -m benchmarks

gpu: setup ## measure this machine's GPUs, most valuable first, in slices (SLICE=9 minutes VENDOR=nvidia); docs/gpu.md
	$(BIN)/python -m benchmarks.gpu --vendor=$(VENDOR) --slice=$(SLICE) $(FROM_WHEELS) $(if $(ITEMS),--items='$(ITEMS)') $(if $(SITE_PYTHON),--python='$(SITE_PYTHON)')

gpu-publish: setup ## copy what make gpu measured to reports/published, and write the tables of the documents
	$(BIN)/python -m benchmarks.gpu --publish; published=$$?; $(BIN)/python -m tools.readme && exit $$published

test: setup-dev ## run all tests, including trainings
	$(BIN)/python -m tests $(TESTS)

check: lint unit ## run lint, types and unit tests: under two minutes

train: setup-dev ## test and train all suites and trainers, and record in tests/trained.toml what they used
	$(BIN)/python -m pytest tests/suites tests/driver/frameworks --train-all -n 2 --dist loadfile
	$(BIN)/python -m pytest tests/test_trainings.py --train-all

unit: setup-dev
	$(BIN)/python -m pytest $(TESTS) -m 'not slow and not integration' -q -n auto

lint: setup-dev ## run ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: setup-dev ## format the code with ruff
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: setup-dev ## build the documentation site in build/site
	$(BIN)/python -m docsite

lab: setup-dev ## start a test cluster on this machine, as root (LAB='8 --docker --gpus 8'); docs/lab.md
	$(BIN)/python -m tests.lab $(LAB)

clean: ## remove what make created; the frameworks' environments stay in the cache
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache build dist
