"""Network of the pods: packets between their TUN devices, with a delay, by the network policies; and the cluster's name server.

A process of its own, so that the tests' process delays no packet. Standard input is a socket: each message is the new state as
JSON, with the device of a new pod, and is answered with the flows that policies have dropped.
"""

import contextlib
import heapq
import json
import os
import select
import socket
import struct
import time
from itertools import count
from typing import Any

from .policies import Peer, allowed

NAME_SERVER = "10.96.0.10"
_TCP, _UDP = 6, 17
_A, _NO_SUCH_NAME = 1, 3
_PACKET_BYTES = 1 << 16

Flow = tuple[int, str, int, str, int]  # protocol, source with its port, target with its port


class Switch:
    """State of the network and its open flows."""

    def __init__(self) -> None:
        self.devices: dict[str, int] = {}  # descriptors by address
        self.dropped: list[str] = []
        self._pods: dict[str, Peer] = {}
        self._state: dict[str, Any] = {}
        self._flows: set[Flow] = set()
        self._delayed: list[tuple[float, int, str, bytes]] = []
        self._number = count()

    def update(self, state: dict[str, Any], device: int | None) -> None:
        """Take a new state: `pods` (address, namespace, labels), `policies`, `names` with addresses, `delays_s` of pairs."""
        self._state = state
        self._pods = {pod[0]: Peer(*pod) for pod in state["pods"]}
        if device is not None:
            self.devices[state["pods"][-1][0]] = device

    def receive(self, packet: bytes) -> None:
        """Pass a packet on, at once or later. Other packets than those of IPv4 are dropped."""
        if packet[0] >> 4 != 4:
            return
        source, target = socket.inet_ntoa(packet[12:16]), socket.inet_ntoa(packet[16:20])
        if not self._passes(packet, source, target):
            return
        if target == NAME_SERVER:
            target, packet = source, self._answer(packet)
        delay_s = self._state["delays_s"].get(f"{source} {target}", 0.0)
        if delay_s:
            heapq.heappush(self._delayed, (time.monotonic() + delay_s, next(self._number), target, packet))
        else:
            self._send(target, packet)

    def send_due(self) -> float | None:
        """Send the delayed packets that are due; return the time until the next one (s)."""
        while self._delayed:
            left_s = self._delayed[0][0] - time.monotonic()
            if left_s > 0:
                return left_s
            self._send(*heapq.heappop(self._delayed)[2:])
        return None

    def _send(self, target: str, packet: bytes) -> None:
        device = self.devices.get(target)
        if device is not None:  # no pod has this address: no answer
            with contextlib.suppress(OSError):  # the pod has ended, or its device is full: the packet is lost
                os.write(device, packet)

    def _passes(self, packet: bytes, source: str, target: str) -> bool:
        """Return True if a packet begins an allowed flow, or belongs to one."""
        protocol, at = packet[9], (packet[0] & 15) * 4
        if protocol not in (_TCP, _UDP):
            return False
        from_port, to_port = struct.unpack_from("!HH", packet, at)
        flow: Flow = (protocol, source, from_port, target, to_port)
        begins = protocol == _UDP or packet[at + 13] & 0x12 == 0x02  # SYN without ACK
        if (protocol, target, to_port, source, from_port) in self._flows or (not begins and flow in self._flows):
            return True
        if not begins:
            return False
        name, pods = {_TCP: "TCP", _UDP: "UDP"}[protocol], self._pods
        other = pods.get(target) or Peer(target, "", {})
        if source not in pods or not allowed(self._state["policies"], pods[source], other, (name, to_port)):
            self.dropped.append(f"{source} {target} {name} {to_port}")
            return False
        self._flows.add(flow)
        return True

    # -- names

    def _answer(self, packet: bytes) -> bytes:
        """Return the packet that answers a question for the address of a name (RFC 1035)."""
        at = (packet[0] & 15) * 4
        message = packet[at + 8 :]
        parts, here = [], 12
        while length := message[here]:
            parts.append(message[here + 1 : here + 1 + length].decode().lower())
            here += length + 1
        question = message[12 : here + 5]
        addresses: list[str] | None = self._state["names"].get(".".join(parts))
        is_for_ipv4 = struct.unpack_from("!H", message, here + 1)[0] == _A
        found = addresses if addresses and is_for_ipv4 else []
        code = 0x8580 | (_NO_SUCH_NAME if addresses is None else 0)  # an authoritative response
        header = message[:2] + struct.pack("!HHHHH", code, 1, len(found), 0, 0)
        records = (struct.pack("!HHHIH", 0xC00C, _A, 1, 1, 4) + socket.inet_aton(each) for each in found)
        reply = header + question + b"".join(records)
        from_port, to_port = packet[at : at + 2], packet[at + 2 : at + 4]
        datagram = to_port + from_port + struct.pack("!HH", 8 + len(reply), 0) + reply  # 0: without a checksum
        return _ip_header(len(datagram), packet[16:20], packet[12:16]) + datagram


def _ip_header(length: int, source: bytes, target: bytes) -> bytes:
    """Return the header of IPv4 before a datagram of UDP."""
    without = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, 0, 0, 64, _UDP, 0) + source + target
    total = sum(struct.unpack("!10H", without))
    total = (total & 0xFFFF) + (total >> 16)
    return without[:10] + struct.pack("!H", ~(total + (total >> 16)) & 0xFFFF) + without[12:]


def main() -> None:
    """Serve until the other end of the socket is closed."""
    switch, orders, poller = Switch(), socket.socket(fileno=0), select.epoll()
    poller.register(orders, select.EPOLLIN)
    while True:
        wait_s = switch.send_due()
        for descriptor, _event in poller.poll(wait_s):
            if descriptor != orders.fileno():
                try:
                    switch.receive(os.read(descriptor, _PACKET_BYTES))
                except OSError:  # the pod has ended
                    poller.unregister(descriptor)
                continue
            text, descriptors, _flags, _address = socket.recv_fds(orders, 1 << 20, 1)
            if not text:
                return
            switch.update(json.loads(text), descriptors[0] if descriptors else None)
            for each in descriptors:
                poller.register(each, select.EPOLLIN)
            orders.send(json.dumps(switch.dropped).encode())


if __name__ == "__main__":
    main()
