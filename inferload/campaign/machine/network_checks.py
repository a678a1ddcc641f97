"""Readings for `inferload doctor` that use the network: kernel timestamps, event loop timers, capabilities of a server."""

import json
import math
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import gevent

from inferload.base.clock import NS_PER_MS, NS_PER_S, now_ns, wall_ns
from inferload.base.errors import UsageError
from inferload.campaign.machine.checks import Stamps
from inferload.client.client import Client, ClientSettings
from inferload.client.connection.python_connection import SO_TIMESTAMPNS
from inferload.client.connection.target import Target
from inferload.client.fetch import Fetcher, FetchError
from inferload.client.first_turn import FirstTurn, Proof
from inferload.client.turn_record import TurnRequest, TurnResult
from inferload.figures import metric_names
from inferload.figures.rate_figures import HELD_EVENTS, events_per_arrival
from inferload.figures.turn_figures import ITL
from inferload.scenario.scenario import RequestOptions
from inferload.servers import exposition
from inferload.turns.record import Failure, TurnRecord
from inferload.turns.sketch import Sketch

_TICK_NS = 5 * NS_PER_MS
_READS = 20
_ENABLED_WITHIN_NS = NS_PER_S // 2
_STREAMED_TOKENS = 32  # that show how a stream arrives
_STREAMS = 3  # a proxy holds each of them, a busy machine only some
_ENOUGH_TOKENS = 16  # limit of an answer that every model takes
# Long enough to fill blocks of a prefix cache: some servers report cached tokens only if there are some.
_PROMPT = "Count slowly from one to one hundred, and say each number as a word. " * 12

# Metrics that the report uses: queue, cache and latency of the server.
NEEDED_METRICS = (
    metric_names.RUNNING,
    metric_names.WAITING,
    metric_names.KV_CACHE_USAGE,
    metric_names.PROMPT_TOKENS,
    metric_names.GENERATION_TOKENS,
    metric_names.TTFT,
    metric_names.ITL,
)


def known_metrics() -> tuple[str, ...]:
    """Return every vLLM name of `metric_names`."""
    names = vars(metric_names).values()
    return tuple(sorted({name for name in names if isinstance(name, str) and name.startswith("vllm:")}))


def may_use_realtime() -> bool:
    """Return True if a thread of this process may have a real-time priority, which the compiled reader then uses."""
    try:
        before = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except (AttributeError, OSError):  # not Linux, or not allowed
        return False
    os.sched_setscheduler(0, *before)
    return True


def kernel_stamps(reads: int = _READS) -> Stamps:
    """Send bytes over a loopback connection and count the reads with a kernel timestamp."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    with near, far:
        try:
            near.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        except OSError as error:
            return Stamps(0, 0, why=error.strerror or str(error))
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        near.settimeout(5)
        # Linux enables timestamps in a deferred work item when the first socket of the machine requests them.
        deadline_ns = now_ns() + _ENABLED_WITHIN_NS
        while _stamp_age_ns(near, far) is None and now_ns() < deadline_ns:
            gevent.sleep(0.001)
        ages_ns = [age for age in (_stamp_age_ns(near, far) for _ in range(reads)) if age is not None]
    return Stamps(reads, len(ages_ns), int(median(ages_ns)) if ages_ns else None)


def _stamp_age_ns(near: socket.socket, far: socket.socket) -> int | None:
    far.sendall(b"x")
    _, ancillary, _, _ = near.recvmsg(16, socket.CMSG_SPACE(16))
    at_ns = wall_ns()
    for _level, kind, data in ancillary:
        if kind == SO_TIMESTAMPNS:
            seconds, nanoseconds = struct.unpack("qq", data[:16])
            return int(at_ns - seconds * NS_PER_S - nanoseconds)
    return None


def timer_lateness_ms(duration_s: float) -> list[float]:
    """Return the lateness of each tick of a 5 ms timer of the idle event loop."""
    late_ms: list[float] = []
    due_ns = now_ns() + _TICK_NS

    def tick() -> None:
        nonlocal due_ns
        at_ns = now_ns()
        late_ms.append(max(0, at_ns - due_ns) / NS_PER_MS)
        due_ns = max(due_ns + _TICK_NS, at_ns)

    timer = gevent.get_hub().loop.timer(_TICK_NS / NS_PER_S, _TICK_NS / NS_PER_S)
    timer.start(tick)
    gevent.sleep(duration_s)
    timer.stop()
    timer.close()
    return late_ms


@dataclass(frozen=True, slots=True)
class StreamLook:
    """Output events of one stream, the mean gap between them, and the number that arrives together; None without a gap."""

    events: int = 0
    mean_gap_ms: float | None = None
    events_per_arrival: float | None = None

    @property
    def held(self) -> bool:
        """True if several events arrive together."""
        return self.events_per_arrival is not None and self.events_per_arrival > HELD_EVENTS


@dataclass(frozen=True, slots=True)
class ServerCapabilities:
    """Capabilities of a server, from a streamed turn of 32 tokens and several of two. None: unknown, since the turn failed.

    `refused`: the reason if there was no streamed answer at all, else "". `stream`: of the longer turn.
    """

    refused: str = ""
    stream: StreamLook = StreamLook()
    usage: bool | None = None  # token counts at the end of a stream
    running_usage: bool | None = None  # token counts in every event, if requested
    own_times: bool | None = None  # queue, prefill and decode times of the turn
    cached_tokens: bool | None = None  # number of cached prompt tokens
    salted: bool | None = None  # accepts `cache_salt`
    forced: bool | None = None  # accepts `ignore_eos`


def server_options(settings: ClientSettings, proof: Proof) -> ServerCapabilities:
    """Send a plain streamed turn, then one turn per optional feature, as the server takes them.

    A turn whose stream is held is repeated: the look is at the stream that was held least.
    """
    send = partial(_turn, settings, proof)
    plain = send({}, tokens=_STREAMED_TOKENS)
    if not _answered(plain):
        return ServerCapabilities(refused=plain.detail or "no streamed answer")
    streams = [_look(plain.record)]
    while streams[-1].held and len(streams) < _STREAMS:
        streams.append(_look(send({}, tokens=_STREAMED_TOKENS).record))
    running = send({"stream_options": {"include_usage": True, "continuous_usage_stats": True}})
    both = [result.record for result in (plain, running)]
    return ServerCapabilities(
        stream=min(streams, key=lambda stream: stream.events_per_arrival or math.inf),
        usage=plain.record.output_tokens is not None,
        running_usage=_answered(running) and running.record.event_tokens is not None,
        own_times=any(record.server_queue_ms is not None for record in both),
        cached_tokens=any(record.cached_tokens is not None for record in both),
        salted=_answered(send({"cache_salt": "inferload-doctor"})),
        forced=_answered(send({"ignore_eos": True})),
    )


def _look(record: TurnRecord) -> StreamLook:
    gaps = Sketch()
    gaps.add_many(ITL.of(record))
    return StreamLook(len(record.event_ns or ()), gaps.mean, events_per_arrival(1, gaps))


def _answered(result: TurnResult) -> bool:
    """Return True for a complete answer; one of two special tokens is complete and has no text."""
    return result.record.failure in (None, Failure.EMPTY)


def first_turn(model: str) -> FirstTurn:
    """Return the plain turn: the first request to a server."""
    return FirstTurn(_document(model, "max_tokens", _ENOUGH_TOKENS), RequestOptions(ignore_eos=False))


def _document(model: str, key: str, limit: int) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": _PROMPT}],
        key: limit,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _turn(settings: ClientSettings, proof: Proof, more: Mapping[str, Any], tokens: int = 2) -> TurnResult:
    document = _document(settings.model, proof.key, max(tokens, proof.limit or _ENOUGH_TOKENS)) | dict(more)
    client = Client(replace(settings, worker="doctor"), lambda _result: None)
    try:
        body = json.dumps(document).encode()
        return client.start(TurnRequest(body, "doctor", "doctor", 0, "doctor", "warmup", now_ns())).wait()
    finally:
        client.close()


@dataclass(frozen=True, slots=True)
class MetricsPage:
    """Engine of a metrics page (None if unknown) and its metric families under their current vLLM names."""

    engine: str | None
    names: frozenset[str]


def metrics_page(url: str, settings: ClientSettings) -> MetricsPage:
    """Read a Prometheus page. Raise UsageError if there is none."""
    _, slash, path = url.partition("://")[2].partition("/")
    fetcher = Fetcher(replace(settings, target=Target.of_page(url)), timeout_s=10)
    try:
        fetched = fetcher.get(slash + path if slash else "/")
    except FetchError as error:
        raise UsageError(str(error)) from error
    if fetched.status != 200:
        raise UsageError(fetched.status_text)
    try:
        samples = exposition.parse(fetched.body.decode("utf-8", "replace"))
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not samples:
        raise UsageError("not a Prometheus page")
    families = {metric_names.split_suffix(sample.metric)[0] for sample in samples}
    return MetricsPage(metric_names.engine_of(families), frozenset(map(metric_names.normalise, families)))
