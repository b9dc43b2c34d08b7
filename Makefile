# Two commands do everything on a fresh machine with Python 3.11+ and make:
#   make demo    installs, starts NATS and five services, trains real jobs to their deadlines
#   make test    installs, checks, runs every test
# Neither leaves anything running. `make help` lists the rest.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
WORKERS ?= 2
SLOW_WORKERS ?= 3
SOURCES := shared services simulator elasticflow examples benchmarks tests

.DEFAULT_GOAL := help
.PHONY: help install check format test search demo bench compose-test clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(INSTALLED)  ## install into .venv, and compile the scheduler's loops if they have changed
	@$(BIN)/python -m shared.scheduling.warm_up

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --constraint constraints.txt --editable '.[train,embedded,plot,examples,dev]'
	@touch $@

check: install  ## ruff, pyright, import contracts, unit and property tests (about a minute)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/pytest -q -n $(WORKERS) tests/unit tests/properties

format: install  ## let ruff format the sources
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

test: check  ## everything: check, then simulation, integration, fault and training tests
	$(BIN)/pytest -q -n $(SLOW_WORKERS) tests/simulation tests/integration tests/training tests/faults

search: install  ## ten times the examples of the property tests, new ones each time (some minutes)
	$(BIN)/pytest -q -n $(WORKERS) --hypothesis-profile search --timeout 3600 tests/properties

demo: install  ## real training jobs on 2 nodes of 4 CPU slots, to their deadlines
	$(BIN)/python -m examples.demo

bench: install  ## the pipeline's speed against raw JetStream: a table and JSON
	$(BIN)/python -m benchmarks.pipeline

compose-test: install  ## docker compose for real, where there is a docker (says so where not)
	deploy/compose_test.sh

clean:  ## remove what was installed and built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
