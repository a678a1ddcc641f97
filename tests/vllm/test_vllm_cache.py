"""Expected cache hits and those of vLLM on the CPU: system prompts, sessions, tool loops, adapters, cold and warm passes."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import vllm_servers
from inferload.deploy.launcher.server_state import LocalServer
from locust_process import summary_of

pytestmark = pytest.mark.vllm

POINTS = 0.02
CHAT: dict[str, Any] = {
    **{"kind": "chat", "turns": 3, "system_prompt_tokens": 700},
    **{"prompt_tokens": {"dist": "uniform", "min": 150, "max": 400}},
    **{"output_tokens": {"dist": "uniform", "min": 16, "max": 48}},
}
AGENT: dict[str, Any] = {
    **{"kind": "agent", "conversation": "same", "tools_tokens": 0, "system_prompt_tokens": 16 * vllm_servers.BLOCK},
    **{"prompt_tokens": 60, "steps": 1, "output_tokens": 4, "history": "recorded", "context_limit_tokens": 8192},
}
LOOP = AGENT | {
    **{"conversation": "own", "tools_tokens": 600, "steps": 3, "output_tokens": 20},
    "tools": [{"name": "look", "time_s": 0.05, "result_tokens": 150}],
}


def stamped(timestamp: str, where: str) -> dict[str, Any]:
    return AGENT | {"prefix": {"timestamp": timestamp, "where": where}}


def checked(cache: dict[str, Any]) -> dict[str, Any]:
    """Return the block after the checks common to all chats."""
    expected, counted, per_turn = cache["expected"], cache["counted"], cache["per_turn"]
    assert (cache["block_size"], cache["block_size_from"], cache["enabled"]) == (vllm_servers.BLOCK, "server", True)
    assert all("count as not cached" in note for note in expected["notes"]), expected["notes"]
    assert expected["input_tokens"] == counted["queries"] == per_turn["input_tokens"]
    assert counted["hits"] == per_turn["cached_tokens"]
    assert counted["hit_rate"] >= expected["hit_rate"] - POINTS
    return cache


@pytest.mark.parametrize(
    ("workload", "isolate", "hit_rate"),
    [
        pytest.param(CHAT, "run", (0.3, 1), id="chat"),
        pytest.param(CHAT, "session", (0.3, 1), id="chat-isolated"),
        pytest.param(stamped("none", "start"), "run", (0.75, 1), id="no-stamp"),
        pytest.param(stamped("static", "start"), "run", (0.75, 1), id="static-stamp", marks=pytest.mark.soak),
        pytest.param(stamped("dynamic", "start"), "run", (0, 0.02), id="stamp-at-start"),
        pytest.param(stamped("dynamic", "end"), "run", (0.75, 1), id="stamp-at-end"),
        pytest.param(LOOP, "run", (0.5, 1), id="tool-loop"),
    ],
)
def test_a_workload_has_the_expected_cache_hits(
    vllm_server: LocalServer, tmp_path: Path, workload: dict[str, Any], isolate: str, hit_rate: tuple[float, float]
) -> None:
    changes = {"workload": workload, "cache": {"isolate": isolate}, "phases__sessions": 10}
    summary = summary_of(vllm_servers.run(vllm_server, tmp_path, arrivals__users=1, **changes))
    cache = checked(summary["cache"]) if workload is CHAT else summary["cache"]
    assert abs(cache["counted"]["hit_rate"] - cache["expected"]["hit_rate"]) <= POINTS
    assert hit_rate[0] <= cache["counted"]["hit_rate"] <= hit_rate[1]
    assert "warm_cache" not in {reason["code"] for reason in summary["verdict"]["reasons"]}
    for block in (summary.get("tasks") or {}).values():
        assert block["done"] == 10
        assert min(row["share"] for row in block["cached_share_by_step"]) >= hit_rate[0]


def test_a_repeated_run_has_exactly_the_expected_cache_hits(vllm_server: LocalServer, tmp_path: Path) -> None:
    alone = CHAT | {"turns": 1, "system_prompt_tokens": 0}
    folder = vllm_servers.run(vllm_server, tmp_path, workload=alone, phases__sessions=16, cache={"arm": "both"})
    cold, warm = (checked(summary_of(each)["cache"]) for each in (folder, folder.with_name("run-warm")))
    assert cold["counted"]["hits"] == cold["expected"]["cached_tokens"]
    assert warm["counted"]["hits"] == warm["expected"]["cached_tokens"] == warm["expected"]["cacheable_tokens"]
    assert warm["earlier"]["measures"]["ttft_ms"]["pairs"] == summary_of(folder)["turns"]["ok"]


def test_each_adapter_has_its_own_prefix_cache(vllm_features: LocalServer, tmp_path: Path) -> None:
    workload = {"kind": "chat", "prompt_tokens": 300, "output_tokens": 12, "turns": 2, "system_prompt_tokens": 300}
    models = [{"name": name, "share": 0.5} for name in ("a1", "a2")]
    run_dir = vllm_servers.run(
        vllm_features, tmp_path, workload=workload, request={"models": models}, phases__sessions=10
    )
    vllm_servers.check_counts(run_dir)
    summary = summary_of(run_dir)
    rates = {summary["cache"][of]["hit_rate"] for of in ("expected", "counted", "per_turn")}
    assert len(rates) == 1
    assert set(summary["by_model"]) == {"a1", "a2"}
    waiting = summary["servers"][0]["waiting_by_reason"]
    assert waiting["capacity"]["max"] == 0 < waiting["deferred"]["max"]  # for the only slot
    counted = [line for line in vllm_servers.page(vllm_features).splitlines() if "generation_tokens_total{" in line]
    assert ['model_name="tiny"' in line for line in counted] == [True]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_prompts_are_loaded_from_a_folder_after_the_memory_was_emptied(tmp_path: Path) -> None:
    connector = {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}
    connector |= {"kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "kv")}}
    alone = CHAT | {"turns": 1, "system_prompt_tokens": 0}
    with vllm_servers.serving("--kv-transfer-config", json.dumps(connector)) as (server,):
        for emptied in (False, True):
            changes = {"workload": alone, "phases__sessions": 8, "cache": {"salt": "same"}}
            folder = vllm_servers.run(server, tmp_path / str(emptied), arrivals__users=1, **changes)
            summary = summary_of(folder)
            counted, per_turn = (summary["cache"][name] for name in ("counted", "per_turn"))
            loaded = summary["cache"]["expected"]["cacheable_tokens"] if emptied else 0
            assert (counted["hits"], counted["loaded"], per_turn["cached_tokens"]) == (0, loaded, loaded)
            assert per_turn["includes"] == ("all tiers" if emptied else None)
            tiers = summary["servers"][0]["tiers"]
            assert (tiers and tiers["hits"]) == ({"external_unspecified": loaded} if emptied else None)
            request = urllib.request.Request(f"{server.url}/reset_prefix_cache", method="POST")
            urllib.request.urlopen(request, timeout=30).close()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_only_a_common_prefix_halves_ttft(tmp_path: Path) -> None:
    """Runs with and without cache alternate, so that other load of the machine affects both."""
    model = "tiny-4x512"  # its prefill of 2,000 tokens takes much longer than the rest of a request
    flags = ("--dtype", "float32")  # bfloat16 takes three times as long on processors without AVX-512
    with (
        vllm_servers.serving(*flags, model=model) as (cached,),
        vllm_servers.serving(*flags, "--no-enable-prefix-caching", model=model) as (uncached,),
    ):

        def ttft_ms(server: LocalServer, stamp: str) -> float:
            run_dir = vllm_servers.run(
                server,
                tmp_path / f"{stamp}-{server.port}",
                workload=stamped(stamp, "start"),
                arrivals__users=1,
                phases__sessions=4,
            )
            summary = summary_of(run_dir)
            assert (summary["cache"]["counted"] is None) == (server is uncached)
            return float(summary["latency"]["ttft_ms"]["mean"])

        without, shared = ttft_ms(uncached, "static"), ttft_ms(cached, "static")
        own_without, own = ttft_ms(uncached, "dynamic"), ttft_ms(cached, "dynamic")
    assert shared < without / 2
    assert own > shared * 2
    assert own > own_without / 2
