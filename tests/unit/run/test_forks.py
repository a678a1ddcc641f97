"""Forks of a process with greenlets: what they keep of it, and their end with it."""

import os
import signal
import subprocess
import sys
import time

import pytest
from processes import alive

PARENT = """
from gevent import monkey

monkey.patch_all()
import os, socket, sys, threading, time
import gevent
from gevent.event import Event
from inferload.run.process.greenlets import fork_apart

gevent.signal_handler(15, print, "the parent goes on")
listener = socket.create_server(("127.0.0.1", 0))
parent, ended = os.getpid(), Event()


def beat():
    while True:
        gevent.sleep(0.01)
        if os.getpid() != parent:
            os.write(2, b"a greenlet of the parent runs")


def work():
    threads = [threading.Thread(target=time.sleep, args=(0.1,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = [os.readlink(f"/dev/fd/{number}") for number in os.listdir("/dev/fd") if os.path.exists(f"/dev/fd/{number}")]
    comm = open("/proc/self/comm").read().strip()
    sockets = sum(file.startswith("socket:") for file in files)
    os.write(1, f"{comm} {os.getpgid(0) == os.getpid()} {sockets} {socket.gethostbyname('localhost')}\\n".encode())
    while os.read(0, 1):
        pass
    if sys.argv[1] == "raises":
        raise ValueError("of the fork")


gevent.spawn(beat)
gevent.sleep(0.05)
(stdin, stop), (out, stdout) = os.pipe(), os.pipe()
pid = fork_apart("apart", work, stdin, stdout, ended.set)
print(pid, os.read(out, 100).decode(), end="", flush=True)
if sys.argv[1] == "killed":
    time.sleep(60)
os.close(stop)
assert ended.wait(30)
"""


def started(how: str) -> "subprocess.Popen[str]":
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", PARENT, how], stdout=pipe, stderr=pipe, text=True)


def facts(process: "subprocess.Popen[str]") -> list[str]:
    assert process.stdout is not None
    return process.stdout.readline().split()


@pytest.mark.parametrize("how", ["ends", "raises"])
def test_a_fork_has_a_loop_of_its_own_and_no_socket_of_its_parent(how: str) -> None:
    with started(how) as process:
        assert facts(process)[1:] == ["apart", "True", "0", "127.0.0.1"]
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 0, errors
    assert ("ValueError: of the fork" in errors) == (how == "raises")
    assert how == "raises" or errors == ""


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 60
    while alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_sigterm_ends_a_fork_whose_parent_handles_it() -> None:
    with started("killed") as process:
        pid = int(facts(process)[0])
        os.kill(pid, signal.SIGTERM)
        try:
            assert gone(pid)
            assert process.poll() is None
        finally:
            process.kill()


def test_a_fork_ignores_ctrl_c_and_does_not_outlive_a_killed_parent() -> None:
    with started("killed") as process:
        pid = int(facts(process)[0])
        os.kill(pid, signal.SIGINT)
        assert alive(pid)
        process.kill()
        process.wait(20)
        assert gone(pid)
