"""`make bench-workloads`: what it costs to say what is asked next. No server; every part is a process of its own.

Held: planning a session takes under 5 % of a core at 1,000 streams; a million sessions need no more memory than ten thousand;
an index of 90,000 conversations in ShareGPT's shape is made in under 20 s and 500 MB.
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

from benchmarks.machine import machine, others_busy
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
_ASKED = 20  # of a million sessions one in so many draws its first turn
PLAN_LIMIT_PERCENT, GROWN_LIMIT_MB, INDEX_LIMIT_S, INDEX_LIMIT_MB = 5.0, 5.0, 20.0, 500.0
WHERE = Path(".cache/bench")


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    turns: int = 1500  # of each scenario
    sessions: int = 1_000_000
    conversations: int = 90_000


@dataclass(frozen=True, slots=True)
class LimitedFigure:
    """One measured figure beside its limit; without one it is told for information."""

    what: str
    value: float
    limit: float | None
    unit: str

    @property
    def holds(self) -> bool:
        """Whether the limit, if any, is kept."""
        return self.limit is None or self.value < self.limit

    def row(self) -> str:
        """A line of the page's table."""
        limit = "" if self.limit is None else f"under {self.limit:g} {self.unit}"
        return f"| {self.what} | {self.value:.3g} {self.unit} | {limit} | {'' if self.holds else 'DOES NOT HOLD'} |"


# -- parts, each in a process of its own


def planning(size: Size) -> dict[str, Any]:
    """Processor time of a turn, by scenario: drawing it, and making its text and body."""
    return {name: _cost(load(name), DataContext(name), size.turns) for name in SCENARIOS}


def _cost(scenario: Scenario, data: DataContext, turns: int) -> dict[str, float]:
    sessions = Sessions(scenario, data)
    sessions.open()
    texts = Texts(approximate(), scenario.seed)
    settings = BodySettings.of(scenario, "model")
    _drawn(sessions, turns)
    planned_s = written_s = 0.0
    done = tokens = index = 0
    while done < turns:
        began_s = time.process_time()
        drawn = outline(sessions.begin(index).script, index, turns - done)
        planned_s += time.process_time() - began_s
        writer = BodyWriter(texts, settings, Isolation("salt", "bench"))
        began_s = time.process_time()
        for turn in drawn:
            writer.body(turn.ask)
        written_s += time.process_time() - began_s
        done, index = done + len(drawn), index + 1
        tokens += sum(turn.ask.output_tokens or 0 for turn in drawn)
    return {"plan_us": planned_s / done * 1e6, "body_us": written_s / done * 1e6, "output_tokens": tokens / done}


def _drawn(sessions: Sessions, turns: int) -> None:
    """Draw the same sessions once before: what is made once in a run, tools and documents say, is made then."""
    done = index = 0
    while done < turns:
        done += len(outline(sessions.begin(index).script, index, turns - done))
        index += 1


def million(size: Size) -> dict[str, Any]:
    """Memory in use while sessions of an open loop begin, some ask, and all are dropped: after 1 % of them and after all."""
    scenario = load("chat-open")
    sessions = Sessions(scenario)
    schedule = schedule_of(scenario, sessions, 2.0)
    seen = []
    began_s = time.process_time()
    for number in range(1, size.sessions + 1):
        arrival = schedule.next()
        assert arrival is not None
        session = sessions.begin(arrival.index)
        if number % _ASKED == 0:
            next(session.script)
        if number in (max(1, size.sessions // 100), size.sessions):
            seen.append(_resident_mb())
    return {"first_mb": seen[0], "last_mb": seen[-1], "us": (time.process_time() - began_s) / size.sessions * 1e6}


def sharegpt(size: Size) -> dict[str, Any]:
    """Index a file that nobody has indexed yet; then open it once more."""
    path = conversations(WHERE / f"sharegpt-{size.conversations}.json", size.conversations)
    scenario = load("chat-sharegpt")
    source = scenario.workload.source.model_dump() | {"path": str(path.resolve())}  # type: ignore[union-attr]
    changed = scenario.changed({"workload": scenario.workload.model_dump() | {"source": source}})
    found: dict[str, Any] = {"file_mb": path.stat().st_size / 1e6}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        for name in ("index", "again"):
            began_s, used_s = time.monotonic(), time.process_time()
            (opened,) = Sessions(changed).open().values()
            found[f"{name}_s"], found[f"{name}_cpu_s"] = time.monotonic() - began_s, time.process_time() - used_s
    found["facts"] = opened.facts()
    found["memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return found


PARTS: Mapping[str, Callable[[Size], dict[str, Any]]] = {"planning": planning, "million": million, "sharegpt": sharegpt}


def conversations(path: Path, count: int) -> Path:
    """A file in ShareGPT's shape, of generated prose: written once, a conversation at a time."""
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = Random(7)
    texts = {
        who: [json.dumps(corpus.message(rng, "travel", rng.randint(*chars))) for _ in range(500)]
        for who, chars in (("human", (30, 900)), ("gpt", (300, 2600)))
    }
    fresh = path.with_suffix(".new")
    with fresh.open("w", encoding="utf-8") as file:
        for number in range(count):
            said = [
                f'{{"from": "{who}", "value": {rng.choice(texts[who])}}}'
                for _ in range(rng.randint(1, 7))
                for who in ("human", "gpt")
            ]
            file.write(f'{"," if number else "["}\n{{"id": "c{number}_0", "conversations": [{", ".join(said)}]}}')
        file.write("\n]\n")
    return fresh.replace(path)


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


# -- what they came to


def figures(found: Mapping[str, Mapping[str, Any]]) -> list[LimitedFigure]:
    """All parts' results as figures."""
    every = []
    for name, cost in found["planning"].items():
        turns_per_s = STREAMS / (cost["output_tokens"] * TOKEN_S)
        every += [
            LimitedFigure(
                f"{name}: planning, {cost['plan_us']:.0f} us a turn",
                cost["plan_us"] * turns_per_s / 1e4,
                PLAN_LIMIT_PERCENT,
                "%",
            ),
            LimitedFigure(
                f"{name}: texts and bodies, {cost['body_us']:.0f} us a turn",
                cost["body_us"] * turns_per_s / 1e4,
                None,
                "%",
            ),
        ]
    lazy, index = found["million"], found["sharegpt"]
    return [
        *every,
        LimitedFigure(
            "memory that a million sessions add to ten thousand",
            max(0.0, lazy["last_mb"] - lazy["first_mb"]),
            GROWN_LIMIT_MB,
            "MB",
        ),
        LimitedFigure("arrival and beginning of one of them", lazy["us"], None, "us"),
        LimitedFigure(
            f"index of a ShareGPT file of {index['file_mb']:.0f} MB, processor time",
            index["index_cpu_s"],
            INDEX_LIMIT_S,
            "s",
        ),
        LimitedFigure("the same, by the clock", index["index_s"], None, "s"),
        LimitedFigure("memory of it", index["memory_mb"], INDEX_LIMIT_MB, "MB"),
        LimitedFigure("opening it once it is indexed", index["again_s"], None, "s"),
    ]


_READ_SO = (
    f"Shares are of one core at {STREAMS:,} streams that are never idle and get a token every {TOKEN_S * 1000:.0f} ms:",
    f"turns per second are then {STREAMS / TOKEN_S:,.0f} over the mean length of an answer. Planning draws sessions, lengths,",
    "pauses and the parts of each request; texts and bodies are the words and their JSON, which grow with the",
    "prompt and have no limit here. Limits are processor time, which other work on the machine increases",
    "(shared cores and caches): with a load average above 1 the figures are upper bounds.",
)


def page(found: Mapping[str, Mapping[str, Any]], about: Mapping[str, str]) -> str:
    """The whole page, Markdown."""
    lines = [
        "# Client cost of workloads",
        "",
        "Generated by `make bench-workloads`, without manual edits.",
        "",
    ]
    lines += [f"* {name}: {value}" for name, value in about.items()]
    lines += [
        "",
        *_READ_SO,
        "",
        "| what | measured | limit | |",
        "|---|---|---|---|",
        *(figure.row() for figure in figures(found)),
        "",
    ]
    return "\n".join(lines)


def measured(part: str, size: Size) -> dict[str, Any]:
    """One part's result, from a process of its own."""
    given = [str(value) for value in (size.turns, size.sessions, size.conversations)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.workloads", "--part", part, "--size", *given],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{part} ended with {done.returncode}:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write; the exit code is 1 where a limit does not hold."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workloads", description=__doc__, allow_abbrev=False)
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page there too")
    parser.add_argument("--part", choices=PARTS, help="measure this part in this process, and print JSON")
    parser.add_argument(
        "--size", nargs=3, type=int, metavar="N", help="turns of each scenario, sessions, conversations"
    )
    given = parser.parse_args(argv)
    size = Size(*given.size) if given.size else Size()
    if given.part:
        print(json.dumps(PARTS[given.part](size)))
        return 0
    about = {**machine(), "load average before": f"{others_busy():.2f}"}
    found = {part: measured(part, size) for part in PARTS}
    about["load average after"] = f"{others_busy():.2f}"
    text = page(found, about)
    print(text)
    if given.write is not None:
        given.write.write_text(text, encoding="utf-8")
    return 0 if all(figure.holds for figure in figures(found)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
