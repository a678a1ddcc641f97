"""Files of traces: folders, gzip, and JSON that is not one value a line."""

import gzip
import io
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import DATA

from inferload.base.errors import UsageError
from inferload.scenario.files.data_files import find
from inferload.scenario.schema.replay import TraceWindow
from inferload.workload import json_values as json_values_reader
from inferload.workload.traces import files
from inferload.workload.traces.formats import FORMATS
from inferload.workload.traces.index import TraceIndex
from inferload.workload.traces.turn import RecordedTurn

TRACES = DATA / "traces"
NAMES = sorted(path.name for path in TRACES.iterdir())
GENERATED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def form_of(name: str) -> str:
    stem = name.partition(".")[0]
    return "jsonl" if stem == "own" else stem


def sessions(path: Path, form: str) -> list[list[tuple[object, ...]]]:
    """Return the sessions of a trace without what depends on positions in its files."""
    index = TraceIndex(path, path.name, FORMATS[form], TraceWindow())

    def read(turn: RecordedTurn) -> tuple[object, ...]:
        whole = index.whole(turn)
        blocks = whole.blocks and tuple(block.removeprefix(turn.scope) for block in whole.blocks)
        return turn.at_s, turn.ends_s, turn.input_tokens, turn.output_tokens, turn.prefix_tokens, turn.agent, blocks

    return [list(map(read, index.session(number))) for number in range(len(index))]


def packed(path: Path, text: bytes, compressed: bool) -> Path:
    """Write a file, with .gz at its end if it is compressed."""
    target = path.with_name(path.name + ".gz") if compressed else path
    target.write_bytes(gzip.compress(text, mtime=0) if compressed else text)
    return target


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("compressed", [False, True])
def test_each_format_is_read_from_gzip_and_from_a_folder(name: str, compressed: bool, tmp_path: Path) -> None:
    form, text = form_of(name), (TRACES / name).read_bytes()
    expected = sessions(TRACES / name, form)
    assert sessions(packed(tmp_path / name, text, compressed), form) == expected
    table = name.endswith(".csv")
    header, *rows = text.splitlines(keepends=True) if table else [b"", *text.splitlines(keepends=True)]
    folder = tmp_path / "folder"
    folder.mkdir()
    for number, row in enumerate(rows):
        packed(folder / f"{number:03}{Path(name).suffix}", header + row, compressed)
    (folder / "LICENSE").write_text("x")
    (folder / ".hidden.json").write_text("x")
    (folder / ".hidden.csv").write_text("x")
    assert sessions(folder, form) == expected


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith(".csv")])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_each_json_format_is_read_from_a_list_and_from_pretty_printed_objects(
    name: str, mark: bytes, tmp_path: Path
) -> None:
    form = form_of(name)
    values = list(map(json.loads, (TRACES / name).read_text().splitlines()))
    expected = sessions(TRACES / name, form)
    texts = (
        json.dumps(values),
        json.dumps(values, indent=2),
        json.dumps(values, indent=0) + "\n\n",
        "\r\n".join(json.dumps(value, indent=4) for value in values),
        "".join(f"[{json.dumps(value)}]\n" for value in values),
    )
    for text in texts:
        path = tmp_path / "trace.json"
        path.write_bytes(mark + text.encode())
        assert sessions(path, form) == expected


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(), json_values, max_size=4)


@given(
    st.lists(objects, max_size=6),
    st.sampled_from(["lines", "list", "objects"]),
    st.fixed_dictionaries({"indent": st.sampled_from([None, 0, 3]), "ensure_ascii": st.booleans()}),
    st.integers(1, 40),
)
@GENERATED
def test_values_are_found_at_their_positions_in_chunks_of_any_size(
    monkeypatch: pytest.MonkeyPatch, values: list[object], package: str, style: dict[str, Any], chunk: int
) -> None:
    monkeypatch.setattr(json_values_reader, "BLOCK_BYTES", chunk)
    each = [json.dumps(value, **(style | ({"indent": None} if package == "lines" else {}))) for value in values]
    text = (json.dumps(values, **style) if package == "list" else "\n".join(each)).encode()
    found = list(files.json_records(io.BytesIO(text)))
    assert [json.loads(record.text) for record in found] == values
    for record in found:
        assert text[record.offset : record.offset + len(record.text)] == record.text
        assert record.line == 1 + text.count(b"\n", 0, record.offset)


def test_only_one_value_of_a_list_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted(io.BytesIO):
        taken = 0

        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            self.taken += len(data)
            return data

    monkeypatch.setattr(json_values_reader, "BLOCK_BYTES", 64)
    monkeypatch.setattr(files, "_HEAD", 64)
    text = Counted(json.dumps([{"number": number} for number in range(1000)]).encode())
    for count, record in enumerate(itertools.islice(files.json_records(text), 500)):
        assert json.loads(record.text) == {"number": count}
        assert text.taken <= 64 + record.offset + len(record.text) + 64  # the start of the file is read twice


def test_a_folder_without_files_of_the_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("a\n")
    with pytest.raises(
        UsageError, match=r"^t: the folder contains none of \*\.json, \*\.jsonl, \*\.ndjson, also with \.gz"
    ):
        TraceIndex(tmp_path, "t", FORMATS["weka"], TraceWindow())


def test_a_fault_names_the_file_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text((TRACES / "weka.jsonl").read_text())
    (tmp_path / "b.json").write_text('{\n "id": 3\n}\n\n{\n "requests": 4}')
    with pytest.raises(UsageError, match=r"^t/b\.json:1: requests is missing"):
        TraceIndex(tmp_path, "t", FORMATS["weka"], TraceWindow())


def test_the_digest_of_a_folder_is_that_of_its_names_and_contents(tmp_path: Path) -> None:
    def digest(names: dict[str, bytes]) -> str:
        for old in tmp_path.iterdir():
            old.unlink()
        for name, text in names.items():
            (tmp_path / name).write_bytes(text)
        return TraceIndex(tmp_path, "t", FORMATS["mooncake"], TraceWindow()).digest

    first, second = (TRACES / "mooncake.jsonl").read_bytes().splitlines(keepends=True)[:2]
    one = digest({"a.jsonl": first, "b.jsonl": second})
    assert digest({"b.jsonl": second, "a.jsonl": first}) == one
    assert digest({"a.jsonl": first, "c.jsonl": second}) != one
    assert digest({"a.jsonl": first, "b.jsonl": first}) != one


def test_a_folder_is_found_only_where_folders_are_accepted(tmp_path: Path) -> None:
    assert find(str(tmp_path), or_folder=True) == tmp_path
    with pytest.raises(UsageError, match="is a directory, not a file"):
        find(str(tmp_path))
