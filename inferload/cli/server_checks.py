"""Checks of a server for `inferload doctor`."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from inferload.base.errors import UsageError
from inferload.base.escaping import escaped
from inferload.base.numbers import number, plural
from inferload.base.run_options import API_KEY_VARIABLE
from inferload.campaign.machine import network_checks
from inferload.campaign.machine.checks import MachineCheck
from inferload.client.client import ClientSettings, Credentials
from inferload.client.connection import credentials
from inferload.client.connection.connect import TlsSettings
from inferload.client.connection.proxies import Proxy
from inferload.client.connection.reader_choice import reader_of
from inferload.client.connection.target import Target
from inferload.client.first_turn import Proof, SentTurns, prove
from inferload.client.probe import ModelList, ServerFacts, facts_of, model_list, model_of
from inferload.client.refusals import REMEDIES
from inferload.client.turn import TurnTimeouts
from inferload.figures import metric_names

_TIMEOUTS = TurnTimeouts(connect_s=10, first_event_s=60, between_events_s=30, turn_s=120)


def settings(arguments: argparse.Namespace) -> ClientSettings:
    """Return the client settings of a command line. Raise UsageError for invalid options."""
    return ClientSettings(
        target=Target.parse(arguments.host),
        model=arguments.model,
        worker="doctor",
        timeouts=_TIMEOUTS,
        tls=TlsSettings(Path(arguments.ca_file) if arguments.ca_file else None, arguments.insecure),
        credentials=Credentials(credentials.api_key(arguments.api_key_file, API_KEY_VARIABLE)),
        headers=tuple(credentials.header(text) for text in arguments.header),
    )


def check(settings: ClientSettings, model: str | None, pages: Sequence[str]) -> list[MachineCheck]:
    """Run every check of a server, with secrets redacted; if it does not answer, return that one alone.

    `pages`: its metrics pages; empty: the default one.
    """
    redact = settings.redaction
    return [
        replace(result, found=escaped(redact(result.found)), remedy=escaped(redact(result.remedy)))
        for result in _check(settings, model, pages)
    ]


def _check(settings: ClientSettings, model: str | None, pages: Sequence[str]) -> list[MachineCheck]:
    sent = SentTurns()
    try:
        listed = model_list(settings)
        model = model or model_of(settings, listed, sent)
        settings = replace(settings, target=listed.target, model=model)
    except UsageError as error:
        return [_failed("server", error)]
    facts = facts_of(settings, listed, model, sent)
    try:
        proof = prove(settings, network_checks.first_turn(model), facts.sent)
    except UsageError as error:
        streaming = [_failed("streaming", error)]
    else:
        settings = replace(settings, target=proof.target)
        streaming = [*of_options(network_checks.server_options(settings, proof)), *_limit(proof)]
    return [
        MachineCheck("ok", "server", f"{settings.target.api_url()} answers{_through_proxy(settings)}"),
        _security(settings),
        *_reader(settings.target),
        _models(facts, listed),
        _engine(facts),
        *streaming,
        _tokenizer(facts),
        *(_metrics(url, settings) for url in pages or [settings.target.metrics_url]),
    ]


def _through_proxy(settings: ClientSettings) -> str:
    proxy = Proxy.for_target(settings.target)
    return "" if proxy is None else f" through the proxy {proxy.url} ({proxy.variable})"


def _failed(what: str, error: UsageError) -> MachineCheck:
    problem, _, remedy = str(error).rpartition("; ")
    return MachineCheck("fail", what, problem or str(error), remedy if problem else "")


def _limit(proof: Proof) -> list[MachineCheck]:
    """Return a check if the server takes another limit of an answer than most."""
    if proof.key == "max_tokens":
        return []
    return [MachineCheck("ok", "limit", f"by {proof.key}: runs find this out (request.max_tokens_field)")]


def _security(settings: ClientSettings) -> MachineCheck:
    target, key = settings.target, settings.credentials.api_key
    if target.scheme == "http":
        if key and target.host not in ("localhost", "127.0.0.1", "::1"):
            return MachineCheck("warn", "TLS", "none: the API key is sent unencrypted", "use https://, or a tunnel")
        return MachineCheck("ok", "TLS", "none (http)")
    if settings.tls.insecure:
        return MachineCheck("warn", "TLS", "any certificate is accepted", "name its authority with --ca-file")
    return MachineCheck("ok", "TLS", "the certificate is trusted")


def _reader(target: Target) -> list[MachineCheck]:
    """Return the reader of the sockets where it is not that of the machine."""
    if target.scheme == "http":
        return []
    own = reader_of(target)
    return [MachineCheck("ok", "reader", f"{own.reader} ({own.why}): within the event loop")]


def _models(facts: ServerFacts, listed: ModelList) -> MachineCheck:
    if doubt := listed.doubt(facts.model):
        return MachineCheck("warn", "model", doubt, "runs work if the model answers")
    longest = "" if facts.max_model_len is None else f", {facts.max_model_len} tokens at most"
    others = len(facts.models) - 1
    return MachineCheck("ok", "model", f"{facts.model}{longest}" + (f" (and {others} more)" if others else ""))


def _engine(facts: ServerFacts) -> MachineCheck:
    if facts.engine == "unknown":
        text = "unknown" + (f"; version {facts.version}" if facts.version else "")
        remedy = "runs work; prefix caches of two runs are isolated by text, and server figures may be missing"
        return MachineCheck("warn", "engine", text, remedy)
    version = f" {facts.version}" if facts.version and facts.version not in facts.engine else ""
    return MachineCheck("ok", "engine", facts.engine + version)


def of_options(options: network_checks.ServerCapabilities) -> list[MachineCheck]:
    """Return the checks of the streamed turns."""
    if options.refused:
        return [MachineCheck("fail", "streaming", options.refused, "see the server's log")]
    return [
        _stream(options.stream),
        _option(options.usage, "usage", "tokens are counted by the server", "rates and TPOT are unknown without it"),
        _option(
            options.running_usage,
            "running usage",
            "in every event, if requested",
            "tokens per event are a mean without it",
        ),
        _option(
            options.forced,
            "ignore_eos",
            "accepted",
            REMEDIES["ignore_eos"],
        ),
        _option(options.salted, "cache_salt", "accepted", REMEDIES["cache_salt"]),
        _option(
            options.cached_tokens,
            "cached tokens",
            "reported for each prompt",
            "start vLLM with --enable-prompt-tokens-details to see them",
        ),
        _option(
            options.own_times,
            "own times",
            "reported for each turn: queue, first token, generation",
            "start vLLM with --enable-per-request-metrics to see them",
        ),
    ]


def _stream(stream: network_checks.StreamLook) -> MachineCheck:
    """Return the check of how a stream arrives."""
    together = stream.events_per_arrival
    if together is None:
        return MachineCheck("ok", "streaming", plural(stream.events, "event"))
    arrivals = plural(round(stream.events / together), "arrival")
    text = f"{plural(stream.events, 'event')} in {arrivals}, mean gap {number(stream.mean_gap_ms)} ms"
    if not stream.held:
        return MachineCheck("ok", "streaming", text)
    remedy = (
        "a proxy, a gateway or the server holds the stream, and TTFT and ITL will be theirs: turn off its buffering"
    )
    return MachineCheck("warn", "streaming", text, remedy)


def _option(on: bool | None, what: str, reading: str, remedy: str) -> MachineCheck:
    if on is None:
        return MachineCheck("warn", what, "not known: its turn failed", remedy)
    return MachineCheck("ok", what, reading) if on else MachineCheck("warn", what, "off or unsupported", remedy)


def _tokenizer(facts: ServerFacts) -> MachineCheck:
    if facts.tokenizer is not None:
        return MachineCheck("ok", "/tokenize", "answers: prompts have exact token counts")
    return MachineCheck(
        "warn",
        "/tokenize",
        "missing, or without plausible counts",
        "prompt lengths are approximate; the counts in the report are the server's",
    )


def _metrics(url: str, settings: ClientSettings) -> MachineCheck:
    try:
        page = network_checks.metrics_page(url, settings)
    except UsageError as error:
        return MachineCheck(
            "warn", "metrics", f"{url}: {error}", "name the page with --metrics-url; without it no server figures"
        )
    return of_metrics(url, page)


def of_metrics(url: str, page: network_checks.MetricsPage) -> MachineCheck:
    """Check that the page has the metrics that inferload reads of its engine."""
    published = metric_names.published_by(page.engine)
    known = [name for name in network_checks.known_metrics() if not published or name in published]
    missing = [name for name in known if name not in page.names]
    text = f"{url}: {len(known) - len(missing)} of {len(known)} names"
    if published:
        text = f"{url}, names of {page.engine}: {len(known) - len(missing)} of {len(known)}"
    if missing:
        text += f"; missing: {', '.join(_grouped(missing))}"
    if any(name in missing for name in network_checks.NEEDED_METRICS):
        return MachineCheck(
            "warn", "metrics", text, "server figures will be missing; use a supported engine and version"
        )
    return MachineCheck("ok", "metrics", text)


def _grouped(names: list[str]) -> list[str]:
    """Remove vLLM's prefix; replace the names of speculative decoding, which most servers lack, by one."""
    short = [name.removeprefix("vllm:") for name in names]
    others = [name for name in short if not name.startswith("spec_decode_")]
    return [*others, "spec_decode_*"] if len(others) < len(short) else others
