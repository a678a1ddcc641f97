"""Tables whose rows are imported on first use."""

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.base.on_use import OnUse
from inferload.cli import BUILT_IN
from inferload.client.endpoints.dialect import DIALECTS, Dialect
from inferload.workload.content.data import Opened
from inferload.workload.sessions import OPENERS, SCRIPTS
from inferload.workload.sources.registry import READERS

TABLES: dict[str, tuple[Mapping[str, Any], Any]] = {
    "endpoints": (DIALECTS, lambda row: isinstance(row, Dialect)),
    "scripts": (SCRIPTS, callable),
    "openers": (OPENERS, lambda row: Opened in row.__mro__),
    "sources": (READERS, callable),
    "commands": (BUILT_IN, callable),
}


@pytest.mark.parametrize("table", TABLES)
def test_every_row_of_a_table_is_an_object_of_its_kind(table: str) -> None:
    rows, fits = TABLES[table]
    assert rows
    assert [name for name, row in rows.items() if not fits(row)] == []


@given(names=st.sets(st.sampled_from(["dumps", "loads", "dump", "load"]), min_size=1))
def test_a_table_is_a_mapping_of_the_objects(names: set[str]) -> None:
    import json

    table = OnUse[Any]({name: f"json:{name}" for name in names})
    assert dict(table) == {name: getattr(json, name) for name in names}
    assert "missing" not in table
    with pytest.raises(KeyError):
        table["missing"]


def test_only_the_row_that_is_asked_for_is_imported() -> None:
    program = """
import sys
from inferload.base.on_use import OnUse
table = OnUse({"a": "wave:open", "b": "this_module_is_nowhere:x"})
assert "wave" not in sys.modules and list(table) == ["a", "b"] and "b" in table and len(table) == 2
assert table["a"] is table["a"] is sys.modules["wave"].open
"""
    subprocess.run([sys.executable, "-c", program], check=True)
