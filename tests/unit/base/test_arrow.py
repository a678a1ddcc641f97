"""Columns are written and read without pandas; programs that use pandas can import it."""

import subprocess
import sys
from pathlib import Path

from paths import SUPPORT

PROGRAM = """
import sys
from array import array
from pathlib import Path
import inferload.servers.scraper
from inferload.servers import scrapes_file
folder = Path({folder!r})
for number in range(2):
    columns = scrapes_file.ScrapeColumns()
    columns.append(number, "http://one", "vllm:x", (("engine", "0"),), 1.0)
    scrapes_file.write_part(folder, number, columns.to_table())
scrapes_file.join_parts(folder)
assert [one.name for one in folder.iterdir()] == [scrapes_file.JOINED]
assert not {{"pandas", "pyarrow.compute"}} & sys.modules.keys(), "of the scraper"

sys.path.insert(0, {tests!r})
from records import turn
from inferload.turns import turns_file
from inferload.results import agent_tasks
from inferload.servers import series
from inferload.base.arrow import pa
from inferload.base.clock import Anchor
from inferload.figures.turn_values import ExactValues
from inferload.turns.turn_columns import TurnColumns, to_table
columns = TurnColumns()
columns.append(turn())
table = to_table(columns, Anchor(1, 2), "w")
assert len(ExactValues(lambda names: [table.select(names)]).of("ttft_ms")) == 1
assert pa.array([1]).to_numpy().tolist() == [1]
assert "numpy" in sys.modules and "pandas" not in sys.modules, "of a worker"

assert pa.default_memory_pool().backend_name == "system"
assert pa.table({{"a": pa.array([1])}}).to_pandas()["a"].tolist() == [1]
import pandas as pd
assert pa.array(pd.Series([1, 2])).to_pylist() == [1, 2]
assert pa.Table.from_pandas(pd.DataFrame({{"x": ["a"]}})).to_pydict() == {{"x": ["a"]}}
"""


def test_scraper_and_workers_do_not_import_pandas_which_can_be_imported_afterwards(tmp_path: Path) -> None:
    program = PROGRAM.format(folder=str(tmp_path), tests=str(SUPPORT))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stderr == ""
