#!/usr/bin/env bash
# Behind LiteLLM one request for an endpoint that a server does not have stops all other requests to this server for five seconds.
#
# Naive guess: a 404 concerns the request that got it; a gateway passes it on, and the next request, to an endpoint that the
#   server has, is served.
# Behaviour: LiteLLM takes the server out of service ("cooldown") after a single 404 of it. For five seconds all requests for the
#   model, on every endpoint and of every client, are answered by LiteLLM itself: 429, type rate_limit_error on /v1/messages,
#   "No deployments available for selected model, Try again in 5 seconds". The server gets none of them and is idle. A 400 has no
#   such effect. (One deployment of the model; default settings.)
# Consequence: 429 is no sign of load here. A client that only tries whether /v1/embeddings or /v1/responses exist fails the load
#   that runs beside it. `router_settings: {disable_cooldowns: true}` ends it.
# Seen: litellm 1.108.7, Python 3.11.7, 29 November 2026:
#   chat 200; embeddings 404; chat, once a second: 429 429 429 429 429 200 200 200; served by the server: 4 of 9 chats
#   chat 200; embeddings 400; chat, once a second: 200 200 200 200 200 200 200 200; served by the server: 9 of 9 chats
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'litellm[proxy]==1.108.7'
cat > "$folder/cooldown.py" <<'PYTHON'
import http.server
import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

CHAT = {"messages": [{"role": "user", "content": "hello"}]}
ANSWER = {"id": "1", "object": "chat.completion", "created": 1, "model": "m",
          "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "x"}}],
          "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
chats_served = []
missing_status = 404


class Server(http.server.BaseHTTPRequestHandler):
    """Has chat completions, and answers anything else with `missing_status`."""

    def log_message(self, *_arguments):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        chat = self.path == "/v1/chat/completions"
        if chat:
            chats_served.append(1)
        body = json.dumps(ANSWER if chat else {"error": {"message": "no such endpoint"}}).encode()
        self.send_response(200 if chat else missing_status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def status(port, path, body):
    """Return the status that LiteLLM answers."""
    data = json.dumps({"model": "m"} | body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    try:
        return urllib.request.urlopen(request, timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
folder, port = pathlib.Path(sys.argv[1]), int(sys.argv[2])
target = {"model": "openai/m", "api_base": f"http://127.0.0.1:{server.server_port}/v1", "api_key": "none"}
(folder / "config.yaml").write_text(json.dumps({"model_list": [{"model_name": "m", "litellm_params": target}]}))
allowed = {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
command = [folder / "venv/bin/litellm", "--config", folder / "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
gateway = subprocess.Popen(command, env=os.environ | allowed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
right = []
try:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=5)
            break
        except OSError:
            time.sleep(0.1)
    for missing_status in (404, 400):
        chats_served.clear()
        first, other = status(port, "/v1/chat/completions", CHAT), status(port, "/v1/embeddings", {"input": "x"})
        later = []
        for _ in range(8):
            later.append(status(port, "/v1/chat/completions", CHAT))
            time.sleep(1)
        print(f"chat {first}; embeddings {other}; chat, once a second: {' '.join(map(str, later))}; "
              f"served by the server: {len(chats_served)} of 9 chats")
        right.append((first, other) == (200, missing_status) and later[-1] == 200)
        right.append(later[:3] == [429] * 3 if missing_status == 404 else set(later) == {200})
finally:
    gateway.terminate()
    gateway.wait(20)
sys.exit(not all(right) or len(right) != 4)
PYTHON
timeout -s INT 180 "$folder/venv/bin/python" "$folder/cooldown.py" "$folder" $((20000 + RANDOM % 10000)) || {
    echo "changed: see the head of this file" >&2
    exit 1
}
