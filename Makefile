# Needs Python >= 3.11 (with venv), make and gcc. `make help` lists the targets.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
INSTALLER ?= uv
BIN := .venv/bin

# The demo; try `make demo MODEL=path/to/model.onnx TRIALS=500`.
MODEL  ?= resnet18
TRIALS ?= 128
STORE  ?= .tilewright/demo

FAST  := not slow and not compiler and not prefect
ROOMS := ir search codegen data tasks flows tilewright

export UV_COMPILE_BYTECODE := 1
export UV_SYSTEM_CERTS := 1
export PREFECT_HOME := $(CURDIR)/.prefect
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS := 120
export DO_NOT_TRACK := 1
# Spinning OpenMP threads make XGBoost five times slower on busy cores.
export OMP_WAIT_POLICY := PASSIVE

.DEFAULT_GOAL := help
.PHONY: .venv demo test check lint fmt lock clean help
.DELETE_ON_ERROR:

.venv: .venv/.packages .venv/.project  ## the environment: the locked packages and this checkout

.venv/.packages: requirements.lock
	@test -n "$(PYTHON)" || { echo "Tilewright needs Python >= 3.11; name one with make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv --clear .venv
ifeq ($(INSTALLER),uv)
	$(BIN)/python -m pip install --quiet --constraint requirements.lock uv && $(BIN)/uv pip install --quiet \
		--python $(BIN)/python -r requirements.lock || $(BIN)/python -m pip install --quiet -r requirements.lock
else
	$(BIN)/python -m pip install --quiet -r requirements.lock
endif
	@touch $@

.venv/.project: .venv/.packages pyproject.toml setup.py
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

demo: .venv  ## tune a small model; prints before and after, where the store lies, and what makes a page of it
	$(BIN)/tilewright tune $(MODEL) --trials $(TRIALS) --store $(STORE) --seed 0

test: .venv lint  ## everything CI runs: format, lint, types, contracts and every test
	$(BIN)/python -m pytest -n 2 --dist=loadgroup

check: .venv lint  ## the same without the slow tests, in under a minute
	$(BIN)/python -m pytest -n 2 --dist=loadgroup -q -m "$(FAST)"

lint: .venv
	$(BIN)/ruff format --check --quiet --diff .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: .venv  ## format the code and sort the imports
	$(BIN)/ruff check --quiet --fix-only .
	$(BIN)/ruff format .

# One list for Python 3.11 to 3.14 on Linux; markers that are true on all of those say nothing and are dropped.
lock: .venv  ## pin the newest allowed packages in requirements.lock
	$(BIN)/uv pip compile pyproject.toml --quiet --upgrade --universal --python-version 3.11 --extra test \
		--no-header --no-annotate --no-emit-index-url --output-file .venv/lock
	sed -E -e "s/ and (implementation_name|platform_python_implementation|sys_platform) [!=]= '[A-Za-z]+'//g" \
		-e "s/python_full_version < '3.15'//; s/ and *$$//; s/ *; *$$//" .venv/lock > requirements.lock

clean:  ## remove what make made, the environment included; stores and .prefect stay
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find $(ROOMS) tests -name __pycache__ -prune -exec rm -rf {} +

help:  ## this list
	@sed -nE 's/^([a-z.]+):.*  ## (.*)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 10
