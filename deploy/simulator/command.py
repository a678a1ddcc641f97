"""`inferload simulator`: the embedded server with vLLM's API."""

import argparse
import os
import resource
import signal
import sys
from collections.abc import Sequence
from functools import partial
from types import FrameType
from typing import Any

from inferload.base import clock

from . import flags
from .answers.completion_events import UsageOptions
from .engine import chaos
from .protocol.model import Model
from .server.api import Api
from .server.loop import Server, tls_context
from .server.server_info import Options
from .server_config import ServerConfig, resolve

_DESCRIPTION = """OpenAI-compatible server with the paths, flags and metrics of vLLM 0.32 and without a model. A scheduler like
vLLM's plans each step, and the duration of a step follows from the selected --hardware. With --ttft-ms or --itl-ms, events
have absolute due times instead. GET /simulator/stats returns the lateness of the server. Each word is one token."""
_EPILOG = """\
Examples:
  inferload simulator --port 8000
  inferload simulator --port 8000 --ttft-ms 200 --itl-ms 20
  inferload simulator --hardware a100 --max-num-seqs 64
Common flags of vLLM 0.32 without effect here are accepted and listed at the start. Flags of features that are not
modelled (LoRA, pipeline and data parallelism, KV transfer, priorities, ...) are refused.

Faults: POST /chaos adds a plan, GET lists the active plans, DELETE removes all.
"""


def register(subparsers: Any) -> None:
    """Add the sub-command."""
    plans = (chaos.__doc__ or "").partition("\n\n")[2]
    parser = subparsers.add_parser(
        "simulator", usage="%(prog)s [MODEL] [options]", description=_DESCRIPTION, epilog=_EPILOG + plans
    )
    flags.add_options(parser)
    parser.set_defaults(run=run)
    parse = partial(argparse.ArgumentParser.parse_known_args, parser)  # this wrapper reports unknown options

    def parse_known_args(
        args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Accept vLLM's alternative spellings of flags; exit with a one-line error for an unknown flag."""
        parsed, extras = parse(flags.normalized(sys.argv[1:] if args is None else args), namespace)
        if extras:
            parser.exit(2, f"inferload: {flags.unknown(extras, parser)}\n")
        return parsed, []

    parser.parse_known_args = parse_known_args


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM, SIGINT or --exit-after-s. Return the exit code."""
    config = resolve(arguments)
    _raise_descriptor_limit()
    engine = config.engine(arguments.seed)
    tls = tls_context(arguments.tls_cert, arguments.tls_key) if arguments.tls_cert else None
    server = Server(engine, arguments.host, arguments.port, tls)
    api = Api(options_of(config), engine, lambda: server.connections)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        server.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    if arguments.exit_after_s is not None:
        engine.call_at(clock.now_ns() + round(arguments.exit_after_s * 1e9), server.stop)
    host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    print(f"inferload simulator on {'https' if tls else 'http'}://{host}:{server.port}", flush=True)
    ignored = flags.without_effect(arguments)
    if ignored:
        print(f"without effect here: {' '.join(ignored)}", file=sys.stderr, flush=True)
    try:
        server.run(api.handle)
    finally:
        server.close()
    return 0


def options_of(config: ServerConfig) -> Options:
    arguments, limits = config.arguments, config.limits
    return Options(
        model=_model(arguments, limits.max_model_len),
        usage_options=UsageOptions(
            arguments.enable_prompt_tokens_details,
            arguments.enable_per_request_metrics,
            reasoning_tokens=bool(arguments.reasoning_parser),
            cache_block=limits.block_size if limits.caching else 0,
        ),
        cache={
            "engine": 0,
            "block_size": limits.block_size,
            "cache_dtype": arguments.kv_cache_dtype,
            "enable_prefix_caching": limits.caching,
            "gpu_memory_utilization": arguments.gpu_memory_utilization,
            "kv_cache_max_concurrency": config.shown_blocks * limits.block_size / limits.max_model_len,
            "kv_cache_size_tokens": config.shown_blocks * limits.block_size,
            "num_gpu_blocks": config.shown_blocks,
        },
        api_key=os.environ.get("VLLM_API_KEY", "") if arguments.api_key is None else arguments.api_key,
        limits=limits,
        corrupt=arguments.corrupt_answers,
        stands_for=config.stands_for,
    )


def _model(arguments: argparse.Namespace, max_model_len: int) -> Model:
    name, *aliases = arguments.served_model_name or (arguments.model or arguments.model_tag or "simulator",)
    return Model(
        name,
        max_model_len,
        arguments.seed,
        arguments.eos_mean_tokens,
        aliases=tuple(aliases),
        reasoning=bool(arguments.reasoning_parser),
        reasoning_mean_tokens=arguments.reasoning_mean_tokens,
        thinking=arguments.default_chat_template_kwargs.get("enable_thinking") is not False,
        tool_parser=bool(arguments.tool_call_parser),
        auto_tools=arguments.enable_auto_tool_choice,
        tool_call_share=arguments.tool_call_share,
        image_tokens=arguments.image_tokens,
    )


def _raise_descriptor_limit() -> None:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
