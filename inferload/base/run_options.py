"""Table of the options of a run, for Locust's command line and start form and for `inferload run`."""

from collections.abc import Collection, Mapping
from typing import Any

from msgspec import Struct

API_KEY_VARIABLE = "OPENAI_API_KEY"
DEFAULT_MAX_TURNS_MB = 1000
TLS_OPTIONS = ("--ca-file", "--client-cert", "--client-key", "--insecure")
# Options that workers need as well.
EACH_PROCESS = (*TLS_OPTIONS, "--api-key-file", "--header", "--export-traces", "--trace-ratio")
KEY_ON_COMMAND_LINE = (
    f"--api-key: a key on a command line is in the process list; use --api-key-file FILE or {API_KEY_VARIABLE}"
)


class RunOption(Struct, frozen=True):
    """One option. `in_form`: shown in Locust's start form; `private`: not sent to workers, not shown in pages."""

    flag: str
    help: str
    metavar: str | None = None
    repeat: bool = False
    switch: bool = False
    choices: tuple[str, ...] | None = None
    in_form: bool = False
    private: bool = False

    @property
    def name(self) -> str:
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def default(self) -> Any:
        """Default value: empty, and for a choice the first."""
        if self.switch:
            return False
        return [] if self.repeat else self.choices[0] if self.choices else ""

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments of argparse's `add_argument`."""
        words: dict[str, Any] = {"help": self.help, "default": self.default}
        if self.switch:
            return {**words, "action": "store_true"}
        if self.repeat:
            words["action"] = "append"
        if self.choices:
            words["choices"] = list(self.choices)
        if self.metavar:
            words["metavar"] = self.metavar
        return words


RUN_OPTIONS = (
    RunOption(
        "--set",
        "set one key of the scenario, as --set workload.turns=3: a dotted path and a value in YAML; may be repeated",
        "PATH=VALUE",
        repeat=True,
    ),
    RunOption(
        "--clock",
        "virtual: rehearse the run on a clock that jumps to the next event, against a simulated server in this process; ten "
        "minutes take seconds, and all results are marked as simulated (default: real)",
        choices=("real", "virtual"),
        private=True,
    ),
    RunOption(
        "--variant",
        "with --clock virtual: the server configuration that is simulated (inferload deploy list)",
        "NAME",
        private=True,
    ),
    RunOption(
        "--simulator",
        "with --clock virtual: options of the simulated server, as of inferload simulator (default: its own)",
        "'OPTIONS'",
        private=True,
    ),
    RunOption("--model", "model of the requests (default: the one that the server lists)", in_form=True),
    RunOption(
        "--also-host",
        "additional server; of n successive sessions each of the n servers gets one, in random order; may be repeated; as --host, "
        "also dns://NAME:PORT or a file with a URL per line, whose changes are followed",
        "URL",
        repeat=True,
    ),
    RunOption("--warmup", "load before the measure phase, excluded from the results (default: the scenario's)", "TIME"),
    RunOption("--seed", "seed of every random choice (default: the scenario's)", "N", in_form=True),
    RunOption(
        "--metrics-url",
        "the server's Prometheus page; for several servers repeat it, or give dns://NAME:PORT/metrics (each address of a name, as "
        "of a headless Service of Kubernetes) or a file (a URL per line, or Prometheus file_sd, .json or "
        ".yaml), whose changes are followed (default: /metrics of each host; 'none' for none)",
        "URL",
        repeat=True,
    ),
    RunOption(
        "--role",
        "role of a server that shares each request with others, by its metrics page: prefill or decode; may be repeated (default: "
        "the label role of a file of targets, or what the page or the host's name says)",
        "URL=ROLE",
        repeat=True,
    ),
    RunOption(
        "--only",
        "send only this class of a mix, with the sessions and start times that it has in the mix (for inferload compare --class)",
        "CLASS",
    ),
    RunOption(
        "--on-invalid", "on an invalid measurement: exit code 3, or a warning (default: fail)", choices=("fail", "warn")
    ),
    RunOption(
        "--gate",
        "condition on the result, in addition to the scenario's gates; exit code 1 if it fails; may be repeated: "
        "'p95(ttft_ms) < 900', "
        "'p95(ttft_ms){agent} < 900', 'failed_ratio < 0.01', 'failed_ratio{GET /health} < 0.01', 'max(requests_waiting) < 5', "
        "'mean(kv_cache_usage) < 0.9', 'prefix_cache_hit_rate > 0.5', 'preemptions == 0'",
        "EXPR",
        repeat=True,
    ),
    RunOption(
        "--abort-on",
        "stop the run early, with exit code 1 (in the warm-up: 3), when this condition holds, such as 'failed_ratio > 0.5 for 5s'; "
        "may be repeated (default: the scenario's abort_on)",
        "CONDITION",
        repeat=True,
    ),
    RunOption(
        "--details", "print all tables at the end of the run instead of the short summary", switch=True, private=True
    ),
    RunOption(
        "--live",
        "show outcome so far, key figures and their course on the terminal during a headless run",
        switch=True,
        private=True,
    ),
    RunOption(
        "--on-stop",
        "on Ctrl-C, SIGTERM or SIGHUP before the planned end of the run: exit code 130 or 143, or the usual one (default: fail)",
        choices=("fail", "pass"),
    ),
    RunOption(
        "--inconclusive",
        "on an inconclusive gate, whose 95 %% confidence interval contains the limit or needs a longer run: warn and decide by "
        "the value, pass, or fail (default: warn)",
        choices=("warn", "pass", "fail"),
        private=True,
    ),
    RunOption(
        "--run-dir",
        "directory for the results; must be empty or absent (default: runs/<UTC time>-<scenario>)",
        "DIR",
        private=True,
    ),
    RunOption(
        "--api-key-file",
        f"file with the API key (default: environment variable {API_KEY_VARIABLE}); each worker needs its own",
        "FILE",
        private=True,
    ),
    RunOption(
        "--token-file",
        "file with the token of a run on several machines: only workers with the same token can join, and the connection is "
        "encrypted; the same file for the master and each worker (default: none; with --processes a random token)",
        "FILE",
        private=True,
    ),
    RunOption(
        "--header",
        "additional header of every turn; may be repeated; each worker needs its own",
        "'NAME: VALUE'",
        repeat=True,
        private=True,
    ),
    RunOption(
        "--allow-target",
        "additional server that may receive the API key and the headers; may be repeated (default: only those of --host, "
        "--also-host and --metrics-url, none that is entered in the web UI)",
        "ORIGIN",
        repeat=True,
        private=True,
    ),
    RunOption("--ca-file", "PEM file of trusted certificate authorities", "FILE", private=True),
    RunOption("--client-cert", "PEM file with the certificate that servers ask for, and its key", "FILE", private=True),
    RunOption(
        "--client-key", "PEM file with the key of --client-cert, if it is not in that file", "FILE", private=True
    ),
    RunOption("--insecure", "accept any certificate; every report notes it", switch=True, private=True),
    RunOption("--junit", "write the outcome and the gates as JUnit XML", "FILE", private=True),
    RunOption("--markdown", "write the outcome and the gates as Markdown for a pull request", "FILE", private=True),
    RunOption(
        "--termination-message", "write outcome, gates and reasons for a pod: at most 4 kB", "FILE", private=True
    ),
    RunOption("--github", "print GitHub annotations and write the step summary", switch=True, private=True),
    RunOption(
        "--no-report",
        "skip timeline.csv and the report pages, which take some seconds; inferload report writes them later",
        switch=True,
        private=True,
    ),
    RunOption(
        "--max-turns-mb",
        "limit of the turn records that all workers on other file systems send to the master; beyond it percentiles come from "
        f"sketches; 0: none are sent (default: {DEFAULT_MAX_TURNS_MB})",
        "MB",
        private=True,
    ),
    RunOption(
        "--export-metrics",
        "serve the metrics of the run for Prometheus at http://HOST:PORT/metrics, on the master (default host: 127.0.0.1)",
        "[HOST:]PORT",
        private=True,
    ),
    RunOption(
        "--export-traces",
        "send OpenTelemetry traces of sampled turns to a collector by OTLP/HTTP, and traceparent headers to the server; each "
        "worker needs its own",
        "URL",
        private=True,
    ),
    RunOption(
        "--trace-ratio", "share of turns that are traced, with --export-traces (default: 0.01)", "RATIO", private=True
    ),
    RunOption(
        "--progress-file",
        "append a line of JSON per second of the run: phase, turns started and in flight; for other programs",
        "FILE",
        private=True,
    ),
)


def add_options(parser: Any, flags: Collection[str]) -> None:
    """Add the options of these flags to a parser of argparse."""
    for option in RUN_OPTIONS:
        if option.flag in flags:
            parser.add_argument(option.flag, **option.keywords())


def words(values: Mapping[str, Any]) -> list[str]:
    """Return the command-line words of the options that differ from their defaults. `values`: by option name."""
    result: list[str] = []
    for option in RUN_OPTIONS:
        value = values.get(option.name, option.default)
        if value == option.default:
            continue
        if option.switch:
            result.append(option.flag)
        for each in value if option.repeat else [] if option.switch else [value]:
            result += [option.flag, each]
    return result
