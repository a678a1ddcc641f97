"""`inferload deploy script | compose | kubernetes`: a variant as files, for machines that run them without inferload."""

import argparse
from pathlib import Path
from typing import Any

from . import compose, containers, kubernetes, shell
from .containers import Images, Plan
from .variantcommand import add_variant, chosen


def add_script(actions: Any) -> None:
    """`script`."""
    parser = actions.add_parser(
        "script",
        help="a shell script that starts, watches and stops a variant on a host without inferload",
        epilog="""\
example:
  inferload deploy script t4-all > start-t4-all.sh
  sh start-t4-all.sh t4-all --port 8000                  # on the host""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_variant(parser)
    parser.set_defaults(run=write_script)


def add_compose(actions: Any) -> None:
    """`compose`."""
    parser = actions.add_parser(
        "compose",
        help="Docker Compose: server, master and workers, Prometheus, the GPUs' use and power",
        epilog="""\
example:
  inferload deploy compose t4-all --scenario chat-open --workers 4 -o t4
  cd t4 && docker compose up""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_plan(parser)
    parser.set_defaults(run=write_compose)


def add_kubernetes(actions: Any) -> None:
    """`kubernetes`."""
    parser = actions.add_parser(
        "kubernetes",
        help="Kubernetes: server, a run as Jobs, results on a volume; examples for Locust's operators",
        epilog="""\
example:
  inferload deploy kubernetes llama3-tp2 --image registry/inferload:0.1.0 -o k8s
  kubectl apply -f k8s""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_plan(parser)
    parser.add_argument(
        "--shared-runs",
        action="store_true",
        help="the volume of results is ReadWriteMany: workers write beside the master, and percentiles are exact",
    )
    parser.set_defaults(run=write_kubernetes)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    add_variant(parser)
    parser.add_argument("--engine", choices=("vllm", "simulator"), default="vllm", help="(%(default)s)")
    parser.add_argument("--scenario", default="smoke", metavar="NAME-OR-PATH", help="what the run asks (%(default)s)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="workers of the run (%(default)s)")
    parser.add_argument(
        "--image", metavar="IMAGE", help="inferload's own, built from Containerfile (inferload:VERSION)"
    )
    parser.add_argument("--vllm-image", metavar="IMAGE", help="vLLM's (the version whose flags were checked)")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="folder for the files")


def _plan(arguments: argparse.Namespace) -> Plan:
    standard = Images()
    images = Images(vllm=arguments.vllm_image or standard.vllm, inferload=arguments.image or standard.inferload)
    return containers.plan_of(chosen(arguments), arguments.engine, arguments.scenario, arguments.workers, images)


def write_script(arguments: argparse.Namespace) -> int:
    """The script on stdout."""
    print(shell.script([chosen(arguments)]), end="")
    return 0


def write_compose(arguments: argparse.Namespace) -> int:
    """compose.yaml and what it mounts."""
    return _written(arguments.output, compose.files(_plan(arguments)))


def write_kubernetes(arguments: argparse.Namespace) -> int:
    """The objects, in files by what they are applied for."""
    return _written(arguments.output, kubernetes.files(_plan(arguments), arguments.shared_runs))


def _written(folder: Path, files: dict[str, str]) -> int:
    containers.write(folder, files)
    print("\n".join(str(folder / name) for name in files))
    return 0
