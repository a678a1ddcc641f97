"""Arguments of a search: checked before any load, and stored in plan.json, so that it can be resumed."""

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from inferload.base import rundir
from inferload.base.errors import UsageError
from inferload.base.numbers import seconds_of
from inferload.base.run_options import RUN_OPTIONS, RunOption
from inferload.campaign import named_code
from inferload.campaign.attainment import slo
from inferload.campaign.attainment.bracket import Settings
from inferload.campaign.attainment.slo import Condition
from inferload.figures.limits import gate_grammar
from inferload.results.documents import typed_documents
from inferload.scenario import scenario as scenarios
from inferload.scenario.files import data_files
from inferload.scenario.files.yaml_text import as_yaml
from inferload.scenario.scenario import Scenario
from inferload.scenario.schema.endpoints import ENDPOINTS
from inferload.scenario.schema.fields import secret_header

PLAN = "plan.json"
# Options of a run that the search sets for each point.
_OWN = (
    "run_dir", "no_report", "on_invalid", "on_stop", "gate", "only", "seed", "inconclusive", "progress_file", "set",
    "warmup",
)  # fmt: skip
PASSED_ON = tuple(option for option in RUN_OPTIONS if option.name not in _OWN)
_START_S = 8.0  # estimate of the time of a run beside its phases: processes, preflight, summary
_DRAIN_S = 5.0  # estimate of the drain, which rarely takes until its limit
BUDGET, PRECISION = "30m", 0.15
# Options by the names of the fields.
_CALLED = {"window_s": "--point", "warmup_s": "--warmup", "guess": "--start", "extra": "what stands after --"}
_TIER = re.compile(r"[A-Za-z0-9][\w.-]{0,39}")
_LOOKS = 10  # by default a point takes at most such a part of the budget


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """Arguments of a search, or of a plain sweep (`rates`). `options`: of each run. `tiers`: SLOs by name, `slo` is the first."""

    scenario: str
    host: str
    slo: str
    budget_s: float
    window_s: float
    warmup_s: float
    guess: float
    precision: float
    seed: int
    rates: tuple[float, ...]
    options: dict[str, Any]
    extra: tuple[str, ...]
    scenario_digest: str = ""
    tiers: dict[str, str] = field(default_factory=dict)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return slo.parse(self.slo)

    @property
    def all_slos(self) -> str:
        """The SLO, or each tier with its name."""
        return "; ".join(map(": ".join, self.tiers.items())) or self.slo

    def of_tiers(self, scenario: Scenario) -> tuple[Settings, ...]:
        """Settings of each tier; of the only SLO without tiers."""
        first = self.settings(scenario)
        return tuple(replace(first, conditions=slo.parse(text)) for text in self.tiers.values()) or (first,)

    @property
    def secret_headers(self) -> list[str]:
        """Names of the headers with a key, whose values are not stored."""
        return [_name(header) for header in self.options.get("header", ()) if _secret(header)]

    def settings(self, scenario: Scenario) -> Settings:
        lead_s = self.warmup_s + min(_DRAIN_S, scenario.phases.drain_s) + _START_S
        if scenario.cache.arm == "warm" and not scenario.cache.salt:  # one more pass warms the cache
            lead_s = 2 * lead_s + self.window_s
        return Settings(
            self.conditions,
            self.guess,
            # A sweep has no budget.
            len(self.rates) * (self.window_s + lead_s) if self.rates else self.budget_s,
            self.window_s,
            lead_s,
            self.precision,
            whole=not scenario.open_loop,
            looks=len(self.rates) or None,
        )

    def write(self, folder: Path) -> None:
        """Store the arguments for `--resume`; of a header with a key only the name."""
        headers = self.options.get("header", ())
        plain = [header for header in headers if not _secret(header)]
        options = self.options | ({"header": plain} if headers else {})
        rundir.write_json(folder / PLAN, {**asdict(self), "options": options, "headers_again": self.secret_headers})


def read(folder: Path, headers: Sequence[str] = ()) -> SearchPlan:
    """Read the stored arguments. `headers`: given with --resume, for headers whose values are not stored."""
    if not (folder / PLAN).is_file():
        raise UsageError(f"--resume {folder}: no search was started there")
    plan, again = _stored(folder / PLAN)
    given_names = {_name(header).lower() for header in headers}
    missing = " ".join(f"--header '{name}: ...'" for name in again if name.lower() not in given_names)
    if missing:
        raise UsageError(f"--resume {folder}: keys are not stored; give again {missing}")
    again_names = {name.lower() for name in again}
    values = [header for header in headers if _name(header).lower() in again_names]
    return (
        replace(plan, options=plan.options | {"header": [*plan.options.get("header", ()), *values]}) if values else plan
    )


def _stored(path: Path) -> tuple[SearchPlan, list[str]]:
    """Read the arguments, and the names of headers whose values are not stored; UsageError for values of other types."""
    document = rundir.read_object(path)
    try:
        again = msgspec.convert(document.pop("headers_again", []), list[str])
        plan = msgspec.convert(document, SearchPlan)
        msgspec.convert(plan.options.get("header", []), list[str])
    except msgspec.ValidationError as error:
        raise typed_documents.invalid(path, error) from error
    return plan, again


def _name(header: str) -> str:
    return header.partition(":")[0].strip()


def _secret(header: str) -> bool:
    return secret_header(_name(header))


def resumed(arguments: argparse.Namespace) -> tuple[SearchPlan, Scenario]:
    """Stored arguments with the budget of this command line. UsageError if any other argument differs."""
    folder, stored = arguments.resume, read(arguments.resume, arguments.header)
    scenario = scenarios.load(stored.scenario)
    if stored.scenario_digest not in ("", scenario.digest):
        raise UsageError(f"--resume {folder}: scenario {stored.scenario} has changed; start a new search")
    named_code.check(folder, scenario, stored.scenario, arguments.scenario)
    named_code.check_locust_options(folder, stored.extra, arguments.extra)
    if arguments.into not in (None, folder):
        raise UsageError(f"--resume {folder}: --into {arguments.into} is another folder; leave it out")
    options = _options(arguments, scenario)
    changed = [name for name, value in options.items() if value != getattr(stored, name)]
    names = [_CALLED.get(name, f"--{name}") for name in changed]
    names += [option.flag for option in PASSED_ON if not _as_stored(option, getattr(arguments, option.name), stored)]
    if names:
        raise UsageError(
            f"--resume {folder}: {', '.join(names)} differs from that of the search; "
            "leave it out, or start a new search"
        )
    budget_s = stored.budget_s if arguments.budget is None else seconds_of("--budget", arguments.budget)
    return replace(stored, budget_s=budget_s), scenario


def _as_stored(option: RunOption, value: Any, stored: SearchPlan) -> bool:
    """Return True if an option of a run is absent or equals the stored one. Headers may be a part of the stored ones."""
    before = stored.options.get(option.name, option.default)
    return value in (option.default, before) or (option.name == "header" and set(value) <= set(before))


def _options(arguments: argparse.Namespace, scenario: Scenario) -> dict[str, Any]:
    """Arguments besides --resume on this command line, by field name."""
    options = {name: getattr(arguments, name) for name in ("scenario", "host", "slo", "precision", "seed")}
    options["extra"], options["tiers"] = tuple(arguments.extra) or None, _tiers(arguments) or None
    options["window_s"] = None if arguments.point is None else seconds_of("--point", arguments.point)
    options["warmup_s"] = None if arguments.warmup is None else seconds_of("--warmup", arguments.warmup, 0.0)
    options["guess"] = _load("--start", arguments.start, scenario) if arguments.start else None
    options["rates"] = _rates(arguments.rates, scenario) or None
    return {name: value for name, value in options.items() if value is not None}


def _check_given(arguments: argparse.Namespace) -> None:
    is_virtual = arguments.clock == "virtual"
    if is_virtual and arguments.host:
        raise UsageError(
            "--host: not with --clock virtual: the server is simulated; choose it with --variant or --simulator"
        )
    for name in ("scenario", "slo") if is_virtual else ("scenario", "host", "slo"):
        if not getattr(arguments, name) and not (name == "slo" and arguments.tier):
            raise UsageError(f"search: --{name} is missing; see inferload search --help")


def from_arguments(arguments: argparse.Namespace) -> tuple[SearchPlan, Scenario]:
    """Check the arguments. UsageError names the wrong argument and a valid value."""
    _check_given(arguments)
    scenario, tiers = scenarios.load(arguments.scenario), _tiers(arguments)
    first = next(iter(tiers.values()), arguments.slo)
    conditions = [condition for text in tiers.values() or (first,) for condition in slo.parse(text)]
    budget_s = seconds_of("--budget", arguments.budget or BUDGET)
    window_s = _window_s(arguments.point, scenario, budget_s)
    warmup_s = scenario.phases.warmup_s if arguments.warmup is None else seconds_of("--warmup", arguments.warmup, 0.0)
    scenario.changed({"phases.warmup_s": warmup_s}, "--warmup")  # refused if it cannot be that of a point
    rates = _rates(arguments.rates, scenario)
    precision = PRECISION if arguments.precision is None else arguments.precision
    guess = _load("--start", arguments.start, scenario) if arguments.start else scenario.arrivals.highest_load
    if not 0.01 <= precision <= 1:
        raise UsageError(
            f"--precision {precision:g}: from 0.01 to 1; 0.15: the lowest load that breaks is 15 % above the highest that holds"
        )
    if scenario.cache.arm == "both":
        raise UsageError(
            "scenario: cache.arm is both, but every point needs the same cache state; set it to cold or warm"
        )
    if any(text.partition("=")[0] == "--header" for text in arguments.extra):
        raise UsageError("search: --header after -- would store a key; write it before --")
    for condition in conditions:
        if condition.measure in gate_grammar.OF_STREAMS and not ENDPOINTS[scenario.request.endpoint].streamed:
            raise UsageError(
                f"--slo: {condition.text}: endpoint {scenario.request.endpoint} has no streams; use e2e_ms and failed_ratio"
            )
    if scenario.arrivals.most_in_flight is not None:
        raise UsageError(
            "scenario: arrivals.max_in_flight limits the load on a full server, so that every rate would hold; "
            "set it to null"
        )
    options = {option.name: getattr(arguments, option.name) for option in PASSED_ON}
    seed = scenario.seed if arguments.seed is None else arguments.seed
    if seed < 0:
        raise UsageError(f"--seed {seed}: not a whole number from 0 on")
    plan = SearchPlan(
        *(arguments.scenario, arguments.host or "", first, budget_s, window_s, warmup_s),
        *(guess, precision, seed, rates, options, tuple(arguments.extra)),
        scenario_digest=scenario.digest,
        tiers=tiers,
    )
    if not rates and plan.settings(scenario).look_s > budget_s:
        needed_s = plan.settings(scenario).look_s
        raise UsageError(
            f"--budget {arguments.budget or BUDGET}: one point takes about {needed_s:.0f} s; allow more, or shorten --point"
        )
    return plan, scenario


def _tiers(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the tiers by name; UsageError for a form other than NAME=SLO, a name that is there twice, or a single one."""
    pairs = [text.partition("=") for text in arguments.tier or ()]
    tiers = {name.strip(): text.strip() for name, _, text in pairs}
    for name, _, text in pairs:
        if not _TIER.fullmatch(name.strip()) or not text.strip():
            raise UsageError(f'--tier {name}={text}: write it as NAME=SLO, as --tier "fast=p95(ttft_ms)<500"')
    if len(tiers) < len(pairs):
        raise UsageError("--tier: a name is given twice; name each tier differently")
    if pairs and (arguments.slo or len(pairs) == 1):
        raise UsageError(f"--tier: {'not with --slo' if arguments.slo else 'only one'}; give --slo, or several tiers")
    return tiers


def at(scenario: Scenario, origin: str, plan: SearchPlan, load: float, seed: int) -> str:
    """Text of the scenario at one load: without gates, without a profile, ended by time alone."""
    data = scenario.as_data()
    data["arrivals"] |= scenario.arrivals.at_load(load)
    data["phases"] |= {"warmup_s": plan.warmup_s, "measure_s": plan.window_s, "sessions": None, "turns": None}
    data |= {"gates": [], "seed": seed}
    _absolute(data, origin)
    text = as_yaml(data)
    scenarios.from_text(text, f"{scenario.name} at {load:g}")
    return text


def _absolute(data: Any, origin: str) -> None:
    for key, value in list(data.items()) if isinstance(data, dict) else enumerate(data):
        if key == "path" and isinstance(value, str):
            data[key] = str(data_files.find(value, origin))
        elif isinstance(value, dict | list):
            _absolute(value, origin)


def _window_s(text: str | None, scenario: Scenario, budget_s: float) -> float:
    if text is not None:
        return seconds_of("--point", text)
    own_s = scenario.phases.measure_s or 60.0
    return min(own_s, max(10.0, budget_s / _LOOKS))


def _rates(text: str | None, scenario: Scenario) -> tuple[float, ...]:
    return tuple(_load("--rates", load, scenario) for load in text.split(",")) if text else ()


def _load(option: str, text: str, scenario: Scenario) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UsageError(
            f"{option} {text}: not a number greater than 0; the unit of a load is {scenario.arrivals.unit}"
        )
    if not scenario.open_loop and value != int(value):
        raise UsageError(f"{option} {text}: users are whole numbers")
    return value


def cache_text(scenario: Scenario) -> str:
    """Isolation of the prefix cache between points."""
    cache = scenario.cache
    if cache.isolate == "none":
        return "cache.isolate is none: points share the prefix cache"
    if cache.salt is not None:
        return "cache.salt is set: points share prefixes in the cache"
    how = (
        "no prefix of a point is cached before it"
        if cache.arm == "cold"
        else "each point has a pass that warms the cache"
    )
    return f"{how} (cache.isolate: {cache.isolate}, cache.arm: {cache.arm})"
