"""Fork server: starts Python programs as forks of a process that has imported their modules.

Imports take a second or more of CPU time per `locust` process, and the end-to-end tests start hundreds. The fork runs the program
from its first line. With INFERLOAD_FRESH=1 each program is a new Python process, as for a user (`make soak`).

Programs start further ones with `sys.executable`: `locust` its report, a sweep its servers and runs. In a
fork this is a proxy script, which lets a fork server run the module, forwards SIGINT and SIGTERM, and exits with its exit code.
"""

import contextlib
import gc
import inspect
import marshal
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_HERE, _PYTHON = Path(__file__), sys.executable  # which tests replace by a proxy
# `sys.executable` in a fork. It imports built-in modules only, and starts in a few milliseconds.
_PROXY = """#!{python} -IS
import marshal, posix, sys, _signal, _socket
# The simulator imports little, and cannot run after the imports of Locust.
if sys.argv[1] not in ("-m", "-Pm") or any("simulator" in word for word in sys.argv[2:4]):
    posix.execv({python!r}, [{python!r}, *sys.argv[1:]])
env = {{name.decode(errors="surrogateescape"): text.decode(errors="surrogateescape") for name, text in posix.environ.items()}}
order = {{"module": sys.argv[2], "arguments": sys.argv[3:], "env": env, "cwd": posix.getcwd()}}
order.update(linked=True, python=sys.argv[0])
link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
link.connect({reports!r} if sys.argv[2] == "inferload" and sys.argv[3] in ("report", "compare") else {path!r})
passed = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
link.sendmsg([marshal.dumps(order)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, passed)])
pid = int(link.recv(64))
def forward(number, frame):
    try:
        posix.kill(pid, number)
    except ProcessLookupError:
        pass
for each in (_signal.SIGINT, _signal.SIGTERM):
    _signal.signal(each, forward)
code = int(link.recv(64) or 1)
if code < 0:
    _signal.signal(-code, _signal.SIG_DFL)
    posix.kill(posix.getpid(), -code)
sys.exit(code)
"""


class Forked:
    """Forked program, with the part of the interface of `subprocess.Popen` that tests use."""

    def __init__(self, link: socket.socket, pid: int, stdout: Any) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._link = link
        self._lock = threading.Lock()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, negative for a signal; raise `subprocess.TimeoutExpired` if it still runs."""
        with self._lock:
            if self.returncode is None:
                self._link.settimeout(timeout)
                try:
                    text = self._link.recv(64)
                except (TimeoutError, BlockingIOError):
                    raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0) from None
                assert text, f"the fork server ended before process {self.pid}"
                self.returncode = int(text)
                self._link.close()
            return self.returncode

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forge:
    """Fork server that has imported `modules`. It starts with the first program and ends with the tests.

    `children`: fork server of the modules that its programs start by `sys.executable`. `first`: a folder before all others of
    the import path.
    """

    def __init__(self, *modules: str, children: "Forge | None" = None, first: Path | None = None) -> None:
        self._modules = modules
        self._first = first
        self._children = children
        self._lock = threading.Lock()
        self._path: str | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        errors_too: bool = False,
        new_session: bool = False,
    ) -> "Forked | subprocess.Popen[str]":
        """Run `python -m MODULE ARGUMENTS` with stdout, and with `errors_too` also stderr, on a pipe."""
        # LD_PRELOAD takes effect at the start of a process only.
        if env.get("INFERLOAD_FRESH") == "1" or "LD_PRELOAD" in env:
            disk = env.get("INFERLOAD_SLOWDISK")
            return subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=cwd,
                env={**env, "LD_PRELOAD": str(_slow_disk(Path(disk).parent))} if disk else dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if errors_too else None,
                text=True,
                start_new_session=new_session,
            )
        order = {
            "module": module,
            "arguments": list(arguments),
            "env": dict(env),
            "cwd": str(cwd or Path.cwd()),
            "new_session": new_session,
            "python": None if self._children is None else self._children.proxy(),
        }
        out, into = os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            link.connect(self._address())
            socket.send_fds(link, [marshal.dumps(order)], [nothing, into, into if errors_too else 2])
        finally:
            os.close(into)
            os.close(nothing)
        pid = int(link.recv(64))
        return Forked(link, pid, open(out, encoding="utf-8"))

    def proxy(self) -> str:
        """Return the path of an executable that runs a module in this fork server, or with INFERLOAD_FRESH=1 of Python."""
        if os.environ.get("INFERLOAD_FRESH") == "1":
            return _PYTHON
        return str(Path(self._address()).with_name("python"))

    def close(self) -> None:
        """End the fork server."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()

    def _address(self) -> str:
        with self._lock:
            if self._path is None:
                folder = Path(tempfile.mkdtemp(prefix="forge-"))
                self._path = str(folder / "forge")
                proxy = folder / "python"
                reports = self._path if self._children is None else self._children._address()
                proxy.write_text(_PROXY.format(python=_PYTHON, path=self._path, reports=reports))
                proxy.chmod(0o700)
                # It listens at once; connections during its imports are served afterwards.
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                    listener.bind(self._path)
                    listener.listen(64)
                    number = listener.fileno()
                    self._process = subprocess.Popen(
                        [_PYTHON, str(_HERE), str(number), self._path, *self._modules],
                        env={
                            **os.environ,
                            "PYTHONUNBUFFERED": "1",
                            "PYTHONPATH": os.pathsep.join(map(str, filter(None, [self._first, _HERE.parents[2]]))),
                            "LD_PRELOAD": f"{os.environ.get('LD_PRELOAD', '')} {_slow_disk(folder)}",
                        },
                        stdin=subprocess.PIPE,
                        pass_fds=[number],
                    )
            return self._path


def _slow_disk(folder: Path) -> Path:
    """Build the library of `slow_disk`, which does nothing in programs without its environment variables."""
    library = folder / "slowdisk.so"
    if not library.exists():
        source = _HERE.with_name("slowdisk.c")
        subprocess.run(["cc", "-std=c11", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


COMMANDS = Forge(
    "encodings.idna",
    "inferload.servers.scrapes_file",
    "inferload.servers.exposition",
    "inferload.servers.scrape_http",
    "inferload.analysis.commands.report",
    "inferload.analysis.report.multi_run_page",
    "inferload.analysis.report.report",
    "inferload.analysis.report.search_page",
    "inferload.analysis.study.page",
    "inferload.results.summarise.summarise",
    "pyarrow.dataset",
    "report_constants",
)
LOCUST = Forge(
    "locust.main",
    "inferload.run.master.live",
    "zmq.utils.monitor",
    "inferload.locust.plugin",
    "inferload.locust.web.page",
    "inferload.client.endpoints.chat",
    "inferload.workload.chat",
    "encodings.utf_8_sig",
    "gevent._fileobjectposix",
    "gevent.resolver.thread",
    "gevent.threadpool",
    "inferload.client.connection.native_connection",
    "inferload.deploy.servers.in_memory",
    "inferload.locust.virtual_options",
    "inferload.results.prices",
    "inferload.run.virtual.scraping",
    "inferload.workload.sources.synthetic",
    "numpy.fft",
    "numpy.ma",
    "pyarrow.compute",
    "encodings.ascii",
    "encodings.utf_32_le",
    "flask.debughelpers",
    "jinja2.ext",
    "runpy",
    "xml.etree.ElementTree",
    "zmq.utils.z85",
    "inferload.client.answers.output",
    "inferload.client.answers.streamed_tokens",
    "inferload.client.endpoints.responses",
    "inferload.results.ci_texts",
    "inferload.run.process.file_pieces",
    "inferload.run.worker.turn_sender",
    "inferload.servers.scraping",
    "inferload.workload.tasks",
    "inferload.analysis.commands.report",  # of a fork of the run
    "inferload.analysis.report.report",
    "report_constants",
    "made_once",
    children=COMMANDS,
)
SIMULATOR = Forge("inferload.deploy.simulator.command")


# -- process of the fork server


def _serve(number: int, path: str, modules: Sequence[str]) -> None:
    """Fork for each connection; send it the pid, and at the end of the process its exit code. Exits at the end of stdin.

    A client may go away at any step. The program of a proxy (`linked`) is killed if the proxy goes away.
    """
    # Saved before the imports: gevent, imported by Locust, replaces them by versions that need an event loop.
    poller, fork, waitpid, close, Socket = select.poll(), os.fork, os.waitpid, os.close, socket.socket
    listener = Socket(fileno=number)
    for module in modules:
        __import__(module)
    inspect.getmodule(sys._getframe())  # caches the files of all modules, for inspect.stack() in the forks
    gc.collect()
    gc.freeze()  # collections in the forks need not scan the imported objects
    waiting: dict[int, Any] = {}  # links without an order yet, by descriptor
    links: dict[int, tuple[Any, int]] = {}  # by the pidfd of the process
    proxies: dict[int, int] = {}  # pids by the descriptor of the link
    poller.register(listener, select.POLLIN)
    poller.register(0, select.POLLIN | select.POLLHUP)
    while True:
        # One event of each poll: the next ones may be of descriptors that this one closes and another takes.
        ready = poller.poll()[0][0]
        if ready == 0:
            shutil.rmtree(os.path.dirname(path))
            return
        if ready == listener.fileno():
            link = Socket(fileno=listener._accept()[0])  # type: ignore[attr-defined]
            waiting[link.fileno()] = link
            poller.register(link, select.POLLIN)
        elif ready in waiting:
            link = waiting.pop(ready)
            poller.unregister(ready)
            order, descriptors = _order(link)
            if order is None:
                link.close()
                continue
            pid = fork()
            if pid == 0:
                sockets = [listener, link, *waiting.values(), *(other for other, _pid in links.values())]
                _become(order, descriptors, sockets, links)
            for each in descriptors:
                close(each)
            with contextlib.suppress(OSError):
                link.send(str(pid).encode())
            descriptor = os.pidfd_open(pid)
            links[descriptor] = link, pid
            poller.register(descriptor, select.POLLIN)
            if order.get("linked"):
                proxies[link.fileno()] = pid
                poller.register(link.fileno(), select.POLLHUP)
        elif ready in proxies:
            poller.unregister(ready)
            os.kill(proxies.pop(ready), signal.SIGKILL)
        else:
            link, pid = links.pop(ready)
            poller.unregister(ready)
            close(ready)
            if proxies.pop(link.fileno(), None):
                poller.unregister(link.fileno())
            code = os.waitstatus_to_exitcode(waitpid(pid, 0)[1])
            with contextlib.suppress(OSError):
                link.send(str(code).encode())
            link.close()


def _order(link: Any) -> tuple[dict[str, Any] | None, Sequence[int]]:
    """Return the order of a client, and the descriptors of the streams; None if it has gone away."""
    try:
        text, descriptors, _flags, _where = socket.recv_fds(link, 1 << 20, 3)
    except OSError:
        return None, []
    return (marshal.loads(text) if text else None), descriptors


def _become(
    order: dict[str, Any], descriptors: Sequence[int], sockets: Sequence[Any], pidfds: Iterable[int]
) -> NoReturn:
    """Set up the fork like a new Python process, run the module, and exit."""
    import traceback

    try:
        _set_up(order, descriptors, sockets, pidfds)
    except BaseException:  # noqa: BLE001 (a fork must not go on as a fork server)
        traceback.print_exc()
        os._exit(1)
    _run(order["module"])


def _set_up(order: dict[str, Any], descriptors: Sequence[int], sockets: Sequence[Any], pidfds: Iterable[int]) -> None:

    if "gevent" in sys.modules:  # importing Locust creates an event loop
        sys.modules["gevent"].reinit()
    for each in sockets:
        each.close()
    for number in pidfds:
        os.close(number)
    if order.get("new_session"):
        os.setsid()
    if order.get("python"):
        sys.executable = order["python"]
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    for descriptor in set(descriptors):
        os.close(descriptor)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    sys.argv = ["", *order["arguments"]]
    sys.path[0] = order["cwd"]


def _run(module: str) -> NoReturn:
    import runpy

    code: Any = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as leaving:
        code = leaving.code
    except BaseException:  # noqa: BLE001 (printed like an uncaught exception of a program)
        import traceback

        traceback.print_exc()
        code = 1
    # Steps of an interpreter exit, atexit functions first; `sys.exit` would unwind the frames of the fork server.
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    _leave(code or 0)


def _leave(code: int) -> NoReturn:
    import atexit

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
