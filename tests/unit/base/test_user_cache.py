"""The user's cache folder, also of a user without home or name, as in a container."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from inferload.base.user_cache import user_cache
from inferload.scenario.files import data_files

NAMELESS = ("unshare", "--user", "--map-user=12345", "--map-group=12345", "env", "-u", "HOME", "-u", "XDG_CACHE_HOME")
PRINT = "from inferload.base.user_cache import user_cache; print(user_cache())"


def can_be_nameless() -> bool:
    return (
        shutil.which("unshare") is not None
        and subprocess.run([*NAMELESS, "true"], capture_output=True, check=False).returncode == 0
    )


nameless = pytest.mark.skipif(not can_be_nameless(), reason="this machine allows no user namespaces")


def test_the_folder_is_that_of_the_environment_or_of_the_home(tmp_path: Path) -> None:
    home = str(tmp_path)
    assert user_cache({"HOME": home}) == tmp_path / ".cache" / "inferload"
    assert user_cache({"HOME": home, "XDG_CACHE_HOME": "/c"}) == Path("/c/inferload")
    assert user_cache({"HOME": home, "XDG_CACHE_HOME": "relative"}) == tmp_path / ".cache" / "inferload"


@pytest.mark.parametrize("home", ["/dev/null", "/proc/version", "/dev/null/x"])
def test_a_home_without_a_writable_cache_is_replaced(home: str) -> None:
    folder = user_cache({"HOME": home})
    assert folder == user_cache({"HOME": home})
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == os.getuid()


@nameless
def test_processes_of_a_user_without_home_and_name_share_a_private_folder(tmp_path: Path) -> None:
    words = [*NAMELESS, f"TMPDIR={tmp_path}", sys.executable, "-c", PRINT]
    first, second = (subprocess.run(words, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert first == second == f"{tmp_path}/inferload-12345\n"


def test_a_folder_that_others_can_write_is_not_used(tmp_path: Path) -> None:
    (tmp_path / f"inferload-{os.getuid()}").mkdir(mode=0o777)
    (tmp_path / f"inferload-{os.getuid()}").chmod(0o777)
    environment = {**os.environ, "TMPDIR": str(tmp_path), "HOME": "/dev/null", "XDG_CACHE_HOME": ""}
    out = subprocess.run(
        [sys.executable, "-c", PRINT], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert Path(out.strip()).parent == tmp_path
    assert out.strip() != str(tmp_path / f"inferload-{os.getuid()}")


def test_a_path_in_the_home_of_nobody_names_the_missing_file() -> None:
    with pytest.raises(data_files.Missing, match=r"^~nobody-of-this-name/data.jsonl: no such file"):
        data_files.find("~nobody-of-this-name/data.jsonl")


@nameless
def test_a_plan_needs_neither_home_nor_name(tmp_path: Path) -> None:
    talk = [{"from": "human", "value": "How are you?"}, {"from": "gpt", "value": "Fine, and you?"}]
    (tmp_path / "data.json").write_text(json.dumps([{"id": "a", "conversations": talk}]))
    (tmp_path / "scenario.yaml").write_text(
        "schema: 1\nname: nameless\n"
        "workload: {kind: chat, source: {kind: sharegpt, path: data.json}, turns: 1, output_tokens: 4}\n"
        "arrivals: {kind: closed, users: 1, spawn_per_s: 1}\nphases: {warmup_s: 0, measure_s: 10, drain_s: 5}\n"
    )
    words = [*NAMELESS, f"TMPDIR={tmp_path}", sys.executable, "-m", "inferload", "plan", "scenario.yaml"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stdout + done.stderr
    assert list(tmp_path.glob("inferload-12345/indexes/*.npz"))
