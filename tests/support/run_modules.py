"""Limits of what a headless chat run imports of inferload, up to its end."""

import json
from pathlib import Path

from locust_process import ROOT
from paths import SUPPORT

# docs/background/adr/0025-the-limit-of-imports-follows-their-cost.md
MOST_MODULES, MOST_LINES = 300, 41_500
NAMED = 12
LOCUSTFILES = Path(f"{ROOT / 'locustfiles' / 'chat.py'},{SUPPORT / 'writes_modules.py'}")
FRESH = {"INFERLOAD_FRESH": "1"}  # a fork of the tests has imported more than the run needs


# Modules of the virtual clock, which no run in real time imports.
VIRTUAL = ("inferload.run.virtual", "inferload.locust.virtual_options", "inferload.base.virtual_orders")


def check(folder: Path, besides: tuple[str, ...] = ()) -> None:
    """Check the modules of the run of LOCUSTFILES in `folder`. The simulator does not count: it stands for another process.

    `besides`: names of other modules that do not count, by their begin.
    """
    written: dict[str, int] = json.loads((folder / "modules.json").read_text())
    lines = {name: count for name, count in written.items() if not name.startswith(("inferload.deploy", *besides))}
    assert "inferload.run.master.finish" in lines
    biggest = sorted(lines.items(), key=lambda module: -module[1])[:NAMED]
    text = (
        f"{len(lines)} modules with {sum(lines.values())} lines; the biggest: {dict(biggest)}; "
        f"imported last: {dict([*lines.items()][-NAMED:])}; import what a chat run does not need where it is used"
    )
    assert len(lines) <= MOST_MODULES, text
    assert sum(lines.values()) <= MOST_LINES, text
