"""A tokenizer for peers that want one: whole words of four letters, written as the file that the usual libraries read."""

import json
from itertools import islice, product
from pathlib import Path

_END = "<|endoftext|>"
_UNKNOWN = "[UNK]"
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"


def make_tokenizer(folder: Path, words: int = 4000) -> Path:
    """Write it (a word-level vocabulary split at blanks) and return the folder. Cheaper to run than a real model's."""
    folder.mkdir(parents=True, exist_ok=True)
    made = islice(product(_CONSONANTS, _VOWELS, _CONSONANTS, _VOWELS), words)
    names = [_UNKNOWN, _END, *("".join(letters) for letters in made)]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": names[i], **special} for i in (0, 1)],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {name: i for i, name in enumerate(names)}, "unk_token": _UNKNOWN},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 1_000_000,
        "eos_token": _END,
        "unk_token": _UNKNOWN,
        "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}))
    return folder
