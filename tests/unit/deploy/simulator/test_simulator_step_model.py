"""The simulator with the step model as a server, and vLLM's command line."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import simulator_process
from inferload.deploy.simulator import flags, server_config
from inferload.deploy.simulator.core.hardware import PRESETS, Build, find, step_cost
from inferload.deploy.simulator.protocol.text import answer_of
from inferload.deploy.variants import variant
from simulator_process import Simulator
from simulator_requests import Start, events_of

from inferload.base.errors import UsageError

COMPLETIONS = "/v1/completions"
# A preset without noise, so that step times are known.
CPU = ("--hardware", "cpu-tiny", "--step-noise", "0")


@pytest.fixture(scope="module")
def quick() -> Iterator[Simulator]:
    """One server for all tests that leave its state unchanged."""
    server = simulator_process.start(*CPU)
    yield server
    simulator_process.stop(server)


def body_of(**more: Any) -> dict[str, Any]:
    prompt = " ".join(f"w{i}" for i in range(40))
    usage = {"include_usage": True, "continuous_usage_stats": True}
    document = {"model": "simulator", "prompt": prompt, "max_tokens": 6, "ignore_eos": True}
    return {**document, "stream": True, "stream_options": usage, **more}


def counts_of(events: list[Any]) -> list[int]:
    return [each["usage"]["completion_tokens"] for each in events if isinstance(each, dict) and each.get("choices")]


def ask_at_once(server: Simulator, number: int, **more: Any) -> list[list[Any]]:
    """Run `number` concurrent streams."""
    documents = [body_of(**more, cache_salt=f"s{index}") for index in range(number)]
    return [events_of(body) for body in server.call_at_once(COMPLETIONS, documents)]


class TestServer:
    def test_the_text_equals_that_of_paced_timing(self, quick: Simulator) -> None:
        events = events_of(quick.call("POST", COMPLETIONS, body_of())[1])
        answer, _dice = answer_of(0, body_of()["prompt"].split(), None)
        assert "".join(each["choices"][0]["text"] for each in events[:-1] if each["choices"]) == " ".join(
            answer.words(0, 6)
        )
        assert counts_of(events) == [1, 2, 3, 4, 5, 6]

    def test_reported_times_equal_the_step_model(self, quick: Simulator) -> None:
        metrics = events_of(quick.call("POST", COMPLETIONS, body_of(cache_salt="cold"))[1])[-2]["metrics"]
        cost = step_cost(find("cpu-tiny"), Build(), 128)
        gaps_s = [
            cost.host_s + cost.decode.fixed_s + cost.decode.token_s + context * cost.decode.context_s
            for context in (41, 42, 43, 44, 45)
        ]
        assert metrics["generation_time_ms"] == pytest.approx(1000 * sum(gaps_s), abs=1e-4)
        first_s = cost.host_s + cost.mixed.fixed_s + 40 * cost.mixed.token_s + cost.attention_s * 40 * 20
        assert metrics["time_to_first_token_ms"] == pytest.approx(1000 * first_s, abs=1e-4)
        # The engine was idle: front-end time is not queue time.
        assert metrics["queue_time_ms"] == 0

    def test_a_stall_groups_tokens_and_an_error_ends_the_stream(self, simulator: Start) -> None:
        server = simulator(*CPU)
        server.chaos(kind="stall", ms=90, after_events=2)
        counts = counts_of(events_of(server.call("POST", COMPLETIONS, body_of(max_tokens=8))[1]))
        # Tokens held back are sent as one event.
        assert counts[-1] == 8
        assert len(counts) <= 4
        server.chaos(kind="error_event", after_events=2)
        assert b"error" in server.call("POST", COMPLETIONS, body_of())[1]
        assert counts_of(events_of(server.call("POST", COMPLETIONS, body_of())[1])) == [1, 2, 3, 4, 5, 6]
        assert server.metric("vllm:num_requests_running") == 0

    def test_preempted_requests_are_answered_completely(self, simulator: Start) -> None:
        flags_ = ("--num-gpu-blocks-override", "21", "--block-size", "4", "--max-model-len", "80")
        server = simulator(*CPU, *flags_)
        answers = ask_at_once(server, 4, max_tokens=30, prompt="a b c d e f g h")
        assert server.metric("vllm:num_preemptions_total") > 0
        assert [counts_of(each)[-1] for each in answers] == [30] * 4
        assert server.metric("vllm:kv_cache_usage_perc") == 0
        assert server.metric("vllm:generation_tokens_total") == 120
        assert server.metric("vllm:prompt_tokens_total") == 32
        assert server.metric("vllm:inter_token_latency_seconds_count") == 4 * 29

    def test_histograms_have_the_configured_bounds(self, simulator: Start) -> None:
        server = simulator(*CPU, "--custom-histogram-buckets", '{"request_latency": [0.5, 7]}')
        server.call("POST", COMPLETIONS, body_of(max_tokens=3))
        page = server.metrics_text()
        assert re.findall(r'vllm:e2e_request_latency_seconds_bucket.*le="([^"]+)"', page) == ["0.5", "7.0", "+Inf"]
        assert server.metric("vllm:e2e_request_latency_seconds_count") == 1

    @pytest.mark.parametrize(
        "words", ["--stream-interval 4", '--spec-acceptance 1 --speculative-config {"num_speculative_tokens":3}']
    )
    def test_events_with_several_tokens(self, simulator: Start, words: str) -> None:
        server = simulator(*CPU, *words.split())
        assert counts_of(events_of(server.call("POST", COMPLETIONS, body_of(max_tokens=10))[1])) == [1, 5, 9, 10]

    @pytest.mark.parametrize("limit", ["reqs", "tokens"])
    def test_a_full_queue_is_503(self, simulator: Start, limit: str) -> None:
        status, body = simulator(*CPU, f"--max-num-queued-{limit}", "0").call("POST", COMPLETIONS, body_of())
        assert (status, json.loads(body)["error"]["code"]) == (503, 503)


class TestFlags:
    def test_every_bundled_variant_is_accepted(self) -> None:
        for each in variant.bundled().values():
            server_config.resolve(flags.read(["a-model", "--hardware", each.simulated_as, *each.argv]))

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--max-num-seq", "3"], "did you mean --max-num-seqs?"),
            (["a", "b"], "b: the model is already given"),
            (["--enable-lora"], "--enable-lora: the simulator does not model this"),
            (["--pipeline-parallel-size", "2"], "--pipeline-parallel-size 2"),
            (["--ttft-ms", "5", "--hardware", "cpu-tiny"], "exclude each other"),
            (["--hardware", "abacus"], ", ".join(PRESETS)),
            (["--max-num-seqs", "many"], "--max-num-seqs"),
            (["--no-enable-chunked-prefill", "--max-num-batched-tokens", "512"], "--max-num-batched-tokens 512"),
            (["--max-num-batched-tokens", "100", "--max-num-seqs", "200"], "less than --max-num-seqs 200"),
            (["--custom-histogram-buckets", '{"request_latencies": [1]}'], "did you mean request_latency?"),
            (["--custom-histogram-buckets", '{"request_latency": [1, 1]}'], "ascending bounds"),
            (["--custom-histogram-buckets", '{"request_latency": [true]}'], "list of numbers"),
            (["--speculative-config", "{}x"], "not JSON"),
            (["--speculative-config", '{"method": "ngram"}'], "num_speculative_tokens None"),
            (["--gpu-memory-utilization", "0.1"], "no memory left for a KV cache"),
            (["--max-model-len", "900k"], "--max-model-len 900000"),
        ],
    )
    def test_invalid_arguments_are_named(self, words: list[str], message: str) -> None:
        with pytest.raises(UsageError, match=rf"^.*{re.escape(message)}.*$") as refused:
            server_config.resolve(flags.read(words))
        assert "\n" not in str(refused.value)

    def test_vllms_forms_of_numbers_and_names_are_read(self) -> None:
        config = server_config.resolve(flags.read(["m", "--max_num_seqs", "3", "--max-model-len=1K"]))
        assert (config.limits.max_num_seqs, config.limits.max_model_len) == (3, 1024)

    def test_drafts_follow_from_the_speculative_config(self) -> None:
        words = ["--speculative-config", '{"method": "mtp", "num_speculative_tokens": 4}', "--spec-acceptance", "0.8"]
        config = server_config.resolve(flags.read(words))
        assert (config.limits.speculative_tokens, config.arguments.spec_acceptance) == (4, 0.8)
        assert server_config.resolve(flags.read([])).limits.speculative_tokens == 0

    @pytest.mark.parametrize(
        ("drafter", "parameters", "layers"),
        [
            ({"method": "ngram"}, 0.0, 0),
            ({"method": "suffix"}, 0.0, 0),
            ({"method": "mtp"}, 32.8e9 / 64 + 0.778e9, 1),
            ({"method": "eagle3", "model": "a/head-of-unknown-shape"}, 32.8e9 / 64 + 0.778e9, 1),
            ({"method": "draft_model", "model": "Qwen/Qwen3-4B"}, 4.02e9, 36),
            ({"model": "Qwen/Qwen3-4B"}, 4.02e9, 36),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("devices", [1, 2])
    def test_each_draft_takes_the_time_to_read_its_drafter(
        self, drafter: dict[str, str], parameters: float, layers: int, devices: int
    ) -> None:
        def fixed_s(tokens: int) -> float:
            config = {**drafter, "num_speculative_tokens": tokens} if tokens else {}
            preset = find("h200-qwen3-32b")
            return step_cost(preset, Build(tensor_parallel=devices, speculative=config), 64).decode.fixed_s

        each_s = 2 * parameters / (4800e9 * 0.8 * devices) + (2 * layers * 12e-6 if devices > 1 else 0.0)
        for tokens in (1, 4, 8):
            assert fixed_s(tokens) - fixed_s(0) == pytest.approx(tokens * each_s)

    def test_defaults_are_those_of_the_device(self) -> None:
        plain = server_config.resolve(flags.read(["--hardware", "h200-qwen3-32b"]))
        limits = plain.limits
        assert (limits.max_num_seqs, limits.max_num_batched_tokens, limits.block_size) == (1024, 8192, 16)
        assert plain.limits.async_scheduling
        assert plain.limits.blocks == plain.shown_blocks - 1
        unchunked = server_config.resolve(flags.read(["--hardware", "t4-qwen3-4b", "--no-enable-chunked-prefill"]))
        assert unchunked.limits.max_num_batched_tokens == unchunked.limits.max_model_len

    def test_defaults_follow_from_given_arguments(self) -> None:
        def bounds(*words: str) -> tuple[int, int]:
            limits = server_config.resolve(flags.read(["--hardware", "h200-qwen3-32b", *words])).limits
            return limits.max_num_seqs, limits.max_num_batched_tokens

        assert bounds("--max-num-batched-tokens", "128") == (128, 128)
        assert bounds("--max-num-seqs", "4", "--max-model-len", "512") == (4, 2048)

    def test_arguments_without_effect_are_listed(self) -> None:
        arguments = flags.read(["m", "--trust-remote-code", "--tokenizer", "t", "--data-parallel-size", "1"])
        assert flags.without_effect(arguments) == ["--data-parallel-size", "--tokenizer", "--trust-remote-code"]

    def test_the_command_prints_arguments_without_effect(self) -> None:
        command = [sys.executable, "-m", "inferload", "simulator", "--port", "0", "--exit-after-s", "0.05"]
        done = subprocess.run(
            [*command, "some/model", "--trust-remote-code"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0
        assert done.stderr.splitlines() == ["without effect here: --trust-remote-code"]
