"""Columns are written and read without pandas; programs that use pandas can import it."""

import subprocess
import sys
from pathlib import Path

from paths import SUPPORT

WITHOUT = """
import sys
from array import array
sys.path.insert(0, {tests!r})
from records import turn
from inferload.servers import scrapes_file
from inferload.turns import turns_file
from inferload.results import agent_tasks
from inferload.servers import series
from inferload.base.clock import Anchor
from inferload.figures.turn_values import ExactValues
from inferload.turns.turn_columns import TurnColumns, to_table
columns = TurnColumns()
columns.append(turn())
table = to_table(columns, Anchor(1, 2), "w")
assert len(ExactValues(lambda names: [table.select(names)]).of("ttft_ms")) == 1
assert "numpy" in sys.modules and "pandas" not in sys.modules
"""

SCRAPER = """
import sys
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
assert not {{"pandas", "pyarrow.compute"}} & sys.modules.keys()
"""

WITH = """
import sys
from inferload.base.arrow import pa
assert pa.array([1]).to_numpy().tolist() == [1] and "pandas" not in sys.modules
assert pa.default_memory_pool().backend_name == "system"
assert pa.table({"a": pa.array([1])}).to_pandas()["a"].tolist() == [1]
import pandas as pd
assert pa.array(pd.Series([1, 2])).to_pylist() == [1, 2]
assert pa.Table.from_pandas(pd.DataFrame({"x": ["a"]})).to_pydict() == {"x": ["a"]}
"""


def outcome(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr


def test_workers_do_not_import_pandas() -> None:
    assert outcome(WITHOUT.format(tests=str(SUPPORT))) == ""


def test_the_scraper_imports_no_unused_libraries(tmp_path: Path) -> None:
    assert outcome(SCRAPER.format(folder=str(tmp_path))) == ""


def test_pandas_can_be_imported_afterwards() -> None:
    assert outcome(WITH) == ""
