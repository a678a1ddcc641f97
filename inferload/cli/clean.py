"""`inferload clean`: remove the files of inferload on this machine that can be made again."""

import argparse
import shutil
from pathlib import Path
from typing import Any

from inferload.base import deployments
from inferload.base.errors import UsageError, explained
from inferload.base.user_cache import CALIBRATION, user_cache
from inferload.figures import table


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "clean",
        description="Remove caches: indexes of data files, the calibration, generated models, vLLM's environment for the CPU, "
        "state files and logs of servers. Runs are kept.",
        epilog="Examples:\n  inferload clean\n"
        "Exit code: 0 removed, or nothing there; 2 a server is still running, or a file cannot be removed.",
    )
    parser.set_defaults(run=run)


def folders() -> dict[Path, str]:
    """Return files and folders that can be made again, with their content."""
    own, cache = user_cache(), deployments.cache()
    return {
        own / "indexes": "indexes of data files",
        own / CALIBRATION: "result of inferload calibrate",
        cache / "models": "generated models",
        cache / "venv-vllm": "vLLM for the CPU",
        cache / "deploy": "state files and logs of servers",
    }


def run(_arguments: argparse.Namespace) -> int:
    """Remove what is there; print a line for each."""
    running = deployments.running()
    if running:
        raise UsageError(f"{', '.join(running)}: still running; stop all servers with inferload deploy down --all")
    found = {path: text for path, text in folders().items() if path.exists()}
    rows = [(text, _size(path) / 1e6, str(path)) for path, text in found.items()]
    for path in found:
        with explained(f"{path}: cannot be removed", "remove it by hand"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    columns = ("content", "size, MB", "path")
    print(table.text(table.Table("removed", "removed", columns, rows)) if rows else "nothing to remove")
    return 0


def _size(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.lstat().st_size for file in files)
