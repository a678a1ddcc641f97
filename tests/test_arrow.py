"""Columns are written and read without pandas, and a program that wants pandas still has it."""

import subprocess
import sys
from pathlib import Path

WITHOUT = """
import sys
from array import array
sys.path.insert(0, {tests!r})
from records import turn
from inferload import scrapefile, turnfile
from inferload.measure import serverseries, tasks
from inferload.measure.clock import Anchor
from inferload.measure.exact import exact_values
columns = turnfile.TurnColumns()
columns.append(turn())
table = turnfile.to_table(columns, Anchor(1, 2), "w")
assert len(exact_values(table, None)["ttft_ms"]) == 1
assert "numpy" in sys.modules and "pandas" not in sys.modules
"""

WITH = """
import sys
from inferload.measure.arrow import pa
assert pa.array([1]).to_numpy().tolist() == [1] and "pandas" not in sys.modules
assert pa.table({"a": pa.array([1])}).to_pandas()["a"].tolist() == [1]
import pandas as pd
assert pa.array(pd.Series([1, 2])).to_pylist() == [1, 2]
assert pa.Table.from_pandas(pd.DataFrame({"x": ["a"]})).to_pydict() == {"x": ["a"]}
"""


def outcome(code: str) -> str:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return ran.stderr


def test_where_tokens_are_stamped_there_is_no_pandas() -> None:
    assert outcome(WITHOUT.format(tests=str(Path(__file__).parent))) == ""


def test_whoever_wants_pandas_has_it() -> None:
    assert outcome(WITH) == ""
