"""The simulator with the step model as a server, and vLLM's command line."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import simulator_process
from inferload.deploy.simulator import flags, server_config
from inferload.deploy.simulator.core.hardware import PRESETS, Build, find, step_cost
from inferload.deploy.simulator.core.speculation import Acceptance
from inferload.deploy.simulator.protocol.text import answer_of
from inferload.deploy.variants import variant
from simulator_process import Simulator

from inferload.errors import UsageError

COMPLETIONS = "/v1/completions"
Start = Callable[..., Simulator]
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
    return {
        "model": "simulator",
        "prompt": prompt,
        "max_tokens": 6,
        "ignore_eos": True,
        "stream": True,
        "stream_options": usage,
        **more,
    }


def events_of(body: bytes) -> list[dict[str, Any]]:
    datas = [each[6:] for each in body.split(b"\n\n") if each.startswith(b"data: {")]
    return [json.loads(data) for data in datas]


def counts_of(events: list[dict[str, Any]]) -> list[int]:
    return [each["usage"]["completion_tokens"] for each in events if each["choices"]]


def ask_at_once(server: Simulator, number: int, **more: Any) -> list[list[dict[str, Any]]]:
    """Run `number` concurrent streams."""
    documents = [body_of(**more, cache_salt=f"s{index}") for index in range(number)]
    return [events_of(body) for body in server.call_at_once(COMPLETIONS, documents)]


class TestServer:
    def test_the_text_equals_that_of_paced_timing(self, quick: Simulator) -> None:
        events = events_of(quick.call("POST", COMPLETIONS, body_of())[1])
        answer, _dice = answer_of(0, body_of()["prompt"].split(), None)
        assert "".join(each["choices"][0]["text"] for each in events if each["choices"]) == answer.text(0, 6)
        assert counts_of(events) == [1, 2, 3, 4, 5, 6]

    def test_reported_times_equal_the_step_model(self, quick: Simulator) -> None:
        metrics = events_of(quick.call("POST", COMPLETIONS, body_of(cache_salt="cold"))[1])[-1]["metrics"]
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

    def test_an_unstreamed_answer(self, quick: Simulator) -> None:
        document = {key: value for key, value in body_of(stream=False).items() if key != "stream_options"}
        assert quick.json("POST", COMPLETIONS, document)["usage"]["completion_tokens"] == 6

    def test_faults_delay_and_group_tokens(self, simulator: Start) -> None:
        server = simulator(*CPU)
        for plan, events in (({"kind": "latency", "ms": 90}, 3), ({"kind": "stall", "ms": 90, "after_events": 2}, 4)):
            server.chaos(**plan)
            counts = counts_of(events_of(server.call("POST", COMPLETIONS, body_of(max_tokens=8))[1]))
            # Tokens held back are sent as one event.
            assert counts[-1] == 8
            assert len(counts) <= events
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

    def test_a_disconnected_client_is_aborted(self, simulator: Start) -> None:
        server = simulator(*CPU)
        connection = server.connection()
        connection.request(
            "POST", COMPLETIONS, json.dumps(body_of(max_tokens=2000)), {"content-type": "application/json"}
        )
        assert connection.getresponse().read(20)
        connection.close()
        while server.stats()["requests"]["aborted"] < 1:
            pass
        assert server.metric("vllm:kv_cache_usage_perc") == 0
        assert counts_of(events_of(server.call("POST", COMPLETIONS, body_of())[1]))[-1] == 6

    def test_iteration_tokens_count_computed_and_output_tokens(self, simulator: Start) -> None:
        bounds = '{"iteration_tokens": [1, 20, 50], "request_tokens": [7]}'
        flags_ = ("--max-num-batched-tokens", "16", "--block-size", "8", "--custom-histogram-buckets", bounds)
        server = simulator(*CPU, *flags_)
        # 40 tokens in chunks of 16: one sample of 41, then one per token; 8 of the second prompt are computed.
        for cold, tokens in ((True, 41 + 2), (False, 8 + 1 + 2)):
            before = server.metric("vllm:iteration_tokens_total_sum") if not cold else 0.0
            server.call("POST", COMPLETIONS, body_of(max_tokens=3))
            assert server.metric("vllm:iteration_tokens_total_sum") - before == tokens
        page = server.metrics_text()
        counted = dict.fromkeys(("1.0", "20.0", "50.0", "+Inf"), 0.0)
        for line in page.splitlines():
            for bound in counted:
                if line.startswith("vllm:iteration_tokens_total_bucket") and f'le="{bound}"' in line:
                    counted[bound] = float(line.split()[-1])
        assert list(counted.values()) == [4, 5, 6, 6]
        assert re.findall(r'vllm:request_prompt_tokens_bucket.*le="([^"]+)"', page) == ["7.0", "+Inf"]

    def test_stream_interval_groups_tokens(self, simulator: Start) -> None:
        server = simulator(*CPU, "--stream-interval", "4")
        assert counts_of(events_of(server.call("POST", COMPLETIONS, body_of(max_tokens=10))[1])) == [1, 5, 9, 10]

    def test_speculation_gives_several_tokens_per_event(self, simulator: Start) -> None:
        config = '{"method": "ngram", "num_speculative_tokens": 3}'
        server = simulator(*CPU, "--speculative-config", config, "--spec-acceptance", "1")
        assert counts_of(events_of(server.call("POST", COMPLETIONS, body_of(max_tokens=10))[1])) == [1, 5, 9, 10]

    def test_a_full_queue_is_503(self, simulator: Start) -> None:
        server = simulator(*CPU, "--max-num-queued-reqs", "0")
        status, body = server.call("POST", COMPLETIONS, body_of())
        assert status == 503
        assert json.loads(body)["error"]["code"] == 503
        tokens = simulator(*CPU, "--max-num-queued-tokens", "0")
        assert tokens.call("POST", COMPLETIONS, body_of())[0] == 503


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
            (["--max-num-active-seqs", "300"], "more than --max-num-seqs 256"),
            (["--async-scheduling", "--speculative-config.method", "ngram", "--spec-tokens", "2"], "drafts by ngram"),
            (["--custom-histogram-buckets", '{"request_latencies": [1]}'], "choose from request_latency"),
            (["--custom-histogram-buckets", '{"request_latency": [1, 1]}'], "ascending bounds"),
            (["--custom-histogram-buckets", '{"request_latency": [true]}'], "list of numbers"),
            (["--speculative-config", "{}x"], "not JSON"),
            (["--speculative-config", '{"method": "guess"}'], "method guess"),
            (["--speculative-config", '{"method": "ngram"}'], "num_speculative_tokens None"),
            (["--gpu-memory-utilization", "0.1"], "no memory left for a KV cache"),
            (["--max-model-len", "900k"], "--max-model-len 900000"),
            (["--num-speculative-tokens", "3"], "--speculative-config"),
        ],
    )
    def test_invalid_arguments_are_named(self, words: list[str], message: str) -> None:
        with pytest.raises(UsageError, match=rf"^.*{re.escape(message)}.*$") as refused:
            server_config.resolve(flags.read(words))
        assert "\n" not in str(refused.value)

    def test_vllms_forms_of_numbers_and_names_are_read(self) -> None:
        words = ["m", "--max_num_seqs", "3", "--max-model-len=1K", "--speculative-config.method", "ngram"]
        arguments = flags.read([*words, "--speculative_config.num_speculative_tokens=2"])
        config = server_config.resolve(arguments)
        assert (config.limits.max_num_seqs, config.limits.max_model_len) == (3, 1024)
        assert arguments.speculative_config == {"method": "ngram", "num_speculative_tokens": 2}
        assert config.limits.speculative_tokens == 2
        assert not config.limits.async_scheduling  # as in vLLM, with drafts of this kind

    def test_defaults_are_those_of_the_device(self) -> None:
        plain = server_config.resolve(flags.read(["--hardware", "h200-qwen3-32b"]))
        assert (plain.limits.max_num_seqs, plain.limits.max_num_batched_tokens, plain.limits.block_size) == (
            1024,
            8192,
            16,
        )
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
        assert bounds("--performance-mode", "throughput") == (2048, 16_384)
        assert bounds("--performance-mode", "throughput", "--max-num-seqs", "300") == (300, 16_384)

    @pytest.mark.parametrize(
        ("options", "ahead", "slots", "drops", "overlapped"),
        [
            ({"method": "ngram"}, 0, 0, False, False),
            ({"method": "medusa"}, 0, 0, False, False),
            ({"method": "ngram_gpu"}, 0, 0, False, True),
            ({"method": "eagle3"}, 4, 0, True, True),
            ({"method": "eagle3", "parallel_drafting": True}, 4, 3, True, True),
            ({"method": "deepseek_mtp", "disable_eagle_block_drop": True}, 4, 0, False, True),
            ({"method": "dflash"}, 5, 4, True, True),
            ({"model": "small"}, 4, 1, False, True),
        ],
    )
    def test_scheduler_limits_follow_from_the_draft_method(
        self, options: dict[str, Any], ahead: int, slots: int, drops: bool, overlapped: bool
    ) -> None:
        config = json.dumps({**options, "num_speculative_tokens": 4})
        limits = server_config.resolve(flags.read(["--speculative-config", config])).limits
        assert (limits.speculative_tokens, limits.lookahead_tokens, limits.draft_slots) == (4, ahead, slots)
        assert (limits.drop_last_hit, limits.async_scheduling) == (drops, overlapped)

    @pytest.mark.parametrize(
        ("options", "rates"),
        [
            ({"synthetic_acceptance_rates": [0.9, 0.6, 0.0, 0.0]}, (0.9, 0.6, 0.0, 0.0)),
            ({"synthetic_acceptance_length": 3.25}, (1.0, 1.0, 0.25, 0.0)),
            ({"synthetic_acceptance_length": 5}, (1.0,) * 4),
        ],
    )
    def test_synthetic_acceptance_rates_apply_per_position(
        self, options: dict[str, Any], rates: tuple[float, ...]
    ) -> None:
        config = {"method": "mtp", "num_speculative_tokens": 4, "rejection_sample_method": "synthetic"} | options
        acceptance = Acceptance(
            4, server_config.resolve(flags.read(["--speculative-config", json.dumps(config)])).acceptance, 1
        )
        for _ in range(4_000):
            acceptance.draw(4)
        counts = acceptance.counts
        shares = [count / counts.drafts for count in counts.per_position]
        assert shares == pytest.approx(rates, abs=0.04)  # five standard errors

    @pytest.mark.parametrize(
        ("options", "fault"),
        [
            ({"synthetic_acceptance_length": 2}, "only with rejection_sample_method"),
            ({"rejection_sample_method": "synthetic"}, "needs either"),
            ({"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5]}, "2 numbers"),
            ({"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5, 0.6]}, "not increasing"),
            ({"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.5, None]}, "2 numbers"),
            ({"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 4}, "from 1 to 3"),
        ],
    )
    def test_invalid_acceptance_rates_are_refused(self, options: dict[str, Any], fault: str) -> None:
        config = json.dumps({"method": "mtp", "num_speculative_tokens": 2} | options)
        with pytest.raises(UsageError, match=fault):
            server_config.resolve(flags.read(["--speculative-config", config]))

    def test_arguments_without_effect_are_listed(self) -> None:
        arguments = flags.read(["m", "--trust-remote-code", "--tokenizer", "t", "--data-parallel-size", "1"])
        assert flags.without_effect(arguments) == ["--trust-remote-code", "--tokenizer", "--data-parallel-size"]

    def test_the_command_prints_arguments_without_effect(self) -> None:
        command = [sys.executable, "-m", "inferload", "simulator", "--port", "0", "--exit-after-s", "0.05"]
        done = subprocess.run(
            [*command, "some/model", "--trust-remote-code"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0
        assert done.stderr.splitlines() == ["without effect here: --trust-remote-code"]
