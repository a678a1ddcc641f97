"""The doctor's checks of a server: from what the wire saw to lines with a remedy."""

import argparse
from dataclasses import replace
from pathlib import Path

from inferload.client.client import ClientSettings, Credentials, Timeouts
from inferload.client.connection import credentials
from inferload.client.connection.connect import TlsSettings
from inferload.client.connection.target import Target
from inferload.client.probe import ServerFacts, probe
from inferload.errors import UsageError
from inferload.escaping import escaped
from inferload.machine import network_checks
from inferload.machine.checks import Check
from inferload.run_options import API_KEY_VARIABLE
from inferload.server_metrics import metric_names

_TIMEOUTS = Timeouts(connect_s=10, first_event_s=60, between_events_s=30, turn_s=120)


def settings(arguments: argparse.Namespace) -> ClientSettings:
    """What the command line says of a server; UsageError where it says it wrongly."""
    return ClientSettings(
        target=Target.parse(arguments.host),
        model=arguments.model,
        worker="doctor",
        timeouts=_TIMEOUTS,
        tls=TlsSettings(Path(arguments.ca_file) if arguments.ca_file else None, arguments.insecure),
        credentials=Credentials(credentials.api_key(arguments.api_key_file, API_KEY_VARIABLE)),
        headers=tuple(credentials.header(text) for text in arguments.header),
    )


def look(settings: ClientSettings, model: str | None, metrics_url: str | None) -> list[Check]:
    """Every check of a server, without secrets; where it cannot be talked to, that one alone."""
    redact = settings.redaction
    checks = _look(settings, model, metrics_url)
    return [
        replace(check, found=escaped(redact(check.found)), remedy=escaped(redact(check.remedy))) for check in checks
    ]


def _look(settings: ClientSettings, model: str | None, metrics_url: str | None) -> list[Check]:
    try:
        facts = probe(settings, model)
    except UsageError as error:
        found, _, remedy = str(error).rpartition("; ")
        return [Check("fail", "server", found or str(error), remedy if found else "")]
    asked = replace(settings, model=facts.model)
    options = network_checks.server_options(asked)
    return [
        Check("ok", "server", f"{settings.target.url} answers"),
        _security(settings),
        _models(facts),
        _engine(facts),
        *of_options(options),
        _tokenizer(facts),
        _metrics(metrics_url or settings.target.metrics_url, asked),
    ]


def _security(settings: ClientSettings) -> Check:
    target, key = settings.target, settings.credentials.api_key
    if target.scheme == "http":
        if key and target.host not in ("localhost", "127.0.0.1", "::1"):
            return Check("warn", "TLS", "none: the API key travels in the clear", "use https://, or a tunnel")
        return Check("ok", "TLS", "none (http)")
    if settings.tls.insecure:
        return Check("warn", "TLS", "any certificate is accepted", "trust its authority with --ca-file")
    return Check("ok", "TLS", "the certificate is trusted")


def _models(facts: ServerFacts) -> Check:
    longest = "" if facts.max_model_len is None else f", {facts.max_model_len} tokens at most"
    others = len(facts.models) - 1
    return Check("ok", "model", f"{facts.model}{longest}" + (f" (and {others} more)" if others else ""))


def _engine(facts: ServerFacts) -> Check:
    if facts.engine == "unknown":
        said = "not one that is known" + (f"; version {facts.version}" if facts.version else "")
        remedy = "runs work; prefix caches of two runs are kept apart by text, and server figures may be missing"
        return Check("warn", "engine", said, remedy)
    version = f" {facts.version}" if facts.version and facts.version not in facts.engine else ""
    return Check("ok", "engine", facts.engine + version)


def of_options(options: network_checks.ServerOptions) -> list[Check]:
    """What the streamed turns showed."""
    if options.refused:
        return [Check("fail", "streaming", options.refused, "see the server's log")]
    return [
        Check("ok", "streaming", "two tokens came"),
        _option(options.usage, "usage", "tokens are counted by the server", "rates and TPOT are then not known"),
        _option(
            options.running_usage,
            "running usage",
            "in every event, when asked",
            "tokens per event are then a mean only",
        ),
        _option(
            options.forced, "ignore_eos", "accepted", "set request.ignore_eos: false; answers then end when they will"
        ),
        _option(options.salted, "cache_salt", "accepted", "set cache.isolate: none, or reset its cache between runs"),
        _option(
            options.cached_tokens,
            "cached tokens",
            "said for each prompt",
            "start vLLM with --enable-prompt-tokens-details to see them",
        ),
        _option(
            options.own_times,
            "own times",
            "said for each turn: queue, first token, generation",
            "start vLLM with --enable-per-request-metrics to see them",
        ),
    ]


def _option(on: bool | None, what: str, found: str, remedy: str) -> Check:
    if on is None:
        return Check("warn", what, "not known: its turn failed", remedy)
    return Check("ok", what, found) if on else Check("warn", what, "off, or not known to it", remedy)


def _tokenizer(facts: ServerFacts) -> Check:
    if facts.tokenizes:
        return Check("ok", "/tokenize", "answers: prompts have exact token counts")
    return Check(
        "warn", "/tokenize", "missing", "prompt lengths are approximate; the counts in the report are the server's"
    )


def _metrics(url: str, settings: ClientSettings) -> Check:
    try:
        page = network_checks.metrics_page(url, settings)
    except UsageError as error:
        return Check(
            "warn", "metrics", f"{url}: {error}", "name the page with --metrics-url; without it no server figures"
        )
    return of_metrics(url, page)


def of_metrics(url: str, page: network_checks.MetricsPage) -> Check:
    """Which of the names that inferload reads of such an engine the page has."""
    published = metric_names.published_by(page.engine)
    known = [name for name in network_checks.known_metrics() if not published or name in published]
    missing = [name for name in known if name not in page.names]
    said = f"{url}: {len(known) - len(missing)} of {len(known)} names"
    if published:
        said = f"{url}, as {page.engine} has it: {len(known) - len(missing)} of {len(known)} names"
    if missing:
        said += f"; missing: {', '.join(_grouped(missing))}"
    if any(name in missing for name in network_checks.NEEDED_METRICS):
        return Check("warn", "metrics", said, "server figures will be missing: is its engine, and its version, known?")
    return Check("ok", "metrics", said)


def _grouped(names: list[str]) -> list[str]:
    """Names without vLLM's prefix; those of speculative decoding, which most servers do not have, as one."""
    short = [name.removeprefix("vllm:") for name in names]
    others = [name for name in short if not name.startswith("spec_decode_")]
    return [*others, "spec_decode_*"] if len(others) < len(short) else others
