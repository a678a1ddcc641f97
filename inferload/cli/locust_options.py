"""Locust's options of `inferload run`, which are passed on to Locust."""

import argparse
from collections.abc import Sequence
from typing import Any

# Shown in --help; the others are accepted as well.
_SHOWN = {
    ("-r", "--spawn-rate"): "users started per second",
    ("--processes",): "number of worker processes on this machine",
    ("--master",): "run as the master of workers on other machines",
    ("--worker",): "run as a worker",
    ("--master-host",): "address of the master, for a worker",
    ("--expect-workers",): "number of workers that the master waits for and uses at most",
    ("--web-port", "-P"): "show the web UI on this port instead of running headless",
    ("--web-host",): "show the web UI on this address",
    ("--autostart",): "show the web UI and start at once",
    ("--csv",): "prefix of Locust's CSV files",
    ("--loglevel", "-L"): "DEBUG, INFO, WARNING, ERROR or CRITICAL",
}
_VALUED = (
    *(("--config",), ("--config-users",), ("--autoquit",), ("--tls-cert",), ("--tls-key",), ("--web-base-path",)),
    *(("--master-bind-host",), ("--master-bind-port",), ("--expect-workers-max-wait",), ("--master-port",)),
    *(("-T", "--tags"), ("-E", "--exclude-tags"), ("--html",), ("--json-file",), ("--logfile",)),
    *(("--exit-code-on-error",), ("-s", "--stop-timeout"), ("--profile",)),
)
_SWITCHES = (
    *(("--master",), ("--worker",), ("--autostart",), ("-l", "--list"), ("--headless",), ("--web-login",)),
    *(("--class-picker",), ("--enable-rebalancing",), ("--csv-full-history",), ("--print-stats",)),
    *(("--only-summary",), ("--reset-stats",), ("--json",), ("--skip-log-setup",), ("--show-task-ratio",)),
    *(("--show-task-ratio-json",), ("--equal-weights",), ("--otel",)),
)
_WEB_UI = {
    *("--web-port", "-P", "--web-host", "--web-login", "--web-base-path", "--tls-cert", "--tls-key", "--class-picker"),
    *("--autostart", "--autoquit"),
}


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add Locust's options; the ones on the command line are collected in `extra`."""
    group = parser.add_argument_group(
        "Locust's options", "All of Locust's options are accepted, here or after --; locust --help describes them."
    )
    hidden = [flags for flags in (*_VALUED, *_SWITCHES) if flags not in _SHOWN]
    for flags in (*_SHOWN, *hidden):
        group.add_argument(
            *flags,
            action=_PassOn,
            nargs=0 if flags in _SWITCHES else None,
            metavar=None if flags in _SWITCHES else "VALUE",
            help=_SHOWN.get(flags, argparse.SUPPRESS),
            default=argparse.SUPPRESS,
        )


class _PassOn(argparse.Action):
    """Collect the option and its value for Locust."""

    def __call__(self, _parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        words = (str(option_string), *([values] if isinstance(values, str) else []))
        namespace.extra = (*namespace.extra, *words)


def shows_web_ui(extra: Sequence[str]) -> bool:
    """Return True if the options start the web UI or a worker: both run without --headless."""
    names = {word.partition("=")[0] for word in extra}
    return "--worker" in names or ("--headless" not in names and not names.isdisjoint(_WEB_UI))
