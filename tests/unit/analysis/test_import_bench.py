"""`inferload import`: translation of benchmark command lines."""

import re
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from flow import flow
from inferload.analysis.interop.pasted.bench import Translation, ramp_rate, ramp_s, translate
from inferload.analysis.interop.pasted.kinds import recognised
from inferload.analysis.interop.pasted.shell import commands

from inferload import cli
from inferload.scenario.files.yaml_text import parse
from inferload.scenario.scenario import from_text, load

# Command lines by name of the golden file.
LINES = {
    "sharegpt-length": (
        "vllm bench serve --dataset-name sharegpt --dataset-path ShareGPT_V3_unfiltered_cleaned_split.json "
        "--sharegpt-output-len 200 --request-rate 10 --burstiness 0.5 --disable-shuffle --temperature=0 > out.txt"
    ),
    "prefixes": (
        "vllm bench serve --backend openai-chat --endpoint /v1/chat/completions --base-url https://gateway/llm "
        "--dataset-name prefix_repetition --prefix-repetition-prefix-len 2000 --prefix-repetition-suffix-len 100 "
        "--prefix-repetition-num-prefixes 5 --prefix-repetition-output-len 64 --num-prompts 500 --request-rate 20 "
        "--max-concurrency 64 --insecure"
    ),
    "custom": (
        "vllm bench serve --backend openai-chat --endpoint /v1/chat/completions --dataset-name custom "
        "--dataset-path prompts.jsonl --custom-output-len -1 --num-warmups 5 --ready-check-timeout-sec 60 --seed 7"
    ),
    "hub": (
        "vllm bench serve --backend openai-chat --endpoint /v1/chat/completions --dataset-name hf "
        "--dataset-path likaixin/InstructCoder --hf-split train --hf-output-len 400 --trust-remote-code --request-rate 2"
    ),
    "goodput": (
        "vllm bench serve --host 10.0.0.5 --port 9000 --request-rate 4 --burstiness inf --goodput ttft:500 tpot:50 e2el:20000 "
        "--metadata version=0.32 tp=2 --result-dir out --result-filename a.json --label night.run"
    ),
    "ramp-linear": (
        "vllm bench serve --ramp-up-strategy linear --ramp-up-start-rps 2 --ramp-up-end-rps 20 --num-prompts 1000 --seed 3"
    ),
    "sampling": (
        "vllm bench serve --backend openai-chat --endpoint /v1/chat/completions --top-p 0.9 --top-k 40 --temperature 0.7 "
        """--extra-body '{"chat_template_kwargs": {"enable_thinking": false}, "stream": false}' --logprobs 3 """
        "--header X-Tenant=a Authorization='Bearer sk-secret' --lora-modules sql chat docs --lora-assignment round-robin"
    ),
    "ratios": (
        """vllm bench serve --random-input-len 1000 --random-output-len 100 --random-prefix-len 50 """
        """--random-range-ratio '{"input": 0.3, "output": 0.5}' --probe-request-rate 1"""
    ),
    "responses": "vllm bench serve --backend openai-responses --endpoint /v1/responses --request-rate 1 --num-prompts 60 "
    "--num-warmups 8 --model meta-llama/Llama-3.1-8B-Instruct",
}


def translation(line: str, version: tuple[int, ...] | None = None) -> Translation:
    """Translate the only command of a text."""
    (command,) = commands(line)
    bench = recognised(command)
    assert bench is not None
    return translate(bench, version)


@pytest.mark.parametrize("name", LINES)
def test_a_command_line_becomes_a_scenario(
    name: str, golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["import", LINES[name]]) == 0
    captured = capsys.readouterr()
    assert "sk-secret" not in captured.out + captured.err
    golden(f"bench-{name}.yaml", flow(captured.out))
    prefix = "inferload: no equivalent: "
    lost = [line.removeprefix(prefix) for line in captured.err.splitlines() if line.startswith(prefix)]
    assert all(f"#   {line}\n" in captured.out for line in lost)
    file = tmp_path / "a.yaml"
    assert cli.main(["import", LINES[name], "--into", str(file)]) == 0
    assert load(str(file)).seed == translation(LINES[name]).document["seed"]
    assert cli.main(["import", LINES[name], "--into", str(file)]) == 2  # nothing is overwritten


# Command lines, each above keys of its scenario.
KEYS = """\
vllm bench serve --dataset-name sharegpt --dataset-path t.jsonl --sharegpt-output-len 1500
    {workload.source.filters: {min_prompt_tokens: 4, max_prompt_tokens: 548}}
# each prefix is sent equally often
vllm bench serve --dataset-name prefix_repetition --prefix-repetition-num-prefixes 4 --num-prompts 23
    {phases.sessions: 20, arrivals.users: 20}
# vLLM sends each line of a trace by itself
vllm bench serve --dataset-name timed_trace --dataset-path t.jsonl --num-prompts 50 --no-self-timed --request-rate 3
    {workload.kind: replay, workload.path: t.jsonl, workload.format: bailian, workload.join_turns: false,
    arrivals.kind: poisson, phases.sessions: 50, request.ignore_eos: true}
vllm bench serve --dataset-name timed_trace --dataset-path t.jsonl --num-prompts 50
    {workload.kind: replay, workload.path: t.jsonl, workload.format: bailian, workload.join_turns: false,
    arrivals.kind: trace, phases.sessions: 50, request.ignore_eos: true}
vllm bench serve --dataset-name timed_trace --dataset-path t.jsonl --num-prompts 50 --timed-trace-chunk-hash-size 512 \
--timed-trace-sec-multiplier 0.001
    {workload.kind: replay, workload.path: t.jsonl, workload.format: mooncake, workload.join_turns: false,
    arrivals.kind: trace, phases.sessions: 50, request.ignore_eos: true}
vllm bench serve --dataset-name burstgpt --dataset-path t.jsonl --request-rate 5
    {workload.kind: replay, workload.path: t.jsonl, workload.format: burstgpt-1, workload.pacing: none,
    arrivals: {kind: poisson, sessions_per_s: 5}}
vllm bench serve --backend openai-chat --dataset-name random-mm --random-mm-base-items-per-request 2 \
--random-mm-bucket-config '{(480, 640, 1): 0.7, (256, 256, 1): 0.3}'
    {workload.images: {per_message: 2, width_px: 640, height_px: 480}, workload.source.kind: random,
    request.endpoint: chat, request.ignore_eos: true}
vllm bench serve --backend openai-chat --dataset-name random-mm --random-mm-base-items-per-request 0
    {workload.images: null}
# vLLM applies the chat template
vllm bench serve --dataset-name custom --dataset-path t.jsonl --output-len 32 --ignore-eos
    {workload.output_tokens: 32, request.endpoint: chat, request.ignore_eos: true}
# defaults of the older program, and of the one that followed it
benchmark_serving.py --dataset-path t.jsonl
    {workload.source.kind: sharegpt, request.extra_body.temperature: 0}
vllm bench serve --dataset-path t.jsonl
    {workload.source.kind: random, request.extra_body: null}
python -m vllm.benchmarks.serve
    {request.ignore_eos: true, request.extra_body: null}
python -m benchmark_serving
    {request.ignore_eos: false, request.extra_body.temperature: 0}
"""


@pytest.mark.parametrize(("line", "values"), re.findall(r"^([^ #].*)\n((?: .*\n)+)", KEYS, re.M))
def test_the_keys_of_a_translated_line(line: str, values: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["import", line]) == 0
    from_text(capsys.readouterr().out, "x")
    document = translation(line).document
    for path, value in parse(values).data.items():
        assert reduce(lambda part, key: (part or {}).get(key), path.split("."), document) == value, path


@pytest.mark.parametrize(
    ("ratio", "version", "lengths"),
    [
        ("0.1", None, 0.1),
        ("0.1", (0, 8, 4), 0.1),
        ("0.25", (0, 8, 3), {"dist": "uniform", "min": 250, "max": 1000}),
        ("0", (0, 8, 3), {"dist": "uniform", "min": 1, "max": 1000}),
        ("1.0", (0, 8, 3), 1000),
    ],
)
def test_a_ratio_has_the_meaning_of_its_version(ratio: str, version: tuple[int, ...] | None, lengths: Any) -> None:
    line = f"benchmark_serving.py --dataset-name random --random-input-len 1000 --random-range-ratio {ratio} --seed 3"
    workload = translation(line, version).document["workload"]
    source = workload.get("source", {})
    assert workload.get("prompt_tokens", source.get("range_ratio", source.get("input_tokens"))) == lengths
    assert source.get("draws") == ({"prompts": 1000, "seed": 3} if lengths == 0.1 else None)


def test_secrets_are_not_written_or_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["import", "vllm bench serve --header X-Auth-Token=topsecret"]) == 0
    for option in (
        "--base-url http://bob:topsecret@h:1",
        "--base-url bob:topsecret@h",
        "--endpoint http://b:topsecret@h/v1/x",
    ):
        assert cli.main(["import", f"vllm bench serve {option}"]) == 2
    captured = capsys.readouterr()
    assert "topsecret" not in captured.out + captured.err
    assert "--base-url: contains a user or a password" in captured.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--num-prompts", "--num-prompts: expected one argument"),
        ("--lora-modules", "--lora-modules: expected at least one argument"),
        ("--num-prompts many", "--num-prompts: must be a whole number, 1 or more, not many"),
        ("--num-prompts 0", "--num-prompts: must be a whole number, 1 or more, not 0"),
        ("--request-rate fast", "--request-rate: must be greater than 0, not fast"),
        ("--request-rate 0", "--request-rate: must be greater than 0, not 0"),
        ("--random-range-ratio 1", "1: must be below 1 since vLLM 0.8.4; name an earlier --vllm-version"),
        ("--backend openai-embeddings", "--backend: must be one of openai-chat, openai, vllm"),
        ("--dataset-name spec_bench", "--dataset-name: must be one of random, random-mm, sharegpt"),
        ("--dataset-name timed_trace", "--dataset-path: missing; --dataset-name timed_trace needs it"),
        ("--dataset-name timed_trace --dataset-path a --timed-trace-chunk-hash-size 64", "512 tokens and 0.001 s"),
        ("--timed-trace-label-timestamp ts", "--timed-trace-label-timestamp: must be one of timestamp, not ts"),
        ("--dataset-name random-mm", "images need --backend openai-chat"),
        ("--random-mm-bucket-config x", "--random-mm-bucket-config: must be sizes and shares of images"),
        ("--random-mm-bucket-config '{(9, 9, 16): 1}'", "(no videos), not {(9, 9, 16): 1}"),
        ("--dataset-name sharegpt", "--dataset-path: missing"),
        ("--dataset-name prefix_repetition --num-prompts 9", "9: must be at least --prefix-repetition-num-prefixes 10"),
        ("--dataset-name sharegpt --dataset-path a --output-len 2045", "--output-len 2045: must be 2044 or less"),
        ("--goodput ttft", "--goodput: must be NAME:MILLISECONDS with a name of ttft, tpot, e2el, not ttft"),
        ("--goodput itl:5", "--goodput: must be NAME:MILLISECONDS with a name of ttft, tpot, e2el, not itl:5"),
        ("--extra-body {a:1}", "--extra-body: must be a JSON object"),
        ("--header token-abc123", "--header: must be KEY=VALUE"),
        ("--ramp-up-strategy linear", "--ramp-up-strategy: needs --ramp-up-start-rps"),
        ("--ramp-up-strategy linear --ramp-up-start-rps 1 --ramp-up-end-rps 9 --request-rate 5", "no --request-rate"),
        ("--base-url server:8000", "--base-url server:8000: must start with http:// or https://"),
    ],
)
def test_an_invalid_option_is_one_line(line: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["import", f"vllm bench serve {line}"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert "token-abc123" not in captured.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--api-key token-abc123", "--api-key: no option of vllm bench serve; use --api-key-file"),
        ("--num-prompt 5", "--num-prompt: no option of vllm bench serve; did you mean --num-prompts?"),
        ("--zzz", "--zzz: no option of vllm bench serve"),
        ("--dataset-name sonnet", "--dataset-name sonnet: replaced by prefix_repetition"),
        ("--dataset-name burstgpt --dataset-path b.csv", "--dataset-name burstgpt: all rows in their order"),
        ("--backend openai-chat --dataset-name random-mm", "--random-mm-bucket-config: 2 sizes: all images have one"),
        ("stray", "stray: belongs to no option"),
    ],
)
def test_an_option_without_an_equivalent_is_named_and_the_rest_written(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["import", f"vllm bench serve {line}"]) == 0
    captured = capsys.readouterr()
    assert f"no equivalent: {message}" in captured.err
    assert "token-abc123" not in captured.err + captured.out
    from_text(captured.out, "x")


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://localhost:8000", "http://localhost:8000"),
        ("http://localhost:8000/v1", "http://localhost:8000"),
        ("http://v1.example/v1", "http://v1.example"),
        ("https://a/b/v1/completions", "https://a/b"),
    ],
)
def test_a_url_as_endpoint_is_the_base_url(url: str, host: str) -> None:
    assert translation(f"vllm bench serve --endpoint {url}").run[:2] == ["--host", host]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("vllm bench sweep serve", "vllm bench sweep: not translated; inferload sweep runs variants and loads"),
        ("vllm bench latency --model a", "vllm bench latency: not translated; "),
        ("python3 benchmark_latency.py --model a", "no command of vLLM in it; "),
    ],
)
def test_other_commands_are_refused(command: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["import", command]) == 2
    assert capsys.readouterr().err.startswith(f"inferload: {message}")


def test_an_offline_benchmark_is_a_variant_and_the_options_of_its_load(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = "vllm bench throughput --model Q-8B -tp 2 --prompt-len 9 --input-len 7 stray --num-prompts=3 --qps 4"
    file = tmp_path / "a.yaml"
    assert cli.main(["import", line, "--into", str(file)]) == 0
    assert "gpus: 2" in file.read_text(encoding="utf-8")
    assert capsys.readouterr().err.splitlines() == [
        "inferload: no equivalent: stray: belongs to no option",
        "inferload: no equivalent: --qps: not an option of inferload throughput",
        "inferload: q-8b: no GPU in the commands; simulated as Llama-3.1-8B on NVIDIA A100-SXM4-80GB (a100-llama3-8b)",
        f"{file}: written",
        f"next: inferload throughput {file}:q-8b --input-len 7 --num-prompts 3",
    ]


def test_the_command_line_can_be_read_from_stdin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("vllm bench serve"))
    assert cli.main(["import", "-"]) == 0
    assert "kind: random" in capsys.readouterr().out


@pytest.mark.parametrize(("strategy", "first", "last"), [("linear", 2, 20), ("exponential", 1, 16), ("linear", 5, 5)])
def test_the_duration_of_a_ramp_follows_from_its_requests(strategy: str, first: int, last: int) -> None:
    prompts = 2000
    progress = [index / (prompts - 1) for index in range(prompts)]
    if strategy == "linear":
        rates = [first + (last - first) * share for share in progress]
    else:
        rates = [first * (last / first) ** share for share in progress]
    duration_s = ramp_s(strategy, first, last, prompts)
    assert duration_s == pytest.approx(sum(1 / rate for rate in rates), rel=2e-3)
    half_s = sum(1 / rate for rate in rates[: prompts // 2])
    assert ramp_rate(strategy, first, last, half_s / duration_s) == pytest.approx(rates[prompts // 2], rel=5e-3)
