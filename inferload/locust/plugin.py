"""Locust plugin entry point: registers options and event listeners, sets up master or worker."""

import atexit
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import gevent
import locust.runners
from locust import events
from msgspec.structs import replace

from inferload.base import clock
from inferload.base.errors import UsageError
from inferload.base.escaping import escaped
from inferload.base.on_use import importing
from inferload.base.redaction import safe_urls
from inferload.base.status_lines import print_error
from inferload.locust import options, user_classes
from inferload.locust.options import CheckedOptions
from inferload.locust.user_classes import program_of
from inferload.locust.users import InferenceUser
from inferload.locust_adapters import adaptations, logs, membership, messages, process, tables
from inferload.results import ci
from inferload.results.verdict.outcome import USAGE
from inferload.run.process import run_spec
from inferload.run.process.listen_address import ListenAddress
from inferload.run.process.program_code import LoadedCode, imported_files
from inferload.run.process.run_spec import LoadOptions, RunOptions
from inferload.run.process.settings import ProcessSettings
from inferload.run.process.user_scenarios import LoadedScenario, Program
from inferload.run.worker.worker import Worker
from inferload.scenario.overrides import parse_settings

if TYPE_CHECKING:
    from inferload.locust.load_origins import LoadOrigins
    from inferload.run.master.controller import Controller

_EXCEPTION_S = 0.01  # virtual time of an exception of a task: one that raises at once would raise without an end
logger = logging.getLogger(__name__)

_installed: list["_Plugin"] = []


def install() -> None:
    """Add the options and the event listeners to Locust. Idempotent; `inferload.users` calls it."""
    if _installed:
        return
    plugin = _Plugin()
    _installed.append(plugin)
    try:
        process.check_patched()
        adaptations.apply()
    except UsageError as error:
        print_error(escaped(safe_urls(str(error))))
        ci.refuse(error)
        sys.exit(2)
    logs.install()
    process.check_after_parsing(plugin.check)
    events.init_command_line_parser.add_listener(_add_options)
    events.init.add_listener(plugin.begin)
    events.report_to_master.add_listener(messages.complete_early_report)


def begin(environment: Any, runner: Any) -> None:
    """Set this process up for a local run without a web UI, as Locust's event `init` does."""
    _installed[0].begin(environment, runner, None)


def _add_options(parser: Any) -> None:
    selected = _installed[0].scenario if _installed else None
    options.add_options(parser, program_of(_classes()).default, selected)


def _classes() -> list[type[InferenceUser]]:
    """Return the user classes of all loaded modules; Locust selects some of them after the command line is parsed."""
    return [kind for kind in InferenceUser.defined if user_classes.is_loaded(kind)]


def _program(selected: Iterable[type], locustfiles: str) -> Program:
    """Return the program of the selected user classes. `locustfiles`: value of -f."""
    return program_of(selected, program_of(_classes()).default, user_classes.run_name(locustfiles))


class _Plugin:
    """Check of the command line before Locust forks, and set-up of each process with the result."""

    def __init__(self) -> None:
        self._checked: CheckedOptions | None = None
        self._imported: frozenset[str] = frozenset()  # with the locustfiles
        # port of the master; forked workers know it before the master listens
        self._reserved: socket.socket | None = None
        self._origins: LoadOrigins | None = None  # None: all options are on the command line, and none sets the load
        self.scenario: str | None = None  # value of the command line; Locust parses it again for each view of the page

    def check(self, parsed: Any, sources: process.Sources) -> None:
        """Check and complete the options. Record --worker as given: Locust sets it in forked processes too."""
        if parsed.json and not options.only_lists(parsed):
            tables.keep_stdout_for_json()
        elsewhere = not {*sources} <= {"command_line", "defaults"}
        if elsewhere or {parsed.num_users, parsed.spawn_rate, parsed.run_time} != {None}:
            from inferload.locust.load_origins import LoadOrigins

            self._origins = LoadOrigins(parsed, sources, parse_settings(parsed.set))
        chosen = [kind for kind in _classes() if not parsed.user_classes or kind.__name__ in parsed.user_classes]
        user_classes.check(chosen, parsed.tags, parsed.exclude_tags)
        if parsed.clock == "virtual":
            user_classes.refuse_clients(parsed.user_classes)
        self._imported = imported_files()  # before the check, which loads live agents on the master
        self._checked = options.check(parsed, _program(chosen, getattr(parsed, "locustfile", "")))
        self.scenario = parsed.scenario
        token = self._checked.own.token
        if options.forks_workers(parsed):
            self._reserved = options.connect_forked_workers(parsed)
            token = token or membership.random_token()
        membership.use_token(token)
        parsed.started_as_worker = bool(parsed.worker)

    def begin(self, environment: Any, runner: Any, web_ui: Any, **_others: Any) -> None:
        """Set this process up as a worker, a master, or both in one."""
        parsed, checked = environment.parsed_options, self._checked
        assert checked is not None
        if self._reserved is not None:
            self._reserved.close()
        own = replace(checked.own, code=_loaded_code(environment, self._imported))
        options.forget_private(parsed)
        logs.protect(own.redaction)
        process.end_quickly(environment)
        if isinstance(runner, locust.runners.WorkerRunner):
            if not parsed.started_as_worker:
                tables.omit_json(parsed)
            named = parsed.started_as_worker and parsed.scenario != program_of(environment.user_classes).default
            _begin_worker(environment, own, checked.loaded.digest if named else None)
            return
        adaptations.log_differences()
        if self._origins is not None:
            self._origins.log(parsed, checked.loaded.scenario, in_shape=environment.shape_class is not None)
        if clock.current.is_virtual:  # called after the listener of the worker
            environment.events.user_error.add_listener(lambda **_event: gevent.sleep(_EXCEPTION_S))
        if not hasattr(runner, "clients"):
            environment.inferload_worker = worker = Worker(environment, own)
            # called after the controller's listener, which ends the run: Locust fires this event in reverse order
            environment.events.quitting.add_listener(lambda **_event: worker.wait())
        controller = _begin_master(environment, own, checked.loaded)
        if own.export_metrics is not None:
            _export_metrics(controller, own.export_metrics)
        if web_ui is not None:
            from inferload.locust.web import page  # of processes with a web UI only

            choices = options.scenario_choices(program_of(_classes()).default, parsed.scenario)
            page.attach(web_ui, controller, own.redaction, choices)


def _loaded_code(environment: Any, imported: frozenset[str]) -> LoadedCode:
    """Return the code of this process. `imported`: files that were imported with the locustfiles."""
    option, files = environment.parsed_options.locustfile, environment.parsed_locustfiles or ()
    received = option == "-"
    names = {Path(urlsplit(word).path).name for word in option.split(",") if "://" in word}
    downloaded = {os.path.join(tempfile.gettempdir(), name) for name in names}
    single = [file for file in files if received or file in downloaded]
    return LoadedCode(files, single=single, received=received, imported=imported)


def _begin_worker(environment: Any, own: ProcessSettings, scenario: str | None) -> None:
    worker = Worker(environment, own, scenario)
    environment.inferload_worker = worker
    environment.events.quitting.add_listener(lambda **_event: worker.stop())
    environment.events.quit.add_listener(lambda **_event: messages.flush_messages(environment.runner))
    worker.follow_master()
    received: list[str] = []

    def interrupt(by: str) -> None:
        """Handle a signal: the first drains the run, a later Ctrl-C ends turns in flight."""
        received.append(by)
        if len(received) == 1:
            worker.stop()
            environment.runner.quit()
        elif by == process.CTRL_C:
            worker.give_up()

    _on_signals(interrupt)


def _on_signals(interrupt: Callable[[str], None]) -> None:
    """Call `interrupt` with the signal's name. An ignored SIGHUP, as with nohup, stays ignored."""
    for number, name in ((signal.SIGINT, process.CTRL_C), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGHUP")):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            gevent.signal_handler(number, interrupt, name)


def _begin_master(environment: Any, own: ProcessSettings, loaded: LoadedScenario) -> "Controller":
    with importing():
        from inferload.run.master.controller import Controller  # a fifth of all modules, which workers do not need

    parsed = environment.parsed_options
    load_options = LoadOptions(
        parsed.num_users, parsed.spawn_rate, parsed.run_time, parse_settings(parsed.set), parsed.scenario or ""
    )
    shown = load_options.form(loaded.scenario)
    workers = process.take_options_over(parsed, shown.users, shown.spawn_per_s)
    if parsed.processes:
        atexit.register(process.end_forked_workers)
        # before the controller's listener, so that the workers' last lines precede the explanation of the result
        environment.events.quit.add_listener(lambda **_event: process.end_forked_workers())

    def run_options(environment: Any) -> RunOptions:
        """Return the options of an environment: the current one, which the start form may have changed, or a copy of it."""
        parsed = environment.parsed_options
        options.check_form_host(environment.host or "", own)
        return RunOptions(
            scenario=parsed.scenario,
            program=_program(environment.user_classes, parsed.locustfile),
            host=environment.host or "",
            model=parsed.model or None,
            seed=options.seed_of(parsed.seed),
            run_time_s=load_options.run_time_s if parsed.run_time is None else parsed.run_time,
            warmup_s=options.seconds_of("--warmup", parsed.warmup),
            metrics_urls=options.metrics_urls(parsed.metrics_url),
            pages=tuple(parsed.metrics_url or ()),
            roles=options.roles(parsed.metrics_url, parsed.role),
            also_hosts=tuple(parsed.also_host or ()),
            only=parsed.only or None,
            abort_on=run_spec.abort_on(parsed.abort_on),
            gates=tuple(parsed.gate or ()),
            settings=load_options.settings,
            loaded=loaded if parsed.headless else None,  # a start from the form reads the file again
        )

    hosts = user_classes.own_hosts(environment.user_classes)  # before the first start, with which Locust replaces them

    def note_hosts(**_event: Any) -> None:
        selected = {kind.__name__ for kind in environment.user_classes}
        own = {name: host for name, host in hosts.items() if name in selected}
        text = user_classes.replaced_hosts_text(own, environment.host)
        if text:
            logger.warning("%s", text)

    environment.events.test_start.add_listener(note_hosts)
    controller = Controller(environment, own, run_options, load_options, workers)
    environment.events.quitting.add_listener(controller.quitting)
    _on_signals(controller.interrupt)
    logger.debug("controller attached in process %d", os.getpid())
    return controller


def _export_metrics(controller: "Controller", address: ListenAddress) -> None:
    from inferload.run.exporter.exporter import Exporter  # of the master only

    runner = controller.environment.runner
    exporter = Exporter(lambda: controller.execution.latest, lambda: int(runner.user_count))
    try:
        exporter.listen(address)
    except UsageError as error:
        print_error(escaped(safe_urls(str(error))))
        ci.refuse(error)
        sys.exit(USAGE)
    controller.process.await_scrape = exporter.wait_for_last_scrape
