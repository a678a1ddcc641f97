"""The offline throughput limit: on the simulator's clock, from vLLM's output, and compared with a run."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.deploy.servers.engines import Command, ServerSpec
from inferload.deploy.variants.variant import named
from processes import alive

from inferload import cli
from inferload.base.errors import UsageError
from inferload.campaign import offline_limit
from inferload.campaign.commands.throughput import page, read_run
from inferload.campaign.offline_limit import OfflineLimit, OfflineLoad
from inferload.campaign.signals import Terminated


def limit(name: str, load: OfflineLoad) -> OfflineLimit:
    variant = named(name)
    return offline_limit.measure(ServerSpec("simulator", variant.model, variant=variant), load, lambda _: None)


def test_larger_batches_have_a_higher_throughput() -> None:
    few, many = (limit("tiny-all", OfflineLoad(prompts, 100, 20)) for prompts in (2, 40))
    assert (many.input_tokens, many.output_tokens) == (4000, 800)
    assert many.rates["input + output tok/s"] == pytest.approx(4800 / many.elapsed_s)
    assert many.rates["output tok/s"] > few.rates["output tok/s"]
    assert limit("tiny-seqs-2", OfflineLoad(40, 100, 20)).elapsed_s > many.elapsed_s


HELP = """\
options:
  --max-num-seqs MAX_NUM_SEQS
                        Most sequences of a step, --not-a-flag of its own.
  --enforce-eager, --no-enforce-eager
                        Without graphs.
  --tensor-parallel-size TENSOR_PARALLEL_SIZE, -tp TENSOR_PARALLEL_SIZE
  -h, --help            show this help message and exit
"""
KNOWN = {"--max-num-seqs", "--enforce-eager", "--dtype", "--host"}


def test_flags_are_read_from_the_help() -> None:
    names = {"--max-num-seqs", "--enforce-eager", "--no-enforce-eager", "--tensor-parallel-size", "--help"}
    assert offline_limit.flags_of_help(HELP) == names


def test_the_installed_vllm_lists_its_flags(tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n[ $COLUMNS = 1000 ] && echo '  --dtype DTYPE' && echo \"  --$1-$2\"\n")
    program.chmod(0o755)
    assert offline_limit._flags([str(program)], dict(os.environ)) == {"--dtype", "--bench-throughput"}
    program.write_text("#!/bin/sh\necho 'ImportError: no torch' >&2\nexit 1\n")
    with pytest.raises(UsageError, match=r"^vllm bench throughput --help=all: lists no flags: ImportError: no torch$"):
        offline_limit._flags([str(program)], dict(os.environ))


def test_server_flags_are_left_out_and_named() -> None:
    argv = ["--host", "h", "--max-num-seqs", "8", "--tool-call-parser", "x", "--enforce-eager", "--tool-call-parser=y"]
    known = ["--max-num-seqs", "8", "--enforce-eager"]
    assert offline_limit.known_to(argv, KNOWN) == (known, ("--tool-call-parser",))


@given(st.lists(st.sampled_from([*sorted(KNOWN), "--other", "--other=1", "value", "-1"])))
def test_known_flags_keep_their_order(words: list[str]) -> None:
    known, left_out = offline_limit.known_to(words, KNOWN)
    flags = [word for word in known if word.startswith("--")]
    assert flags == [word for word in words if word in KNOWN and word != "--host"]
    assert set(left_out) == {"--other"} & {word.partition("=")[0] for word in words}


LOG = """\
(EngineCore pid=7) INFO something
Throughput: 2.00 requests/s, 320.00 total tokens/s, 64.00 output tokens/s
Total num prompt tokens:  512
Total num output tokens:  128
"""


def test_the_output_of_vllm_bench_is_read() -> None:
    result = offline_limit.read("vllm-cpu", OfflineLoad(4, 128, 32), {"elapsed_time": 2.0, "num_requests": 4}, LOG)
    assert tuple(result.rates.values()) == (2, 64, 320)
    with pytest.raises(UsageError, match="no token counts in its output"):
        offline_limit.read("vllm-cpu", OfflineLoad(4, 128, 32), {"elapsed_time": 2.0}, "")


def run_directory(folder: Path) -> Path:
    """Write the files of a run that are read."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"engine": "simulator", "variant": {"name": "tiny-all"}}))
    counts = {"sent": 10, "ok": 10, "failed": 0, "unfinished": 0}
    turns = counts | {"by_phase": {"measure": counts | {"input_tokens": 1000, "output_tokens": 200}}}
    outcome = {"state": "passed", "headline": "passed", "exit_code": 0}
    rates = {"turns_per_s": 5.0, "input_tok_per_s": 500.0, "output_tok_per_s": 100.0}
    summary = {"outcome": outcome, "turns": turns, "rates": rates, "verdict": {"measurement": "valid"}}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_the_limit_is_compared_with_the_served_throughput(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_directory(tmp_path / "run")
    assert cli.main(["throughput", "tiny-all", "--beside", str(run), "--num-prompts", "50", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["input_tokens_per_prompt"], document["output_tokens_per_prompt"]) == (100, 20)
    assert document["served"]["input + output tok/s"] == 600
    assert cli.main(["throughput", "tiny-seqs-2", "--beside", str(run), "--num-prompts", "5", "--input-len", "9"]) == 0
    output = capsys.readouterr().out
    assert "served / limit" in output
    assert "on the simulator's own clock (no real engine)" in output
    assert "note: the run used tiny-all, not tiny-seqs-2" in output
    assert "note: the lengths differ" in output
    limit_of_run = OfflineLimit("simulator", OfflineLoad(10, 100, 20), 10.0, 1000, 200)
    assert not any("the run used" in line for line in page("my.yaml:tiny-all", limit_of_run, read_run(run)))


@pytest.mark.parametrize(
    ("engine", "manifest", "share", "note"),
    [
        ("vllm-cpu", {"engine": "vllm 0.32.0", "variant": {"name": "a", "engine": "vllm"}}, "-", "the run used vllm,"),
        ("vllm-cpu", {"engine": "vllm 0.32.0", "variant": {"name": "a", "engine": "vllm-cpu"}}, "500 %", ""),
        ("vllm-cpu", {"engine": "vllm 0.32.0", "variant": None}, "500 %", "the device of the run is not known"),
        ("vllm", {"engine": "unknown", "variant": None}, "-", "the run used unknown, the limit vllm: not comparable"),
        ("vllm", {"engine": "simulator", "variant": None}, "-", "the run used simulator, the limit vllm"),
        ("simulator", {"engine": "simulator", "variant": None}, "500 %", ""),
        ("simulator", {"engine": "vllm 0.32.0", "variant": None}, "-", "the run used vllm 0.32.0"),
    ],
)
def test_a_limit_is_compared_with_a_run_on_the_same_engine(
    tmp_path: Path, engine: str, manifest: dict[str, Any], share: str, note: str
) -> None:
    run = run_directory(tmp_path / "run")
    (run / "run.json").write_text(json.dumps(manifest))
    lines = page("a", OfflineLimit(engine, OfflineLoad(10, 100, 20), 10.0, 1000, 200), read_run(run))
    assert next(line for line in lines[2].splitlines() if "requests/s" in line).split("  ")[-1].strip() == share
    notes = [line for line in lines if "not comparable" in line or "device" in line]
    assert [note in line for line in notes] == ([True] if note else [])


def test_runs_without_token_counts_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_directory(tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    summary["turns"]["by_phase"]["measure"]["output_tokens"] = None
    (run / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(UsageError, match="its server reported no token counts"):
        read_run(run)
    for lacking in (
        {},
        {"turns": {}},
        {"turns": {"by_phase": {"measure": {"ok": 1, "input_tokens": 1, "output_tokens": 1}}}},
    ):
        (run / "summary.json").write_text(json.dumps(lacking))
        with pytest.raises(UsageError, match=r"summary.json: .*missing required field"):
            read_run(run)
    assert cli.main(["throughput", "tiny-all", "--input-len", "5000"]) == 2
    assert "more than the 4096 tokens of the model" in capsys.readouterr().err
    assert cli.main(["throughput", "tiny-all", "--num-prompts", "0"]) == 2
    assert "--num-prompts 0: must be 1 or more" in capsys.readouterr().err
    assert cli.main(["throughput", "tiny", "--set", "max-num-seqs=8"]) == 2
    error = "inferload: --set max-num-seqs=8: changes a variant, but tiny is a model; choose a variant\n"
    assert capsys.readouterr().err == error
    assert cli.main(["throughput", "tiny-all", "--beside", str(tmp_path / "none")]) == 2


def test_a_signal_ends_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline_limit, "_WAIT_S", 0.05)
    log = tmp_path / "log"
    bench = Command(("sh", "-c", "echo $$; exec sleep 600"), dict(os.environ), ready_s=1.0)

    def end(_text: str) -> None:
        if log.read_text().strip():
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Terminated):
        offline_limit._run(bench, log, end)
    pid = int(log.read_text())
    assert not alive(pid)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.vllm
@pytest.mark.soak  # starts another vLLM
@pytest.mark.timeout(900)
def test_vllm_bench_runs_with_the_arguments_of_a_variant(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tiny-all", "--engine", "vllm-cpu", "--num-prompts", "4", "--input-len", "64", "--output-len", "8"]
    assert cli.main(["throughput", *words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["engine"] == "vllm-cpu"
    assert document["limit"]["output tok/s"] == pytest.approx(4 * 8 / document["elapsed_s"])
    assert "--enable-per-request-metrics" in document["left_out"]
