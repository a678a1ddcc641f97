"""`inferload deploy render`: a variant as a shell script, Compose files or Kubernetes files."""

import argparse
from pathlib import Path
from typing import Any

from inferload.errors import UsageError

from ..render import compose, container_plan, kubernetes, shell_script
from ..render.container_plan import ContainerImages, ContainerPlan
from ..variants.variant import Variant
from .variants import add_variant, chosen

_EPILOG = """\
Examples:
  inferload deploy render t4-all --format sh > t4-all.sh
  inferload deploy render t4-all --format compose --workers 4 -o t4
  inferload deploy render llama3-tp2 --format kubernetes -o k8s"""


def add_render(actions: Any) -> None:
    """Add `render`."""
    parser = actions.add_parser(
        "render",
        help="write a variant as a shell script, or with a run against it for Docker Compose or Kubernetes",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_variant(parser)
    add = parser.add_argument
    add("--format", choices=("sh", "compose", "kubernetes"), default="sh", help="(%(default)s)")
    add("--engine", choices=("vllm", "simulator"), default="vllm", help="(%(default)s)")
    files = parser.add_argument_group("compose and kubernetes")
    add = files.add_argument
    add("-o", "--output", type=Path, metavar="DIR", help="folder for the files")
    add("--scenario", default="smoke", metavar="NAME-OR-PATH", help="scenario of the run (%(default)s)")
    add("--workers", type=int, default=2, metavar="N", help="workers of the run (%(default)s)")
    add("--image", metavar="IMAGE", help="image of inferload, built from Containerfile (inferload:VERSION)")
    add("--vllm-image", metavar="IMAGE", help="image of vLLM (the version of the variants)")
    add(
        "--shared-runs",
        action="store_true",
        help="kubernetes: results of the workers too, on a ReadWriteMany volume",
    )
    parser.set_defaults(run=render)


def render(arguments: argparse.Namespace) -> int:
    """Print the script, or write the files into a folder."""
    variant = chosen(arguments)
    if arguments.format == "sh":
        print(shell_script.script(variant, arguments.engine), end="")
        return 0
    if arguments.output is None:
        raise UsageError(f"--format {arguments.format}: name a folder for the files with -o")
    plan = _plan(arguments, variant)
    files = compose.files(plan) if arguments.format == "compose" else kubernetes.files(plan, arguments.shared_runs)
    container_plan.write(arguments.output, files)
    print("\n".join(str(arguments.output / name) for name in files))
    return 0


def _plan(arguments: argparse.Namespace, variant: Variant) -> ContainerPlan:
    standard = ContainerImages()
    images = ContainerImages(
        vllm=arguments.vllm_image or standard.vllm, inferload=arguments.image or standard.inferload
    )
    return container_plan.plan_of(variant, arguments.engine, arguments.scenario, arguments.workers, images)
