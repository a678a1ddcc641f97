"""`inferload deploy render`: a variant as a shell script, Compose files or Kubernetes files."""

import argparse
from pathlib import Path
from typing import Any

from inferload.base.errors import UsageError

from ..render import compose, container_plan, kubernetes, run_plan, shell_script
from ..render.run_objects import labels
from ..render.run_plan import Key, Results
from .run_options import add_options, run_of, write
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
    add_options(files)
    add("--vllm-image", default=container_plan.VLLM_IMAGE, metavar="IMAGE", help="image of vLLM (%(default)s)")
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
    container_plan.check_engine(variant, arguments.engine)
    name, port = run_plan.name_of(variant.name), container_plan.PORT
    server = container_plan.Server(variant, arguments.engine, arguments.vllm_image)
    if arguments.format == "compose":
        run = run_of(arguments, name, host=compose.SERVER, metrics_urls=compose.pages(server))
        files = compose.files(server, run)
    else:
        own: dict[str, Any] = {
            "results": Results("pvc", f"{name}-runs"),
            "optional_api_key": Key("inferload", "api-key"),
        }
        own |= {"shared_runs": arguments.shared_runs, "beside": labels(name, "server")}
        run = run_of(arguments, name, host=f"http://{name}:{port}", **own)
        files = kubernetes.files(server, run)
    write(arguments.output, files, run)
    return 0
