"""Advice is given only if its preconditions hold: none that the evidence contradicts."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.diagnosis import preconditions as only
from inferload.analysis.diagnosis.advice import ADVICE, advice_on
from inferload.analysis.diagnosis.diagnose import advice
from inferload.analysis.diagnosis.server_diagnosis import Diagnosis
from window_evidence import changed, window_evidence

from inferload.servers.bottleneck.evidence import KvBlocks, Scrapes, WindowEvidence
from inferload.servers.bottleneck.finding import HIGH_KV_USAGE
from inferload.servers.bottleneck.rules import judge

COMMANDS = (
    None,
    ("vllm", "serve", "m"),
    ("vllm", "serve", "m", "--num-gpu-blocks-override", "48"),
    ("vllm", "serve", "m", "--kv-cache-memory-bytes=1000000", "--kv-cache-dtype", "fp8_e5m2"),
    ("vllm", "serve", "m", "--gpu-memory-utilization", "0.97", "--quantization", "awq", "--stream-interval", "4"),
    ("vllm", "serve", "m", "--enforce-eager", "--max-num-batched-tokens", "2048", "--no-enable-prefix-caching"),
    ("vllm", "serve", "m", "--max-num-batched-tokens=16384", "--enable-log-requests"),
    ("vllm", "serve", "m", "--max_num_batched_tokens", "16k", "-q", "awq"),
)
CONFIGS: tuple[dict[str, str], ...] = (
    {},
    {"enable_prefix_caching": "True", "gpu_memory_utilization": "0.92", "num_gpu_blocks_override": "None"},
    {"enable_prefix_caching": "False", "kv_cache_memory_bytes": "1073741824", "cache_dtype": "fp8"},
)
_SCRAPES = Scrapes(np.arange(8.0), *(np.full(8, value) for value in (4.0, 0.0, 0.0, 0.2, np.nan)))
CALM = window_evidence(_SCRAPES, server="vllm")
maybe = st.none() | st.floats(0, 1e5)


@st.composite
def evidences(draw: st.DrawFn) -> WindowEvidence:
    level = {
        name: draw(st.floats(0, high))
        for name, high in (("running", 300), ("waiting", 50), ("usage", 1), ("head", 9000))
    }
    columns = (np.full(8, level[name]) for name in ("running", "waiting"))
    scrapes = Scrapes(np.arange(8.0), *columns, np.zeros(8), np.full(8, level["usage"]), np.full(8, level["head"]))
    return window_evidence(
        scrapes,
        max_num_seqs=draw(st.none() | st.integers(1, 300)),
        engines=draw(st.integers(1, 2)),
        kv=draw(st.none() | st.builds(KvBlocks, st.integers(1, 5000), st.integers(1, 128))),
        server=draw(st.sampled_from([None, "vllm", "sglang", "llama.cpp", "dynamo", "tensorrt-llm"])),
        servers=draw(st.integers(1, 2)),
        gpus=draw(st.sampled_from([None, 0, 1])),
        command=draw(st.sampled_from(COMMANDS)),
        cache_config=draw(st.sampled_from(CONFIGS)),
        stream_interval=draw(st.sampled_from([None, 1, 4])),
        preemptions=draw(st.integers(0, 50)),
        finished=100,
        computed_tok_per_s=draw(maybe),
        client_cpu_share=draw(st.none() | st.floats(0, 1)),
        mean_acceptance_length=draw(st.none() | st.floats(1, 4)),
        draft_tokens=draw(st.none() | st.integers(1, 4)),
    )  # fmt: skip


@given(evidences(), st.sampled_from(sorted(ADVICE)))
def test_no_advice_is_given_against_the_evidence(evidence: WindowEvidence, code: str) -> None:
    given_advice = advice_on(code, evidence)
    assert all(precondition.holds(evidence) for entry in given_advice for precondition in entry.when)
    texts = [entry.do for entry in given_advice]
    command, config = evidence.setup.command or (), evidence.setup.cache_config
    flags = [text for text in texts if "--" in text and not text.startswith("locust")]
    of_vllm = {entry.do for entry in ADVICE[code] if only.VLLM in entry.when}
    elsewhere = {text for entry in ADVICE[code] for key, text in entry.elsewhere if key == evidence.setup.server}
    assert evidence.setup.server == "vllm" or {*flags} <= elsewhere
    assert evidence.setup.server == "vllm" or not of_vllm & {*texts} - elsewhere
    if (
        code in ("kv-bound", "preemption-thrash", "queue-bound")
        and (usage := evidence.scrapes.kv_usage[0]) < HIGH_KV_USAGE
    ):
        blocks = (
            0
            if evidence.setup.kv is None or evidence.setup.engines > 1
            else evidence.setup.kv.needed(evidence.scrapes.head_tokens)[0]
        )
        fits = (
            evidence.setup.kv is None
            or evidence.setup.engines > 1
            or blocks <= evidence.setup.kv.free(np.array([usage]))[0]
        )
        if (fits or not evidence.scrapes.waits.any()) and not (evidence.served.preemptions or 0) > 5:
            assert not any(
                name in " ".join(flags) for name in ("--gpu-memory", "--kv-cache", "--quant", "--max-model-len")
            )
    memory = "--gpu-memory-utilization 0.95"
    assert memory not in texts or not {"--num-gpu-blocks-override", "--kv-cache-memory-bytes"} & {
        w.partition("=")[0] for w in command
    }
    assert memory not in texts or (evidence.setup.gpus != 0 and "kv_cache_memory_bytes" not in config)
    assert MORE_WORKERS not in texts or not (evidence.client.client_cpu_share or 1) < 0.5
    assert (
        "--enable-prefix-caching" not in texts
        or config.get("enable_prefix_caching") == "False"
        or ("--no-enable-prefix-caching" in command)
    )
    assert "route a session to the same replica" not in texts or evidence.setup.servers * evidence.setup.engines > 1
    for text, option in (
        ("without --enforce-eager", "--enforce-eager"),
        ("without --enable-log-requests", "--enable-log-requests"),
    ):
        assert text not in texts or evidence.setup.command is None or option in command
    assert not any("--quantization" in text for text in texts) or not {"--quantization", "-q"} & {*command}
    assert "--max-num-batched-tokens 8192 or more" not in texts or not {"16k", "--max-num-batched-tokens=16384"} & {
        *command
    }


@given(evidences())
def test_the_advice_of_a_diagnosis_is_that_of_its_cause(evidence: WindowEvidence) -> None:
    window = judge(evidence)
    expected = () if window.primary is None else advice_on(window.primary.code, evidence)
    assert advice(Diagnosis("http://x", window)) == expected


def test_every_flag_has_the_precondition_that_the_server_is_vllm() -> None:
    flags = [entry for entries in ADVICE.values() for entry in entries if "--" in entry.do and "locust" not in entry.do]
    vllm = [entry for entry in flags if "vLLM" in [precondition.text for precondition in entry.when]]
    assert [entry.do for entry in flags if entry not in vllm] == []


MORE_WORKERS = "locust --processes N, or more workers"
OWN_MACHINE = "a machine for the load generator without the server and other programs"
FIXED_SIZE = "--num-gpu-blocks-override or --kv-cache-memory-bytes higher (on a CPU: VLLM_CPU_KVCACHE_SPACE)"
FIXED_FP8 = ("vllm", "serve", "m", "--kv-cache-dtype", "fp8", "--num-gpu-blocks-override", "100")
FIXED = {"gpus": 0, "command": FIXED_FP8, "kv": KvBlocks(99, 16), "computed_tok_per_s": 1000.0}
MORE_WORKERS = "locust --processes N, or more workers"
OWN_MACHINE = "a machine for the load generator without the server and other programs"
FIXED_SIZE = "--num-gpu-blocks-override or --kv-cache-memory-bytes higher (on a CPU: VLLM_CPU_KVCACHE_SPACE)"
FIXED_FP8 = ("vllm", "serve", "m", "--kv-cache-dtype", "fp8", "--num-gpu-blocks-override", "100")
FIXED = {"gpus": 0, "command": FIXED_FP8, "kv": KvBlocks(99, 16), "computed_tok_per_s": 1000.0}
SCRAPES = Scrapes(np.arange(8.0), *(np.full(8, value) for value in (3.0, 5.0, 0.0, 0.004, 100.0)))
EVIDENCE = window_evidence(SCRAPES, server="vllm", kv=KvBlocks(1000, 16), client_cpu_share=0.03)


@pytest.mark.parametrize(
    ("code", "changes", "absent", "present"),
    [
        ("kv-bound", {}, "--gpu-memory-utilization 0.95", "more replicas"),
        ("queue-bound", {"server": "sglang"}, "--max-num-seqs higher", "--max-running-requests higher"),
        ("queue-bound", {"server": "tensorrt-llm"}, "--max-num-seqs higher", "more replicas"),
        (
            "cache-miss-bound",
            {"server": "dynamo", "servers": 2},
            "--kv-cache-dtype fp8",
            "--router-mode kv of the front end",
        ),
        ("queue-bound", {}, "--gpu-memory-utilization 0.95", "--max-num-seqs higher"),
        ("client-bound", {}, MORE_WORKERS, OWN_MACHINE),
        ("client-bound", {"client_cpu_share": 0.9}, OWN_MACHINE, MORE_WORKERS),
        ("cache-miss-bound", FIXED, "--gpu-memory-utilization 0.95", FIXED_SIZE),
        ("cache-miss-bound", FIXED, "--kv-cache-dtype fp8", FIXED_SIZE),
    ],
)
def test_cases_of_advice(code: str, changes: dict[str, Any], absent: str, present: str) -> None:
    texts = [entry.do for entry in advice_on(code, changed(EVIDENCE, **changes))]
    assert absent not in texts
    assert present in texts


@given(evidences())
def test_a_condition_that_may_be_unknown_says_so(evidence: WindowEvidence) -> None:
    """A condition on an option that holds without a command line and without labels has "not known" in its text."""
    unknown = changed(evidence, command=None, cache_config={}, stream_interval=None, client_cpu_share=None)
    for condition in {condition for entries in ADVICE.values() for entry in entries for condition in entry.when}:
        about_options = "--" in condition.text
        assert not (about_options and condition.holds(unknown)) or "not known" in condition.text, condition.text


@given(evidences())
def test_a_larger_cache_is_advised_on_the_same_conditions_for_each_cause(evidence: WindowEvidence) -> None:
    short = changed(evidence, preemptions=100, computed_tok_per_s=1e6, kv=KvBlocks(100, 16))
    of_size = {"--gpu-memory-utilization 0.95", "--kv-cache-dtype fp8", "--tensor-parallel-size N"}
    advised = [
        {entry.do for entry in advice_on(code, short)} & of_size
        for code in ("cache-miss-bound", "kv-bound", "preemption-thrash")
    ]
    assert advised[0] == advised[1] == advised[2]


@pytest.mark.parametrize("missed", [(), ("p95(ttft_ms) < 100 is 674",), ("0 % of the turns met the SLO",)])
def test_a_higher_load_is_advised_only_if_latencies_meet_their_limits(missed: tuple[str, ...]) -> None:
    finding = judge(changed(CALM, missed=missed)).primary
    assert finding is not None
    assert finding.code == "kept-up"
    assert all(any(limit in sentence for sentence in finding.sentences) for limit in missed)
    advised = [entry.do.partition(" (")[0] for entry in advice_on("kept-up", changed(CALM, missed=missed))]
    assert advised == (["lower load"] if missed else ["higher load"])
