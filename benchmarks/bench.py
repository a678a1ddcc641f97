"""`make bench-client`: run each client against the paced server, and tabulate the reported results.

The first word selects another benchmark: arrivals, workers, start, compare, or peers, which installs the other load generators.
"""

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from itertools import islice, product
from pathlib import Path

from benchmarks import table
from benchmarks.cases import CASES, SIZES, Case
from benchmarks.clients import CLIENTS, OWN, PEERS, BenchClient, Load
from benchmarks.machine import load_average, machine
from benchmarks.reported import BenchRow, marks
from benchmarks.server import PROGRAMS, Certificate, PacedServer, ServerError, make_certificate
from benchmarks.watched import on_cores, run_watched

_OTHERS = {
    "arrivals": "benchmarks.arrivals",
    "compare": "benchmarks.false_alarms",
    "peers": "benchmarks.install_peers",
    "start": "benchmarks.short_runs",
    "workers": "benchmarks.workers",
}
_START_S = 90.0  # time limit for start, preparation and report of a client
_USUAL_START_S = 10.0  # their usual duration
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TIME_FACTOR = 6.0  # time limit of the turns, as a multiple of their nominal duration

_END = "<|endoftext|>"
_UNKNOWN = "[UNK]"
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"

Run = tuple[Case, BenchClient, int]  # and the number of streams


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """Settings of all rows of a round. `keep`: folder for the result files of the clients; None: deleted."""

    client_core: int
    server_core: int
    tokenizer: Path
    certificate: Certificate | None
    keep: Path | None


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark; return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] and words[0] in _OTHERS:
        code: int = import_module(_OTHERS[words[0]]).main(words[1:])
        return code
    return client_round(words[1:] if words[:1] == ["client"] else words)


def client_round(argv: Sequence[str]) -> int:
    """Run the clients. Return exit code 1 if a row of inferload or the C reader has no results."""
    arguments = _parser().parse_args(argv)
    cases = [CASES[name] for name in arguments.cases]
    runs, absent = _plan(cases, arguments)
    print(_duration(runs), file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        shared = Path(folder)
        certificate = make_certificate(shared) if any(case.tls for case in cases) else None
        tokenizer = make_tokenizer(shared / "tokenizer")
        settings = RoundSettings(arguments.client_core, arguments.server_core, tokenizer, certificate, arguments.keep)
        about = {**machine(), "load average before": f"{load_average():.2f}"}
        rows = [_row(settings, *run, f"{at} of {len(runs)}") for at, run in enumerate(runs, 1)]
    about["load average after"] = f"{load_average():.2f}"
    text = table.page(rows, absent, about, "make bench-client")
    print(text)
    document = {"about": about, "absent": absent, "rows": [asdict(row) for row in rows]}
    for file, content in ((arguments.json, json.dumps(document, indent=1) + "\n"), (arguments.write, text)):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
    own = {client.name for client in OWN.values()}
    return 1 if any(row.error and row.client in own for row in rows) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--cases", nargs="+", choices=list(CASES), default=list(CASES), metavar="CASE", help="cases (all): %(choices)s")
    add("--sizes", nargs="+", type=int, default=list(SIZES), metavar="N", help="numbers of streams (%(default)s)")
    add("--clients", nargs="+", choices=list(CLIENTS), default=list(CLIENTS), metavar="CLIENT")
    add("--everywhere", nargs="*", choices=list(PEERS), default=["vllm-rs"], metavar="PEER",
        help="peers that run in all cases; others run in the first case for each number of cores (%(default)s)")  # fmt: skip
    add("--client-core", type=int, default=0, metavar="CORE", help="core of the client (%(default)s)")
    add("--server-core", type=int, default=1, metavar="CORE", help="core of the server (%(default)s)")
    add("--write", type=Path, metavar="FILE", help="also write the page to this file")
    json_file = PROGRAMS / "results.json"
    add("--json", type=Path, default=json_file, metavar="FILE", help="file for all results (%(default)s)")
    add("--keep", type=Path, metavar="DIR", help="keep the result files of the clients in this folder")
    return parser


def _plan(cases: Sequence[Case], arguments: argparse.Namespace) -> tuple[list[Run], dict[str, str]]:
    """Return the runs in their order, and the reason for each client that has none, or none in some cases."""
    absent = {PEERS[name].name: "not requested (--clients)" for name in PEERS if name not in arguments.clients}
    runs: list[Run] = []
    left_out: dict[tuple[str, str], list[str]] = {}
    first = {case.client_cores: case for case in reversed(cases)}
    for case, name in product(cases, arguments.clients):
        client = CLIENTS[name]
        everywhere = name not in PEERS or name in arguments.everywhere
        if missing := client.missing():
            absent[client.name] = missing
        elif not everywhere and case is not first[case.client_cores]:
            left_out.setdefault((client.name, "not requested (--everywhere)"), []).append(case.name)
        elif unable := client.unable(case):
            left_out.setdefault((client.name, unable), []).append(case.name)
        else:
            runs += [(case, client, size) for size in case.sizes(tuple(arguments.sizes))]
    named = {f"{client}, in {', '.join(names)}": reason for (client, reason), names in left_out.items()}
    return runs, absent | named


def _duration(runs: Sequence[Run]) -> str:
    """Return the number of runs, and their duration if every client keeps up."""
    seconds = sum(_USUAL_START_S + case.turns_of(streams) * case.turn_s for case, _, streams in runs)
    return f"{len(runs)} runs, about {seconds / 60:.0f} min; clients that do not keep up take longer"


def _row(settings: RoundSettings, case: Case, client: BenchClient, streams: int, progress: str) -> BenchRow:
    """Start a server, run the client, read the results of both, and print them. A failure becomes the error of the row."""
    certificate = settings.certificate if case.tls else None
    with tempfile.TemporaryDirectory(prefix="bench-run-") as folder:
        work = Path(folder)
        row = BenchRow(case.name, client.name, client.version(), streams)
        try:
            with PacedServer(case, settings.server_core, certificate) as server:
                load = Load(case, server.url, server.port, streams, work, settings.tokenizer, certificate)
                row = _run(settings, row, client, load, server)
        except ServerError as error:
            row = replace(row, error=str(error))
        if settings.keep is not None:
            kept = settings.keep / f"{case.name}-{streams}-{client.name.replace(' ', '_')}"
            shutil.copytree(work, kept, dirs_exist_ok=True)
    text, reported = row.error or "", row.reported
    if reported and not text:
        text = f"TTFT mean {reported.ttft_mean_ms} p99 {reported.ttft_p99_ms}, ITL p99 {reported.itl_p99_ms}"
    line = f"{progress}: {case.name}, {streams} streams, {client.name}: {text} {'; '.join(marks(row, case))}"
    print(line, file=sys.stderr, flush=True)
    return row


def _run(settings: RoundSettings, row: BenchRow, client: BenchClient, load: Load, server: PacedServer) -> BenchRow:
    argv, env = client.call(load)
    limit_s = _START_S + _TIME_FACTOR * load.case.turns_of(load.streams) * load.case.turn_s
    server.reset()
    log = load.work / "output.txt"
    cores = (settings.client_core, settings.server_core)[: load.case.client_cores]
    with on_cores(settings.server_core):  # this process uses the core of the server
        spent = run_watched(argv, env, cores=cores, log=log, server_stats=server.stats, timeout_s=limit_s)
    row = replace(row, spent=spent, server=server.stats())
    try:
        return replace(row, reported=client.parse(load))
    except (OSError, ValueError, LookupError, TypeError) as fault:
        ended = f"stopped after {limit_s:.0f} s" if spent.exit_code < 0 else f"exit code {spent.exit_code}"
        return replace(row, error=f"no results: {ended} ({type(fault).__name__}); {_last_line(log)}")


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in _COLOUR.sub("", log.read_text(errors="replace")).splitlines() if line.strip()]
    return lines[-1].replace(str(log.parent), "")[:160] if lines else "no output"


def make_tokenizer(folder: Path, words: int = 4000) -> Path:
    """Write a word-level tokenizer of four-letter words, faster than a model's, for peers that need one; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    combinations = islice(product(_CONSONANTS, _VOWELS, _CONSONANTS, _VOWELS), words)
    names = [_UNKNOWN, _END, *("".join(letters) for letters in combinations)]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": names[i], **special} for i in (0, 1)],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {name: i for i, name in enumerate(names)}, "unk_token": _UNKNOWN},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 1_000_000,
        "eos_token": _END,
        "unk_token": _UNKNOWN,
        "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}))
    return folder


if __name__ == "__main__":
    sys.exit(main())
