"""llama.cpp's server with a tiny model of random weights and the tokenizer of a generated model folder.

    python tests/support/llamacpp_server.py MODEL_FOLDER PORT

Run by the Python of `make gateways-engines`, which has xllamacpp and gguf.
"""

import json
import signal
import sys
import tempfile
from pathlib import Path

import gguf
import numpy
import xllamacpp

SIZE, FEED_FORWARD = 128, 256
CONTEXT, SLOTS = 8192, 4


def write_model(folder: Path, into: Path) -> None:
    """Write a GGUF file. Only tokens of whole words are sampled: each is an event with a text, and no answer ends early."""
    tokenizer, settings = (json.loads((folder / f"{name}.json").read_text()) for name in ("tokenizer", "config"))
    model, added = tokenizer["model"], {token["id"]: token for token in tokenizer["added_tokens"]}
    known = model["vocab"] | {token["content"]: number for number, token in added.items()}
    texts = sorted(known, key=known.__getitem__)
    kinds = [(3 if added[number]["special"] else 4) if number in added else 1 for number in range(len(texts))]
    random = numpy.random.default_rng(0)

    def weights(*shape: int) -> numpy.ndarray:
        return random.standard_normal(shape).astype(numpy.float32) / SIZE**0.5

    head = weights(len(texts), SIZE) * 4
    head[[not text.startswith("\u0120") for text in texts]] = (
        0  # of a blank; logits of others are below the highest ones
    )
    writer = gguf.GGUFWriter(str(into), "llama")
    facts = {
        **{"embedding_length": SIZE, "feed_forward_length": FEED_FORWARD, "block_count": 1, "head_count": 2},
        **{"context_length": CONTEXT, "layer_norm_rms_eps": 1e-5, "eos_token_id": settings["eos_token_id"]},
        **{"tokenizer_model": "gpt2", "tokenizer_pre": "gpt-2", "token_list": texts, "token_types": kinds},
        "token_merges": [" ".join(pair) for pair in model["merges"]],
        "chat_template": (folder / "chat_template.jinja").read_text(),
    }
    for name, value in facts.items():
        getattr(writer, f"add_{name}")(value)
    ones = numpy.ones(SIZE, numpy.float32)
    tensors = {"token_embd": weights(len(texts), SIZE), "output": head, "output_norm": ones}
    tensors |= {f"blk.0.{name}_norm": ones for name in ("attn", "ffn")}
    tensors |= {f"blk.0.attn_{name}": weights(SIZE, SIZE) for name in ("q", "k", "v", "output")}
    tensors |= {f"blk.0.ffn_{name}": weights(FEED_FORWARD, SIZE) for name in ("gate", "up")}
    tensors["blk.0.ffn_down"] = weights(SIZE, FEED_FORWARD)
    for name, tensor in tensors.items():
        writer.add_tensor(f"{name}.weight", tensor)
    for write in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
        writer.close,
    ):
        write()


with tempfile.TemporaryDirectory() as scratch:
    file = Path(scratch) / "tiny.gguf"
    write_model(Path(sys.argv[1]), file)
    options = xllamacpp.CommonParams()
    options.model.path, options.hostnames, options.port = str(file), ["127.0.0.1"], int(sys.argv[2])
    options.n_ctx, options.n_parallel, options.model_alias = CONTEXT * SLOTS, SLOTS, {"tiny"}
    options.use_jinja = options.endpoint_metrics = True
    server = xllamacpp.Server(options)
    signal.pause()
