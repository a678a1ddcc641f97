"""Options that inferload adds to Locust's, and their checks before Locust forks workers."""

import argparse
import ipaddress
import socket
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from locust.util.timespan import parse_timespan
from msgspec import Struct

from inferload.base import rundir
from inferload.base.argparse_ext import check_choice
from inferload.base.errors import UsageError, explained
from inferload.base.run_options import API_KEY_VARIABLE, DEFAULT_MAX_TURNS_MB, KEY_ON_COMMAND_LINE, RUN_OPTIONS
from inferload.base.tls import TlsSettings
from inferload.client.client import Credentials
from inferload.client.connection import credentials
from inferload.client.connection.target import Target
from inferload.locust_adapters import process
from inferload.locust_adapters.web_page import AnyOf
from inferload.results.ci import Outputs
from inferload.results.verdict.outcome import FAILED, Policy
from inferload.run.process import listen_address, run_spec
from inferload.run.process.listen_address import ListenAddress
from inferload.run.process.named_servers import hosts_of, is_list
from inferload.run.process.settings import ProcessSettings
from inferload.run.process.trace_export import TraceExport
from inferload.run.process.user_scenarios import LoadedScenario, Program
from inferload.scenario import overrides
from inferload.scenario.files import catalog
from inferload.servers.roles import Role, of_option
from inferload.servers.scrape_http import MetricsUrl
from inferload.workload.content.data import DataContext
from inferload.workload.sessions import Sessions

_ANY_SCENARIO = Program()  # without user classes
_LOOPBACK = "127.0.0.1"


def scenario_choices(default: str, selected: str) -> list[str]:
    """Return the values of --scenario that the start form offers: bundled scenarios, the default, and the selected value."""
    names = catalog.names()
    return [*(name for name in dict.fromkeys((default, selected)) if name not in names), *names]


def add_options(parser: Any, default_scenario: str, selected_scenario: str | None = None) -> None:
    """Add inferload's options to Locust's parser. `selected_scenario`: value of the command line, once it is known."""
    parser.allow_abbrev = False  # else argparse reads --api-key as --api-key-file, and an error prints the key
    parser._check_value = check_choice
    refused: Any = {"action": _Refused, "nargs": "?", "const": KEY_ON_COMMAND_LINE, "help": argparse.SUPPRESS}
    parser.add_argument("--api-key", include_in_web_ui=False, **refused)
    shown = default_scenario or "the scenarios of the locustfile's classes"
    parser.add_argument(
        "--scenario",
        default=default_scenario,
        choices=AnyOf(
            scenario_choices(default_scenario, default_scenario if selected_scenario is None else selected_scenario)
        ),
        metavar="NAME-OR-PATH",
        help=f"workload and arrivals: {', '.join(catalog.names())}, or a scenario file (default: {shown})",
    )
    parser.set_defaults(
        master_bind_host=_NotGiven(parser.get_default("master_bind_host") or "*"),
        master_bind_port=process.NumberNotGiven(parser.get_default("master_bind_port") or 5557),
        expect_workers=process.NumberNotGiven(parser.get_default("expect_workers") or 1),
        expect_workers_max_wait=process.NumberNotGiven(0),
    )
    for option in RUN_OPTIONS:
        parser.add_argument(option.flag, include_in_web_ui=option.in_form, **option.keywords())


class _Refused(argparse.Action):
    """Option that raises UsageError with its `const`; its value is not shown."""

    def __call__(self, *_arguments: Any) -> None:
        raise UsageError(str(self.const))


class _NotGiven(str):
    """Default value, distinguishable from the same value on the command line."""


def forks_workers(options: Any) -> bool:
    """Return True for a master whose workers are its own processes."""
    return bool(options.processes) and not options.worker


def connect_forked_workers(options: Any) -> socket.socket | None:
    """Set the addresses by which a master and the workers that it forks find each other.

    Unless --master-bind-host was given: loopback, and a free port instead of Locust's default, which another run may use. The
    socket that is returned reserves that port until the master listens on it; close it afterwards.
    """
    free_port = _uses_free_port(options)
    if isinstance(options.master_bind_host, _NotGiven):
        options.master_bind_host = _LOOPBACK
    if options.master_host == _LOOPBACK and _is_address(options.master_bind_host):
        options.master_host = options.master_bind_host
    reserved = None
    if free_port:
        reserved = socket.socket()
        # As ZeroMQ sets, so that the master can listen too.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((_LOOPBACK, 0))
        options.master_bind_port = reserved.getsockname()[1]
    options.master_port = options.master_bind_port
    return reserved


def _uses_free_port(options: Any) -> bool:
    """Return True if a master and the workers that it forks choose their port: no worker of another machine can connect."""
    here = isinstance(options.master_bind_host, _NotGiven) or options.master_bind_host == _LOOPBACK
    return forks_workers(options) and here and isinstance(options.master_bind_port, process.NumberNotGiven)


def _is_address(host: str) -> bool:
    """Return True for the address of one interface, as opposed to its name, * and 0.0.0.0."""
    try:
        return not ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _listening(options: Any, own: ProcessSettings) -> Iterator[ListenAddress]:
    """Yield the addresses on which this process will listen, without a free port that is chosen later."""
    if options.master or (forks_workers(options) and not _uses_free_port(options)):
        host = (
            _LOOPBACK
            if forks_workers(options) and isinstance(options.master_bind_host, _NotGiven)
            else options.master_bind_host
        )
        yield ListenAddress("--master-bind-port", _host_of(host), int(options.master_bind_port))
    if not options.headless and not only_lists(options):
        yield ListenAddress("--web-port", _host_of(options.web_host), options.web_port)
    if own.export_metrics is not None:
        yield own.export_metrics


def only_lists(options: Any) -> bool:
    """Return True if Locust lists classes or ratios of tasks, and ends."""
    return bool(options.list_commands or options.show_task_ratio or options.show_task_ratio_json)


def _host_of(host: str) -> str:
    """Return the host of an option of Locust, where "*" means all addresses of this machine."""
    return "" if host == "*" else host


class CheckedOptions(Struct, frozen=True):
    """Result of a valid command line."""

    own: ProcessSettings
    loaded: LoadedScenario


def check(options: Any, program: Program = _ANY_SCENARIO) -> CheckedOptions:
    """Check everything that can be known before a run; UsageError with the option and the remedy."""
    if options.reset_stats:
        raise UsageError(
            "--reset-stats: not possible, a run's outcome counts failed requests from Locust's statistics; use --warmup, "
            "whose turns are not measured"
        )
    settings = overrides.parse_settings(options.set)
    loaded = program.read(options.scenario, settings)
    scenario = loaded.scenario
    if options.clock == "virtual":
        from inferload.locust import virtual_options  # with the loop, of virtual runs only

        virtual_options.begin(options, loaded.scenario, seed_of(options.seed))
    elif options.variant or options.simulator:
        raise UsageError(
            f"{'--variant' if options.variant else '--simulator'}: only with --clock virtual; start a server with inferload deploy"
        )
    options.web_host = options.web_host or _LOOPBACK  # the web UI has no login, and starts load
    own = own_settings(options)
    seed_of(options.seed)
    seconds_of("--warmup", options.warmup)
    if options.worker:
        return CheckedOptions(own, loaded)
    if options.live and not options.headless:
        raise UsageError("--live: only for a headless run; the web UI shows this one")
    run_spec.abort_on(options.abort_on)
    gates = run_spec.gates_of(scenario, options.gate or ())
    if options.only:
        users_set = next((setting.value for setting in settings if setting.key == "arrivals.users"), None)
        run_spec.only_class(scenario, options.only, options.num_users or users_set, gates)
    if options.headless or options.autostart:
        if not options.host:
            raise UsageError("--host: missing; name the server, as --host http://server:8000")
        if not scenario.ends_by_itself and not scenario.of_tasks and not options.run_time:
            raise UsageError(
                f"scenario {options.scenario}: measure_s is null, and without a web UI the run has no end; give --run-time"
            )
    if own.run_dir is not None:
        rundir.check(own.run_dir)
    if own.progress_file is not None:
        with explained(f"--progress-file {own.progress_file}", "name a file that can be written"):
            own.progress_file.open("a", encoding="utf-8").close()
    listen_address.check_free(_listening(options, own))
    if own.tls.names_files:
        own.tls.context()
    own.outputs.prepare()
    Sessions(scenario, DataContext(options.scenario)).open()
    return CheckedOptions(own, loaded)


def own_settings(options: Any) -> ProcessSettings:
    return ProcessSettings(
        credentials=Credentials(credentials.api_key(options.api_key_file, API_KEY_VARIABLE)),
        headers=tuple(credentials.header(text) for text in options.header or ()),
        token=credentials.run_token(options.token_file),
        tls=TlsSettings.of(options),
        run_dir=Path(options.run_dir).absolute() if options.run_dir else None,
        report=not options.no_report,
        details=options.details,
        live=options.live,
        inconclusive=options.inconclusive,
        policy=Policy(
            on_invalid_warns=options.on_invalid == "warn",
            on_stop_passes=options.on_stop == "pass",
            failed_code=getattr(options, "exit_code_on_error", FAILED),
        ),
        max_turns_mb=_max_turns_mb(options.max_turns_mb),
        progress_file=Path(options.progress_file).absolute() if options.progress_file else None,
        export_metrics=ListenAddress.parse("--export-metrics", options.export_metrics)
        if options.export_metrics
        else None,
        export_traces=TraceExport.parse(options.export_traces, options.trace_ratio),
        outputs=Outputs.of(options),
        origins=_origins(options),
        lists=frozenset((*_hosts(options), *(options.metrics_url or ()))),
    )


def _hosts(options: Any) -> list[str]:
    return [value for value in (options.host, *(options.also_host or ())) if value]


def check_form_host(host: str, own: ProcessSettings) -> None:
    """Raise UsageError for a list that the command line does not name: users of the start form must not read the master's files."""
    if host not in own.lists and is_list(host):
        raise UsageError(f"host {host}: only the command line can name a list; write it as http://server:8000")


def _origins(options: Any) -> frozenset[str]:
    """Return the origins that the command line names; only these may get the key and the headers."""
    targets = [Target.parse(url) for url in hosts_of(_hosts(options))]
    if not options.worker:  # which reads no page, and may lack the file or the name
        targets += [Target.of_page(url) for url in metrics_urls(options.metrics_url) or ()]
    for url in options.allow_target or ():
        try:
            targets.append(Target.parse(url))
        except UsageError as error:
            raise UsageError(f"--allow-target: {error}") from error
    return frozenset(target.origin for target in targets)


def forget_private(options: Any) -> None:
    """Reset the private options: Locust sends all options to every worker, and shows them in pages."""
    for option in RUN_OPTIONS:
        if option.private:
            setattr(options, option.name, option.default)


def seed_of(text: Any) -> int | None:
    """Read --seed; None if it was not given."""
    if text in (None, ""):
        return None
    try:
        seed = int(text)
    except ValueError:
        seed = -1
    if seed < 0:
        raise UsageError(f"--seed {text}: not a whole number of at least 0")
    return seed


def seconds_of(flag: str, text: Any) -> float | None:
    """Read a duration in Locust's form, 90, 90s or 1m30s, in seconds; None if it was not given."""
    if text in (None, ""):
        return None
    try:
        return float(parse_timespan(str(text)))
    except ValueError as error:
        raise UsageError(f"{flag} {text}: not a duration; write it as 90, 90s or 1m30s") from error


def _max_turns_mb(text: Any) -> int:
    if text in (None, ""):
        return DEFAULT_MAX_TURNS_MB
    if not str(text).isdecimal():
        raise UsageError(f"--max-turns-mb {text}: not a whole number of MB of at least 0")
    return int(text)


def roles(pages: list[str] | None, values: list[str] | None) -> Mapping[str, Role]:
    """Return the roles of servers by the address of a page: of --role, else of files that --metrics-url names."""
    if not pages and not values:
        return {}
    from inferload.servers import metrics_targets  # of runs whose pages are named

    named = [page for page in pages or () if page != "none"]
    return metrics_targets.roles_of(named) | of_option(values or ())


def metrics_urls(values: list[str] | None) -> tuple[str, ...] | None:
    """Return the pages that --metrics-url names; empty for `none`; None if it was not given."""
    if not values:
        return None
    if "none" in values:
        if len(values) > 1:
            raise UsageError("--metrics-url none: given beside a URL; give one or the other")
        return ()
    from inferload.servers import metrics_targets  # of runs whose pages are named

    urls = metrics_targets.of_option(values)
    name, count = Counter(MetricsUrl.parse(url).target for url in set(urls)).most_common(1)[0]
    if count > 1:
        raise UsageError(f"--metrics-url {name}: named twice, with other values in its query; name each page once")
    return tuple(urls)
