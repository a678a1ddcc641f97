"""A container as the kubelet and its runtime start one: in namespaces of its own, with its image's files, volumes and user.

A thread of this process enters the namespaces, prepares them, and starts the program, which is their process 1. They end with it:
nothing is left on the machine.
"""

import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paths import ROOT

_NEW_MOUNTS, _NEW_NAMES, _NEW_IPC, _NEW_PIDS, _NEW_NETWORK = 0x20000, 0x04000000, 0x08000000, 0x20000000, 0x40000000
_RDONLY, _NOSUID, _NODEV, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _IFF_UP = 0x8914, 0x8916, 0x891C, 0x1
_TUNSETIFF, _IFF_TUN_NO_PI = 0x400454CA, 0x1001
_libc = ctypes.CDLL(None, use_errno=True)

TERMINATION_LOG = "/dev/termination-log"
# Files of this machine that an image has: programs and libraries, Python, its packages, and this repository.
_SHARED = ("/usr", "/etc/ld.so.cache", "/etc/ssl", str(ROOT), sys.prefix, sys.base_prefix)
_LINKS = {"/proc/self/fd": "fd", "/proc/self/fd/0": "stdin", "/proc/self/fd/1": "stdout", "/proc/self/fd/2": "stderr"}
_FILES = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\ninferload:x:1000:1000::/home/inferload:/bin/sh\n",
    "group": "root:x:0:\ninferload:x:1000:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
# Programs of an image; /usr is that of this machine.
_PROGRAMS = "/opt/programs"
_PATH = f"{_PROGRAMS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_WORK_DIR, _RUN_DIR = "/data", "/data/runs"
# Programs of Containerfile's image.
INFERLOAD = {
    "inferload-entrypoint": ROOT / "deploy" / "entrypoint.sh",
    **{name: Path(sys.prefix, "bin", name) for name in ("inferload", "locust", "python")},
}


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of this machine at a path of the container."""

    source: Path
    path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Container:
    """Container as its pod describes it. `folder`: for its root and its termination message.

    `programs`: files of the image, by their names in PATH. `monotonic_s`: difference of the monotonic clock to that of this
    machine, as on another node.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    resolver: str
    folder: Path = Path()
    host_name: str = ""
    address: str = ""
    mounts: Sequence[Mount] = ()
    programs: Mapping[str, Path] = field(default_factory=dict)
    user: int = 1000
    group: int = 1000
    groups: Sequence[int] = ()
    read_only: bool = False
    no_new_privileges: bool = False
    no_capabilities: bool = False
    monotonic_s: int = 0
    niceness: int = 0

    def start(self, connect: Callable[[int], None] | None = None, beside: int = 0) -> subprocess.Popen[str]:
        """Start the program; return its process, whose output has stderr too.

        `connect`: gets the pod's TUN device. Without it the container shares the network of the process `beside`.
        """
        result: list[subprocess.Popen[str] | BaseException] = []

        def enter() -> None:
            try:
                result.append(self._enter(connect, beside))
            except BaseException as error:  # noqa: BLE001 (raised by the caller)
                result.append(error)

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        if isinstance(result[0], BaseException):
            raise result[0]
        return result[0]

    @property
    def termination_log(self) -> Path:
        """The file at the path of the termination message."""
        return self.folder / "termination-log"

    def _enter(self, connect: Callable[[int], None] | None, beside: int) -> subprocess.Popen[str]:
        if connect is None:
            with open(f"/proc/{beside}/ns/net") as network:
                _check(_libc.setns(network.fileno(), _NEW_NETWORK))
        else:
            _check(_libc.unshare(_NEW_NETWORK))
            device = _device(self.address)
            try:
                connect(device)
            finally:
                os.close(device)
        _check(_libc.unshare(_NEW_MOUNTS | _NEW_NAMES | _NEW_IPC))
        socket.sethostname(self.host_name)
        self.folder.mkdir(parents=True)
        self.termination_log.touch()
        self.termination_log.chmod(0o666)
        root = self.folder / "root"
        root.mkdir()
        self._mount_all(root)
        os.chroot(root)
        user = ["--reuid", str(self.user), "--regid", str(self.group)]
        user += ["--groups", ",".join(map(str, self.groups))] if self.groups else ["--clear-groups"]
        user += ["--no-new-privs"] if self.no_new_privileges else []
        user += ["--bounding-set=-all", "--inh-caps=-all"] if self.no_capabilities else []
        shift = ["unshare", "--time", "--monotonic", str(self.monotonic_s), "--boottime", str(self.monotonic_s)]
        words = ['mount -t proc proc /proc && exec "$@"', "sh", *(shift if self.monotonic_s else []), "setpriv", *user]
        _check(_libc.unshare(_NEW_PIDS))
        if self.niceness:
            os.setpriority(os.PRIO_PROCESS, 0, self.niceness)  # of this thread
        return subprocess.Popen(
            ["/bin/sh", "-c", *words, "--", *self.command],
            cwd=_WORK_DIR,
            env={"PATH": _PATH, "PYTHONUNBUFFERED": "1", "HOSTNAME": self.host_name, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def _mount_all(self, root: Path) -> None:
        """Mount the files of the image and the volumes below a new root."""
        _mount("none", Path("/"), flags=_REC | _PRIVATE)
        _mount("tmpfs", root, "tmpfs", _NOSUID, "mode=755,size=64m")
        self._make_system(root)
        for mount in sorted(self.mounts, key=lambda mount: mount.path.count("/")):
            _bind(mount, root)
        # After the volumes: this repository may be below /tmp, where a volume is.
        for path in _SHARED:
            if Path(path).exists() and not Path(f"{root}{path}").exists():
                _bind(Mount(Path(path), path, read_only=True), root)
        for name, program in self.programs.items():
            if Path(f"{root}{program}").exists():
                (root / _PROGRAMS[1:] / name).symlink_to(program)
            else:
                shutil.copy(program, root / _PROGRAMS[1:] / name)
        (root / "opt/inferload").mkdir()
        (root / "opt/inferload/locustfiles").symlink_to(ROOT / "locustfiles")
        if self.read_only:
            _mount("none", root, flags=_REMOUNT | _RDONLY | _NOSUID)

    def _make_system(self, root: Path) -> None:
        """Make the folders and files that every container has."""
        for name in ("bin", "sbin", "lib", "lib64"):
            if Path("/", name).is_symlink():
                (root / name).symlink_to(os.readlink(f"/{name}"))
            elif Path("/", name).exists():
                _bind(Mount(Path("/", name), f"/{name}", read_only=True), root)
        for name in ("proc", "sys", "dev/shm", "etc", "tmp", _RUN_DIR[1:], _PROGRAMS[1:]):
            _folder(root / name)
        for name in ("null", "zero", "full", "random", "urandom"):
            _bind(Mount(Path("/dev", name), f"/dev/{name}"), root)
        for target, name in _LINKS.items():
            (root / "dev" / name).symlink_to(target)
        _mount("tmpfs", root / "dev/shm", "tmpfs", _NOSUID | _NODEV, "mode=1777,size=64m")
        _bind(Mount(Path("/sys"), "/sys", read_only=True), root)
        _bind(Mount(self.termination_log, TERMINATION_LOG), root)
        (root / "etc/resolv.conf").write_text(self.resolver)
        (root / "etc/hosts").write_text(f"127.0.0.1\tlocalhost\n{self.address}\t{self.host_name}\n")
        for name, text in _FILES.items():
            (root / "etc" / name).write_text(text)
        for path in (_WORK_DIR, _RUN_DIR):
            os.chown(f"{root}{path}", self.user, self.group)


def why_impossible() -> str:
    """Return why this process cannot start containers; empty if it can."""
    if os.geteuid() != 0:
        return "it is not root"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun is missing"
    failed: list[int] = []
    needed = _NEW_NETWORK | _NEW_MOUNTS | _NEW_NAMES | _NEW_IPC | _NEW_PIDS
    trial = threading.Thread(target=lambda: failed.append(_libc.unshare(needed)))
    trial.start()
    trial.join()
    return "the kernel, or the container of this process, does not allow namespaces" if failed[0] else ""


def _device(address: str) -> int:
    """Create the TUN device of this network namespace, at an address of 10.0.0.0/8; return its descriptor."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", b"eth0", _IFF_TUN_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for name, given in ((b"lo", "127.0.0.1"), (b"eth0", address)):
            for request, value in ((_SIOCSIFADDR, given), (_SIOCSIFNETMASK, "255.0.0.0")):
                family = struct.pack("HH", socket.AF_INET, 0)
                fcntl.ioctl(sock, request, struct.pack("16s4s4s8x", name, family, socket.inet_aton(value)))
            fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", name, _IFF_UP))
    return device


def _folder(path: Path) -> None:
    """Make a folder and those above it, which other users may enter."""
    if not path.exists():
        _folder(path.parent)
        path.mkdir()
        path.chmod(0o755)


def _bind(mount: Mount, root: Path) -> None:
    at = Path(f"{root}{mount.path}")
    if mount.source.is_dir():
        _folder(at)
    elif not at.exists():
        _folder(at.parent)
        at.touch()
    _mount(str(mount.source), at, flags=_BIND | _REC)
    if mount.read_only:
        _mount("none", at, flags=_BIND | _REMOUNT | _RDONLY)


def _mount(source: str, target: Path, kind: str = "", flags: int = 0, data: str = "") -> None:
    words = [source, str(target), kind or None, data or None]
    source_, target_, kind_, data_ = (None if word is None else os.fsencode(word) for word in words)
    _check(_libc.mount(source_, target_, kind_, ctypes.c_ulong(flags), data_), f"mount of {target}")


def _check(result: int, what: str = "namespaces") -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
