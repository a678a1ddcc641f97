"""A tiny Qwen3 model folder, made on the spot: configuration, tokenizer, chat template; the weights are random.

    .venv-vllm/bin/python deploy/vllm_cpu/tiny_model.py --into .cache/models --name tiny

It prints the folder's path. Run by vLLM's own interpreter: beside the standard library it needs only `tokenizers`,
which comes with vLLM. The same name gives the same bytes; a change of this file or of the word list gives a new folder.
A name is `tiny`, or `tiny-<layers>x<hidden>` for a prefill that costs more: `tiny-8x1024`.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

WORDS = Path(__file__).with_name("words.txt")
VOCABULARY = 8192
HEAD_DIM = 64
CONTEXT = 32768
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Single tokens as in full-size models, so that vLLM's reasoning and tool parsers find them.
MARKERS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
You may call these tools:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call> to call one.<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content %}{{ message.content }}{% endif -%}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ (call.function or call) | tojson }}</tool_call>
{%- endfor -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}
"""


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of the network; the cost of a prompt token grows with layers x hidden squared."""

    layers: int = 2
    hidden: int = 256

    @classmethod
    def of(cls, name: str) -> "Shape":
        """Return the shape of a model name; ValueError for any other name."""
        match = re.fullmatch(r"tiny(?:-([1-9]\d?)x([1-9]\d{2,3}))?", name)
        if not match:
            raise ValueError(f"model {name!r}: not tiny or tiny-<layers>x<hidden>, such as tiny-8x1024")
        shape = cls(int(match[1]), int(match[2])) if match[1] else cls()
        if shape.hidden % (2 * HEAD_DIM):
            raise ValueError(f"model {name!r}: the hidden size must be a multiple of {2 * HEAD_DIM}")
        return shape


def config(shape: Shape, vocabulary: int) -> dict[str, object]:
    heads = shape.hidden // HEAD_DIM
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": SPECIAL.index("<|im_end|>"),
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": 3 * shape.hidden,
        "max_position_embeddings": CONTEXT,
        "num_attention_heads": heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": heads // 2,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": vocabulary,
    }


def forms(word: str) -> list[str]:
    """A word and what it is likely to be met as; regular endings only."""
    if len(word) < 3:
        return [word, word.capitalize()]
    stem = word[:-1] if word.endswith("e") else word
    plural = word[:-1] + "ies" if word.endswith("y") and word[-2] not in "aeiou" else word + "s"
    return [word, word.capitalize(), plural, stem + "ed", stem + "ing", stem + "er", word + "ly"]


def corpus(words: list[str]) -> Iterator[str]:
    """Return lines of text in which plain words are more frequent than their forms: the trainer merges frequent words first."""
    for word in words:
        for rank, form in enumerate(forms(word)):
            yield f" {form}" * (60 if rank < 2 else 4)
        yield "\n".join([word] * 30)
    yield from (f"{number} " * 20 for number in range(1000))
    marks = (
        ". ", ", ", "; ", ": ", "? ", "! ", "\n\n", " (", ") ", ' "', '" ', " = ", " -> ", "{", "}", "[", "]",
        "    ",
    )  # fmt: skip
    yield from (mark * 40 for mark in marks)


def words() -> list[str]:
    """The word list, each word once, in the file's order."""
    lines = WORDS.read_text(encoding="utf-8").splitlines()
    return list(dict.fromkeys(word for line in lines if not line.startswith("#") for word in line.split()))


def write_tokenizer(folder: Path) -> int:
    """Train the byte-level BPE tokenizer and write its files; the size of its vocabulary."""
    library = import_module("tokenizers")  # of vLLM's environment, not of this package's own
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKERS),
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(words()), trainer)
    tokenizer.add_tokens([library.AddedToken(marker, special=False, normalized=False) for marker in MARKERS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
    }
    write_json(folder / "tokenizer_config.json", settings)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    return int(tokenizer.get_vocab_size())


def write_json(path: Path, document: Mapping[str, object]) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def write_model(folder: Path, shape: Shape) -> None:
    vocabulary = write_tokenizer(folder)
    write_json(folder / "config.json", config(shape, vocabulary))
    # Sampling at temperature 1: with greedy decoding random weights repeat one token.
    generation = {"do_sample": True, "temperature": 1.0, "eos_token_id": SPECIAL.index("<|im_end|>"), "pad_token_id": 0}
    write_json(folder / "generation_config.json", generation)


def digest() -> str:
    """Changes with this file and with the word list."""
    return hashlib.sha256(Path(__file__).read_bytes() + WORDS.read_bytes()).hexdigest()[:12]


def build(into: Path, name: str) -> Path:
    """The model folder `<into>/<digest>/<name>`, made whole or not at all."""
    shape = Shape.of(name)
    done = into / digest() / name
    if done.is_dir():
        return done
    done.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=done.parent))
    try:
        write_model(part, shape)
        part.chmod(0o755)
        part.rename(done)
    except OSError:
        if not done.is_dir():  # else another process was quicker
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return done


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Build the tiny model's folder and print its path.", allow_abbrev=False
    )
    parser.add_argument("--into", type=Path, required=True, help="folder for models")
    parser.add_argument("--name", default="tiny", help="tiny, or tiny-<layers>x<hidden>")
    given = parser.parse_args(argv)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        print(build(given.into, given.name))
    except ValueError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
