"""`make bench-workloads`: client cost of workloads. No server; each part runs in a separate process.

Limits: planning uses less than 5 % of a core at 1,000 streams; a million sessions need no more memory than ten thousand; the
index of a ShareGPT file with 90,000 conversations is built in less than 20 s and 500 MB.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.machine import load_average, machine
from inferload.content.data import DataContext
from inferload.content.prompts import approximate
from inferload.content.script import outline
from inferload.requests.bodies import BodySettings, BodyWriter, Isolation, Texts
from inferload.scenario.scenario import Scenario, load
from inferload.workload.schedules import schedule_of
from inferload.workload.sessions import Sessions
from inferload.workload.sources import corpus

SCENARIOS = ("chat", "rag", "agent-static", "agent-tools", "agent-subagents", "mixed", "replay-mooncake")
STREAMS, TOKEN_S = 1000, 0.02
_FIRST_TURN_EVERY = 20  # sessions of the million; the others draw no turn
PLAN_LIMIT_PERCENT, GROWN_LIMIT_MB, INDEX_LIMIT_S, INDEX_LIMIT_MB = 5.0, 5.0, 20.0, 500.0
FOLDER = Path(".cache/bench")


@dataclass(frozen=True, slots=True)
class WorkloadSize:
    """Size of the measurements."""

    turns: int = 1500  # per scenario
    sessions: int = 1_000_000
    conversations: int = 90_000


@dataclass(frozen=True, slots=True)
class LimitedResult:
    """Measured value with its limit; None: no limit."""

    name: str
    value: float
    limit: float | None
    unit: str

    @property
    def holds(self) -> bool:
        """True if the value is below the limit, or without a limit."""
        return self.limit is None or self.value < self.limit

    def row(self) -> str:
        """Return the row of the table."""
        limit = "" if self.limit is None else f"under {self.limit:g} {self.unit}"
        return f"| {self.name} | {self.value:.3g} {self.unit} | {limit} | {'' if self.holds else 'EXCEEDED'} |"


# -- parts, each in a separate process


def planning(size: WorkloadSize) -> dict[str, Any]:
    """Measure the CPU time per turn by scenario: planning, and text and body."""
    return {name: _cost(load(name), DataContext(name), size.turns) for name in SCENARIOS}


def _cost(scenario: Scenario, data: DataContext, turns: int) -> dict[str, float]:
    sessions = Sessions(scenario, data)
    sessions.open()
    texts = Texts(approximate(), scenario.seed)
    settings = BodySettings.of(scenario, "model")
    _drawn(sessions, turns)
    planned_s = written_s = 0.0
    turns_done = tokens = index = 0
    while turns_done < turns:
        start_s = time.process_time()
        planned = outline(sessions.begin(index).script, index, turns - turns_done)
        planned_s += time.process_time() - start_s
        writer = BodyWriter(texts, settings, Isolation("salt", "bench"))
        start_s = time.process_time()
        for turn in planned:
            writer.body(turn.ask)
        written_s += time.process_time() - start_s
        turns_done, index = turns_done + len(planned), index + 1
        tokens += sum(turn.ask.output_tokens or 0 for turn in planned)
    return {
        "plan_us": planned_s / turns_done * 1e6,
        "body_us": written_s / turns_done * 1e6,
        "output_tokens": tokens / turns_done,
    }


def _drawn(sessions: Sessions, turns: int) -> None:
    """Warm up: draw the same sessions once, which creates tools and documents of the run."""
    done = index = 0
    while done < turns:
        done += len(outline(sessions.begin(index).script, index, turns - done))
        index += 1


def million(size: WorkloadSize) -> dict[str, Any]:
    """Measure the memory after 1 % and after all sessions of an open loop; some draw a turn, all are dropped."""
    scenario = load("chat-open")
    sessions = Sessions(scenario)
    schedule = schedule_of(scenario, sessions, 2.0)
    memory_mb = []
    start_s = time.process_time()
    for number in range(1, size.sessions + 1):
        arrival = schedule.next()
        assert arrival is not None
        session = sessions.begin(arrival.index)
        if number % _FIRST_TURN_EVERY == 0:
            next(session.script)
        if number in (max(1, size.sessions // 100), size.sessions):
            memory_mb.append(_resident_mb())
    return {
        "first_mb": memory_mb[0],
        "last_mb": memory_mb[-1],
        "us": (time.process_time() - start_s) / size.sessions * 1e6,
    }


def sharegpt(size: WorkloadSize) -> dict[str, Any]:
    """Index a new file, then open it again."""
    path = conversations(FOLDER / f"sharegpt-{size.conversations}.json", size.conversations)
    scenario = load("chat-sharegpt")
    source = scenario.workload.source.model_dump() | {"path": str(path.resolve())}  # type: ignore[union-attr]
    changed = scenario.changed({"workload": scenario.workload.model_dump() | {"source": source}})
    result: dict[str, Any] = {"file_mb": path.stat().st_size / 1e6}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for name in ("index", "again"):
            start_s, start_cpu_s = time.monotonic(), time.process_time()
            (opened,) = Sessions(changed).open().values()
            result[f"{name}_s"], result[f"{name}_cpu_s"] = time.monotonic() - start_s, time.process_time() - start_cpu_s
    result["facts"] = opened.facts()
    result["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return result


PARTS: Mapping[str, Callable[[WorkloadSize], dict[str, Any]]] = {
    "planning": planning,
    "million": million,
    "sharegpt": sharegpt,
}


def conversations(path: Path, count: int) -> Path:
    """Write a file of generated prose in the ShareGPT format, unless it exists."""
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    random = Random(7)
    texts = {
        speaker: [json.dumps(corpus.message(random, "travel", random.randint(*chars))) for _ in range(500)]
        for speaker, chars in (("human", (30, 900)), ("gpt", (300, 2600)))
    }
    part_file = path.with_suffix(".new")
    with part_file.open("w", encoding="utf-8") as file:
        for number in range(count):
            messages = [
                f'{{"from": "{speaker}", "value": {random.choice(texts[speaker])}}}'
                for _ in range(random.randint(1, 7))
                for speaker in ("human", "gpt")
            ]
            file.write(f'{"," if number else "["}\n{{"id": "c{number}_0", "conversations": [{", ".join(messages)}]}}')
        file.write("\n]\n")
    return part_file.replace(path)


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


# -- results


def figures(results: Mapping[str, Mapping[str, Any]]) -> list[LimitedResult]:
    """Return the values and limits of all parts."""
    costs = []
    for name, cost in results["planning"].items():
        turns_per_s = STREAMS / (cost["output_tokens"] * TOKEN_S)
        costs += [
            LimitedResult(
                f"{name}: planning, {cost['plan_us']:.0f} us per turn",
                cost["plan_us"] * turns_per_s / 1e4,
                PLAN_LIMIT_PERCENT,
                "%",
            ),
            LimitedResult(
                f"{name}: texts and bodies, {cost['body_us']:.0f} us per turn",
                cost["body_us"] * turns_per_s / 1e4,
                None,
                "%",
            ),
        ]
    sessions, index = results["million"], results["sharegpt"]
    return [
        *costs,
        LimitedResult(
            "additional memory of a million sessions over ten thousand",
            max(0.0, sessions["last_mb"] - sessions["first_mb"]),
            GROWN_LIMIT_MB,
            "MB",
        ),
        LimitedResult("arrival and start of a session", sessions["us"], None, "us"),
        LimitedResult(
            f"index of a ShareGPT file of {index['file_mb']:.0f} MB, CPU time",
            index["index_cpu_s"],
            INDEX_LIMIT_S,
            "s",
        ),
        LimitedResult("index, wall time", index["index_s"], None, "s"),
        LimitedResult("index, peak memory", index["memory_mb"], INDEX_LIMIT_MB, "MB"),
        LimitedResult("opening the indexed file", index["again_s"], None, "s"),
    ]


_EXPLANATION = (
    f"Shares are of one core at {STREAMS:,} busy streams with a token every {TOKEN_S * 1000:.0f} ms, that is,",
    f"{STREAMS / TOKEN_S:,.0f} / (mean answer length) turns/s. Planning draws sessions, lengths, pauses and the parts of each",
    "request. Texts and bodies are the words and their JSON, which grow with the prompt and have no limit here.",
    "Limits apply to CPU time, which other work on the machine increases (shared cores and caches): with a load",
    "average above 1 the values are upper bounds.",
)


def page(results: Mapping[str, Mapping[str, Any]], about: Mapping[str, str]) -> str:
    """Return the page as Markdown."""
    lines = [
        "# Client cost of workloads",
        "",
        "Generated by `make bench-workloads`, without manual edits.",
        "",
    ]
    lines += [f"* {name}: {value}" for name, value in about.items()]
    lines += [
        "",
        *_EXPLANATION,
        "",
        "| measurement | value | limit | |",
        "|---|---|---|---|",
        *(figure.row() for figure in figures(results)),
        "",
    ]
    return "\n".join(lines)


def measured(part: str, size: WorkloadSize) -> dict[str, Any]:
    """Measure a part in a separate process."""
    sizes = [str(value) for value in (size.turns, size.sessions, size.conversations)]
    process = subprocess.run(
        [sys.executable, "-m", "benchmarks.workloads", "--part", part, "--size", *sizes],
        check=False,
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise SystemExit(f"{part} ended with {process.returncode}:\n{process.stderr}")
    result: dict[str, Any] = json.loads(process.stdout)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print and write. Return exit code 1 if a limit is exceeded."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workloads", description=__doc__, allow_abbrev=False)
    parser.add_argument("--write", type=Path, metavar="FILE", help="also write the page to this file")
    parser.add_argument("--part", choices=PARTS, help="measure this part in this process and print JSON")
    parser.add_argument("--size", nargs=3, type=int, metavar="N", help="turns per scenario, sessions, conversations")
    arguments = parser.parse_args(argv)
    size = WorkloadSize(*arguments.size) if arguments.size else WorkloadSize()
    if arguments.part:
        print(json.dumps(PARTS[arguments.part](size)))
        return 0
    about = {**machine(), "load average before": f"{load_average():.2f}"}
    results = {part: measured(part, size) for part in PARTS}
    about["load average after"] = f"{load_average():.2f}"
    text = page(results, about)
    print(text)
    if arguments.write is not None:
        arguments.write.write_text(text, encoding="utf-8")
    return 0 if all(figure.holds for figure in figures(results)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
