"""Classes of a mix with a key, headers, a priority and a model of their own, on a virtual clock and on workers."""

import json
from pathlib import Path
from typing import Any

import keyed_server
import pytest
import virtual
from e2e_runs import scenario

from inferload.base.errors import UsageError
from inferload.base.redaction import Redaction
from inferload.client.client import Credentials
from inferload.run.process.settings import ProcessSettings, class_options
from inferload.scenario.scenario import from_data
from inferload.scenario.schema.canary import PROMPTS

CHAT = {"kind": "chat", "prompt_tokens": 20, "turns": 2, "output_tokens": 6}
KEYS = keyed_server.KEYS


def mix(**of_class: Any) -> dict[str, Any]:
    """A mix of gold and bronze with requests of their own."""
    classes = [{"name": name, "share": 0.5, "workload": CHAT} for name in KEYS]
    return {"kind": "mix", "classes": [each | {"request": of_class.get(each["name"])} for each in classes]}


def with_keys(folder: Path, **more: Any) -> dict[str, Any]:
    for name, key in KEYS.items():
        (folder / f"{name}.key").write_text(f"{key}\n")
    return {name: {"api_key_file": f"{name}.key"} | more.get(name, {}) for name in KEYS}


def executed(folder: Path, *options: str, requests: dict[str, Any], **changes: Any) -> virtual.VirtualRun:
    file = scenario(folder, phases__measure_s=1.5, workload=mix(**requests), **changes)
    simulator = f"{virtual.PACED} --served-model-name base adapter"
    return virtual.run(folder, file, "--model", "base", *options, simulator=simulator, script="keyed_server:keyed")


def test_each_class_sends_its_key_headers_priority_and_model(tmp_path: Path) -> None:
    gold = {"headers": {"X-Tenant": "gold"}, "priority": -3, "model": "adapter"}
    run = executed(
        tmp_path,
        *("--header", "X-Tenant: all"),
        requests=with_keys(tmp_path, gold=gold),
        request={"headers": {"X-Team": "a"}, "extra_body": {"temperature": 0.5}},
    )
    assert run.code == 0, run.text
    run.check_counts(by_server=False)
    by_model: dict[str, set[tuple[Any, ...]]] = {}
    for request in run.requests:
        head, _, body = request.partition("\r\n\r\n")
        if "/chat/completions" not in head:
            continue
        sent = json.loads(body)
        tenant = [line.partition(": ")[2] for line in head.split("\r\n") if line.lower().startswith("x-tenant:")]
        options = sent.get("priority"), sent["temperature"], "X-Team: a" in head
        by_model.setdefault(sent["model"], set()).add((keyed_server.key_of(request), tuple(tenant), *options))
    assert by_model == {
        "adapter": {(KEYS["gold"], ("gold",), -3, 0.5, True)},
        "base": {(KEYS["bronze"], ("all",), None, 0.5, True)},
    }
    assert {(row["class"], row["model"]) for row in run.turns} == {("gold", "adapter"), ("bronze", "base")}
    assert run.summary["run"]["model"] == "base, adapter"
    written = "".join(file.read_text(errors="replace") for file in run.run_dir.rglob("*") if file.is_file())
    assert not [key for key in KEYS.values() if key in written + run.text]
    assert "gold.key" in run.manifest["scenario"]["text"]


def test_a_canary_goes_with_the_key_the_headers_and_the_model_of_its_turn(tmp_path: Path) -> None:
    gold = {"headers": {"X-Tenant": "gold"}, "model": "adapter"}
    run = executed(tmp_path, requests=with_keys(tmp_path, gold=gold), canary={"share": 0.9})
    assert run.code == 0, run.text
    run.check_counts(by_server=False)
    sent = [request for request in run.requests if PROMPTS[0] in request or PROMPTS[1] in request]
    seen = {(json.loads(each.partition("\r\n\r\n")[2])["model"], keyed_server.key_of(each)) for each in sent}
    assert seen == {("adapter", KEYS["gold"]), ("base", KEYS["bronze"])}
    assert all(("X-Tenant: gold" in each) == ('"adapter"' in each) for each in sent)
    assert run.summary["canary"]["by_class"].keys() == {"ok"}
    assert len(run.summary["by_class"]) == 2


def test_a_refused_key_is_one_line_that_names_class_and_file_and_hides_the_key(tmp_path: Path) -> None:
    requests = with_keys(tmp_path)
    (tmp_path / "bronze.key").write_text("sk-bronze-of-last-year")
    run = executed(tmp_path, requests=requests)
    assert run.code == 2
    assert "class bronze: http://simulator.invalid" in run.text
    assert "correct it in the file of class bronze" in run.text
    assert "invalid key ***" in run.text
    assert "last-year" not in run.text
    assert not (run.run_dir / "run.json").exists()


def options_of(folder: Path, *, only: str | None = None, **requests: Any) -> tuple[Any, ProcessSettings]:
    data = {"schema": 1, "name": "t", "workload": mix(**requests) | {"only": only}, "phases": {"measure_s": 1}}
    data["arrivals"] = {"kind": "closed", "users": 1, "spawn_per_s": 1}
    own = ProcessSettings(Credentials(), (), tls=None, run_dir=None)  # type: ignore[arg-type]
    return class_options(from_data(data, "t"), str(folder / "t.yaml"), own), own


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "no such file in"), ("", "holds no key"), ("two words", "holds no key"), (b"\xff\xfe", "not text")],
)
def test_a_class_without_its_key_is_refused_before_the_load(
    content: str | bytes | None, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "gold.key"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    requests = {"gold": {"api_key_file": str(file)}}
    with pytest.raises(UsageError) as refused:
        options_of(tmp_path, **requests)
    text = str(refused.value)
    assert text.startswith("class gold: api_key_file ")
    assert str(file) in text
    assert problem in text
    options, own = options_of(tmp_path, only="bronze", **requests)  # gold sends nothing
    assert options == {}
    assert own.class_keys == []


def test_a_key_goes_only_to_allowed_servers_and_is_redacted_in_texts_made_before_it_was_read(tmp_path: Path) -> None:
    later: list[str] = []
    redaction = Redaction(["first-secret"], later).sparing(["address"])
    assert redaction(f"first-secret {KEYS['gold']}") == f"*** {KEYS['gold']}"
    options, own = options_of(tmp_path, **with_keys(tmp_path))
    later += own.class_keys
    assert redaction(f"first-secret {KEYS['gold']}") == "*** ***"
    assert redaction.document({"a": KEYS["bronze"]}) == redaction.declared({"a": KEYS["bronze"]}) == {"a": "***"}
    assert redaction.page(KEYS["bronze"]) == own.redaction(KEYS["bronze"]) == "***"
    assert options["gold"].headers_to(False) == ()
    assert options["gold"].headers_to(True) == (("Authorization", f"Bearer {KEYS['gold']}"),)
    assert own.withheld_from(["http://other:1"]) == []
    assert KEYS["gold"] not in repr(options)


def test_attainment_by_class_has_an_interval_and_fairness_follows_from_it(tmp_path: Path) -> None:
    long = CHAT | {"output_tokens": {"dist": "uniform", "min": 1, "max": 40}}
    workload = mix()
    workload["classes"][1] |= {"workload": long, "slo": {"e2e_ms": 250}}
    file = scenario(
        tmp_path,
        workload=workload,
        arrivals={"kind": "poisson", "sessions_per_s": 5},
        slo={"e2e_ms": 1000},
        phases__measure_s=30,
        gates=["fairness_index > 0.5"],
    )
    run = virtual.run(tmp_path, file)
    assert run.code == 0, run.text
    attained = {}
    for name, limit_ms in {"gold": 1000, "bronze": 250}.items():
        rows = [row for row in run.turns if row["class"] == name and row["phase"] == "measure"]
        met = [row["last_ns"] - row["planned_ns"] <= limit_ms * 1e6 for row in rows]
        attained[name], slo = sum(met) / len(met), run.summary["by_class"][name]["slo"]
        assert (slo["met"], slo["turns"]) == (sum(met), len(met))
        low, high = slo["interval"]
        assert low <= attained[name] <= high
    assert attained["gold"] == 1
    assert 0.4 < attained["bronze"] < 0.8
    assert run.summary["by_class"]["bronze"]["slo"]["interval"][1] < 0.9
    index = sum(attained.values()) ** 2 / (2 * sum(share**2 for share in attained.values()))
    assert run.summary["rates"]["fairness_index"] == pytest.approx(index)
    assert "fairness_index" not in run.summary["by_class"]["gold"]["rates"]
