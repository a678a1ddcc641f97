"""`inferload deploy render`: a variant as a shell script, Compose files or Kubernetes files."""

import argparse
from pathlib import Path
from typing import Any

from inferload.base.errors import UsageError

from ..render import compose, container_plan, kubernetes, shell_script
from ..render.container_plan import ContainerImages
from .variants import add_variant, chosen

_EPILOG = """\
Examples:
  inferload deploy render t4-all --format sh > t4-all.sh
  inferload deploy render t4-all --format compose --workers 4 -o t4
  inferload deploy render llama3-tp2 --format kubernetes -o k8s"""


def add_render(actions: Any) -> None:
    parser = actions.add_parser(
        "render",
        help="write a variant as a shell script, or a variant and a run as Docker Compose or Kubernetes files",
        epilog=_EPILOG,
    )
    add_variant(parser)
    add = parser.add_argument
    add("--format", choices=("sh", "compose", "kubernetes"), default="sh", help="output format (%(default)s)")
    add("--engine", choices=("vllm", "simulator"), default="vllm", help="engine of the server (%(default)s)")
    files = parser.add_argument_group("compose and kubernetes")
    add = files.add_argument
    add("-o", "--output", type=Path, metavar="DIR", help="output folder")
    add("--scenario", default="smoke", metavar="NAME-OR-PATH", help="scenario of the run (%(default)s)")
    add("--workers", type=int, default=2, metavar="N", help="workers of the run (%(default)s)")
    add("--image", metavar="IMAGE", help="image of inferload, built from Containerfile (default: inferload:VERSION)")
    add("--vllm-image", metavar="IMAGE", help="image of vLLM (default: the version of the variants)")
    add(
        "--shared-runs",
        action="store_true",
        help="kubernetes: keep the results of the workers as well, on a ReadWriteMany volume",
    )
    parser.set_defaults(run=render)


def render(arguments: argparse.Namespace) -> int:
    """Print the script, or write the files into a folder."""
    variant = chosen(arguments)
    if arguments.format == "sh":
        print(shell_script.script(variant, arguments.engine), end="")
        return 0
    if arguments.output is None:
        raise UsageError(f"--format {arguments.format}: needs an output folder; give it with -o")
    defaults = ContainerImages()
    images = ContainerImages(arguments.vllm_image or defaults.vllm, arguments.image or defaults.inferload)
    plan = container_plan.plan_of(variant, arguments.engine, arguments.scenario, arguments.workers, images)
    files = compose.files(plan) if arguments.format == "compose" else kubernetes.files(plan, arguments.shared_runs)
    container_plan.write(arguments.output, files)
    print("\n".join(str(arguments.output / name) for name in files))
    return 0
