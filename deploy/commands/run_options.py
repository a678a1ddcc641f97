"""Options of a rendered run, which `inferload render run` and `inferload deploy render` have in common."""

import argparse
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inferload import __version__
from inferload.base.errors import UsageError

from ..render import pod_sizes, run_plan, yaml_files
from ..render.forms import FORMS
from ..render.run_plan import OBJECT, Cluster, Key, RunPlan, checked_name

SCRAPER = "app.kubernetes.io/name=prometheus"
_TOLERATION = "KEY[=VALUE][:EFFECT]"
_IMAGE = f"inferload:{__version__}"
_SCRAPER_HELP = f"label of the pods that may read the metrics; may be repeated; none: no metrics (default: {SCRAPER})"
_OF_FILES = re.compile(  # options that the files set
    "-[fo]|--(host|master|worker|processes|expect-workers|expect-workers-max-wait|token-file|run-dir|export-metrics|"
    "termination-message|headless|autostart|autoquit|locustfile|output)(=.*)?"
)
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
REPEATED: dict[str, Any] = {"action": "append", "default": []}
Option = tuple[str, str, str, dict[str, Any]]  # name, value, help, and the rest of argparse's arguments
_OPTIONS: Sequence[Option] = (
    ("--workers", "N", "workers of the run (%(default)s)", {"type": int, "default": 2}),
    ("--image", "IMAGE", "image of inferload, best NAME@sha256:... (%(default)s)", {"default": _IMAGE}),
    ("--namespace", "NAME", "namespace of the objects (default: that of kubectl)", {}),
    ("--pull-secret", "NAME", "Secret for pulling the image", {}),
    ("--node-selector", "KEY=VALUE", "label of the nodes; may be repeated", REPEATED),
    ("--toleration", _TOLERATION, "taint of nodes that the pods tolerate; may be repeated", REPEATED),
    ("--token-secret", "NAME[/KEY]", "Secret with the token of the run, key token (default: one is made)", {}),
    ("--scraper", "KEY=VALUE", _SCRAPER_HELP, {"action": "append"}),
    ("--ready-timeout", "S", "longest wait for the workers (%(default)s)", {"type": int, "default": 300}),
)


def add_options(parser: argparse._ActionsContainer, options: Sequence[Option] = _OPTIONS) -> None:
    """Add options, by default those of the load generator and of its pods."""
    for name, value, text, rest in options:
        parser.add_argument(*name.split(), metavar=value, help=text, **rest)


def run_of(arguments: argparse.Namespace, name: str, locustfile: Path | None = None, **own: Any) -> RunPlan:
    """Return the plan of the options with properties of its `own`.

    Raise UsageError for malformed options, and for a run that cannot be in containers.
    """
    for option in ("--workers", "--ready-timeout"):
        if (value := _value(arguments, option)) < 1:
            raise UsageError(f"{option} {value}: must be 1 or more")
    for refused in FORMS[arguments.format].refused:
        option, _, value = refused.partition(" ")
        if (given := _value(arguments, option)) and given not in ("none", ["none"]) and str(given).startswith(value):
            raise UsageError(f"{refused}: not with --format {arguments.format}; leave it out, or use kubernetes")
    if taken := [word for word in own.get("options", ()) if _OF_FILES.fullmatch(word)]:
        raise UsageError(f"-- {taken[0]}: set by the files; use the options before --")
    if name == "locust":
        raise UsageError(
            "--name locust: Locust reads the variables that Kubernetes sets for such a Service; choose another"
        )
    if not re.fullmatch(r"\S+", arguments.image):
        raise UsageError(f"--image {arguments.image}: must be the name of an image")
    scenario, argument, files = run_plan.scenario_of(arguments.scenario) if arguments.scenario else (None, "", {})
    if locustfile is not None:
        files = {**run_plan.locustfile_of(locustfile), **files}
        own["locustfile"] = locustfile.name
    if arguments.format != "compose":
        run_plan.check_size(files)
    token, made_token = Key(f"{name}-token", "token"), secrets.token_hex(32)
    if arguments.token_secret:
        token, made_token = Key.parse("--token-secret", arguments.token_secret, "token"), ""
    own |= {"sizes": pod_sizes.sizes(scenario, arguments.workers)} if scenario else {}
    return RunPlan(
        name=name,
        scenario=argument,
        workers=arguments.workers,
        files=files,
        token=token,
        made_token=made_token,
        image=arguments.image,
        ready_timeout_s=arguments.ready_timeout,
        cluster=_cluster(arguments),
        **own,
    )


def _value(arguments: argparse.Namespace, option: str) -> Any:
    return getattr(arguments, option.strip("-").replace("-", "_"), None)


def write(folder: Path, files: Mapping[str, str], run: RunPlan) -> None:
    """Write files into a folder. Print their names, and how the sizes of the pods were found. UsageError if it is not writable."""
    yaml_files.write(folder, files, run.made_token)
    print("\n".join(str(folder / name) for name in files))
    print("\n".join(run.sizes.lines), file=sys.stderr)


def _cluster(arguments: argparse.Namespace) -> Cluster:
    namespace, pull_secret = arguments.namespace, arguments.pull_secret
    scraper = [SCRAPER] if arguments.scraper is None else arguments.scraper
    return Cluster(
        checked_name("--namespace", namespace, form=OBJECT) if namespace else None,
        checked_name("--pull-secret", pull_secret, 253, OBJECT) if pull_secret else None,
        _labels("--node-selector", arguments.node_selector),
        tuple(map(_toleration, arguments.toleration)),
        {} if scraper == ["none"] else _labels("--scraper", scraper),
    )


def _labels(option: str, texts: Sequence[str]) -> Mapping[str, str]:
    for text in texts:
        if not text.partition("=")[0] or "=" not in text:
            raise UsageError(f"{option} {text}: must be KEY=VALUE")
    return dict(text.split("=", 1) for text in texts)


def _toleration(text: str) -> Mapping[str, str]:
    pair, _, effect = text.partition(":")
    key, is_equal, value = pair.partition("=")
    if not key or (effect and effect not in _EFFECTS):
        raise UsageError(f"--toleration {text}: must be {_TOLERATION}, with EFFECT one of {', '.join(_EFFECTS)}")
    of = {"key": key, "operator": "Equal" if is_equal else "Exists"}
    return {**of, **({"value": value} if is_equal else {}), **({"effect": effect} if effect else {})}
