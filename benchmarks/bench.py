"""`make bench`: every client against the paced server, one after another, and a table of what each of them reported."""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import table
from benchmarks.cases import CASES, SIZES, Case
from benchmarks.clients import INFERLOAD, INFERLOAD_TASKS, READER, READER_KERNEL, Load, LoadClient
from benchmarks.machine import machine, others_busy
from benchmarks.peers import PEERS, make_tokenizer
from benchmarks.reported import ClientResult, marks
from benchmarks.server import PROGRAMS, ROOT, Certificate, PacedServer, ServerError, make_certificate
from benchmarks.watched import run_watched

CLIENTS = {
    "reader": READER,
    "reader-kernel": READER_KERNEL,
    "inferload": INFERLOAD,
    "inferload-tasks": INFERLOAD_TASKS,
    **PEERS,
}
_START_S = 90.0  # what a client may take to start, prepare and report
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PATIENCE = 6.0  # and so many times what its turns take where nobody is late


@dataclass(frozen=True, slots=True)
class Round:
    """What all rows of a round share. `keep`: folder for the clients' own files; None: thrown away."""

    client_core: int
    server_core: int
    tokenizer: Path
    certificate: Certificate | None
    keep: Path | None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the round; the exit code is 1 where one of our own rows has no figures."""
    arguments = _parser().parse_args(argv)
    cases = [CASES[name] for name in arguments.cases]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        shared = Path(folder)
        certificate = make_certificate(shared) if any(case.tls for case in cases) else None
        this = Round(
            arguments.client_core,
            arguments.server_core,
            make_tokenizer(shared / "tokenizer"),
            certificate,
            arguments.keep,
        )
        about = {**machine(), "load average before": f"{others_busy():.2f}"}
        rows, absent = _measure(this, cases, arguments)
    about["load average after"] = f"{others_busy():.2f}"
    text = table.page(rows, absent, about, "make bench")
    print(text)
    _write(arguments, rows, absent, about, text)
    return (
        1 if any(row.error for row in rows if row.client in (READER.name, INFERLOAD.name, INFERLOAD_TASKS.name)) else 0
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("--cases", nargs="+", choices=list(CASES), default=list(CASES), metavar="CASE", help="of: %(choices)s")
    add("--sizes", nargs="+", type=int, default=list(SIZES), metavar="N", help="streams (%(default)s)")
    add(
        "--clients",
        nargs="+",
        choices=list(CLIENTS),
        default=["reader", "inferload", "inferload-tasks", *PEERS],
        metavar="CLIENT",
    )
    add("--everywhere", nargs="*", choices=list(PEERS), default=["vllm-rs"], metavar="PEER",
        help="peers that run in every case; the others in the first one only (%(default)s)")  # fmt: skip
    add("--client-core", type=int, default=0, metavar="CORE", help="(%(default)s)")
    add("--server-core", type=int, default=1, metavar="CORE", help="(%(default)s)")
    add("--write", type=Path, metavar="FILE", help="write the page there too")
    add("--json", type=Path, default=PROGRAMS / "results.json", metavar="FILE", help="all figures (%(default)s)")
    add("--keep", type=Path, metavar="DIR", help="keep the clients' own result files there")
    return parser


def _measure(
    this: Round, cases: list[Case], arguments: argparse.Namespace
) -> tuple[list[ClientResult], dict[str, str]]:
    absent = {PEERS[name].name: "not requested (--clients)" for name in PEERS if name not in arguments.clients}
    rows: list[ClientResult] = []
    for case in cases:
        for name in arguments.clients:
            client = CLIENTS[name]
            if name in PEERS and name not in arguments.everywhere and case is not cases[0]:
                absent.setdefault(f"{client.name}, other cases than {cases[0].name}", "not requested (--everywhere)")
                continue
            why = client.missing()
            if why is not None:
                absent[client.name] = why
                continue
            unable = client.unable(case)
            if unable is not None:
                absent[f"{client.name}, case {case.name}"] = unable
                continue
            rows += _one_client(this, case, client, case.sizes(tuple(arguments.sizes)))
    return rows, absent


def _one_client(this: Round, case: Case, client: LoadClient, sizes: tuple[int, ...]) -> list[ClientResult]:
    rows = []
    for size in sizes:
        row = _one_row(this, case, client, size)
        rows.append(row)
        said = row.reported
        words = row.error or (
            f"TTFT mean {said.ttft_mean_ms} p99 {said.ttft_p99_ms}, ITL p99 {said.itl_p99_ms}" if said else ""
        )
        print(
            f"{case.name}, {size} streams, {client.name}: {words} {'; '.join(marks(row, case))}",
            file=sys.stderr,
            flush=True,
        )
    return rows


def _one_row(this: Round, case: Case, client: LoadClient, streams: int) -> ClientResult:
    """Start a server, run the client against it, read what both say; a failure becomes the row's error."""
    certificate = this.certificate if case.tls else None
    with tempfile.TemporaryDirectory(prefix="bench-run-") as folder:
        work = Path(folder)
        row = ClientResult(case.name, client.name, client.version(), streams)
        try:
            with PacedServer(case, this.server_core, certificate) as server:
                load = Load(case, server.url, server.port, streams, work, this.tokenizer, certificate)
                row = _run(this, row, client, load, server)
        except ServerError as error:
            row = ClientResult(row.case, row.client, row.version, streams, error=str(error))
        if this.keep is not None:
            shutil.copytree(
                work, this.keep / f"{case.name}-{streams}-{client.name.replace(' ', '_')}", dirs_exist_ok=True
            )
    return row


def _run(this: Round, row: ClientResult, client: LoadClient, load: Load, server: PacedServer) -> ClientResult:
    call = client.call(load)
    limit_s = _START_S + _PATIENCE * load.case.turns_of(load.streams) * load.case.turn_s
    server.reset()
    log = load.work / "output.txt"
    # The harness stays off the client's core: it looks at both from the server's.
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {this.server_core} if this.server_core in before else before)
    try:
        spent = run_watched(
            call.argv, call.env, core=this.client_core, log=log, tokens_sent=server.tokens_sent, timeout_s=limit_s
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
        error = f"no figures: {ended} ({type(fault).__name__}); {_last_line(log)}"
    return ClientResult(row.case, row.client, row.version, row.streams, reported, spent, stats, error)


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in _COLOUR.sub("", log.read_text(errors="replace")).splitlines() if line.strip()]
    return lines[-1].replace(str(log.parent), "")[:160] if lines else "no output"


def _write(
    arguments: argparse.Namespace, rows: list[ClientResult], absent: dict[str, str], about: dict[str, str], text: str
) -> None:
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    found = {"about": about, "absent": absent, "rows": [asdict(row) for row in rows]}
    arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    if arguments.write is not None:
        arguments.write.parent.mkdir(parents=True, exist_ok=True)
        arguments.write.write_text(text)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
