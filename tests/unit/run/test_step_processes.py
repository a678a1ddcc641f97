"""Programs of live agents: started, used and awaited from native threads."""

import subprocess
import sys

PROCESSES = """
from gevent import monkey; monkey.patch_all()
import asyncio, subprocess
import gevent
from gevent.threadpool import ThreadPool
from inferload.run.worker.step_processes import let_threads_start_processes
def code(number):
    assert subprocess.run(["cat"], input=b"a" * 100_000, capture_output=True).stdout == b"a" * 100_000
    try:
        subprocess.run(["/no/such/program"])
    except FileNotFoundError:
        return subprocess.run(["sh", "-c", f"exit {number}"]).returncode
for _ in range(2):
    let_threads_start_processes()
own = [gevent.spawn(code, number) for number in range(20)]
assert ThreadPool(8).map(code, range(40)) == [*range(40)]
gevent.joinall(own)
assert [each.value for each in own] == [*range(20)]
def start(text):
    return subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=text)
def talk(process, line):
    process.stdin.write(line)
    process.stdin.flush()
    return process.stdout.readline()
def end(process):
    process.stdin.close()
    return process.stdout.read(), process.wait()
async def awaited():
    return await (await asyncio.create_subprocess_exec("sleep", "0.1")).wait()
for line in ("a\\n", b"a\\n"):
    for pools in ([ThreadPool(1) for _ in range(4)], [ThreadPool(1)] * 4):
        process = pools[0].apply(start, (isinstance(line, str),))
        assert [pools[each].apply(talk, (process, line)) for each in (1, 2)] == [line] * 2
        assert pools[3].apply(end, (process,)) == (line[:0], 0)
    assert pools[0].apply(asyncio.run, (awaited(),)) == 0
"""


def test_threads_and_greenlets_start_processes_use_those_of_other_threads_and_get_their_exit_codes() -> None:
    ended = subprocess.run([sys.executable, "-c", PROCESSES], check=False, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
