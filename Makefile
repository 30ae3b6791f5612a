# goodput: two commands do everything on a machine with Python 3.11 and internet registries: `make demo` and `make test`.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
UV_VERSION := $(shell sed -n 's/^uv==\([0-9.]*\).*/\1/p' requirements.lock)
TORCH := torch==2.13.0 numpy
MEMBERS := $(wildcard libs/* services/*) cli
MEMBER_PROJECTS := $(MEMBERS:%=%/pyproject.toml)
SETUP_DONE := $(VENV)/.setup-done
TORCH_DONE := $(VENV)/.torch-done
say = @printf '\033[1m==> %s\033[0m\n' "$(1)"
ifeq ($(shell test -t 1 && echo tty),)
say = @printf '==> %s\n' "$(1)"
endif
# Arguments for the command behind a target: make demo ARGS=--json
ARGS ?=

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

# -- set-up -----------------------------------------------------------------------------------------------------------

.PHONY: setup
setup: $(SETUP_DONE) ## Everything in .venv: pinned dependencies, the members editable

$(UV):
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it, or name it: make setup PYTHON=/path/to/python3.11"; exit 1; }
	$(call say,Making .venv with $(PYTHON))
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(SETUP_DONE): requirements.lock pyproject.toml $(MEMBER_PROJECTS) | $(UV)
	$(call say,Installing the pinned dependencies)
	@rm -f $(TORCH_DONE)
	@$(UV) pip sync --python $(BIN)/python --require-hashes requirements.lock
	$(call say,Installing the members)
	@$(UV) pip install --python $(BIN)/python --quiet --no-deps --no-build-isolation $(MEMBERS:%=-e %)
	@touch $@

.PHONY: setup-lab
setup-lab: $(TORCH_DONE) ## Adds torch, which the real-process lab trains with

# pip, not uv: pip takes the CPU build where one is offered, and torch stays out of the lock.
$(TORCH_DONE): $(SETUP_DONE)
	$(call say,Installing torch for the lab)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --progress-bar on $(TORCH) 2>&1 | grep -v 'is ignored: it is neither' || true
	@$(BIN)/python -c 'import torch' 
	@touch $@

COMPILE = $(UV) pip compile --quiet --universal --generate-hashes --custom-compile-command 'make lock' \
	$(foreach name,$(shell sed -n 's/^name = "\(goodput-.*\)"/\1/p' $(MEMBER_PROJECTS)),--no-emit-package $(name))

.PHONY: lock
lock: ## Resolve the dependencies anew: requirements.lock (all), deploy/requirements.lock (what the images need)
	@$(COMPILE) --extra service --extra embedded --extra switch --group pyproject.toml:dev --upgrade pyproject.toml $(MEMBER_PROJECTS) -o requirements.lock
	@$(COMPILE) --constraint requirements.lock --extra switch services/*/pyproject.toml libs/topology/pyproject.toml -o deploy/requirements.lock

# -- what people run --------------------------------------------------------------------------------------------------

.PHONY: demo
demo: $(SETUP_DONE) ## One dead link idles a simulated 512-GPU job; see it named (no root, no Docker)
	@$(BIN)/goodput demo $(ARGS)

.PHONY: lab
lab: $(TORCH_DONE) ## The same on real processes: torch ranks on hosts made of network namespaces
	@$(BIN)/goodput lab run $(or $(SCENARIO),link-down) $(ARGS)

.PHONY: up
up: $(SETUP_DONE) ## NATS, Postgres, correlator and recovery on this machine (a collector: docs/collector/running.md)
	@$(BIN)/goodput up $(ARGS)

# -- checks -----------------------------------------------------------------------------------------------------------

.PHONY: ci
ci: lint type arch schemas-check test ## What CI runs

.PHONY: test
test: $(TORCH_DONE) ## Every test, the lab included
	$(call say,Unit$(,) contract$(,) integration and end-to-end tests)
	@$(BIN)/pytest -n 2 --dist loadgroup -m 'not lab and not docker' -q --durations=25 $(ARGS)
	$(call say,Lab: real ranks$(,) real faults)
	@$(BIN)/pytest -m lab -q $(ARGS)

, := ,

.PHONY: chaos
chaos: $(SETUP_DONE) ## kill -9 of any one process at random moments of a run, 30 times
	@GOODPUT_CHAOS_RUNS=$(or $(RUNS),30) $(BIN)/pytest tests/e2e/test_kill_nine.py -s -q $(ARGS)

.PHONY: fmt
fmt: $(SETUP_DONE) ## Format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

.PHONY: lint
lint: $(SETUP_DONE) ## Formatting and lint
	$(call say,Lint)
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .

.PHONY: type
type: $(SETUP_DONE) ## Types (mypy strict)
	$(call say,Types)
	@$(BIN)/mypy

.PHONY: arch
arch: $(SETUP_DONE) ## Import rules
	$(call say,Import rules)
	@$(BIN)/lint-imports

OPENAPI := --openapi correlator=goodput_correlator.bootstrap:openapi --openapi recovery=goodput_recovery.bootstrap:openapi

.PHONY: schemas
schemas: $(SETUP_DONE) ## Write schemas/ from the code
	@$(BIN)/python -m goodput_common.schemas $(OPENAPI)

.PHONY: schemas-check
schemas-check: $(SETUP_DONE)
	$(call say,Generated files up to date)
	@$(BIN)/python -m goodput_common.schemas --check $(OPENAPI)

.PHONY: bench
bench: $(SETUP_DONE) ## Benchmarks; results go to bench/results/
	@for each in bench/bench_*.py; do printf '==> %s\n' $$each; $(BIN)/python $$each || exit 1; done

.PHONY: compose-test
compose-test: $(SETUP_DONE) ## docker compose up, demo traffic, a verdict over REST, down
	@$(BIN)/pytest -m docker -q $(ARGS)

# Compose v2 where there is one, else v1.
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)

.env: ## Secrets for compose, made once
	@$(PYTHON) deploy/make_env.py > .env.tmp && chmod 600 .env.tmp && mv .env.tmp .env
	@echo "wrote .env with fresh secrets"

.PHONY: compose-up
compose-up: .env ## The services in containers
	@$(COMPOSE) build && $(COMPOSE) up --detach && $(PYTHON) deploy/wait_ready.py

.PHONY: clean
clean: ## Remove .venv and caches
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
