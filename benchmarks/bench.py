"""`make bench-client`: run each client against the paced server, and tabulate the reported results."""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice, product
from pathlib import Path

from benchmarks import table
from benchmarks.cases import CASES, SIZES, Case
from benchmarks.clients import INFERLOAD, INFERLOAD_TASKS, READER, READER_KERNEL, BenchClient, Load
from benchmarks.machine import load_average, machine
from benchmarks.peers import PEERS
from benchmarks.reported import BenchRow, marks
from benchmarks.server import PROGRAMS, Certificate, PacedServer, ServerError, make_certificate
from benchmarks.watched import run_watched

CLIENTS = {
    "reader": READER,
    "reader-kernel": READER_KERNEL,
    "inferload": INFERLOAD,
    "inferload-tasks": INFERLOAD_TASKS,
    **PEERS,
}
_START_S = 90.0  # time limit for start, preparation and report of a client
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TIME_FACTOR = 6.0  # time limit of the turns, as a multiple of their nominal duration

_END = "<|endoftext|>"
_UNKNOWN = "[UNK]"
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """Settings of all rows of a round. `keep`: folder for the result files of the clients; None: deleted."""

    client_core: int
    server_core: int
    tokenizer: Path
    certificate: Certificate | None
    keep: Path | None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the round. Return exit code 1 if a row of inferload or the C reader has no results."""
    arguments = _parser().parse_args(argv)
    cases = [CASES[name] for name in arguments.cases]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        shared = Path(folder)
        certificate = make_certificate(shared) if any(case.tls for case in cases) else None
        settings = RoundSettings(
            arguments.client_core,
            arguments.server_core,
            make_tokenizer(shared / "tokenizer"),
            certificate,
            arguments.keep,
        )
        about = {**machine(), "load average before": f"{load_average():.2f}"}
        rows, absent = _measure(settings, cases, arguments)
    about["load average after"] = f"{load_average():.2f}"
    text = table.page(rows, absent, about, "make bench")
    print(text)
    _write(arguments, rows, absent, about, text)
    return (
        1 if any(row.error for row in rows if row.client in (READER.name, INFERLOAD.name, INFERLOAD_TASKS.name)) else 0
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--cases", nargs="+", choices=list(CASES), default=list(CASES), metavar="CASE", help="cases (all): %(choices)s")
    add("--sizes", nargs="+", type=int, default=list(SIZES), metavar="N", help="numbers of streams (%(default)s)")
    add(
        "--clients",
        nargs="+",
        choices=list(CLIENTS),
        default=["reader", "inferload", "inferload-tasks", *PEERS],
        metavar="CLIENT",
    )
    add("--everywhere", nargs="*", choices=list(PEERS), default=["vllm-rs"], metavar="PEER",
        help="peers that run in all cases; others run in the first case only (%(default)s)")  # fmt: skip
    add("--client-core", type=int, default=0, metavar="CORE", help="core of the client (%(default)s)")
    add("--server-core", type=int, default=1, metavar="CORE", help="core of the server (%(default)s)")
    add("--write", type=Path, metavar="FILE", help="also write the page to this file")
    add(
        "--json",
        type=Path,
        default=PROGRAMS / "results.json",
        metavar="FILE",
        help="file for all results (%(default)s)",
    )
    add("--keep", type=Path, metavar="DIR", help="keep the result files of the clients in this folder")
    return parser


def _measure(
    settings: RoundSettings, cases: list[Case], arguments: argparse.Namespace
) -> tuple[list[BenchRow], dict[str, str]]:
    absent = {PEERS[name].name: "not requested (--clients)" for name in PEERS if name not in arguments.clients}
    rows: list[BenchRow] = []
    for case in cases:
        for name in arguments.clients:
            client = CLIENTS[name]
            if name in PEERS and name not in arguments.everywhere and case is not cases[0]:
                absent.setdefault(f"{client.name}, other cases than {cases[0].name}", "not requested (--everywhere)")
                continue
            reason = client.missing()
            if reason is not None:
                absent[client.name] = reason
                continue
            unable = client.unable(case)
            if unable is not None:
                absent[f"{client.name}, case {case.name}"] = unable
                continue
            rows += _client_rows(settings, case, client, case.sizes(tuple(arguments.sizes)))
    return rows, absent


def _client_rows(settings: RoundSettings, case: Case, client: BenchClient, sizes: tuple[int, ...]) -> list[BenchRow]:
    rows = []
    for size in sizes:
        row = _row(settings, case, client, size)
        rows.append(row)
        reported = row.reported
        text = row.error or (
            f"TTFT mean {reported.ttft_mean_ms} p99 {reported.ttft_p99_ms}, ITL p99 {reported.itl_p99_ms}"
            if reported
            else ""
        )
        print(
            f"{case.name}, {size} streams, {client.name}: {text} {'; '.join(marks(row, case))}",
            file=sys.stderr,
            flush=True,
        )
    return rows


def _row(settings: RoundSettings, case: Case, client: BenchClient, streams: int) -> BenchRow:
    """Start a server, run the client, and read the results of both. A failure becomes the error of the row."""
    certificate = settings.certificate if case.tls else None
    with tempfile.TemporaryDirectory(prefix="bench-run-") as folder:
        work = Path(folder)
        row = BenchRow(case.name, client.name, client.version(), streams)
        try:
            with PacedServer(case, settings.server_core, certificate) as server:
                load = Load(case, server.url, server.port, streams, work, settings.tokenizer, certificate)
                row = _run(settings, row, client, load, server)
        except ServerError as error:
            row = BenchRow(row.case, row.client, row.version, streams, error=str(error))
        if settings.keep is not None:
            shutil.copytree(
                work, settings.keep / f"{case.name}-{streams}-{client.name.replace(' ', '_')}", dirs_exist_ok=True
            )
    return row


def _run(settings: RoundSettings, row: BenchRow, client: BenchClient, load: Load, server: PacedServer) -> BenchRow:
    call = client.call(load)
    limit_s = _START_S + _TIME_FACTOR * load.case.turns_of(load.streams) * load.case.turn_s
    server.reset()
    log = load.work / "output.txt"
    # This process uses the core of the server, not that of the client.
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {settings.server_core} if settings.server_core in before else before)
    try:
        spent = run_watched(
            call.argv, call.env, core=settings.client_core, log=log, tokens_sent=server.tokens_sent, timeout_s=limit_s
        )
    finally:
        os.sched_setaffinity(0, before)
    stats = server.stats()
    error = None
    reported = None
    try:
        reported = client.parse(load)
    except (OSError, ValueError, KeyError, IndexError, TypeError, StopIteration) as fault:
        ended = f"stopped after {limit_s:.0f} s" if spent.exit_code < 0 else f"exit code {spent.exit_code}"
        error = f"no results: {ended} ({type(fault).__name__}); {_last_line(log)}"
    return BenchRow(row.case, row.client, row.version, row.streams, reported, spent, stats, error)


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in _COLOUR.sub("", log.read_text(errors="replace")).splitlines() if line.strip()]
    return lines[-1].replace(str(log.parent), "")[:160] if lines else "no output"


def make_tokenizer(folder: Path, words: int = 4000) -> Path:
    """Write a word-level tokenizer of four-letter words for peers that need one, and return its folder.

    It is faster than the tokenizer of a real model.
    """
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


def _write(
    arguments: argparse.Namespace, rows: list[BenchRow], absent: dict[str, str], about: dict[str, str], text: str
) -> None:
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    document = {"about": about, "absent": absent, "rows": [asdict(row) for row in rows]}
    arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    if arguments.write is not None:
        arguments.write.parent.mkdir(parents=True, exist_ok=True)
        arguments.write.write_text(text)


if __name__ == "__main__":
    sys.exit(main())
