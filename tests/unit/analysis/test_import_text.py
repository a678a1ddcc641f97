"""`inferload import` of whole texts: files, names, versions, and the command that it prints."""

import os
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inferload.analysis.interop.pasted.family import family
from inferload.analysis.interop.pasted.serve import translated
from inferload.analysis.interop.pasted.shell import commands
from inferload.deploy.servers.engines import ServerSpec, command_of
from inferload.deploy.variants.variant import family_of

from inferload import cli
from inferload.campaign.sweep import definition
from inferload.scenario.files import catalog
from inferload.scenario.files.yaml_text import parse
from inferload.scenario.scenario import load

SERVERS = (
    "vllm serve Qwen/Qwen3-4B --max-model-len 9000",
    "vllm serve Qwen/Qwen3-4B --max-model-len 9000 --no-enable-prefix-caching",
    "docker run --gpus all vllm/vllm-openai:latest --model Qwen/Qwen3-4B --max-model-len 9000 \\\n  --max-num-seqs 8",
)
LOADS = (
    "vllm bench serve --dataset-name random --random-input-len 64 --num-prompts 5",
    "python benchmark_serving.py --dataset-name random --random-input-len 65 --num-prompts 5",
)
FLAGS = ("--max-num-seqs", "--dtype", "--tensor-parallel-size", "--block-size", "--kv-cache-dtype")
TEXT = [*SERVERS, *LOADS, "curl http://localhost:8000/v1/models"]


def imported(folder: Path, text: str, capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """Import a text into a folder; return the messages."""
    assert cli.main(["import", text, "--into", str(folder), *options]) == 0
    return capsys.readouterr().err.splitlines()


SOME_WORDS = """vllm serve `vllm --max-num-seqs don't "quoted 前缀缓存 | │ ──► ** the server starts with python -m x = [ ]
    { } # 8192 \uff08见上\uff09 --enable-prefix-caching=True; $ && git INFO TTFT 3.5 ms, 'it's model= →"""
STARTS = (
    "The;如;|;- **;##;It doesn't;> The;│;1. The;def f(x):;vllm serve 启动;Use `vllm serve M`;--max-num-seqs 越大;  'a':"
)
PROSE = st.builds(
    lambda start, words, end: f"{start} {' '.join(words)}{end}",
    st.sampled_from(STARTS.split(";")),
    st.lists(st.sampled_from(SOME_WORDS.split()), max_size=8),
    st.sampled_from((".", "。", " |", ":", "")),
)


@given(st.lists(st.lists(PROSE, max_size=3), min_size=len(TEXT) + 1, max_size=len(TEXT) + 1))
@settings(max_examples=200 if os.environ.get("INFERLOAD_SOAK") else 60)
def test_prose_tables_and_code_change_no_command(between: list[list[str]]) -> None:
    """Files and messages follow from the commands alone."""
    lines = [line for prose, command in zip(between, [*TEXT, ""], strict=True) for line in (*prose, command)]
    assert commands("\n".join(lines)) == commands("\n".join(TEXT))


def next_command(messages: list[str]) -> list[str]:
    return shlex.split(messages[-1].removeprefix("next: inferload "))


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (SERVERS[0], "deploy"),
        ("vllm serve tiny-2/M --lora-modules a=b --rope-scaling x -pp 2 --max-model-len 999999", "deploy"),
        ("vllm serve unknown --max-model-len 262144 -tp 8", "deploy"),
        (LOADS[0], "plan"),
        ("\n".join(LOADS), "plan"),
        ("vllm bench serve --dataset-name sharegpt --dataset-path absent.json", "plan"),
        ("vllm bench serve --dataset-name custom --dataset-path absent.jsonl", "validate"),
        ("vllm bench throughput --model Qwen/Qwen3-4B --num-prompts 3", "throughput"),
        ("\n".join(TEXT), "sweep"),
        ("vllm serve M\nvllm serve M --lora-modules a=b", "sweep"),
        (
            "vllm serve a/M-72B --max-model-len 900\nA=1 vllm serve a/M-72B\nB=2 vllm serve a/M-72B -tp 4 -q fp8",
            "sweep",
        ),
        ("vllm serve N\nvllm serve N -tp 4\nA=1 vllm serve a/M-72B -q fp8\nB=2 vllm serve a/M-72B", "sweep"),
        ("vllm serve M\nvllm bench serve --dataset-name custom --dataset-path absent.jsonl", "sweep"),
    ],
)
def test_the_next_command_runs(
    text: str, action: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = next_command(imported(Path("in"), text, capsys))
    assert command[0] == action
    assert cli.main([*command, *["--dry-run"] * (action == "sweep")]) == 0
    if action == "sweep":  # each server starts on the simulator
        sweep = definition.load(Path(command[1]))
        for name in sweep.all_variants:
            command_of(ServerSpec(variant=sweep.variant(name)))
            assert sweep.variant(name).model in text
        capsys.readouterr()
        assert cli.main(["deploy", "show", sweep.baseline]) == 0


def test_what_the_simulator_refuses_is_left_out_of_the_sweep(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """An argument is left out if all variants that have it are refused for it; a variant if only its value is."""
    words = ("", "--lora-modules a=b", "--max-num-seqs 9 --max-num-batched-tokens 8", "--max-num-batched-tokens 4096")
    messages = imported(tmp_path, "\n".join(f"vllm serve M {options}" for options in words), capsys)
    sweep = definition.load(tmp_path / "sweep.yaml")
    assert sweep.set == ("lora-modules=",)
    assert [name.rpartition(":")[2] for name in sweep.others] == ["lora-modules-a-b", "tokens-4096"]
    left_out = "tokens-8-seqs-9: refused by the simulator for --max-num-batched-tokens; not in a sweep on it"
    assert f"inferload: {left_out}" in messages


def test_one_file_by_its_name_and_a_path_with_blanks(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for number, text in enumerate((SERVERS[0], LOADS[0])):
        command = next_command(imported(tmp_path / f"my {number}.yaml", text, capsys))
        assert cli.main(command) == 0
    capsys.readouterr()
    assert cli.main(["import", "\n".join(TEXT), "--into", str(tmp_path / "a.yaml")]) == 2
    assert cli.main(["import", "\n".join(TEXT), "--into", str(tmp_path), "--vllm-version", "0.8.4"]) == 0
    assert cli.main(["import", f"{SERVERS[0]}\n{LOADS[0]}\nvllm serve new/M", "--into", str(tmp_path)]) == 2
    messages = capsys.readouterr().err
    assert "a.yaml: 4 files need a folder; name one, as imported/" in messages
    assert "qwen3-4b.yaml: exists already; name another place, or remove it" in messages


def test_a_variant_for_each_distinct_server_named_by_what_differs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = "vllm serve Qwen/Qwen3-4B --max-model-len 9000 --no-enable-prefix-caching"
    lines = (
        *SERVERS,
        f"{line} --enable-chunked-prefill --max-num-batched-tokens 2048",
        f"{line} --enable-chunked-prefill --max-num-batched-tokens 4096 --served-model-name a --trust-remote-code",
        "vllm serve other/M --max-model-len 9000",
        "vllm serve --no-enable-prefix-caching --max_model_len=9000 --model Qwen/Qwen3-4B",
        *SERVERS,
    )
    imported(tmp_path, "\n".join(lines), capsys)
    file = tmp_path / "qwen3-4b.yaml"
    family = family_of(catalog.data(file), file)
    assert {name: (variant.base, variant.model) for name, variant in family.items()} == {
        "qwen3-4b": (None, "Qwen/Qwen3-4B"),
        "no-prefix-caching": ("qwen3-4b", "Qwen/Qwen3-4B"),
        "seqs-8": ("qwen3-4b", "Qwen/Qwen3-4B"),
        "no-prefix-caching-chunked-2048": ("no-prefix-caching", "Qwen/Qwen3-4B"),
        "no-prefix-caching-chunked-4096": ("no-prefix-caching-chunked-2048", "Qwen/Qwen3-4B"),
        "m": (None, "other/M"),
    }


def test_equal_servers_on_several_ports_and_cards_are_one_variant(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = [
        f"export MODEL=a/M PORT={port}\nCUDA_VISIBLE_DEVICES={port} vllm serve $MODEL --port $PORT"
        for port in (1, 2, 2)
    ]
    messages = imported(tmp_path, "\n".join(lines), capsys)
    assert len([message for message in messages if "a/M: the servers on the ports 1 and 2 are equal" in message]) == 1
    (variant,) = family_of(catalog.data(tmp_path / "m.yaml"), tmp_path / "m.yaml").values()
    assert (variant.args, variant.environment) == ({}, {})


@given(st.lists(st.dictionaries(st.sampled_from(FLAGS), st.sampled_from(("1", "2")), max_size=4), min_size=1))
@settings(max_examples=60, deadline=None)
def test_the_family_has_the_arguments_of_the_lines(options: list[dict[str, str]]) -> None:
    """Over base and factor, each line has the arguments that it has alone, in a variant of its own name."""
    lines = [[word for flag, value in given.items() for word in (flag, value)] for given in options]
    servers = [translated(["M", *words], {}) for words in lines]
    text = family(servers)
    variants = family_of(parse(text.text).data, Path("x.yaml"))
    assert tuple(variants) == text.names
    found = [{key: value for key, value in variant.args.items() if value is not None} for variant in variants.values()]
    assert sorted(map(repr, map(sorted, map(dict.items, found)))) == sorted(
        {repr(sorted(server.args.items())) for server in servers}
    )


@pytest.mark.parametrize(
    ("around", "options", "limit"),
    [
        (("pip install vllm==0.6.3", ""), (), 512),
        (("", "git checkout v0.6.3.post1"), (), 512),
        (("uv pip install 'vllm[audio]==0.6.6'", ""), (), 2048),
        (("git clone -b v0.6.6 https://github.com/vllm-project/vllm", "pip install vllm==0.6.3"), (), 2048),
        (("pip install vllm==0.6.3", ""), ("--vllm-version", "v0.6.6"), 2048),
        (("docker run registry.example/vllm/vllm-openai:v0.6.3 --model M --max-model-len 4096", ""), (), 512),
        (("pip install torch==0.6.3", ""), (), None),
        (("vllm 0.6.3, v0.6.3+ is the default", "git checkout v4.40.0"), (), None),
    ],
)
def test_the_version_of_a_text(
    around: tuple[str, str],
    options: tuple[str, ...],
    limit: int | None,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    imported(tmp_path, "\nvllm serve M --max-model-len 65536\n".join(around), capsys, *options)
    (file,) = tmp_path.glob("m.yaml")
    text = file.read_text(encoding="utf-8")
    budgets = [variant.args.get("max-num-batched-tokens") for variant in family_of(parse(text).data, file).values()]
    assert limit in budgets
    assert ("name the text's version by --vllm-version" in text) == (limit is None)


@pytest.mark.parametrize("version", ["abc", "", "8", "0.8.x", "0.99", "1.2.3", "0.0.1", "latest"])
def test_an_unknown_version_is_refused(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["import", SERVERS[0], "--vllm-version", version]) == 2
    known = "must be a version of vLLM from 0.1 to 0.32, such as 0.8.4"
    assert f"--vllm-version {version}: {known}" in capsys.readouterr().err


def test_the_file_of_the_text_is_used_where_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "\n".join(
        f"python benchmark_serving.py --dataset-name sharegpt --dataset-path x_100_{kind}.json --num-prompts 2"
        for kind in ("static", "dynamic", "statistics")
    )
    Path("x_100_static.json").write_text("[]", encoding="utf-8")
    messages = imported(Path("in"), text, capsys)
    assert sorted(path.stem for path in Path("in").iterdir()) == ["dynamic-standin", "static", "statistics-standin"]
    assert load("in/static.yaml").workload.source.path == "x_100_static.json"
    assert load("in/dynamic-standin.yaml").workload.kind == "agent"
    assert load("in/statistics-standin.yaml").workload.kind == "chat"
    assert sum("missing" in message for message in messages) == 2
