"""A run as a Helm chart: the objects of the Kubernetes form, in which some values are those of values.yaml. No I/O."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from inferload import __version__

from .run_objects import common_values, egress, jobs, objects, reader_file, service
from .run_plan import Cluster, PodSize, RunPlan, Sizes
from .yaml_files import Object, as_yaml, head

# Values that no object has otherwise, nor can have: in a plan with them each place of a value is found by the value.
_WORKERS, _NAMESPACE, _TOKEN, _HOST, _IMAGE = 10**40, "{namespace}", "{token}", "http://{host}.invalid:1", "{image}"
_CLUSTER = Cluster(_NAMESPACE, "{pull-secret}", {"{helm}": "selector"}, ({"key": "{helm}"},))
_SIZES = Sizes(PodSize(memory_mib=1), PodSize(memory_mib=2), ())

_OPTIONAL = re.compile(r"^( *)(nodeSelector|tolerations|imagePullSecrets): \{\{ toJson (\S+) \}\}$", re.MULTILINE)
_AGAIN = "For another run: helm uninstall the release, and install the chart again."
_BRACES, _ESCAPED = "{HELM-BRACES}", '{{ "{{" }}'  # quoted in YAML where braces are
_HEAD = """\
egress: rules of the pods' network policy beside the one for names; they belong to the addresses of the run, host included.
token: only processes with it can join the run. Keep it secret."""

Marks = Sequence[tuple[Any, str]]


def files(plan: RunPlan) -> dict[str, str]:
    """Return the files of a chart. With its values.yaml its objects are those of the Kubernetes form."""
    cluster = replace(_CLUSTER, scraper=plan.cluster.scraper)
    token = _TOKEN if plan.made_token else ""
    marked = replace(plan, workers=_WORKERS, host=_HOST, image=_IMAGE, made_token=token, cluster=cluster, sizes=_SIZES)
    marks = [(value, f"toJson .Values.{key}") for key, value in _leaves(_values(marked))]
    marks += [(str(_WORKERS), "toString .Values.workers | quote"), (_NAMESPACE, "toJson .Release.Namespace")]
    contents = {**objects(marked), "run.yaml": [service(marked), *jobs(marked)]}
    chart = {"apiVersion": "v2", "name": plan.name, "version": __version__, "appVersion": __version__}
    chart["description"] = f"Run of the scenario {common_values(plan)['scenario']} with inferload"
    notes = head("run.yaml", common_values(marked)).rpartition("\n")[0]
    notes = notes.replace("{{", _ESCAPED).replace(_NAMESPACE, "{{ .Release.Namespace }}")
    return {
        "Chart.yaml": as_yaml(chart),
        "values.yaml": as_yaml(_values(plan), head=_HEAD),
        "templates/NOTES.txt": f"{notes}\n{_AGAIN}\n",
        **{f"templates/{name}": _template(documents, marks) for name, documents in contents.items()},
        **reader_file(plan),
    }


def _values(plan: RunPlan) -> Object:
    """Return the content of values.yaml."""
    of = common_values(plan)
    return {
        "image": plan.image,
        "host": plan.host,
        "workers": plan.workers,
        "resources": {"master": plan.sizes.master.resources(), "worker": plan.sizes.worker.resources()},
        "nodeSelector": of["node_selector"] or {},
        "tolerations": of["tolerations"] or [],
        "imagePullSecrets": of["pull_secrets"] or [],
        "egress": egress(plan),
        **({"token": plan.made_token} if plan.made_token else {}),
    }


def _leaves(values: Object) -> list[tuple[str, Any]]:
    resources = [(f"resources.{part}", size) for part, size in values["resources"].items()]
    return [*((key, value) for key, value in values.items() if key != "resources"), *resources]


def _template(documents: Sequence[Object], marks: Marks) -> str:
    """Return the text of documents with expressions in place of marked values, and braces of other texts escaped."""
    text = as_yaml(*(_marked(document, marks) for document in documents))
    for number, (_value, expression) in enumerate(marks):
        text = text.replace(_token(number), f"{{{{ {expression} }}}}")
    text = _OPTIONAL.sub(r"{{- with \3 }}\n\1\2: {{ toJson . }}\n{{- end }}", text)
    return text.replace(_BRACES, _ESCAPED)


def _marked(part: Any, marks: Marks) -> Any:
    for number, (value, _expression) in enumerate(marks):
        if type(part) is type(value) and part == value:
            return _token(number)
    if isinstance(part, dict):
        return {key: _marked(value, marks) for key, value in part.items()}
    if isinstance(part, list):
        return [_marked(value, marks) for value in part]
    return part.replace("{{", _BRACES) if isinstance(part, str) else part


def _token(number: int) -> str:
    return f"HELM-{number}-HELM"
