"""KV-cache rules count whole blocks, without the one that vLLM reserves."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from window_evidence import window_evidence

from inferload.figures.pages import metric_names as names
from inferload.run.live.bottleneck import ClientFigures, LiveDiagnosis
from inferload.servers.bottleneck.evidence import KvBlocks, Scrapes
from inferload.servers.bottleneck.rules import WindowDiagnosis, judge


def queued(pool: int, size: int, used: int, prompt: int) -> WindowDiagnosis:
    """Diagnose a queue whose head has `prompt` tokens, at free sequence slots. `pool`: blocks as vLLM reports them."""
    columns = (np.full(20, float(value)) for value in (3, 5, 0, used / (pool - 1), prompt))
    kv = KvBlocks.of(pool * size, size, pool)
    return judge(window_evidence(Scrapes(np.arange(20.0), *columns), max_num_seqs=64, kv=kv))


@given(st.integers(3, 5000), st.integers(1, 512), st.integers(0, 5000), st.integers(1, 50_000))
@example(48, 128, 40, 905)  # 8 blocks needed, 7 free: 905 tokens are less than the share of free tokens
@example(48, 128, 39, 905)
@example(48, 128, 40, 896)
def test_a_prompt_waits_for_the_kv_cache_only_if_its_blocks_exceed_the_free_ones(
    pool: int, size: int, used: int, prompt: int
) -> None:
    assume(used < pool)
    needed, free = -(-prompt // size), pool - 1 - used
    (first, *_) = queued(pool, size, used, prompt).findings
    assert first.code == ("kv-bound" if needed > free else "prefill-bound")
    if needed > free:
        assert f"needs {needed:,} blocks, {free:,} of {pool - 1:,} free" in first.figures
    else:
        assert "with free sequence slots and KV cache" in first.sentences[0]


@pytest.mark.parametrize("unknown", [{"tokens": None}, {"size": None}, {"tokens": 100}])
def test_without_the_sizes_no_block_is_counted(unknown: dict[str, Any]) -> None:
    known = {"tokens": 48 * 128, "size": 128, "blocks": 48}
    assert KvBlocks.of(**(known | unknown)) is None
    assert KvBlocks.of(48 * 128, 128, None) == KvBlocks.of(**known) == KvBlocks(47, 128)


@given(st.integers(3, 2000), st.integers(1, 256), st.integers(1, 2000), st.integers(1, 100_000))
def test_the_live_view_states_free_kv_cache_only_if_the_blocks_of_any_prompt_are_free(
    pool: int, size: int, used: int, longest: int
) -> None:
    assume(used < pool and longest <= pool * size)
    live = LiveDiagnosis(max_num_seqs=64)
    gauges = {
        names.RUNNING: 3.0,
        names.WAITING: 5.0,
        names.KV_CACHE_USAGE: used / (pool - 1),
        "kv_cache_size_tokens": float(pool * size),
        "kv_cache_max_concurrency": pool * size / longest,
        "block_size": float(size),
        "num_gpu_blocks": float(pool),
    }
    for second in range(8):
        live.add(float(second), gauges, ClientFigures())
    state = live.state()
    assert state is not None
    if state["code"] == "prefill-bound":
        assert -(-longest // size) <= pool - 1 - used
    else:
        assert state["code"] in ("kv-bound", "queued")
