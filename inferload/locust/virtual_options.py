"""Options of a run on a virtual clock."""

import json
from typing import Any

from locust.argument_parser import get_empty_argument_parser, setup_parser_arguments

from inferload.base.errors import UsageError
from inferload.base.virtual_orders import options_of, server_of
from inferload.run.virtual import start
from inferload.scenario.scenario import Scenario

_ALONE = "a run on a virtual clock is one process; leave it out"
_NO_PAGE = "a run on a virtual clock has no web UI; leave it out"
# Options that a virtual clock cannot honour, or that have no effect on it, and what to do instead.
_REFUSED = {
    "host": "the server is simulated in this process; choose it with --variant or --simulator",
    "also_host": "there is one simulated server; leave it out",
    "metrics_url": "the page is that of the simulated server; leave it out",
    "role": "there is one simulated server; leave it out",
    "export_metrics": "nobody could scrape a clock that jumps; leave it out",
    **dict.fromkeys(("export_traces", "otel"), "a collector would get spans of another time; leave it out"),
    **dict.fromkeys(
        ("ca_file", "client_cert", "client_key", "insecure"), "nothing is sent to the simulated server; leave it out"
    ),
    **dict.fromkeys(("master", "worker", "processes", "expect_workers", "expect_workers_max_wait"), _ALONE),
    **dict.fromkeys(("master_host", "master_port", "master_bind_host", "master_bind_port"), _ALONE),
    **dict.fromkeys(("enable_rebalancing", "token_file"), _ALONE),
    **dict.fromkeys(("autostart", "autoquit", "class_picker", "print_stats", "allow_target"), _NO_PAGE),
    **dict.fromkeys(("web_host", "web_port", "web_base_path", "web_login", "tls_cert", "tls_key"), _NO_PAGE),
}


def begin(options: Any, scenario: Scenario, seed: int | None) -> None:
    """Put this process on a virtual clock, and set the address of the simulated server. Raise UsageError for other options.

    `seed`: of --seed; None for that of the scenario.
    """
    defaults = get_empty_argument_parser(add_help=False)
    setup_parser_arguments(defaults)  # Locust's own; those of inferload have empty ones
    for name, remedy in _REFUSED.items():
        value = getattr(options, name)
        if value != defaults.get_default(name) and (type(value) is int or value not in (None, False, "", [], ["none"])):
            raise UsageError(f"--{name.replace('_', '-')}: not with --clock virtual: {remedy}")
    if not options.headless:
        raise UsageError("--clock virtual: only for a headless run; add --headless")
    if options.variant and options.simulator:
        raise UsageError("--variant: not beside --simulator, which has the options of another server; leave one out")
    seed = scenario.seed if seed is None else seed
    words = options_of(options.simulator)
    virtual = start.begin(lambda: server_of(options.variant, words, {}, seed), seed)
    start.use_seed(json.dumps([scenario.digest, seed, virtual.server.simulated.deployment.argv]))
    options.host = start.URL
