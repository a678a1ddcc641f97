"""Pasted command lines: the same options in any order and notation are the same command."""

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inferload.analysis.interop.pasted.kinds import BENCH, SERVE, THROUGHPUT, recognised
from inferload.analysis.interop.pasted.serve import translated
from inferload.analysis.interop.pasted.shell import commands
from inferload.deploy.variants.variant import bundled

from inferload import cli
from inferload.base.errors import UsageError

OPTIONS = {"max-num-seqs": 8, "dtype": "float16", "max-model-len": 4096, "served-model-name": "a model # 1"}
STARTS = (
    "vllm serve M",
    "python3 -m vllm.entrypoints.openai.api_server --model M",
    "nohup ./.venv/bin/python -m vllm.entrypoints.cli.main serve M",
    "docker run --gpus all -e A=1 -p 8000:8000 vllm/vllm-openai:latest --model M",
    "podman run docker.io/vllm/vllm-openai M",
)
PREFIXES = (
    "|A=1 |export A=1\n|root@2f77:/dir# |$ |(venv) $ |(a) [u@h ~]$ |u@h dir % |> |% |\u276f |\u279c  ~ |~/a$ "
    "|u@h:~/my dir$ |In [3]: !|PS C:\\a> |- |* |1. |2) |\u2022 |ExecStart="
)


@given(
    st.sampled_from(STARTS),
    st.sampled_from(PREFIXES.split("|")),
    st.permutations(sorted(OPTIONS)),
    st.sampled_from(("--", "\u2013", "\u2014", "\u2014\u2014")),
    st.sampled_from((" ", " \\\n  ", " \\ # a comment\n  ", " # a comment\n  ")),
    st.sampled_from(("", " &", " > log 2>&1 &", " 2>&1 | tee log", "  # the end", "\u3002")),
    st.booleans(),
    st.booleans(),
)
def test_a_server_is_the_same_in_any_notation(  # noqa: PLR0917
    start: str, prefix: str, order: list[str], dash: str, between: str, end: str, underscores: bool, equals: bool
) -> None:
    names = [name.replace("-", "_") if underscores else name for name in order]
    options = [
        f"{dash}{name}{'=' if equals else ' '}{shlex.quote(str(OPTIONS[key]))}"
        for name, key in zip(names, order, strict=True)
    ]
    (command,) = commands(prefix + between.join([start, *options]) + end)[:1]
    found = recognised(command)
    assert found is not None
    assert found.kind == SERVE
    server = translated(found.words, found.environment)
    assert server.model == "M"
    assert server.args == OPTIONS


COMPOSE = """\
  vllm:
    image: vllm/vllm-openai:v0.32.0
    environment: {A: 1, M: M}

    command: COMMAND
  other: {}
"""
KUBERNETES = """\
      containers:
      - name: vllm
        env: [{name: A, value: "1"}, {name: SECRET, valueFrom: {}}]
        image: "my/vllm-openai-rocm"
        ARGS
        ports: []
      - name: proxy
        image: nginx
        args: [-c, /vllm.conf]
"""
FLAGS = ["--max-num-seqs", "8", "--dtype", "float16"]
LINE = "vllm serve M --max-num-seqs 8 --dtype float16"


@pytest.mark.parametrize(
    "text",
    [
        *(f"A=1 bash -lc '{LINE}'", f'export M=M\nexport A=1\nsh -c "{LINE}" &', f"A=1 ssh host '{LINE} > log'"),
        *(f"A=1 screen -dmS a bash -c '{LINE}'", f"docker run -e A=1 --entrypoint sh any/image -c '{LINE}'"),
        *(f"docker run --env=A=1 rocm/vllm {LINE}", f"nohup env A=1 {LINE}", f"sudo A=1 {LINE}"),
        *(
            f"<p>Run</p><pre><code class='a'><span>A=1</span> {line}</code>"
            for line in (LINE, LINE.replace(" --", " \\\n--"))
        ),
        "A=1 " + LINE.replace("M", "&quot;M&quot;").replace(" --", " \u2010\u2011") + " &gt; log &amp;",
        *("A=1 " + LINE.replace(" --", f" {end}\r\n\t--") for end in "\\^`"),
        *(f"export A=1 M=M\n{LINE.replace(' M', f' {name}')}" for name in ("$M", "${M}", "${X:-M}", '"${X-M}"')),
        "A=1 vllm serve --dtype=float16 --max-num-seqs 8 M/N".replace("M/N", "./M"),
        f"```\n{COMPOSE.replace('COMMAND', f'--model M {shlex.join(FLAGS)}')}\n```\n| not vllm |",
        COMPOSE.replace("COMMAND", f">\n      --model M\n      {shlex.join(FLAGS)}"),
        KUBERNETES.replace(
            "        image:", "        build:\n          args: [BASE=vllm/vllm-openai]\n        image:"
        ).replace("ARGS", f"args: {json.dumps(['--model=M', *FLAGS])}"),
        COMPOSE.replace("COMMAND", json.dumps(["--model", "M", *FLAGS])).replace("{A: 1, M: M}", "[A=1, B]"),
        KUBERNETES.replace("ARGS", f"args: {json.dumps(['--model=M', *FLAGS])}"),
        KUBERNETES.replace(
            "ARGS",
            f'command: [vllm, serve]\n        args:\n        - M\n        - {FLAGS[0]}\n        - "8"\n        - --dtype=float16',
        ),
        KUBERNETES.replace("ARGS", f"command: [/bin/sh, -c]\n        args: ['{LINE}']"),
        f'```\n    command: ["/bin/sh", "-c"]\n    args:\n    - "{LINE}"\n    env: [{{name: A, value: 1}}]\n```\nText.',
        f"```\nenv:\n- name: A\n  value: 1\ncommand: {json.dumps(LINE.split())}\n```\nMore: text",
    ],
)
def test_a_server_is_the_same_in_what_runs_it(text: str) -> None:
    (found,) = filter(None, map(recognised, commands(text)))
    server = translated(found.words, found.environment)
    assert (server.model.lstrip("./"), server.args) == ("M", {"max-num-seqs": 8, "dtype": "float16"})
    assert {name: value for name, value in server.environment.items() if name != "M"} == {"A": "1"}


@pytest.mark.parametrize("word", ["", "True", "true", "False", "FALSE"])
@pytest.mark.parametrize("negative", ["", "no-"])
@pytest.mark.parametrize("equals", [True, False])
def test_a_flag_has_its_boolean_in_any_notation(word: str, negative: str, equals: bool) -> None:
    flag = f"--{negative}enable-prefix-caching"
    words = [f"{flag}={word}"] if equals and word else [flag, *filter(None, [word])]
    args = translated(["M", *words, "-tp", "2", "--max-model-len", "8192"], {}).args
    wanted = (word.lower() != "false") != bool(negative)
    assert args == {"enable-prefix-caching": wanted, "tensor-parallel-size": 2, "max-model-len": 8192}


def args_of(line: str, version: tuple[int, ...] | None = None) -> dict[str, Any]:
    """Return the arguments of a command, or of `vllm serve M` with options."""
    (command,) = commands(line if "vllm" in line else f"vllm serve M {line}")
    found = recognised(command)
    assert found is not None
    return dict(translated(found.words, found.environment, version).args)


@pytest.mark.parametrize(
    "name", [name for name, variant in bundled().items() if "VLLM_USE_V1=0" in (variant.old or "")]
)
def test_a_line_of_the_v0_engine_has_its_defaults_as_the_variants_have(name: str) -> None:
    variant = bundled()[name]
    assert args_of(variant.old) == REST | {key: value for key, value in variant.args.items() if value is not None}


BATCH, LENGTH, MEMORY = "max-num-batched-tokens", "max-model-len", "gpu-memory-utilization"
REST = {"max-num-seqs": 256, MEMORY: 0.9}
OFF = {"enable-prefix-caching": False, "enable-chunked-prefill": False}
LONG = OFF | REST | {"enable-chunked-prefill": True, LENGTH: 65536}
SHORT = OFF | REST | {BATCH: 2048, LENGTH: 900}
VLLM = {"generation-config": "vllm"}
DRAFTS = {"num_speculative_tokens": 3}
V0, OF_LONG, OF_SHORT = "VLLM_USE_V1=0 vllm serve", "--max-model-len 65536", "--max-model-len 900"


@pytest.mark.parametrize(
    ("line", "version", "args"),
    [
        (f"{V0} M", None, {"enable-prefix-caching": False, **REST}),  # chunked for long contexts only
        (f"{V0} Qwen/Qwen3-4B", None, OFF | REST | {"enable-chunked-prefill": True, BATCH: 2048}),  # 40,960 tokens
        (f"{V0} Qwen/Qwen2.5-7B", None, OFF | REST | {BATCH: 32768, LENGTH: 32768}),
        ("VLLM_USE_V1=1 vllm serve M", None, {}),
        ("--swap-space 4", None, {}),
        (f"--num-scheduler-steps 8 {OF_SHORT}", None, SHORT),
        (f"--preemption-mode swap {OF_LONG}", None, LONG | {BATCH: 2048}),
        (OF_SHORT, (0, 8, 4), {LENGTH: 900, MEMORY: 0.9}),
        (f"{V0} M {OF_SHORT}", (0, 8, 4), SHORT),
        (OF_SHORT, (0, 6, 3), SHORT | VLLM),
        (OF_LONG, (0, 6, 5), LONG | VLLM | {BATCH: 2048}),
        (OF_LONG, (0, 6, 4), LONG | VLLM | {BATCH: 512}),
        (OF_LONG, (0, 5, 3), LONG | VLLM | {"enable-chunked-prefill": False, BATCH: 65536}),
        (f"{OF_LONG} --enable-prefix-caching", (0, 6, 0), REST | VLLM | {LENGTH: 65536, "enable-prefix-caching": True}),
        ("VLLM_USE_V1=1 vllm serve M", (0, 7, 3), VLLM | {MEMORY: 0.9}),
        ("", (0, 32), {}),
        ("--disable-prefix-caching --disable-chunked-prefill", None, OFF),
        ("--disable-mm-preprocessor-cache --disable-async-output-proc", None, {"mm-processor-cache-gb": 0}),
        ("--share-gpu-memory-fraction 0.8 -O3", None, {MEMORY: 0.8}),
        ("--worker-use-ray", None, {"distributed-executor-backend": "ray"}),
        (
            "--speculative-model '[ngram]' --num-speculative-tokens 3",
            None,
            {"speculative-config": DRAFTS | {"method": "ngram"}},
        ),
        (
            "--speculative_config.method=mtp --speculative-config.num_speculative_tokens 3",
            None,
            {"speculative-config": DRAFTS | {"method": "mtp"}},
        ),
        ("vllm serve --max-model-len=8k a/M --max-num-batched-tokens 2K", None, {LENGTH: 8000, BATCH: 2048}),
        ("vllm serve --enable-prefix-caching a/M", None, {"enable-prefix-caching": True}),
        ("-tp $TP --dtype <dtype> --chat-template '{{ a }}'", None, {"chat-template": "{{ a }}"}),
        ("python -m vllm.entrypoints.api_server --model M --dtype half", None, {"dtype": "half"}),
    ],
)
def test_arguments_with_the_effect_that_they_had(
    line: str, version: tuple[int, ...] | None, args: Mapping[str, Any]
) -> None:
    assert args_of(line, version) == args


def test_an_assumed_value_is_marked() -> None:
    words = ["M", "--speculative-model", "D"]
    assert any("5 is assumed" in line for line in translated(words, {}).lines)
    assert not any("assumed" in line for line in translated([*words, "--num-speculative-tokens", "3"], {}).lines)
    lines = translated(["M"], {"VLLM_USE_V1": "0"}).lines
    assert [line.partition(":")[0] for line in lines if "depends on" in line] == ["enable-chunked-prefill", BATCH]


LOOP = """\
$ for N in 1 '2'; do
>   for name in a "b"
do vllm bench serve --max-concurrency $N --label $name; sleep 1; done
> done
for N in $(seq 3)
do
    vllm bench serve --max-concurrency $N
done
for N in 4; do A=1 vllm bench serve --max-concurrency ${N}; done
"""


def test_a_loop_has_a_command_for_each_value() -> None:
    found = [" ".join(command.words[4:]) for command in commands(LOOP)]
    assert found == [*(f"{number} --label {name}" for number in (1, 2) for name in "ab"), "$N", "4"]


WORDS = """vllm serve M 'vllm serve M' "image: vllm/vllm-openai" command: args: "- --x" [ ] { } "for a in b c; do" done $a ${a:-x}
    <pre> </pre> &gt; "bash -c '" \\' \\" "docker run" "-e A=1" vllm/vllm-openai:v0.8.4 --model --port 3 --max-model-len 8k -tp 4
    --speculative-config.method --speculative-config "export X=1" env "environment: {A: }" "env: [{name: A}]" "- image: vllm" &x *x
    --- --no-x a/b "entrypoint: 3" "command: [1, null, {a: b}]" "> " "$ " """
PARTS = st.lists(st.sampled_from(["\n", "\n  ", "\n    - ", "\\\n", *shlex.split(WORDS)]), max_size=14)


@given(
    st.text("ab -'\"\\#|&;<>=\n$\u2013{}", max_size=60) | st.builds(str.join, st.sampled_from([" ", "\n", ""]), PARTS)
)
def test_any_text_is_read(text: str) -> None:
    for command in commands(text):
        assert command.words
        found = recognised(command)
        assert found is None or found.kind in (BENCH, SERVE, THROUGHPUT)
        with suppress(UsageError):
            translated(found.words if found else (), command.environment)


NOTHING = """
# a comment
pip install vllm
curl http://a/v1/chat/completions -d '{}'
'
aiperf profile -m a
python3 -m sglang.bench_serving --backend vllm --num-prompts 100
evalscope perf --parallel 1 10
guidellm benchmark --target http://localhost:8000 --rate-type sweep
guidellm is another client
command: [vllm]
vllm serve
vllm serve <model> --max-num-seqs 8
vllm serve --max-num-seqs bounds it
vllm serve is slow
vllm serve starts the server that answers
| `vllm serve M` | starts it |
`vllm serve M`\uff1a启动"""


@pytest.mark.parametrize("text", [*NOTHING.splitlines(), "args:\n- vllm", "```\ncommand: [vllm, chat]\n```"])
def test_nothing_to_translate_is_one_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["import", text]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "client"),
    [
        ("guidellm benchmark --target http://localhost:8000 --rate-type sweep", "guidellm"),
        ("nohup evalscope perf --parallel 1 10 > perf.log &", "evalscope"),
        ("uvx aiperf profile -m a", "aiperf"),
        ("python3 -m sglang.bench_serving --num-prompts 100", "sglang.bench_serving"),
        ("pip install guidellm -U", None),
        ("uv pip install aiperf --system", None),
        ("guidellm is another client", None),
        ("vllm serve guidellm --port 8000", None),
    ],
)
def test_loads_of_other_clients_are_named(line: str, client: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["import", line])
    named = [line for line in capsys.readouterr().err.splitlines() if "another client" in line]
    text = "the load of another client is not translated; inferload compare reads its results"
    assert named == ([] if client is None else [f"inferload: {client}: {text}"])
