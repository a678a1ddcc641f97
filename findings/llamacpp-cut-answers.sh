#!/usr/bin/env bash
# llama.cpp's server calls a Responses answer that it cut "completed", and refuses its own cut tool call in the next turn with 500.
#
# Naive guess: an answer that ends at its limit is named on all endpoints: finish reason `length` of a chat, status `incomplete` of
#   a response. What a server has sent can be sent back to it as history.
# Behaviour: the chat has `length`; the response ends with the event response.completed, status completed, no
#   incomplete_details, as one that ended by itself. A chat whose limit cuts a tool call gives the call with half of its
#   arguments. With this message in the history the next request is answered 500, "Failed to parse tool call arguments as JSON",
#   also with a result of the tool that says so. The same call in whole is accepted.
# Consequence: cut answers cannot be counted on /v1/responses. An agent with a small limit gets a server error on the turn after,
#   not on the one that was cut; it must leave the call out, or repair its arguments. (transformers serve 5.24.0, tried by hand,
#   says completed too.)
# Seen: xllamacpp 2026.10.11549, gguf 0.19.0, numpy 2.4.6, Python 3.11.7, 29 November 2026; limit 3 of 7 tokens:
#   chat: length; response: response.completed, completed, incomplete_details None
#   call {"a": 1, sent back: 500
#   call {"a": 1, "b": 2}, sent back: 200
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6
cat > "$folder/cut.py" <<'PYTHON'
import json
import os
import sys
import urllib.error
import urllib.request

import gguf
import numpy
import xllamacpp

SIZE = 64
ANSWER = ["<tool_call>", '\n{"name": "add", "arguments": {"a"', ": 1", ', "b"', ": 2}}\n", "</tool_call>"]
TEMPLATE = """{% if tools %}Call with <tool_call>
{"name": ..., "arguments": ...}
</tool_call>: {{ tools | tojson }}<|end|>
{% endif %}{% for message in messages %}<|start|>{{ message.role }}
{{ message.content or '' }}{% for call in message.tool_calls or [] %}<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|end|>
{% endfor %}{% if add_generation_prompt %}<|start|>assistant
{% endif %}"""
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
QUESTION = {"role": "user", "content": "1 + 2?"}


def write_model(path):
    """Write a model whose next token depends on the last one: after a line feed the tokens of ANSWER, then the end."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    texts = [*map(chr, visible), *(chr(256 + place) for place in range(len(hidden)))]
    letter = dict(zip(visible + hidden, texts))
    texts += ["".join(letter[byte] for byte in piece.encode()) for piece in ANSWER] + ["<|start|>", "<|end|>"]
    chain = [texts.index(letter[10]), *range(256, 256 + len(ANSWER)), len(texts) - 1]
    embedding = numpy.random.default_rng(0).standard_normal((len(texts), SIZE)).astype(numpy.float32)
    head = numpy.zeros_like(embedding)
    for token, following in zip(chain, chain[1:]):
        head[following] += embedding[token]
    nothing, ones = numpy.zeros((SIZE, SIZE), numpy.float32), numpy.ones(SIZE, numpy.float32)
    writer = gguf.GGUFWriter(path, "llama")
    end = len(texts) - 1
    sizes = {"embedding_length": SIZE, "feed_forward_length": SIZE, "block_count": 1, "head_count": 1, "context_length": 4096}
    words = {"tokenizer_model": "gpt2", "tokenizer_pre": "gpt-2", "token_list": texts, "token_merges": ["a a"], "eos_token_id": end}
    others = {"token_types": [1] * (end - 1) + [3, 3], "layer_norm_rms_eps": 1e-5, "chat_template": TEMPLATE}
    for name, value in (sizes | words | others).items():
        getattr(writer, f"add_{name}")(value)
    tensors = {"token_embd": embedding, "output": head, "output_norm": ones, "blk.0.attn_norm": ones, "blk.0.ffn_norm": ones}
    layer = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    for name, tensor in (tensors | {f"blk.0.{name}": nothing for name in layer}).items():
        writer.add_tensor(f"{name}.weight", tensor)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write()


def answer(path, **body):
    """Return status and text of the server's answer."""
    data = json.dumps({"temperature": 0, **body}).encode()
    request = urllib.request.Request(server.listening_address + path, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def sent_back(limit):
    """Return a tool call with this limit, and the status of the turn that has it in its history."""
    _, text = answer("/v1/chat/completions", messages=[QUESTION], tools=TOOLS, max_tokens=limit)
    message = json.loads(text)["choices"][0]["message"]
    call = message["tool_calls"][0]
    result = {"role": "tool", "tool_call_id": call["id"], "content": "error: arguments are no JSON"}
    status = answer("/v1/chat/completions", messages=[QUESTION, message, result], tools=TOOLS, max_tokens=3)[0]
    print(f"call {call['function']['arguments']}, sent back: {status}", flush=True)
    return status


write_model(sys.argv[1])
options = xllamacpp.CommonParams()
options.model.path, options.hostnames, options.port, options.n_ctx = sys.argv[1], ["127.0.0.1"], int(sys.argv[2]), 4096
options.use_jinja, options.warmup = True, False
server = xllamacpp.Server(options)
reason = json.loads(answer("/v1/chat/completions", messages=[QUESTION], max_tokens=3)[1])["choices"][0]["finish_reason"]
lines = answer("/v1/responses", input="1 + 2?", max_output_tokens=3, stream=True)[1].splitlines()
end = json.loads([line for line in lines if line.startswith("data: {")][-1][6:])
status, details = end["response"]["status"], end["response"].get("incomplete_details")
print(f"chat: {reason}; response: {end['type']}, {status}, incomplete_details {details}")
seen = (reason, end["type"], status, details, sent_back(3), sent_back(20))
os._exit(seen != ("length", "response.completed", "completed", None, 500, 200))
PYTHON
timeout 90 "$folder/venv/bin/python" "$folder/cut.py" "$folder/model.gguf" $((20000 + RANDOM % 10000)) 2> "$folder/log" || {
    echo "changed: see the head of this file" >&2
    exit 1
}
