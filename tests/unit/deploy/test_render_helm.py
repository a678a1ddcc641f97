"""The chart of `inferload render run`: with any values its objects equal those of the Kubernetes form with these options."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from inferload.deploy.render import forms, helm
from inferload.deploy.render.run_plan import Cluster, Key, PodSize, Results, RunPlan, Sizes
from paths import ROOT
from rendered import objects

HELM = shutil.which("helm", path=f"{os.environ['PATH']}{os.pathsep}{ROOT / '.cache' / 'helm'}")
BRACED = '{{ .Values.image }} {{- if }} {{{ }} "{{" $(X) é'
FILES = {
    "mine.yaml": f"# {BRACED}\nname: mine\n",
    "users.py": f"TEXT = '''{BRACED}\n\n  {{{{'''\n",
    "pkg/a b.py": f"x = 1  # {BRACED}",
}

PLANS = {
    "plain": RunPlan(
        "inferload-smoke", "smoke", "http://llama.serving:8000", 2, token=Key("t", "token"), made_token="f" * 64
    ),
    "all": RunPlan(
        "run",
        "mine.yaml",
        "https://llm.example",
        4,
        files=FILES,
        locustfile="users.py",
        token=Key("mine", "word"),
        image="registry.example/inferload@sha256:" + "0" * 64,
        metrics_urls=("http://llama:9400/metrics",),
        options=("--seed", "08", "--note", BRACED, "4", "inferload:0", "load"),
        api_key=Key("llm", "key"),
        ca=Key("roots", "ca.crt"),
        results=Results("s3", "s3://bucket/{{runs}}", "http://minio:9000"),
        sizes=Sizes(PodSize(), PodSize(0.25, 320), ()),
        cluster=Cluster(
            "load", "pull", {"pool": "08", "a": "{{b}}"}, ({"key": "gpu", "operator": "Exists"},), {"app": "agent"}
        ),
    ),
    # Names and words that equal values of other plans, or parts of the renderer's own.
    "names": RunPlan(
        "helm",
        "{{odd}}.yaml",
        "http://helm.invalid:1",
        1,
        files={"{{odd}}.yaml": "a: '{{'"},
        token=Key("helm-token", "token"),
        made_token="0" * 64,
        image="helm:0",
        options=("1", "2", "helm-namespace", "helm-token", "http://helm.invalid:1", "918273645", "helm"),
        results=Results("pvc", "helm-pull-secret"),
        cluster=Cluster(scraper={"helm": "selector"}),
    ),
}


def expressions(text: str, values: dict[str, Any], namespace: str) -> str:
    """Return a template with the few expressions that charts of this project have evaluated; another one is an error."""
    scope = {"Values": values, "Release": {"Namespace": namespace}}

    def value(path: str, of: Any) -> Any:
        for key in filter(None, path.split(".")):
            of = of[key]
        return of

    def evaluated(found: re.Match[str]) -> str:
        if found["with"]:
            of = value(found["with"], scope)
            return found["body"].replace("{{ toJson . }}", json.dumps(of)) if of else ""
        expression = found["expression"].strip()
        if expression == '"{{"':
            return "{{"
        if reading := re.fullmatch(r"toString (\.\S+) \| quote", expression):
            return json.dumps(str(value(reading[1], scope)))
        reading = re.fullmatch(r"(toJson )?(\.(?:Values|Release)\.\S+)", expression)
        assert reading, f"not in this evaluator: {expression}"
        return json.dumps(value(reading[2], scope)) if reading[1] else str(value(reading[2], scope))

    block = r"\n?\{\{- with (?P<with>\.\S+) \}\}(?P<body>\n[^\n]*)\n?\{\{- end \}\}"
    return re.sub(block + r"|\{\{(?P<expression>.*?)\}\}", evaluated, text)


def evaluated(plan: RunPlan, namespace: str, changes: dict[str, Any]) -> list[dict[str, Any]]:
    chart = helm.files(plan)
    values = {**yaml.safe_load(chart["values.yaml"]), **changes}
    texts = {
        name: expressions(text, values, namespace) for name, text in chart.items() if name.startswith("templates/")
    }
    return objects(texts)


def by_helm(plan: RunPlan, namespace: str, changes: dict[str, Any], folder: Path, *more: str) -> list[dict[str, Any]]:
    for name, text in helm.files(plan).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "own.json").write_text(json.dumps(changes))
    assert HELM
    command = [HELM, "template", plan.name, str(folder), "-n", namespace, "-f", str(folder / "own.json"), *more]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return list(yaml.safe_load_all(text))


def of_kubernetes(plan: RunPlan) -> list[dict[str, Any]]:
    return objects({name: text for name, text in forms.kubernetes(plan).items() if "/" not in name})


def sorted_objects(found: list[dict[str, Any]]) -> list[tuple[str, str, dict[str, Any]]]:
    return sorted(((entry["kind"], entry["metadata"]["name"], entry) for entry in found), key=lambda entry: entry[:2])


@cache
def with_changes(name: str) -> tuple[tuple[RunPlan, str, dict[str, Any], RunPlan], ...]:
    """A plan, namespace, other values of its chart, and the plan with these."""
    plan = PLANS[name]
    same = replace(plan, cluster=replace(plan.cluster, namespace="here"))
    other = replace(
        plan,
        workers=777,
        image="other/image@sha256:" + "1" * 64,
        host=plan.host.replace("//", "//other."),
        sizes=Sizes(PodSize(), PodSize(2, 4096), ()),
        cluster=Cluster(
            "there",
            "another",
            {**plan.cluster.node_selector, "zone": "1e3"},
            ({"key": "08", "operator": "Exists"},),
            plan.cluster.scraper,
        ),
    )
    values = helm._values(other)
    return (plan, "here", {}, same), (
        plan,
        "there",
        {key: value for key, value in values.items() if key != "token"},
        other,
    )


@pytest.mark.parametrize("name", PLANS)
def test_a_chart_has_the_objects_of_the_kubernetes_form(name: str) -> None:
    for plan, namespace, changes, wanted in with_changes(name):
        assert sorted_objects(evaluated(plan, namespace, changes)) == sorted_objects(of_kubernetes(wanted))


@pytest.mark.skipif(HELM is None, reason="helm is not installed (make helm)")
@pytest.mark.parametrize("name", PLANS)
def test_helm_makes_the_same_objects(tmp_path: Path, name: str) -> None:
    for plan, namespace, changes, wanted in with_changes(name):
        assert sorted_objects(by_helm(plan, namespace, changes, tmp_path)) == sorted_objects(of_kubernetes(wanted))
    assert HELM
    done = subprocess.run([HELM, "lint", "--strict", str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, "[ERROR]" in done.stdout, "[WARNING]" in done.stdout) == (0, False, False), done.stdout


@pytest.mark.skipif(HELM is None, reason="helm is not installed (make helm)")
def test_values_of_a_command_line_have_the_right_types(tmp_path: Path) -> None:
    plan = PLANS["plain"]
    image, host = "a/b@sha256:" + "2" * 64, "http://other.serving:1"
    words = f"workers=7,image={image},host={host},nodeSelector.zone=b"
    found = by_helm(plan, "here", {}, tmp_path, "--set", words, "--set-string", "nodeSelector.pool=08")
    cluster = replace(plan.cluster, namespace="here", node_selector={"zone": "b", "pool": "08"})
    wanted = of_kubernetes(replace(plan, workers=7, image=image, host=host, cluster=cluster))
    of_host = [
        entry for entry in wanted if entry["metadata"]["name"] == "inferload-smoke-run"
    ]  # its addresses are `egress`
    assert len(of_host) == 1
    names = {entry["metadata"]["name"] for entry in of_host}
    found, wanted = ([entry for entry in each if entry["metadata"]["name"] not in names] for each in (found, wanted))
    assert sorted_objects(found) == sorted_objects(wanted)


def test_an_unknown_expression_is_no_part_of_a_chart() -> None:
    with pytest.raises(AssertionError, match="not in this evaluator"):
        expressions("{{ toYaml .Values.x }}", {"x": 1}, "here")
    assert expressions('{{ "{{" }} {{ toJson .Values.x }}', {"x": "{{"}, "here") == '{{ "{{"'


def test_texts_with_braces_survive_in_files_notes_and_words() -> None:
    for plan, namespace, changes, _wanted in with_changes("all"):
        found = evaluated(plan, namespace, changes)
        (files,) = [entry["data"] for entry in found if entry["kind"] == "ConfigMap"]
        assert sorted(files.values()) == sorted(FILES.values())
        assert BRACED.replace("$(", "$$(") in str([entry for entry in found if entry["kind"] == "Job"])
    notes = expressions(helm.files(PLANS["names"])["templates/NOTES.txt"], {}, "here")
    assert "Run of the scenario {{odd}}.yaml. Log: kubectl -n here logs -f job/helm-master" in notes


def test_only_the_values_hold_the_token() -> None:
    chart = helm.files(PLANS["plain"])
    assert [name for name, text in chart.items() if "f" * 64 in text] == ["values.yaml"]
    assert set(helm.files(PLANS["all"])) == {
        *("Chart.yaml", "values.yaml", "templates/NOTES.txt"),
        *(f"templates/{name}.yaml" for name in ("files", "policies", "run")),
    }
