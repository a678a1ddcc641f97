"""Digest of the Python code of a run: the locustfile and what it imports from its folder."""

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT

from inferload import __version__
from inferload.base.errors import UsageError
from inferload.locust.user_classes import run_name
from inferload.run.master.workers import worker_setup
from inferload.run.master.workers.workers import Member
from inferload.run.process.program_code import BUNDLED, LoadedCode, ProgramCode
from inferload.run.process.user_scenarios import Program
from inferload.scenario.schema.agent import FILE_MODULE

MAIN = "support.py"
NAMES = st.lists(
    st.from_regex(r"(?:[a-c]{1,2}/){0,2}[a-c]{1,2}\.(?:py|pyc|so)", fullmatch=True), unique=True, max_size=6
).filter(lambda names: MAIN not in names)


def module(file: Path, name: str = "") -> ModuleType:
    made = ModuleType(name or file.stem)
    made.__file__ = str(file)
    return made


@contextmanager
def imported(*files: Path, **named: Path) -> Iterator[None]:
    """Have modules of these files, besides those of this process."""
    modules = {f"of_a_test_{number}": module(file) for number, file in enumerate(files)}
    with patch.dict(sys.modules, modules | {name: module(file, name) for name, file in named.items()}):
        yield


def write(folder: Path, files: dict[str, bytes]) -> list[Path]:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return [folder / name for name in files]


STANDARD = {name: module for name, module in sys.modules.items() if name in sys.stdlib_module_names}


def code(folder: Path, files: dict[str, bytes], *others: Path) -> ProgramCode:
    """Return the code of a process that has imported these files and the standard library."""
    with patch.dict(sys.modules, STANDARD, clear=True), imported(*write(folder, files), *others):
        return LoadedCode([folder / MAIN]).of_run()


@given(names=NAMES, data=st.data())
def test_the_digest_depends_on_each_byte_of_the_imported_files_and_on_nothing_else(
    names: list[str], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    files = {name: data.draw(st.binary(max_size=8)) for name in (MAIN, *names)}
    first = code(tmp_path_factory.mktemp("a") / "one", files)
    # Another place, another order of the imports, files that are not imported, modules of other folders.
    place = tmp_path_factory.mktemp("b") / "x" / "y"
    write(place, {"data.json": b"1", "d/unused.py": b"2", f"{MAIN}.bak": b"3"})
    (elsewhere,) = write(tmp_path_factory.mktemp("c"), {"helper.py": b"4"})
    second = code(place, dict(reversed(files.items())), elsewhere)
    assert first == second
    assert first.digest is not None
    assert first.mains == (MAIN,)
    changed = data.draw(st.sampled_from(sorted(files)))
    content = bytearray(files[changed] + b"\n")
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 + data.draw(st.integers(0, 254))
    assert code(place, files | {changed: bytes(content)}).digest != first.digest
    assert code(place, files | {"new/one.py": b""}).digest != first.digest
    renamed = {("renamed.py" if name == changed else name): text for name, text in files.items()}
    if changed != MAIN:
        assert code(place, renamed).digest != first.digest


def test_libraries_below_the_folder_are_no_part_of_the_program(tmp_path: Path) -> None:
    (main,) = write(tmp_path, {MAIN: b"main"})
    stdlib = sysconfig.get_paths()["stdlib"]
    libraries = write(
        tmp_path,
        {f".venv/lib/python3/{folder}/a.py": b"" for folder in ("site-packages", "dist-packages/b")}
        | {"inferload/users.py": b"", "launcher.py": b"", "agents.py": b""},
    )
    names = {"inferload.of_a_test": libraries[2], "__main__": libraries[3], f"{FILE_MODULE}1": libraries[4]}
    with imported(main, *libraries[:2], **names):
        assert LoadedCode([main]).of_run().files == LoadedCode([main], imported=()).of_run().files
        assert len(LoadedCode([main]).of_run().files) == 1
    # A locustfile above the standard library, and one of an installed package.
    with imported(main):
        above = LoadedCode([Path(stdlib).parent.parent / MAIN]).of_run()
        assert [name for name, _digest in above.files] == [MAIN]
    package = write(tmp_path / "site-packages" / "ours", {MAIN: b"main", "helper.py": b"helper"})
    with imported(*package):
        assert [name for name, _digest in LoadedCode(package[:1]).of_run().files] == ["helper.py", MAIN]


def test_links_to_the_folder_and_in_it_change_no_name(tmp_path: Path) -> None:
    files = {MAIN: b"main", "lib/helper.py": b"helper"}
    real = code(tmp_path / "real", files)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with imported(tmp_path / "link" / MAIN, tmp_path / "real/lib/helper.py"):
        assert LoadedCode([tmp_path / "link" / MAIN]).of_run() == real
    with imported(tmp_path / "link" / "lib/helper.py"):
        assert LoadedCode([tmp_path / "real" / MAIN]).of_run() == real
    (tmp_path / "mounted").mkdir()  # as a ConfigMap of Kubernetes
    for name in (MAIN, "lib"):
        (tmp_path / "mounted" / name).symlink_to(tmp_path / "real" / name)
    with imported(tmp_path / "mounted" / "lib/helper.py"):
        assert LoadedCode([tmp_path / "mounted" / MAIN]).of_run() == real


def test_several_locustfiles_are_one_program_in_any_order(tmp_path: Path) -> None:
    one = write(tmp_path, {"a/locustfile.py": b"1", "b/locustfile.py": b"2", "b/c/deep.py": b"3"})
    with imported(*one[1:]):  # Locust imports both under one name: the second replaces the first
        codes = [LoadedCode(files).of_run() for files in (one[:2], [one[1], one[0]])]
        assert codes[0] == codes[1]
        assert [name for name, _digest in codes[0].files] == ["c/deep.py", "locustfile.py", "locustfile.py"]
        assert LoadedCode(one[1:2]).of_run().digest != codes[0].digest


def test_what_the_load_imports_does_not_count(tmp_path: Path) -> None:
    """The second run of a process has the same program as the first, whatever its tasks imported or changed on disk."""
    main, early, late = write(tmp_path, {MAIN: b"main", "early.py": b"early", "late.py": b"late"})
    with imported(main, early):
        loaded = LoadedCode([main])
        first = loaded.of_run()
        assert [name for name, _digest in first.files] == ["early.py", MAIN]
        with imported(late, late, late):
            early.write_bytes(b"changed")
            assert loaded.of_run() == first


def test_the_code_of_live_agents_is_part_of_the_program(tmp_path: Path) -> None:
    main, clerk, helper = write(tmp_path, {MAIN: b"m", "agents/clerk.py": b"clerk", "agents/helper.py": b"helper"})
    with imported(main):
        loaded = LoadedCode([main])
        alone = loaded.of_run()
    with imported(main, helper, **{f"{FILE_MODULE}1": clerk}):
        both = loaded.of_run([clerk])
        assert {name for name, _digest in both.files} == {MAIN, "clerk.py", "helper.py"}
        assert both.mains == ("clerk.py", MAIN)
        assert loaded.of_run() == alone
        assert {name for name, _digest in LoadedCode().of_run([clerk]).files} == {"clerk.py", "helper.py"}
        clerk.write_bytes(b"another")
        assert LoadedCode().of_run([clerk]).digest != LoadedCode([main]).of_run([clerk]).digest


def test_the_locustfiles_of_inferload_are_no_program_of_their_own() -> None:
    folder = ROOT / "locustfiles"
    assert {path.name for path in folder.glob("*.py")} == set(BUNDLED)
    chat, agent = (LoadedCode([folder / name]).of_run([folder / "toolagent.py"]) for name in ("chat.py", "agent.py"))
    assert (chat.files, chat.digest, chat.name) == ((), None, "")
    assert chat.differences(chat) == []
    assert chat.differences(agent) == ["agent.py (on the worker only)", "chat.py (on the master only)"]


def test_a_file_that_cannot_be_read_makes_the_digest_unknown(tmp_path: Path) -> None:
    gone = LoadedCode([tmp_path / MAIN]).of_run()
    assert gone.files == ((MAIN, ""),)
    assert gone.digest is None
    assert gone.differences(gone) == [f"{MAIN} (unreadable, the master's is unreadable)"]


def test_workers_may_lack_only_what_a_listener_imports(tmp_path: Path) -> None:
    files = {MAIN: b"main", "lib/helper.py": b"helper"}
    master = code(tmp_path / "master", files)
    main, helper, page = write(tmp_path / "later", files | {"page.py": b"page"})
    with imported(main, helper):
        loaded = LoadedCode([main])
    with imported(main, helper, page):
        with_page = loaded.of_run()
    assert with_page.differences(master) == []
    assert master.differences(with_page) == []
    assert code(tmp_path / "other", files | {"page.py": b"another"}).differences(with_page) == [
        f"page.py ({_digest(with_page, 'page.py')}, the master's is {_digest_of(b'another', tmp_path)})"
    ]
    assert master.differences(code(tmp_path / "less", {MAIN: b"main"})) == ["lib/helper.py (on the master only)"]
    assert master.differences(ProgramCode()) == ["lib/helper.py (on the master only)", f"{MAIN} (on the master only)"]
    assert msgspec.convert(msgspec.to_builtins(with_page), ProgramCode) == with_page


def _digest(program: ProgramCode, name: str) -> str:
    return dict(program.files)[name][:12]


def _digest_of(content: bytes, folder: Path) -> str:
    return _digest(code(folder / "digest", {MAIN: content}), MAIN)


@pytest.mark.parametrize("content", [b"a\nb\n", b"a\r\nb\r\n", b"a\rb", "é\n".encode(), b"\xef\xbb\xbfa\n"])
def test_a_locustfile_received_from_the_master_is_compared_as_text(content: bytes, tmp_path: Path) -> None:
    master = code(tmp_path / "master", {MAIN: content, "helper.py": b"helper"})
    received = tmp_path / "received" / MAIN
    received.parent.mkdir()
    received.write_text((tmp_path / "master" / MAIN).read_text(encoding="utf-8"), encoding="utf-8")  # as Locust does
    (other,) = write(tmp_path / "received", {"of_others.py": b""})
    with imported(received, other):
        worker = LoadedCode([received], single=[received], received=True).of_run()
    assert [name for name, _digest in worker.files] == [MAIN]
    assert master.differences(worker) == []
    received.write_bytes(content + b"#")
    with imported(received):
        assert master.differences(LoadedCode([received], single=[received], received=True).of_run())


def test_a_worker_with_another_program_is_refused_in_one_line(tmp_path: Path) -> None:
    master = code(tmp_path / "a", {MAIN: b"master"})
    members = [Member(name, name, stripe) for stripe, name in enumerate(("w0", "w1"))]
    for member in members:
        member.facts = {"version": __version__, "host": f"node{member.stripe}", "program": master}
    worker_setup.check_programs(members, master)
    other = code(tmp_path / "b", {MAIN: b"worker"})
    members[1].facts["program"] = other
    with pytest.raises(UsageError) as refused:
        worker_setup.check_programs(members, master)
    assert str(refused.value) == (
        f"workers: not the master's program: w1 on node1: {MAIN} ({_digest(other, MAIN)}, the master's is "
        f"{_digest(master, MAIN)}); start every worker with the same locustfile and the same modules below its folder"
    )
    members[1].facts["program"] = code(tmp_path / "c", {MAIN: b"", **{f"{n}.py": b"" for n in "abcd"}})
    with pytest.raises(UsageError, match=r"a\.py \(on the worker only\), .* and 2 other files; start"):
        worker_setup.check_programs(members, master)


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("support.py", "support"),
        (os.path.join("load", "tests", "support.py"), "support"),
        ("a.py, b.py", "a-b"),
        ("load", "load"),
        ("load/", "load"),
        ("http://server/files/support.py?x=1", "support"),
        ("mein test (2).py", "mein-test-2-"),
        (f"{'x' * 80}.py", "x" * 64),
        ("1.py", "1"),
        ("true.py", "true"),
        ("_hidden.py", "hidden"),
        ("-", "tasks"),
        ("", "tasks"),
    ],
)
def test_a_run_of_tasks_is_named_after_the_locustfile(option: str, name: str) -> None:
    scenario = Program(tasks=True, name=run_name(option)).read("").scenario
    assert (run_name(option), scenario.name, scenario.of_tasks) == (name, name, True)
