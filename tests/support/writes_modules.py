"""Locustfile beside another: at its end a run writes the modules of inferload that it has imported, see `run_modules`."""

import json
import sys
from pathlib import Path

from locust import events


def lines_of(module):
    file = Path(getattr(module, "__file__", None) or "")
    return file.read_text(encoding="utf-8").count("\n") if file.suffix == ".py" else 0


@events.quit.add_listener
def write(**_event):
    modules = {name: lines_of(module) for name, module in sys.modules.items() if name.partition(".")[0] == "inferload"}
    Path("modules.json").write_text(json.dumps(modules), encoding="utf-8")
