# What people and CI call. Each target sets up what it needs; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest
CLUSTER := $(PYTHON) -m tests.cluster
# Which cluster: auto (kind where a Docker engine runs, embedded otherwise), embedded, kind or kubeconfig.
PROVIDER ?= auto
export MODELWEIGHTS_CLUSTER_PROVIDER := $(PROVIDER)
# What tests say comes at once also through a pipe.
export PYTHONUNBUFFERED := 1

.PHONY: help demo test lint unit engines fuzz integration e2e faults soak bench bench-fetch bench-loader generate image cluster-up cluster-down clean setup

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

setup: .venv/.stamp ## make .venv from the locked requirements; the others do it by themselves

# Asked before the set-up fetches gigabytes.
.PHONY: needs-cluster
needs-cluster:
	@command -v go >/dev/null || { echo "Go isn't there: install Go 1.26 or newer and put it on PATH" >&2; exit 1; }
	@[ "$$(id -u)" = 0 ] || [ "$(PROVIDER)" = kubeconfig ] || docker info >/dev/null 2>&1 || \
		{ echo "a cluster needs root (embedded) or a Docker engine that runs (kind): run as root, or start Docker" >&2; exit 1; }

.venv/.stamp: requirements/dev.txt pyproject.toml tests/setup.sh
	@tests/setup.sh

demo: needs-cluster setup ## a real cluster, the operator, a real checkpoint to Ready, and a pod that starts after
	@$(PYTHON) -m tests.demo up

# Those on real kubelets mostly wait for them, and those of integration for the operator, so they run beside each other, in more
# processes than small machines have cores; the unit tests, which work all the time, come last. Both go on to their end if one fails.
test: needs-cluster setup ## everything: lint, types, unit, integration, end to end
	@$(MAKE) --no-print-directory --jobs=2 test-here test-on-cluster

.PHONY: test-here test-on-cluster
test-here:
	@$(MAKE) --no-print-directory integration 2>&1 | sed -u 's/^/integration | /'
	@$(MAKE) --no-print-directory unit 2>&1 | sed -u 's/^/unit        | /'

test-on-cluster:
	@$(MAKE) --no-print-directory lint 2>&1 | sed -u 's/^/lint        | /'
	@$(MAKE) --no-print-directory e2e 2>&1 | sed -u 's/^/e2e         | /'

lint: setup ## style, types, borders between packages, generated files, scripts, Dockerfile, chart
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/mypy --python-version 3.10 -p modelweights_loader
	.venv/bin/lint-imports --no-logo
	$(PYTHON) -m modelweights_operator.crdgen --check
	.venv/bin/shellcheck --external-sources --source-path=SCRIPTDIR tests/setup.sh .ci/run $(wildcard tests/cluster/scripts/*.sh)
	.venv/bin/hadolint Dockerfile
	$(CLUSTER) helm lint --strict --quiet charts/modelweights-operator

# The loader's own processes write no bytecode here: without torch's, each of them would compile it anew, for seconds.
unit: setup ## tests without a cluster
	@$(PYTHON) -m tests.engines fetch
	@$(PYTHON) -c 'import fastsafetensors, torch'
	$(PYTEST) tests/unit --numprocesses=2 --dist=loadfile

fuzz: setup ## look for bytes that the header reader calls good and safetensors bad (FUZZ_SECONDS=600)
	$(PYTHON) -m tests.fuzz --seconds $(or $(FUZZ_SECONDS),600)

engines: setup ## compare the options that we print with the argument parsers of vLLM and SGLang
	@$(PYTHON) -m tests.engines check

integration: setup ## tests against a real API server (etcd and kube-apiserver on loopback; no root)
	$(PYTEST) tests/integration --numprocesses=2 --dist=loadfile

# Two processes with a cluster each, where clusters are made by us (tests/e2e/conftest.py); E2E_PROCESSES=0 is one.
e2e: needs-cluster setup ## tests on real kubelets: the operator from its image, installed by helm
	$(PYTEST) tests/e2e --numprocesses=$(or $(E2E_PROCESSES),auto) --dist=loadfile --no-loadscope-reorder

faults: needs-cluster setup ## faults on purpose, for an hour: the operator killed at every write, a bad API server, fetches killed, nodes lost
	$(PYTEST) tests/faults/api -rP --numprocesses=2 --dist=load
	$(PYTEST) tests/faults -s --ignore=tests/faults/api

soak: setup ## half an hour of churn on 50 nodes, figures and picture to build/soak (MINUTES=30)
	$(PYTHON) -m tests.soak --minutes $(or $(MINUTES),30)

bench: setup ## all measurements, each beside what it is compared with (an hour or more)
	$(PYTHON) -m tests.bench all

bench-fetch: setup ## fetch beside rclone and the plain library, from an S3 server on loopback
	$(PYTHON) -m tests.bench fetch

bench-loader: setup ## those of the loader, without a cluster; one alone by `python -m tests.bench NAME`
	$(PYTHON) -m tests.bench loader

generate: setup ## write the CRD from the API models
	$(PYTHON) -m modelweights_operator.crdgen

lock: setup ## pin the newest versions that pyproject.toml allows, into requirements/
	$(PYTHON) -m tests.images lock

image: setup ## build the images of operator and loader (docker where an engine runs, buildah otherwise)
	$(PYTHON) -m tests.images build

cluster-up: setup ## a cluster to play with (INSTANCE=dev)
	$(CLUSTER) up --instance $(or $(INSTANCE),dev) --provider $(PROVIDER)

cluster-down: setup ## take down the clusters of demo, cluster-up, e2e and bench, or INSTANCE=NAME
	@for instance in $(or $(INSTANCE),demo dev e2e e2e-2 bench); do $(CLUSTER) down --instance $$instance; done

clean: ## remove what was made in the clone; the cache outside of it stays
	rm -rf .venv dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .fuzz
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
