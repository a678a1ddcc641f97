"""Simulated networks of the tests: what a relay and a link delay."""

import json
import socket
import subprocess
import sys
import time

from delayed_link import FAR, NEAR, delayed_link
from scripted_server import ScriptedServer, send
from tcp_relay import tcp_relay

ROUND_TRIP_S = 0.04
# Prints the times of a connect and of an exchange across the link, and the kernel's estimate of the round trip, in seconds.
EXCHANGE = f"""
import json, socket, struct, threading, time
listener = socket.create_server(("{NEAR}", 5000))
def echo():
    sock, _ = listener.accept()
    while data := sock.recv(100):
        sock.sendall(data)
threading.Thread(target=echo, daemon=True).start()
begun_s = time.monotonic()
sock = socket.create_connection(("{FAR}", 5000))
connected_s = time.monotonic()
sock.sendall(b"x")
sock.recv(1)
ended_s = time.monotonic()
info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
print(json.dumps([connected_s - begun_s, ended_s - connected_s, struct.unpack_from("I", info, 68)[0] / 1e6]))
"""


def test_a_link_delays_connects_too() -> None:
    with delayed_link(ROUND_TRIP_S) as link:
        words = link.inside([sys.executable, "-c", EXCHANGE])
        times_s = json.loads(subprocess.run(words, capture_output=True, check=True, timeout=60).stdout)
    assert all(each > 0.99 * ROUND_TRIP_S for each in times_s), times_s


def test_a_relay_delays_data_and_not_connects() -> None:
    server = ScriptedServer([send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")])
    with tcp_relay(server.port, ROUND_TRIP_S) as port, socket.create_connection(("127.0.0.1", port)) as sock:
        begun_s = time.monotonic()
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert sock.recv(1000).startswith(b"HTTP/1.1 200")
        assert time.monotonic() - begun_s >= ROUND_TRIP_S
    server.close()
