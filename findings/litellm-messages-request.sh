#!/usr/bin/env bash
# LiteLLM's /v1/messages loses stop sequences and top_k before an OpenAI-compatible server, and raises small limits to 16 tokens.
#
# Naive guess: a gateway that takes Anthropic's format before an OpenAI-compatible server translates it to chat completions:
#   `stop_sequences` to `stop`, `max_tokens` as it is; what it cannot translate it refuses.
# Behaviour: for a deployment `openai/NAME` the request goes to the server's /v1/responses. That API has no stop sequences and no
#   top_k: both are dropped, the answer is 200. `max_tokens` below 16 becomes `max_output_tokens: 16`, the least that OpenAI's own
#   service takes; a request to LiteLLM's /v1/responses is raised likewise. For `hosted_vllm/NAME`, the same server under
#   LiteLLM's name for vLLM, the request goes to /v1/chat/completions with all of them.
# Consequence: answers that should end at a stop string go on to the limit, and a load of one-token answers (time to first token,
#   health checks) generates up to 16. Two gateways with the same server differ by the prefix of a name in their configuration.
# Seen: litellm 1.108.7, Python 3.11.7, 29 November 2026; what the server got of stop " x", top_k 3, max_tokens 5:
#   openai/m, /v1/messages: /v1/responses, max_output_tokens 16
#   openai/m, /v1/responses: /v1/responses, max_output_tokens 16
#   hosted_vllm/m, /v1/messages: /v1/chat/completions, max_tokens 5, stop [' x'], top_k 3
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check 'litellm[proxy]==1.108.7'
cat > "$folder/sent.py" <<'PYTHON'
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

KEYS = ("max_tokens", "max_output_tokens", "stop", "top_k")
MESSAGES = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "stop_sequences": [" x"], "top_k": 3}
RESPONSES = {"input": "hello", "max_output_tokens": 5}
EXPECTED = {
    ("openai/m", "/v1/messages"): ("/v1/responses", {"max_output_tokens": 16}),
    ("openai/m", "/v1/responses"): ("/v1/responses", {"max_output_tokens": 16}),
    ("hosted_vllm/m", "/v1/messages"): ("/v1/chat/completions", {"max_tokens": 5, "stop": [" x"], "top_k": 3}),
}
got = []


class Server(http.server.BaseHTTPRequestHandler):
    """Keeps what it gets, and answers 400."""

    def log_message(self, *_arguments):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        got.append((self.path, {key: body[key] for key in KEYS if key in body}))
        self.send_response(400)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
threading.Thread(target=server.serve_forever, daemon=True).start()
folder, port = pathlib.Path(sys.argv[1]), int(sys.argv[2])
url = f"http://127.0.0.1:{server.server_port}/v1"
models = [
    {"model_name": name, "litellm_params": {"model": name, "api_base": url, "api_key": "none"}}
    for name in ("openai/m", "hosted_vllm/m")
]
(folder / "config.yaml").write_text(json.dumps({"model_list": models, "router_settings": {"num_retries": 0}}))
allowed = {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
command = [folder / "venv/bin/litellm", "--config", folder / "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
gateway = subprocess.Popen(command, env=os.environ | allowed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
seen = {}
try:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness", timeout=5)
            break
        except OSError:
            time.sleep(0.1)
    for model, path in EXPECTED:
        got.clear()
        body = (MESSAGES if path == "/v1/messages" else RESPONSES) | {"model": model}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        try:
            urllib.request.urlopen(request, timeout=20)
        except urllib.error.HTTPError:
            pass
        seen[model, path] = got[0]
        print(f"{model}, {path}: " + ", ".join([got[0][0], *(f"{key} {value}" for key, value in got[0][1].items())]))
finally:
    gateway.terminate()
    gateway.wait(20)
sys.exit(seen != EXPECTED)
PYTHON
timeout -s INT 180 "$folder/venv/bin/python" "$folder/sent.py" "$folder" $((20000 + RANDOM % 10000)) || {
    echo "changed: see the head of this file" >&2
    exit 1
}
