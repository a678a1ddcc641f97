"""Comparability of two sides: differences in workload, client, token counts and validity; server starts that runs share.

Sides of one name are told apart by what differs.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from string import ascii_uppercase

from inferload.base.numbers import listed, number, plural, short
from inferload.figures.pages.metric_names import PROCESS_START
from inferload.scenario.schema.endpoints import OF_TEXTS, names_of
from inferload.scenario.schema.tasks import REACTING

from ..data import changes
from ..data.figures import SLO_FIGURES
from ..interop.clients import OUR_EXPORT
from ..interop.published import ONE_FIGURE
from .plausible import in_flight
from .read_sides import PROGRAM, UNREADABLE, path_label, reacts
from .sides import Run, Side, complete_mean

_LENGTH_TOLERANCE = 0.02  # relative difference of mean token counts

OURS = "inferload"

# Properties of the server and the client that all runs of a side share.
_SHARED = ("client", "clock", "only class", "model", "engine", "inferload")
_OF_A_START = ("machine", "target")  # may differ between the runs of a side
ARGUMENTS = "server arguments"
CACHE_ARM = "cache arm"
SEPARATOR = "; "
NOT_SET = "not set"
_ADDRESS = ("--host", "--port")
_LONGEST_LABEL = 24  # of a side, in headlines and tables
_WORD = re.compile(r"(?![\dTZ]+(?![^\W_]))[^\W_]+")  # of a name; dates and numbers alone name nothing
_FORCED_LENGTH = "request.ignore_eos"


@dataclass(frozen=True, slots=True)
class Differences:
    """Differences between two sides. `refusals` prevent a comparison; `compared`: differences of the servers under test.

    `slo`: prevents a comparison of figures that depend on the SLO; also in `warnings`. Empty with equal SLOs.
    `of_one_load`: the sides differ in validity at most, so that turns not served are comparable if those of each run are known.
    """

    refusals: tuple[str, ...]
    warnings: tuple[str, ...]
    compared: tuple[str, ...]
    slo: str = ""
    of_one_load: bool = True

    def reasons(self, name: str) -> tuple[str, ...]:
        """Return the reasons against a comparison of a figure; empty if it is comparable."""
        return (*self.refusals, self.slo) if self.slo and name in SLO_FIGURES else self.refusals


def differences(baseline: Side, candidate: Side, allowed: Collection[str] = ()) -> Differences:
    """Compare the settings of two sides, a line per key. `allowed`: keys of the scenario that may differ."""
    warnings = [*_suspects(baseline), *_suspects(candidate)]
    refusals: list[str] = []
    compared: list[str] = []
    for side in (baseline, candidate):
        refusals += _not_valid(side) + _differing(side)
        if PROGRAM not in allowed and (unknown := _without_program(side)):
            refusals.append(unknown)
    first, second = baseline.runs[0], candidate.runs[0]
    clients = first.server.get("client", OURS), second.server.get("client", OURS)
    if clients[0] != clients[1]:
        same_clock = set(clients) == {OURS, OUR_EXPORT}
        reason = "definitions differ" if same_clock else "clocks and definitions differ"
        remedy = "; compare the run directories" if OUR_EXPORT in clients else ""
        refusals.insert(0, f"client: {clients[0]} against {clients[1]}: {reason}{remedy}")
    if different := different_clocks(baseline, candidate):
        refusals.insert(0, different)
    pairs = {
        key: (first.settings.get(key), second.settings.get(key))
        for key in (() if clients[0] != clients[1] else sorted(_keys(baseline) | _keys(candidate)))
    }
    # Keys of one side alone follow from others, such as the kind of the workload.
    for key, (before, after) in sorted(pairs.items(), key=lambda item: None in item[1]):
        if before != after:
            line = f"{key}: {value_text(before)} against {value_text(after)}"
            (compared if key in allowed else refusals).append(line)
    warnings += _lengths(baseline, candidate) + _in_flight(baseline, candidate)
    references = baseline.canary_references, candidate.canary_references
    if all(references) and references[0] != references[1]:
        warnings.append("the answers to the canary prompts without load differ between the sides")
    for key, names in _of_servers(first, second).items():
        if key == "variant" and names == (baseline.label, candidate.label):
            continue  # as the sides are called
        others = key == "model" and len({name.rpartition("/")[2].casefold() for name in names}) > 1
        remark = "; answers of different models, whose quality is not compared" if others else ""
        compared.append(f"{key}: {' against '.join(names)}{remark}")
    if clients[0] == clients[1] and first.server.get("machine") != second.server.get("machine"):
        warnings.append("the load generators ran on different machines: their delays may contribute to the difference")
    notes = dict.fromkeys(note for side in (baseline, candidate) for run in side.runs for note in run.notes)
    slo = _slo(baseline, candidate)
    return Differences(
        refusals=tuple(refusals),
        warnings=(*([slo] if slo else []), *warnings, *notes),
        compared=tuple(compared),
        slo=slo,
        of_one_load=len(refusals) == len(_not_valid(baseline) + _not_valid(candidate)),
    )


def _not_valid(side: Side) -> list[str]:
    if any(run.level != "invalid" for run in side.runs):
        return []
    reasons = [(run.label, "; ".join(run.reasons) or "no reason recorded") for run in side.runs]
    return [f"{_of(side, label)} is not a valid measurement ({reason})" for label, reason in reasons]


def _of(side: Side, run: str) -> str:
    return side.label if run == side.label else f"{side.label}: run {run}"


def _differing(side: Side) -> list[str]:
    """Return a line for each setting, and each property of `configuration`, in which the runs of a side differ."""
    one = "; name one result as FILE:N" if any(":" in run.label for run in side.runs) else ""
    lines = [
        f"{key}: {', '.join(values)}{one}"
        for key in sorted(_keys(side))
        if len(values := sorted({value_text(run.settings.get(key)) for run in side.runs})) > 1
    ]
    by_run = [configuration(run) for run in side.runs]
    lines += [
        f"{key}: {', '.join(differing_values(key, values))}"
        for key in by_run[0]
        if len(values := sorted({properties[key] for properties in by_run})) > 1
    ]
    return [f"{side.label}: its runs differ in {line}" for line in lines]


def different_clocks(baseline: Side, candidate: Side) -> str:
    """Return why a rehearsal and a measurement are not compared; empty if both sides are one of these."""
    clocks = [side.runs[0].server.get("clock", "real") for side in (baseline, candidate)]
    reason = "a rehearsal is no measurement; compare runs of one clock"
    return "" if clocks[0] == clocks[1] else f"clock: {clocks[0]} against {clocks[1]}: {reason}"


def _slo(baseline: Side, candidate: Side) -> str:
    """Return the difference of the SLOs; empty if they are equal."""
    before, after = (slo_text(side.runs[0].slo) for side in (baseline, candidate))
    if before == after:
        return ""
    return f"slo: {before} against {after}: goodput, attainment and cost of good turns are not comparable"


def configuration(run: Run) -> dict[str, str]:
    """Return the properties of server, client and SLO that the runs of a side share, without those of a single start, as text."""
    variant = run.server.get("variant")
    argv = variant.get("argv") if isinstance(variant, Mapping) else None
    return {
        **{key: value_text(run.server.get(key)) for key in _SHARED},
        "variant": value_text(variant.get("name") if isinstance(variant, Mapping) else variant),
        ARGUMENTS: SEPARATOR.join(_server_arguments(argv or ())),
        CACHE_ARM: run.arm,
        "slo": slo_text(run.slo),
    }


def _of_servers(first: Run, second: Run) -> dict[str, tuple[str, str]]:
    """Return the properties of server and client that differ between two runs, in the order of their names."""
    properties = [
        {**configuration(run), **{key: value_text(run.server.get(key)) for key in _OF_A_START}}
        for run in (first, second)
    ]
    keys = sorted(properties[0].keys() - {"client", "clock", "slo"})
    pairs = {key: differing_values(key, [run[key] for run in properties]) for key in keys}
    return {key: (before, after) for key, (before, after) in pairs.items() if before != after}


def differing_values(key: str, values: Sequence[str]) -> list[str]:
    """Return values of a property of `configuration`; of server arguments only those that are not common to all values."""
    if key != ARGUMENTS:
        return list(values)
    parts = [value.split(SEPARATOR) for value in values]
    common = set(parts[0]).intersection(*parts)
    return [SEPARATOR.join(part for part in value if part not in common) or NOT_SET for value in parts]


def slo_text(slo: Mapping[str, float]) -> str:
    return ", ".join(f"{measure} {limit:g}" for measure, limit in sorted(slo.items())) or "none"


def _server_arguments(argv: Sequence[str]) -> list[str]:
    """Return the options of a server's command line with their values, without program and address."""
    options: list[str] = []
    for word in map(str, argv[1:]):
        if word.startswith("-") or not options:
            options.append(word)
        else:
            options[-1] += f" {word}"
    return sorted(option for option in options if re.split("[ =]", option)[0] not in _ADDRESS)


def _without_program(side: Side) -> str:
    """Return a line if runs whose turns depend on Python code lack a record of it; empty if none does."""
    programs = [(run, run.settings.get(PROGRAM)) for run in side.runs]
    unknown = [
        run.label
        for run, program in programs
        if (program is None and reacts(run.settings)) or str(program).endswith(f"({UNREADABLE})")
    ]
    if not unknown:
        return ""
    return (
        f"{side.label}: {PROGRAM}: not recorded for {', '.join(unknown)}, so it is not known that the runs sent the same; "
        f"make them again, or accept it with --allow {PROGRAM}"
    )


def _suspects(side: Side) -> list[str]:
    """Return one line for all suspect runs of a side, since runs on one machine mostly have the same reasons."""
    suspect = [run for run in side.runs if run.level == "suspect"]
    if not suspect:
        return []
    first, reasons, runs = suspect[0].label, "; ".join(suspect[0].reasons), ", ".join(run.label for run in suspect)
    if len(suspect) == 1:
        return [f"{_of(side, first)} is suspect ({reasons})"]
    return [f"{side.label}: {len(suspect)} of {len(side.runs)} runs are suspect: {runs} (of {first}: {reasons})"]


def _keys(side: Side) -> set[str]:
    return {key for run in side.runs for key in run.settings}


def _lengths(baseline: Side, candidate: Side) -> list[str]:
    """Return differences in mean token counts: shorter outputs look like a faster server."""
    lines = []
    for name, texts in (("output_tokens", "outputs"), ("input_tokens", "prompts")):
        # A sum of 0 is a count that was not reported.
        before, after = (complete_mean([getattr(run, name) for run in side.runs]) for side in (baseline, candidate))
        if texts == "outputs" and all(run.settings.get("request.endpoint") in OF_TEXTS for run in baseline.runs):
            continue
        if not before or not after:
            lines.append(f"the length of {texts} is not known on both sides: it may explain the difference")
        elif abs(after / before - 1) > _LENGTH_TOLERANCE:
            lines.append(
                f"the candidate's {texts} are {changes.in_words(after / before, 'longer', 'shorter', 'long')} "
                f"({short(after)} against {short(before)} tokens): turn rates and E2E are of different work"
                + (_forced(baseline, candidate) if name == "output_tokens" else "")
            )
    return lines


def _in_flight(baseline: Side, candidate: Side) -> list[str]:
    """Return the turns in flight of published figures without a limit on concurrency, which a reader can check them by."""
    counts = [
        f"{number(turns)} ({side.label})"
        for side in (baseline, candidate)
        for run in side.runs
        if run.concurrency is None and ONE_FIGURE in run.notes and (turns := in_flight(run.figures)) is not None
    ]
    stated = "not checked, as no limit on concurrency is stated (--concurrency N)"
    return [f"Little's law: turns/s x E2E are {listed(counts)} turns in flight; {stated}"] if counts else []


def _forced(baseline: Side, candidate: Side) -> str:
    """Return the advice on different lengths of outputs; empty if the lengths cannot be forced, or nothing is known of them."""
    settings = [run.settings for side in (baseline, candidate) for run in side.runs]
    options = {of_run.get(_FORCED_LENGTH) for of_run in settings}
    if options == {True}:
        return f", although {_FORCED_LENGTH} is on: the runs ended other turns, or a server ended outputs early"
    endpoints = names_of(lambda row: row.ignore_eos)
    possible = all(
        each.get("request.endpoint") in endpoints and each.get("workload.kind") not in REACTING for each in settings
    )
    return f"; fix the lengths ({_FORCED_LENGTH}: true)" if False in options and possible else ""


def value_text(value: object) -> str:
    if isinstance(value, Mapping):
        return str(value.get("name") or dict(value))
    return NOT_SET if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition of a verdict: runs share server starts. `holds_for`: these starts; `reason`: the sides and their starts."""

    holds_for: str
    reason: str


def shared_starts(sides: Sequence[Side], noun: str = "run") -> Condition | None:
    """Return the condition of a verdict on runs that share server starts; None if each had its own. `noun`: of a run of a side."""
    reasons = []
    for side in sides:
        starts = [run.start for run in side.runs]
        known = {start for start in starts if start is not None}
        if len(side.runs) > 1 and (None in starts or len(known) < len(side.runs)):
            which = "unknown server starts" if None in starts else plural(len(known), "server start")
            reasons.append(f"{side.label} has {plural(len(side.runs), noun)} on {which}")
    if not reasons:
        return None
    starts_of_all = {run.start for side in sides for run in side.runs}
    several = len(starts_of_all)
    holds_for = {1: "this server start", 2: "these two server starts"}.get(several, f"these {several} server starts")
    if None in starts_of_all:
        holds_for = f"the server starts of these {noun}s, which are not known (no {PROCESS_START})"
    return Condition(holds_for, f"{'; '.join(reasons)}: a restart alone may change the figures")


def distinct(sides: Sequence[Side]) -> list[Side]:
    """Return the sides; those of one label get what differs between them: properties of the servers, else paths or numbers."""
    labels = [side.label for side in sides]
    named = list(sides)
    for label in dict.fromkeys(labels):
        alike = [index for index, other in enumerate(labels) if other == label]
        others = {other for other in labels if other != label}
        if len(alike) > 1:
            new = next(
                found
                for found in _suffixed(label, [sides[index] for index in alike])
                if len({*found}) == len(found) and not others & {*found}
            )
            for index, text in zip(alike, new, strict=True):
                named[index] = replace(sides[index], label=text)
    return named


def shortened(sides: Sequence[Side]) -> list[Side]:
    """Return the sides, those with long names of files under short labels: the words in which the names differ, else letters."""
    long = [side for side in sides if len(side.label) > _LONGEST_LABEL and _is_of_file(side)]
    kept = {side.label.casefold() for side in sides if side not in long}
    words = {side.label: _WORD.findall(side.label) for side in sides}
    common = set.intersection(*map(set, words.values()))
    own = ["-".join(word for word in words[side.label] if word not in common) for side in long]
    letters = [letter for letter, side in zip(ascii_uppercase, sides, strict=False) if side in long]
    for labels in (own, letters):
        are_distinct = len({label.casefold() for label in labels} - kept) == len(long)
        if are_distinct and all(0 < len(label) <= _LONGEST_LABEL for label in labels):
            new = dict(zip((side.label for side in long), labels, strict=True))
            return [_relabelled(side, new[side.label]) if side.label in new else side for side in sides]
    return list(sides)


def _is_of_file(side: Side) -> bool:
    """Return True if the label of a side is made of the name of its directory or file."""
    names = (path_label(side.path), side.path.stem, str(side.path))
    return any(name and side.label.startswith(name) for name in names)


def _relabelled(side: Side, label: str) -> Side:
    """Return the side under another label, which is also that of its run if this is the side."""
    renamed, run = replace(side, label=label, name=side.label), side.runs[0]
    if len(side.runs) > 1 or not side.label.startswith(run.label):
        return renamed
    notes = tuple(note.replace(run.label, label, 1) for note in run.notes)
    return replace(renamed, runs=(replace(run, label=label, notes=notes),))


def _suffixed(label: str, sides: Sequence[Side]) -> Iterator[list[str]]:
    """Yield labels in the order of preference; one of them is distinct."""
    properties = [configuration(side.runs[0]) for side in sides]
    differing = [key for key in properties[0] if len({of_side[key] for of_side in properties}) > 1]
    columns = [_described(key, [of_side[key] for of_side in properties]) for key in differing]
    if columns:
        yield [f"{label} ({', '.join(texts)})" for texts in zip(*columns, strict=True)]
    yield [str(side.path) for side in sides]
    for start in count(1, len(sides)):
        yield [f"{label} ({start + index})" for index in range(len(sides))]


def _described(key: str, values: Sequence[str]) -> list[str]:
    if key != ARGUMENTS:
        return [f"{key} {value}" for value in values]
    shown = differing_values(key, values)
    options = dict.fromkeys(option for value in shown if value != NOT_SET for option in value.split(SEPARATOR))
    return [f"without {', '.join(options)}" if value == NOT_SET else value for value in shown]
