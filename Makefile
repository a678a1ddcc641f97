# Every target sets up what it needs, and is quick the second time.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-vllm test test-vllm lint bench soak clean

help:            ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

setup: $(READY)  ## the virtual environment, with inferload installed in it

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "inferload needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

test: $(READY)   ## all tests that need no real vLLM
	$(BIN)/python -m pytest

lint: $(READY)   ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:           ## environments, caches and runs
	rm -rf $(VENV) .venv-vllm build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis runs
