"""Variants: complete and current arguments, differences from their base, and machine checks."""

import json
import os
import re
import shlex
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from inferload.deploy.launcher import weights
from inferload.deploy.launcher.machine_checks import (
    Gpu,
    Hardware,
    check_disk,
    check_gpus,
    check_memory,
    gpus,
    visible_gpus,
)
from inferload.deploy.render.shell_script import script
from inferload.deploy.servers.engines import ServerSpec, command_of, line_of, shell_line
from inferload.deploy.servers.local import priced
from inferload.deploy.servers.sizing import weights_gb
from inferload.deploy.simulator import flags as simulator_flags
from inferload.deploy.variants.variant import Variant, bundled, changed, document, family_of, named
from inferload.deploy.vllm.arguments import REFUSED, REFUSED_VALUES, faults, to_argv
from paths import ROOT
from ports import unused_port

from inferload import cli
from inferload.base.errors import UsageError
from inferload.campaign.sweep.plan import PlannedRun
from inferload.results.prices import Prices


def test_no_variant_has_a_removed_flag() -> None:
    gone = {name: faults(variant.argv, variant.environment) for name, variant in bundled().items()}
    assert {name: message for name, message in gone.items() if message} == {}


def test_a_variant_differs_from_its_base_by_its_stated_arguments() -> None:
    for variant in bundled().values():
        if variant.base is None:
            assert not variant.factor
        else:
            assert variant.difference(bundled()[variant.base]), variant.name
        assert variant.purpose
        assert "--enable-per-request-metrics" in variant.argv


def test_a_variant_inherits_the_rest_of_its_base() -> None:
    everything = bundled()["t4-all"]
    assert everything.args["dtype"] == "float16"
    assert everything.difference(bundled()["t4-baseline"]) == [
        "max-num-batched-tokens: 12000 -> 8192",
        "enable-prefix-caching: false -> true",
        "enable-chunked-prefill: false -> true",
    ]
    assert "--dtype" not in bundled()["t4-recommended"].argv
    assert bundled()["llama3-tp2"].hardware.gpus == bundled()["llama3-tp2-awq"].hardware.gpus == 2


def test_the_old_forms_are_refused_today_or_run_as_they_are() -> None:
    gone = {name for name, variant in bundled().items() if variant.old and faults(variant.old.split())}
    assert {"llama70-draft", "llama31-graphs-256", "llama31-clean", "llama70-throughput"} <= gone


def test_results_record_a_command_line_of_each_variant_that_the_shell_and_vllm_accept() -> None:
    for variant in bundled().values():
        given = replace(variant, environment={**variant.environment, "NOTE": "a b; c"})
        words = shlex.split(shell_line(ServerSpec(variant=given, extra=("--seed", "1"))))
        at = next(index for index, word in enumerate(words) if "=" not in word)
        assert "NOTE=a b; c" in words[:at]
        assert faults(words) == []
        if words[at] == "vllm":
            assert words[at : at + 3] == ["vllm", "serve", variant.model]
            assert words[at + 3 :] == [*to_argv(variant.args), "--seed", "1"]
        else:  # a generated model
            spec = ServerSpec(model=words[at + 3], extra=tuple(words[words.index("--") + 1 :]))
            assert command_of(spec).argv[-2:] == ("--seed", "1")
    assert weights_gb(bundled()["llama3-baseline"]) == pytest.approx(16.06)
    assert weights_gb(bundled()["llama70-draft"]) is None


@pytest.mark.parametrize(
    ("arguments", "argv"),
    [
        ({"max-num-seqs": 8}, ["--max-num-seqs", "8"]),
        ({"enforce-eager": True, "enable-prefix-caching": False}, ["--enforce-eager", "--no-enable-prefix-caching"]),
        ({"speculative-config": {"method": "mtp"}}, ["--speculative-config", '{"method":"mtp"}']),
        ({"dtype": None}, []),
    ],
)
def test_arguments_become_a_command_line(arguments: dict[str, Any], argv: list[str]) -> None:
    assert to_argv(arguments) == argv


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--kv-cache-dtype=int8"], "--kv-cache-dtype int8: no INT8 KV cache per tensor"),
        (["--quantization", "W4A8"], "--quantization W4A8: no W4A8 kernels of that name"),
        (["-q", "awq", "--quantization=bitsandbytes"], "--quantization bitsandbytes: no method of vLLM 0.32"),
        (["--speculative-model", "x"], "--speculative-model: now --speculative-config"),
        (["--swap_space", "4"], "--swap-space: a preempted request is recomputed"),
        (["--kv_cache_dtype=int8"], "--kv-cache-dtype int8: no INT8 KV cache per tensor"),
        (["--qps=3"], "--qps: was never a flag of vLLM"),
    ],
)
def test_removed_arguments_are_refused(argv: list[str], message: str) -> None:
    (fault,) = faults(["--max-num-seqs", "8", *argv])
    assert fault.startswith(message)


@pytest.mark.parametrize("value", ["0", "1", "maybe"])
def test_a_switch_with_a_value_is_refused(value: str) -> None:
    """`--enable-prefix-caching 0` is the switch and an additional argument."""
    variant = changed(named("tiny-all"), [f"enable-prefix-caching={value}"])
    with pytest.raises(UsageError, match=f"^tiny-all: {value}: no flag takes this value, .*; a switch takes no value "):
        command_of(ServerSpec(variant=variant))
    off = changed(named("tiny-all"), ["enable-prefix-caching=false"])
    assert "--no-enable-prefix-caching" in command_of(ServerSpec(variant=off)).argv


@pytest.mark.parametrize("extra", [("stray",), ("0", "--max-num-seqs", "8")])
def test_after_two_dashes_only_flags_are_accepted(extra: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=f"^{extra[0]} after --: not a flag; "):
        command_of(ServerSpec(variant=named("tiny-all"), extra=extra))


def test_removed_arguments_have_the_same_message_on_the_simulator() -> None:
    for (flag, value), reason in REFUSED_VALUES.items():
        with pytest.raises(UsageError) as raised:
            command_of(ServerSpec(variant=changed(named("tiny-all"), [f"{flag}={value}"])))
        assert str(raised.value) == f"tiny-all: --{flag} {value}: {reason}"


@given(st.lists(st.text(max_size=20), max_size=6))
def test_any_command_line_can_be_checked(argv: list[str]) -> None:
    assert all(isinstance(fault, str) for fault in faults(argv))


def test_the_variants_page_lists_all_variants_and_removed_arguments() -> None:
    page = (ROOT / "docs/background/adr/0008-variants-for-current-vllm.md").read_text()
    refused = [*REFUSED, *(f"--{flag} {value}" for flag, value in REFUSED_VALUES)]
    assert [name for name in bundled() if f"`{name}`" not in page] == []
    assert [name for name in refused if f"`{name}" not in page] == []


def test_the_switch_to_the_v0_engine_is_refused() -> None:
    gone = replace(named("tiny-all"), environment={"VLLM_USE_V1": "0"})
    with pytest.raises(UsageError, match=r"^tiny-all: VLLM_USE_V1=0: the V0 engine was removed in vLLM 0\.11"):
        command_of(ServerSpec(variant=gone))
    assert faults((), {"VLLM_USE_V1": "1"}) == []


FAMILY = {
    "source": "x",
    "model": "m",
    "hardware": {"gpu": "T4", "gpus": 1, "memory_gib": 16},
    "simulated_as": "cpu-tiny",
    "variants": {
        "a": {"purpose": "p", "args": {"x": 1}},
        "b": {"base": "a", "factor": "f", "purpose": "q", "args": {"x": 2}},
    },
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modle": "x"}, "unknown key modle; did you mean model?"),
        ({"variants": {"a": {"purpos": "p"}}}, "variant a: unknown key purpos; did you mean purpose?"),
        (
            {"variants": {"a": {"base": "z", "factor": "f", "purpose": "p"}}},
            "variant a: its base z is not defined before it",
        ),
        ({"variants": {"a": {"factor": "f", "purpose": "p"}}}, "variant a: define both base and factor, or neither"),
        ({"variants": {"a": {}}}, "variant a: 'purpose' is missing"),
        ({"variants": {}}, "no variants"),
    ],
)
def test_an_unknown_family_is_refused(change: dict[str, Any], message: str) -> None:
    assert family_of(FAMILY, Path("f.yaml"))["b"].args == {"x": 2}
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        family_of(FAMILY | change, Path("f.yaml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source: x\nmodel: [oops\n", ":3: not YAML: expected ',' or ']', but got '<stream end>'"),
        ("source: x\nvariants: {a: &b {purpose: *b}}\n", None),
        ("source: x\nmodel: y\nmodel: z\n", ":3: model: duplicate key, also in line 2; remove one of them"),
        ("source: !x y\n", ":1: source: tag '!x': tags are not supported; write plain values"),
        ("source: x\nvariants: [a]\n", ": variants: needs a mapping of names"),
        ("source: x\nvariants: {a: {args: [1]}}\n", ": variant a: args: not a mapping such as {max-num-seqs: 8}"),
        (None, ": No such file or directory; FILE.yaml:NAME names a variant of a file"),
    ],
)
def test_an_invalid_variant_file_is_one_line(text: str | None, message: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UsageError) as raised:
        named(f"{tmp_path}/mine.yaml:a")
    assert len(str(raised.value).splitlines()) == 1
    assert (
        str(raised.value) == f"{tmp_path}/mine.yaml{message}"
        if message
        else "recursive aliases (*name)" in str(raised.value)
    )


def test_yaml_alias_bombs_in_variants_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (tmp_path / "mine.yaml").write_text("\n".join(lines))
    with pytest.raises(UsageError, match=r"holds more than 50000 values"):
        named(f"{tmp_path}/mine.yaml:a")


_FIELDS = ("source", "model", "hardware", "simulated_as", "prices", "variants")
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from([*_FIELDS, "base", "factor", "purpose", "args", "environment", "old"]), _VALUES)
def test_a_value_of_any_type_makes_a_variant_or_a_refusal(key: str, value: Any) -> None:
    family: dict[str, Any] = {**FAMILY, "variants": {"a": dict(FAMILY["variants"]["a"])}}
    (family if key in _FIELDS else family["variants"]["a"])[key] = value
    variants: dict[str, Variant] = {}
    with suppress(UsageError):
        variants = family_of(family, Path("f.yaml"))
    assert all(
        script(variant, "vllm") and variant.argv and json.dumps(document(variant)) for variant in variants.values()
    )


@pytest.mark.parametrize("name", ["../../out", "..", "/x", "a/b", "", "a\nb", "-x", "a" * 65, "$(x)"])
def test_a_variant_name_with_path_characters_is_refused(name: str, tmp_path: Path) -> None:
    family = {**FAMILY, "variants": {name: FAMILY["variants"]["a"]}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(family))
    with pytest.raises(UsageError, match="invalid name; use up to 64 letters"):
        named(f"{tmp_path}/mine.yaml:{name}")
    with pytest.raises(UsageError, match="invalid name; use up to 64 letters"):
        PlannedRun("s", f"{tmp_path}/mine.yaml:{name}", 0, 1).folder  # noqa: B018


def test_a_setting_that_is_not_yaml_is_one_line() -> None:
    with pytest.raises(UsageError) as raised:
        changed(named("tiny-all"), ["speculative-config={bad"])
    assert str(raised.value) == (
        "--set speculative-config={bad: the value is not YAML (expected ',' or '}', but got '<stream end>'); "
        "check brackets and quotes"
    )


def test_a_variant_from_a_users_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(FAMILY))
    assert named(f"{tmp_path / 'mine.yaml'}:b").base == "a"
    with pytest.raises(UsageError, match="variant t4-al: unknown; did you mean t4-all"):
        named("t4-al")


def test_a_difference_lists_environment_and_simulated_hardware() -> None:
    base = replace(named("tiny-all"), environment={"A": "1", "B": "2"})
    other = replace(base, environment={"A": "3", "C": "4"}, simulated_as="a100-llama3-8b")
    assert other.difference(base) == [
        "A: 1 -> 3",
        "B: 2 -> not set",
        "C: not set -> 4",
        "simulated_as: cpu-tiny -> a100-llama3-8b",
    ]


def test_show_prints_differences_of_a_users_variant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    variants = {
        "tiny-all": {"purpose": "p", "args": {"max-num-seqs": 8}},  # not the bundled variant of that name
        "b": {"purpose": "q", "base": "tiny-all", "factor": "f", "args": {"speculative-config": {"method": "ngram"}}},
    }
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(FAMILY | {"variants": variants}, sort_keys=False))
    assert cli.main(["deploy", "show", f"{path}:b"]) == 0
    message = capsys.readouterr().out
    assert "  base       tiny-all, differs in: f\n" in message
    assert '             speculative-config: not set -> {"method":"ngram"}\n  command' in message
    assert cli.main(["deploy", "show", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"inferload: {path}: a file, not a variant; use {path}:NAME with one of tiny-all, b\n"
    )


def check(variant: Variant, variants: list[Gpu], visible: str | None = None) -> None:
    check_gpus(variant.name, variant.hardware, variants, visible, variant.utilization)


TWO_GPUS = {"GPU-aa1": Gpu("A", 80, 80), "GPU-ab2": Gpu("B", 24, 24)}


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        ("", []),
        ("0", ["A"]),
        ("1,0", ["B", "A"]),
        (" 1 ", ["B"]),
        ("0,2,1", ["A"]),  # CUDA reads up to the first entry that selects none
        ("-1", []),
        ("0,0", []),
        ("GPU-ab", ["B"]),
        ("GPU-a", []),  # a prefix of two ids
        ("GPU-ab2,GPU-aa1", ["B", "A"]),
        ("MIG-x", ["MIG-x"]),
        ("void", []),
        ("9" * 5000, []),
    ],
)
def test_only_visible_gpus_count(visible: str, names: list[str]) -> None:
    assert [gpu.name for gpu in visible_gpus(visible, TWO_GPUS)] == names


@pytest.mark.parametrize("engine", ["vllm", "vllm-cpu"])
def test_a_set_served_model_name_replaces_the_model(engine: str) -> None:
    for setting in ("served-model-name=mine", "served_model_name=mine"):
        variant = changed(named("tiny-all"), [setting])
        argv = line_of(ServerSpec(engine, variant.model, variant=variant)).argv
        assert argv.count("--served-model-name") == 1
        assert argv[argv.index("--served-model-name") + 1] == "mine"
    extra = line_of(ServerSpec(engine, "tiny", variant=named("tiny-all"), extra=("--served-model-name=x",))).argv
    assert [word for word in extra if "served" in word] == ["--served-model-name=x"]


def test_a_variant_that_cannot_run_here_names_commands_to_copy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rehearsal with the same settings, and the script for another host, which is printed."""
    monkeypatch.setattr("inferload.deploy.launcher.machine_checks.gpus", lambda _visible: [])
    words = ["deploy", "up", "llama31-base", "--set", "max-num-seqs=8"]
    assert cli.main([*words, "--engine", "vllm", "--port", str(unused_port())]) == 2
    problem, rehearsal, elsewhere = capsys.readouterr().err.rstrip().split("; ")
    assert problem.endswith("nvidia-smi lists none on this machine")
    assert rehearsal == f"rehearse it: inferload {shlex.join(words)} --engine simulator"
    assert cli.build_parser("deploy").parse_args(shlex.split(rehearsal.partition(": ")[2])[1:]).engine == "simulator"
    script = elsewhere.removeprefix("on a host with GPUs: inferload ").removesuffix(" | ssh HOST sh")
    assert cli.main(shlex.split(script)) == 0
    text = capsys.readouterr().out
    assert text.startswith("#!/bin/sh\n")
    assert "--max-num-seqs 8" in text


def test_unknown_gpu_properties_do_not_fail_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unified-memory GPUs report `[N/A]`; a driver that blocks or cannot run has no GPUs."""
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho 'NVIDIA GB10, [N/A], [N/A], GPU-a'\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    check(named("llama31-base"), gpus())
    with pytest.raises(UsageError, match=r"^llama31-base: needs .*, CUDA_VISIBLE_DEVICES='' leaves 0;"):
        check(named("llama31-base"), gpus(""), "")
    driver.write_text("no program\0")
    assert gpus() == []


@pytest.mark.parametrize(
    ("name", "variants", "message"),
    [
        ("t4-all", [], "t4-all: needs Tesla T4, nvidia-smi lists none on this machine"),
        ("llama3-tp2", [Gpu("A100", 80, 80)], "needs 2 x A100 80GB, this machine has 1"),
        ("t4-all", [Gpu("GTX", 8, 8)], "needs 16 GiB on each of 1 GPU"),
        ("llama3-tp2", [Gpu("GTX", 8, 8), Gpu("GB10", None, None)], "this machine has GTX 8 GiB, GB10 memory unknown"),
        ("t4-all", [Gpu("T4", 15, 3)], "T4 has 3.0 of 15.0 GiB free, and the server uses 92 %"),
    ],
)
def test_missing_gpus_are_refused(name: str, variants: list[Gpu], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(named(name), variants)


def test_missing_memory_and_disk_space_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tiny: needs 1000000 GiB of memory, .* GiB are free; stop other programs"):
        check_memory(Hardware("", 0, 10**6), "tiny")
    check_memory(Hardware("", 0, 0), "tiny")
    with pytest.raises(UsageError, match=r"new: .* GiB free, but a model needs about 1000000.0 GiB; free disk space"):
        check_disk(tmp_path / "not" / "yet" / "new", 1e6, "a model")
    check_disk(tmp_path / "not" / "yet" / "new", 0, "a model")


def test_available_gpus_are_accepted() -> None:
    check(named("t4-all"), [Gpu("T4", 15, 14.5)])
    check(named("tiny-all"), [])


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("Qwen/Qwen3-4B", 7.5),
        ("meta-llama/Llama-3.1-70B-Instruct", 130.4),
        ("casperhansen/llama-3-8b-instruct-awq", 5.2),
        ("tiny", None),
        ("org/model-v2b5", None),
    ],
)
def test_weights_are_estimated_from_the_model_name(model: str, size: float | None) -> None:
    assert weights.size_gib(model) == (None if size is None else pytest.approx(size, abs=0.1))


def test_a_model_that_does_not_fit_or_cannot_be_downloaded_is_refused(tmp_path: Path) -> None:
    here = {"HF_HUB_CACHE": str(tmp_path / "hub")}
    with pytest.raises(
        UsageError, match=r"hub: .* GiB free, but org/x-99999999B .size from its name. needs about .*HF_HUB_CACHE"
    ):
        weights.check("org/x-99999999B", here)
    with pytest.raises(UsageError, match=r"not in .*hub, and HF_HUB_OFFLINE forbids"):
        weights.check("org/x-99999999B", here | {"HF_HUB_OFFLINE": "1"})
    snapshot = tmp_path / "hub" / "models--org--x-99999999B" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").touch()
    weights.check("org/x-99999999B", here | {"HF_HUB_OFFLINE": "1"})
    with pytest.raises(UsageError, match=r"model \./nothing: no config\.json there"):
        weights.check("./nothing", here)


def test_show_prints_the_complete_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for engine in ("simulator", "vllm", "vllm-cpu"):
        assert cli.main(["deploy", "show", "tiny-seqs-2", "--engine", engine]) == 0
        shown[engine] = capsys.readouterr().out
        assert "--max-num-seqs 2" in shown[engine]
        assert "--port 8000" in shown[engine]
    assert "--hardware cpu-tiny" in shown["simulator"]
    assert "vllm serve tiny" in shown["vllm"]
    assert "VLLM_CPU_KVCACHE_SPACE=1" in shown["vllm-cpu"]
    assert cli.main(["deploy", "show", "tiny-seqs-2", "--engine", "vllm", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"][:3] == ["vllm", "serve", "tiny"]


def test_list_and_show_of_variants(capsys: pytest.CaptureFixture[str], golden: Any) -> None:
    assert cli.main(["deploy", "list", "--json"]) == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)] == list(bundled())
    assert cli.main(["deploy", "list", "--family", "tiny"]) == 0
    golden("deploy-list-tiny.txt", capsys.readouterr().out)
    assert cli.main(["deploy", "show", "llama70-draft"]) == 0
    golden("deploy-show.txt", capsys.readouterr().out)
    assert cli.main(["deploy", "list"]) == 0
    listed = capsys.readouterr().out
    assert max(map(len, listed.splitlines())) <= 80
    whole = " ".join(listed.split())
    for variant in bundled().values():
        assert f" {variant.name} " in whole
        assert " ".join(variant.purpose.split()) in whole
    assert "in the article's matrix (2 x A100 80GB)" in whole  # a variant that needs other hardware than its family
    assert cli.main(["deploy", "show", "tiny-all", "--set", "kv-cache-dtype=int8", "--set", "max-num-seqs="]) == 2
    assert "no INT8 KV cache" in capsys.readouterr().err


def test_arguments_of_a_variant_can_be_changed() -> None:
    variant: Variant = named("tiny-seqs-2").with_args({"max-num-seqs": None, "block-size": 32})
    assert "--max-num-seqs" not in variant.argv
    assert "--block-size" in variant.argv


def test_the_gpus_of_a_variant_follow_its_parallel_sizes() -> None:
    four = changed(named("llama31-base"), ["tensor-parallel-size=4"])
    assert (named("llama31-base").hardware.gpus, four.hardware.gpus) == (1, 4)
    assert changed(four, ["pipeline-parallel-size=2"]).hardware.gpus == 8
    assert changed(named("tiny-all"), ["tensor-parallel-size=2"]).hardware.gpus == 0  # on the CPU
    message = document(four)
    assert message["hardware"]["gpus"] == 4
    assert priced(message, Prices(gpu_hour=2.0))["prices"] == {"gpu_hour": 2.0, "gpus": 4}
    with pytest.raises(UsageError, match=r"needs 4 x .*, this machine has 1"):
        check(four, [Gpu("A100", 80, 80)])
    with pytest.raises(UsageError, match="llama31-base: gpu-memory-utilization most: not a number"):
        changed(four, ["gpu-memory-utilization=most"]).utilization  # noqa: B018
    with pytest.raises(UsageError, match="tensor-parallel-size two: needs an integer of 1 or more"):
        changed(named("llama31-base"), ["tensor-parallel-size=two"])


@pytest.mark.parametrize("setting", ["api-key=SEKRET", "--api_key=SEKRET", "port=1", "host=0.0.0.0", "ssl-keyfile=x"])
def test_no_setting_holds_a_key_or_an_address(setting: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        changed(named("tiny-all"), [setting])
    assert "by --set: " in str(raised.value)
    assert "SEKRET" not in str(raised.value)
    flag, _, value = setting.lstrip("-").partition("=")
    variants = {"a": {"purpose": "p", "args": {flag: value}}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(FAMILY | {"variants": variants}))
    mine = named(f"{tmp_path / 'mine.yaml'}:a")
    with pytest.raises(UsageError, match="of a: ") as raised:
        changed(mine, [])
    assert "SEKRET" not in str(raised.value)
    with pytest.raises(UsageError, match="of a: "):
        command_of(ServerSpec("simulator", mine.model, variant=mine))


@pytest.mark.parametrize("name", list(bundled()))
def test_every_variant_can_be_simulated(name: str) -> None:
    variant = bundled()[name]
    read = simulator_flags.read([variant.model, "--hardware", variant.simulated_as, *variant.argv])
    assert read.hardware == variant.simulated_as
    for flag, value in variant.args.items():
        parsed = getattr(read, flag.replace("-", "_"), None)
        if isinstance(value, int | float) and parsed is not None:
            assert parsed == value, flag


EFFECT = re.compile(r"\b(highest|lowest|best|fastest|faster|slower|even|quick\w*|tok/s|TTFT|ITL)\b")
ORIGIN = re.compile(r"\b(article|source|effect of)\b")


@pytest.mark.parametrize("name", sorted(bundled()))
def test_an_effect_in_a_purpose_names_who_states_it(name: str) -> None:
    purpose = bundled()[name].purpose
    assert not EFFECT.search(purpose) or ORIGIN.search(purpose), purpose
