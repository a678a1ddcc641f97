"""Network link with a round trip for TCP: connects and the kernel's own estimate of the round trip (TCP_INFO) have it too.

It is a TUN device in a network namespace of its own, without privileges (user namespaces). Programs run inside it with
`Link.inside`. There `NEAR` is the address to listen on, and `FAR` the same machine across the link.
"""

import contextlib
import fcntl
import os
import queue
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

NEAR, FAR = "10.99.0.1", "10.99.0.2"
_TUNSETIFF, _IFF_TUN_NO_PI = 0x400454CA, 0x1001
_SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFNETMASK, _IFF_UP = 0x8914, 0x8916, 0x891C, 0x1
_DEVICE = "delayed0"


@dataclass(frozen=True, slots=True)
class Link:
    """Running link."""

    process: subprocess.Popen[bytes]

    def inside(self, words: Sequence[str]) -> list[str]:
        """Return the command that runs a program in the namespace of the link."""
        return ["nsenter", "--preserve-credentials", "-U", "-n", "-t", str(self.process.pid), *words]


@contextlib.contextmanager
def delayed_link(round_trip_s: float) -> Iterator[Link]:
    """Run a link until the end of the context."""
    words = ["unshare", "--user", "--map-root-user", "--net", sys.executable, __file__, str(round_trip_s / 2)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", "no link: user namespaces or /dev/net/tun are not available"
        yield Link(process)
        process.stdin.close()


def main(delay_s: float) -> None:
    """Send each packet back after the delay, with its addresses exchanged: it arrives from the other address."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", _DEVICE.encode(), _IFF_TUN_NO_PI))
    _configure(_DEVICE, NEAR)
    _configure("lo", "127.0.0.1")
    packets: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def send() -> None:
        while True:
            at_s, packet = packets.get()
            time.sleep(max(0.0, at_s - time.monotonic()))
            os.write(device, packet)

    def receive() -> None:
        while True:
            packet = os.read(device, 1 << 16)
            if packet[0] >> 4 == 4:  # the checksums remain valid
                packets.put((time.monotonic() + delay_s, packet[:12] + packet[16:20] + packet[12:16] + packet[20:]))

    for target in (send, receive):
        threading.Thread(target=target, daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()


def _configure(device: str, address: str) -> None:
    """Set the address of a device, with a network of 24 bits, and switch it on."""
    name, family = device.encode(), struct.pack("HH", socket.AF_INET, 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.0")):
            fcntl.ioctl(sock, request, struct.pack("16s4s4s8x", name, family, socket.inet_aton(value)))
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", name, _IFF_UP))


if __name__ == "__main__":
    main(float(sys.argv[1]))
