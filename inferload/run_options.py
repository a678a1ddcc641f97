"""The options of a run, as data: Locust's command line and start form, and `inferload run`, are all made from this table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

API_KEY_VARIABLE = "OPENAI_API_KEY"
DEFAULT_MAX_TURNS_MB = 1000
KEY_ON_COMMAND_LINE = (
    f"--api-key: a key on a command line is in the process list; use --api-key-file FILE or {API_KEY_VARIABLE}"
)

# Options that no longer exist, with their replacement.
REMOVED_OPTIONS = {
    "--inconclusive-code": "--inconclusive pass|fail, and read gates[].answer in summary.json; a failed gate is exit code 1"
}


@dataclass(frozen=True, slots=True)
class RunOption:
    """One option. `in_form`: it stands in Locust's start form; `private`: it stays in the process it was given to."""

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
        """The attribute under which a parser leaves it."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def default(self) -> Any:
        """What it is where nothing was said: empty, and for a choice the first."""
        if self.switch:
            return False
        return [] if self.repeat else self.choices[0] if self.choices else ""

    def keywords(self) -> dict[str, Any]:
        """Keyword arguments of argparse's `add_argument`."""
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
    RunOption("--model", "model to ask (default: the first that the server lists)", in_form=True),
    RunOption(
        "--also-host",
        "one more server; sessions take --host and these in turn; may be repeated",
        "URL",
        repeat=True,
    ),
    RunOption(
        "--warmup", "load before the measure phase, kept apart from the numbers (default: the scenario's)", "10s"
    ),
    RunOption("--seed", "seed of every random choice (default: the scenario's)", "N", in_form=True),
    RunOption(
        "--metrics-url",
        "the server's Prometheus page; repeat it for several servers (default: /metrics of each host; 'none' for none)",
        "URL",
        repeat=True,
    ),
    RunOption(
        "--only",
        "send one class of a mix alone, its sessions at the times of the mix: for inferload compare --class",
        "CLASS",
    ),
    RunOption(
        "--on-invalid",
        "a measurement that is not valid: exit code 3, or only a warning (default: fail)",
        choices=("fail", "warn"),
    ),
    RunOption(
        "--gate",
        "what the run must hold beside the scenario's gates, else exit code 1; may be repeated: 'p95(ttft_ms) < 900', "
        "'p95(ttft_ms){agent} < 900', 'failed_ratio < 0.01', 'failed_ratio{GET /health} < 0.01', 'max(requests_waiting) < 5', "
        "'mean(kv_cache_usage) < 0.9', 'prefix_cache_hit_rate > 0.5', 'preemptions == 0'",
        "EXPR",
        repeat=True,
    ),
    RunOption(
        "--abort-on",
        "stop the run early, with exit code 1, once this is true of the last seconds, as 'failed_ratio > 0.5 for 5s'; may be "
        "repeated (default: the scenario's abort_on)",
        "CONDITION",
        repeat=True,
    ),
    RunOption(
        "--details", "print all tables at the end of the run instead of the short summary", switch=True, private=True
    ),
    RunOption(
        "--on-stop",
        "a run that Ctrl-C, SIGTERM or SIGHUP ends before its planned end: exit code 130 or 143, or none (default: fail)",
        choices=("fail", "pass"),
    ),
    RunOption(
        "--inconclusive",
        "a gate whose 95 %% interval holds its limit: say so and let the value decide, or pass, or fail (default: warn)",
        choices=("warn", "pass", "fail"),
        private=True,
    ),
    RunOption(
        "--run-dir",
        "where the run's files go; must be empty (default: runs/<UTC time>-<scenario>)",
        "DIR",
        private=True,
    ),
    RunOption(
        "--api-key-file",
        f"file with the API key (default: the environment's {API_KEY_VARIABLE}); each worker needs its own",
        "FILE",
        private=True,
    ),
    RunOption(
        "--header",
        "one more header for every turn; may be repeated; each worker needs its own",
        "'NAME: VALUE'",
        repeat=True,
        private=True,
    ),
    RunOption(
        "--allow-target",
        "one more server that may get the API key and the headers; may be repeated (default: only those that --host, "
        "--also-host and --metrics-url name at the start, and no other that the web UI is given)",
        "ORIGIN",
        repeat=True,
        private=True,
    ),
    RunOption("--ca-file", "authorities to trust, as PEM", "FILE", private=True),
    RunOption("--insecure", "accept any certificate; every report says so", switch=True, private=True),
    RunOption("--junit", "write the outcome and the gates there, as JUnit XML", "FILE", private=True),
    RunOption("--markdown", "write them there, as Markdown for a pull request", "FILE", private=True),
    RunOption("--github", "annotations for GitHub, and its step summary", switch=True, private=True),
    RunOption(
        "--no-report",
        "leave out timeline.csv and the pages, which take some seconds: inferload report makes them later",
        switch=True,
        private=True,
    ),
    RunOption(
        "--max-turns-mb",
        "turn records that workers on other file systems may send to the master, all together; beyond it percentiles come from "
        f"sketches; 0: none are sent (default: {DEFAULT_MAX_TURNS_MB})",
        "MB",
        private=True,
    ),
    RunOption(
        "--progress-file",
        "a line of JSON for each second of the run is added there: phase, turns begun and in flight; for other programs",
        "FILE",
        private=True,
    ),
)


def words(values: Mapping[str, Any]) -> list[str]:
    """Command-line words of options that differ from their defaults, from values by option name."""
    found: list[str] = []
    for option in RUN_OPTIONS:
        value = values.get(option.name, option.default)
        if value == option.default:
            continue
        if option.switch:
            found.append(option.flag)
        for each in value if option.repeat else [] if option.switch else [value]:
            found += [option.flag, each]
    return found
