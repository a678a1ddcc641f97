"""`inferload simulator`: the embedded vLLM-like server."""

import argparse
import os
import resource
import signal
from pathlib import Path
from types import FrameType
from typing import Any

from inferload.errors import UsageError
from inferload.measure import clock

from . import chaos
from .api import Api, Options
from .ask import Model
from .engine import Engine, Pace
from .events import Shown
from .exposition import CacheInfo
from .metrics import Metrics
from .scheduler import Scheduler
from .server import Server, tls_context

_DESCRIPTION = """An OpenAI-compatible server behind vLLM 0.32's names. It has no model: the first token comes after
--ttft-ms, each further event --itl-ms later, by absolute due times, and GET /simulator/stats says how late it was
itself. One word between blanks is one token."""


def register(subparsers: Any) -> None:
    """Add the sub-command."""
    plans = (chaos.__doc__ or "").partition("\n\n")[2]
    parser = subparsers.add_parser(
        "simulator",
        help="the embedded vLLM-like server",
        description=_DESCRIPTION,
        epilog="Faults: POST /chaos takes a plan, GET shows what is active, DELETE drops it.\n" + plans,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_server_options(parser)
    _add_model_options(parser)
    parser.set_defaults(run=run)


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=int, default=8000, help="port to listen on; 0: any free one (%(default)s)")
    add("--api-key", default=None, help="ask for this key; better in the environment: VLLM_API_KEY")
    add("--tls-cert", type=Path, default=None, metavar="PEM", help="speak TLS with this certificate")
    add("--tls-key", type=Path, default=None, metavar="PEM", help="its key, unless the certificate's file has it")
    _flag(parser, "--chunked", True, "streams as chunked bodies; else they end with the connection")
    _flag(parser, "--enable-prompt-tokens-details", True, "cached_tokens in usage")
    _flag(parser, "--enable-per-request-metrics", True, "a request's own times with its usage")
    add("--exit-after-s", type=float, default=None, metavar="S", help="end by itself after so long")


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", default="simulator", help="name of the model served (%(default)s)")
    add("--max-model-len", type=int, default=32_768, help="tokens of prompt and answer together (%(default)s)")
    add("--ttft-ms", type=float, default=50.0, help="from admission to the first token (%(default)s)")
    add("--itl-ms", type=float, default=10.0, help="between two events (%(default)s)")
    add("--jitter", type=float, default=0.0, help="move events by up to half this share of the itl (%(default)s)")
    add(
        "--prefill-tok-per-s",
        type=float,
        default=0.0,
        help="uncached prompt tokens cost time too; 0: not (%(default)s)",
    )
    add("--tokens-per-event", type=int, default=1, help="tokens in one event (%(default)s)")
    add("--eos-mean-tokens", type=float, default=256.0, help="mean natural length of answers; 0: endless (%(default)s)")
    add("--max-num-seqs", type=int, default=256, help="requests that run at once; others wait (%(default)s)")
    add("--num-gpu-blocks", type=int, default=8192, help="KV blocks (%(default)s)")
    add("--block-size", type=int, default=16, help="tokens in a KV block (%(default)s)")
    _flag(parser, "--enable-prefix-caching", True, "share the KV blocks of equal prompt beginnings")
    add("--seed", type=int, default=0, help="for texts, lengths and jitter (%(default)s)")


def _flag(parser: argparse.ArgumentParser, name: str, default: bool, text: str) -> None:
    parser.add_argument(
        name, action=argparse.BooleanOptionalAction, default=default, help=f"{text} (default: {default})"
    )


def check(arguments: argparse.Namespace) -> None:
    """UsageError for values that make no server."""
    for name, least in (("ttft_ms", 0), ("itl_ms", 0), ("prefill_tok_per_s", 0), ("eos_mean_tokens", 0), ("port", 0)):
        _at_least(arguments, name, least)
    for name in ("max_num_seqs", "num_gpu_blocks", "block_size", "tokens_per_event", "max_model_len"):
        _at_least(arguments, name, 1)
    if not 0 <= arguments.jitter <= 1:
        raise UsageError(f"--jitter {arguments.jitter}: a share of the itl, 0 to 1")
    capacity = arguments.num_gpu_blocks * arguments.block_size
    if arguments.max_model_len > capacity:
        raise UsageError(
            f"--max-model-len {arguments.max_model_len}: more than the {capacity} tokens of {arguments.num_gpu_blocks} "
            f"blocks of {arguments.block_size}; raise --num-gpu-blocks"
        )
    if arguments.tls_key is not None and arguments.tls_cert is None:
        raise UsageError(f"--tls-key {arguments.tls_key}: needs --tls-cert")


def _at_least(arguments: argparse.Namespace, name: str, least: int) -> None:
    value = getattr(arguments, name)
    if not value >= least:
        raise UsageError(f"--{name.replace('_', '-')} {value}: at least {least}")


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM, SIGINT or --exit-after-s; the exit code."""
    check(arguments)
    _raise_descriptor_limit()
    engine = _engine(arguments)
    tls = tls_context(arguments.tls_cert, arguments.tls_key) if arguments.tls_cert else None
    server = Server(engine, arguments.host, arguments.port, tls)
    api = Api(_options(arguments), engine, server)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        server.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if arguments.exit_after_s is not None:
        engine.call_at(clock.now_ns() + round(arguments.exit_after_s * 1e9), server.stop)
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    print(f"inferload simulator on {'https' if tls else 'http'}://{host}:{server.port}", flush=True)
    try:
        server.run(api.handle)
    finally:
        server.close()
    return 0


def _engine(arguments: argparse.Namespace) -> Engine:
    pace = Pace(
        ttft_ns=round(arguments.ttft_ms * 1e6),
        itl_ns=round(arguments.itl_ms * 1e6),
        prefill_tok_per_s=arguments.prefill_tok_per_s,
        tokens_per_event=arguments.tokens_per_event,
        jitter=arguments.jitter,
        seed=arguments.seed,
    )
    scheduler = Scheduler(
        arguments.max_num_seqs, arguments.num_gpu_blocks, arguments.block_size, arguments.enable_prefix_caching
    )
    return Engine(pace, scheduler, Metrics(arguments.max_model_len))


def _options(arguments: argparse.Namespace) -> Options:
    key = arguments.api_key if arguments.api_key is not None else os.environ.get("VLLM_API_KEY", "")
    return Options(
        model=Model(arguments.model, arguments.max_model_len, arguments.seed, arguments.eos_mean_tokens),
        shown=Shown(arguments.enable_prompt_tokens_details, arguments.enable_per_request_metrics),
        cache=CacheInfo(arguments.block_size, arguments.num_gpu_blocks, arguments.enable_prefix_caching),
        api_key=key,
        chunked=arguments.chunked,
        max_num_seqs=arguments.max_num_seqs,
    )


def _raise_descriptor_limit() -> None:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
