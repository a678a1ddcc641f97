"""Options of a run on a virtual clock."""

import json
from typing import Any

from inferload.base.errors import UsageError
from inferload.base.virtual_orders import options_of, server_of
from inferload.run.process.user_scenarios import Program
from inferload.run.virtual import start
from inferload.scenario import overrides

# Options that a virtual clock cannot honour: name, test of a value, and what to do instead.
_REFUSED = (
    ("host", bool, "the server is simulated in this process; choose it with --variant or --simulator"),
    ("also_host", bool, "there is one simulated server; leave it out"),
    ("metrics_url", lambda urls: urls not in ([], ["none"]), "the page is that of the simulated server; leave it out"),
    ("master", bool, "a run on a virtual clock is one process; leave it out"),
    ("worker", bool, "a run on a virtual clock is one process; leave it out"),
    ("processes", bool, "a run on a virtual clock is one process; leave it out"),
    ("export_metrics", bool, "nobody could scrape a clock that jumps; leave it out"),
    ("export_traces", bool, "a collector would get spans of another time; leave it out"),
)


def begin(options: Any, program: Program, seed: int | None) -> None:
    """Put this process on a virtual clock, and set the address of the simulated server. Raise UsageError for other options.

    `seed`: of --seed; None for that of the scenario.
    """
    for name, is_given, remedy in _REFUSED:
        if is_given(getattr(options, name)):
            raise UsageError(f"--{name.replace('_', '-')}: not with --clock virtual: {remedy}")
    if not options.headless:
        raise UsageError("--clock virtual: only for a headless run; add --headless")
    if options.variant and options.simulator:
        raise UsageError("--variant: not beside --simulator, which has the options of another server; leave one out")
    scenario = program.read(options.scenario, overrides.parse_settings(options.set)).scenario
    seed = scenario.seed if seed is None else seed
    words = options_of(options.simulator)
    virtual = start.begin(lambda: server_of(options.variant, words, {}, seed), seed)
    start.use_seed(json.dumps([scenario.digest, seed, virtual.server.simulated.deployment.argv]))
    options.host = start.URL
