#!/usr/bin/env bash
# Dynamo's front end leaves the tools out of the prompt when `tool_choice` is none: an agent's last turn has another prefix.
#
# Naive guess: `tool_choice: none` says that the answer shall call no tool. The tools stay in the prompt, since the history speaks
#   of them and since the prompt then begins as those of the turns before: all of it is in the prefix cache.
# Behaviour: the prompt of a request with `tool_choice: none` is that of a request without tools. It has fewer tokens, and shares
#   no block with the other turns of its session if the template writes the tools first, as most do. (vLLM has an option for this,
#   --exclude-tools-when-tool-choice-none, off by default; llama.cpp's server and transformers serve keep the tools.)
# Consequence: one turn that forbids calls, such as the summary at the end, computes the whole history again. A load of planned
#   agents that send `tool_choice: none` has shorter prompts here than on vLLM.
# Seen: ai-dynamo 1.6.1 (front end and mocker, blocks of 16 tokens), Python 3.11.7, 29 November 2026; tokens of the prompt, and
#   cached ones of them when the same conversation was sent before with its tools and `auto`:
#   auto: 488 tokens, 480 cached; none: 290 tokens, 0 cached
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check ai-dynamo-runtime==1.6.1 transformers==5.24.0 pyyaml packaging \
    numpy aiohttp msgpack msgspec prometheus_client fastapi uvicorn httpx
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps ai-dynamo==1.6.1
cat > "$folder/tools.py" <<'PYTHON'
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.request

import tokenizers

TEMPLATE = """{% if tools %}<|start|>tools {{ tools | tojson }}<|end|>{% endif %}{% for message in messages %}<|start|>
{{ message.role }} {{ message.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"""
CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 258, "hidden_size": 64, "head_dim": 32,
          "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 64,
          "max_position_embeddings": 4096, "eos_token_id": 257, "bos_token_id": None}
SCHEMA = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
TOOLS = [{"type": "function", "function": {"name": "lookup", "description": "Look a word up.", "parameters": SCHEMA}}]
BODY = {"model": "m", "max_tokens": 2, "tools": TOOLS, "messages": [{"role": "user", "content": "What is a cache? " * 16}]}


def write_model(folder):
    """Write a tokenizer with one token for each byte, and the configuration of a model."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({letter: place for place, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|start|>", "<|end|>"])
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "chat_template": TEMPLATE}
    for name, document in (("config", CONFIG), ("tokenizer_config", settings), ("generation_config", {"eos_token_id": 257})):
        (folder / f"{name}.json").write_text(json.dumps(document))


def fetched(path, body=None):
    """Return the JSON of the front end's answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=30))


folder, port = pathlib.Path(sys.argv[1]), int(sys.argv[2])
write_model(folder / "model")
planes = ["--discovery-backend", "file", "--request-plane", "tcp"]
environment = os.environ | {"DYN_FILE_KV": str(folder / "kv"), "DYN_DISCOVERY_BACKEND": "file", "DYN_REQUEST_PLANE": "tcp",
                            "DYN_EVENT_PLANE": "zmq", "HF_HUB_OFFLINE": "1"}
(folder / "kv").mkdir()
front = ["dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port), *planes, "--router-mode", "kv"]
mocker = ["dynamo.mocker", "--model-path", folder / "model", "--model-name", "m", *planes, "--block-size", "16"]
started = []
try:
    for command, own in ((front, {}), (mocker, {"DYN_SYSTEM_PORT": str(port + 1)})):
        with open(folder / f"{command[0]}.log", "w") as log:
            started.append(subprocess.Popen([sys.executable, "-m", *command], env=environment | own, stdout=log, stderr=log))
    for _ in range(600):
        try:
            if fetched("/v1/models")["data"]:
                break
        except OSError:
            pass
        time.sleep(0.1)
    seen = {}
    fetched("/v1/chat/completions", BODY | {"tool_choice": "auto"})
    for choice in ("auto", "none"):
        usage = fetched("/v1/chat/completions", BODY | {"tool_choice": choice})["usage"]
        seen[choice] = usage["prompt_tokens"], (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
finally:
    for process in started:
        process.kill()
print("; ".join(f"{choice}: {tokens} tokens, {cached} cached" for choice, (tokens, cached) in seen.items()))
sys.exit(not (seen["none"][0] < seen["auto"][0] - 100 and seen["auto"][1] > 0 and seen["none"][1] == 0))
PYTHON
timeout -s INT 150 "$folder/venv/bin/python" "$folder/tools.py" "$folder" $((20000 + RANDOM % 10000)) || {
    tail -n 3 "$folder"/*.log >&2 || true
    echo "changed: see the head of this file" >&2
    exit 1
}
