"""Sizes of variants: weights, KV cache, and what fits."""

import json
import re
from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.deploy.servers import sizing
from inferload.deploy.simulator.core import hardware
from inferload.deploy.simulator.core.hardware import GIB
from inferload.deploy.variants.variant import bundled, changed, named

from inferload import cli


@pytest.mark.parametrize("name", list(bundled()))
def test_each_variant_is_shown_with_its_sizes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["deploy", "show", name]) == 0
    shown = capsys.readouterr().out
    assert "\n  weights    " in shown
    assert " tokens of KV cache" in shown
    assert cli.main(["deploy", "show", name, "--json"]) == 0
    sizes = json.loads(capsys.readouterr().out)["sizes"]
    assert sizes["capacity"] is not None
    given = named(name).args.get("max-model-len")
    shape = hardware.shape_of(named(name).model)
    too_long = given is None and shape is not None and shape.max_model_len > sizes["capacity"]["tokens"]
    assert too_long == ("vLLM needs max-model-len to start" in " ".join(shown.split()))


def test_the_kv_cache_of_a_sequence_has_the_size_of_the_formula() -> None:
    """2 x layers x KV heads x head size x 2 bytes per token: an article has 10 GB for 4,096 tokens of Llama-3.1-70B."""
    found = sizing.sizing_of(named("llama70-base"))
    assert found.kv_bytes_per_token == 2 * 80 * 8 * 128 * 2
    assert found.kv_bytes_per_token * 4096 == 1.25 * GIB
    halved = sizing.sizing_of(changed(named("llama70-base"), ["kv-cache-dtype=fp8"]))
    assert halved.kv_bytes_per_token == 2 * 80 * 8 * 128
    assert "4,096 tokens take 1.25 GiB" in dict(sizing.rows(found))["KV cache"]


def test_the_vram_of_an_article_is_that_of_the_weights() -> None:
    """GB on each card in its matrix: 16, 5 (AWQ), 8 (TP=2), 4 (TP=4), 2.5 (both); ours lack the embeddings of AWQ."""
    found = [sizing.sizing_of(named(f"llama3-{name}")) for name in ("baseline", "awq", "tp2", "tp4", "tp2-awq")]
    gib = [round(each.weight_bytes / each.devices / GIB, 2) for each in found]
    assert gib == [14.96, 3.86, 7.48, 3.74, 1.93]
    assert [each * GIB / 1e9 for each in gib] == pytest.approx([16, 5, 8, 4, 2.5], rel=0.18)


@given(st.sampled_from(list(bundled())), st.sampled_from([1, 2, 4]))
def test_the_time_of_a_step_to_read_the_weights_follows_from_the_numbers_beside_it(name: str, gpus: int) -> None:
    found = sizing.sizing_of(changed(named(name), [f"tensor-parallel-size={gpus}"]))
    text = dict(sizing.rows(found))["reading"]
    size_gb, devices, rate, read_ms = re.fullmatch(
        r"([\d,.e-]+) GB / \((?:(\d) x )?([\d,]+) GB/s of .+\) = ([\d.e+-]+) ms a step, .+", text
    ).groups(default="1")
    read_gb_per_s = float(rate.replace(",", "")) * int(devices)
    assert int(devices) == gpus
    assert float(read_ms) == pytest.approx(1e3 * float(size_gb.replace(",", "")) / read_gb_per_s, rel=0.01)


def test_70_ms_a_token_are_140_gb_at_2_tb_per_s() -> None:
    """An article has 70 ms for FP16 and 17.5 ms for INT4, by one card that holds all weights."""
    found = sizing.sizing_of(changed(named("llama70-base"), ["tensor-parallel-size=1"]))
    one = replace(found, bandwidth_byte_per_s=2e12, device="a card")
    assert dict(sizing.rows(one))["reading"].startswith("141.2 GB / (2,000 GB/s of a card) = 70.6 ms a step")


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        ("meta-llama/Meta-Llama-3-8B-Instruct", hardware.LLAMA3_0_8B),
        ("/data/models/Qwen2.5-72B", hardware.QWEN25_72B),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", hardware.QWEN25_7B),
        ("TheBloke/Llama-2-70B-Chat-AWQ", hardware.LLAMA2_70B),
        ("Qwen/Qwen3.6-27B", hardware.QWEN36_27B),
        ("a/Qwen3-4B-Base", hardware.QWEN3_4B),
        ("a/Qwen3-40B", None),
        ("a/xQwen3-4B", None),
    ],
)
def test_a_shape_is_found_by_the_name_of_its_model(model: str, shape: hardware.ModelShape | None) -> None:
    assert hardware.shape_of(model) == shape


@given(st.sampled_from(list(bundled())), st.integers(1, 100_000), st.integers(1, 100_000))
def test_what_fits_is_in_the_memory_of_the_card(name: str, length: int, longer: int) -> None:
    variant = named(name)
    found = sizing.sizing_of(variant)
    capacity = found.capacity
    assert capacity is not None
    used_bytes = found.weight_bytes + capacity.tokens * found.kv_bytes_per_token
    assert used_bytes <= found.devices * variant.hardware.memory_gib * GIB
    sequences = capacity.sequences(length)
    assert sequences * ceil(length / capacity.block_size) * capacity.block_size <= capacity.tokens
    assert capacity.sequences(length + longer) <= sequences


@pytest.mark.parametrize("gpus", [2, 4, 8, 16])
def test_tensor_parallelism_divides_the_weights_and_copies_kv_heads_above_their_number(gpus: int) -> None:
    one, several = (
        sizing.sizing_of(changed(named("llama3-baseline"), [f"tensor-parallel-size={count}"])) for count in (1, gpus)
    )
    assert several.weight_bytes == one.weight_bytes
    assert several.kv_bytes_per_token == one.kv_bytes_per_token * max(1, gpus / 8)


def test_only_layers_of_full_attention_have_a_kv_cache() -> None:
    """Notes of 2026-06-27: two cards hold Qwen3.6-27B and a context of 262,144 tokens, of which 16 of 64 layers have a KV cache."""
    found = sizing.sizing_of(named("qwen36-mtp"))
    assert found.kv_bytes_per_token == 2 * 16 * 4 * 256 * 2
    assert found.capacity is not None
    assert found.capacity.max_model_len == 262_144
    assert found.capacity.sequences(262_144) == 1
    fits = dict(sizing.rows(found))["fits"]
    assert fits.startswith("at most ")
    without = "without the model's own head, which drafts, without the state of its layers of linear attention"
    assert f"{without}: 1 sequence of" in fits


def test_the_cards_of_published_texts_have_a_note_for_the_current_version() -> None:
    notes = {variant.hardware.gpu: variant.hardware.note for variant in bundled().values()}
    cards = ("Tesla T4", "A100 80GB", "H100 80GB", "any with 48 GB")
    assert all(notes[name].startswith("capability ") for name in cards)


@pytest.mark.parametrize(
    ("variant", "texts"),
    [
        ("t4-baseline", ["card capability 7.5: float16"]),
        (
            "t4-baseline --set kv-cache-dtype=int3",  # an option that the simulator lacks
            [" sizes not known: --kv-cache-dtype int3: unknown; choose auto", "vllm serve Qwen/Qwen3-4B"],
        ),
        ("llama70-draft", ["tokens of KV cache, without meta-llama/Llama-3.1-8B-Instruct, which drafts: "]),
        ("qwen25-awq", ["GiB, plus embeddings and output head, which are often left at 16 bit", "fits at most"]),
    ],
)
def test_what_is_not_known_or_not_counted_is_named(
    variant: str, texts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["deploy", "show", *variant.split()]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert [text for text in texts if text not in shown] == []


OUT_OF_RANGE = """max-model-len=0 max-model-len=-2 num-gpu-blocks-override=1 gpu-memory-utilization=2
    gpu-memory-utilization=0 max-num-seqs=0 block-size=0 unknown-flag=1"""


@pytest.mark.parametrize("setting", OUT_OF_RANGE.split())
def test_a_value_out_of_range_leaves_the_sizes_open(setting: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["deploy", "show", "llama3-baseline", "--set", setting]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "sizes not known: " in shown or "fits not known: " in shown
    assert cli.main(["deploy", "show", "llama3-baseline", "--set", setting, "--json"]) == 0


def test_buckets_that_the_simulator_lacks_do_not_change_the_sizes() -> None:
    variant = named("llama3-baseline")
    other = variant.with_args({"custom-histogram-buckets": {"request_prompt_tokens": [1, 2]}})
    assert sizing.sizing_of(other) == sizing.sizing_of(variant)
    assert sizing.weights_gb(other) == sizing.weights_gb(variant)
