"""Files of recorded conversations."""

import json
from pathlib import Path


def talks(path: Path, count: int = 40) -> Path:
    """Write a ShareGPT file of conversations of one to three turns; one has no answer."""
    messages = [
        {"from": ("human", "gpt")[index % 2], "value": "some words and so on " * (index + 2)}
        for index in range(6)
    ]  # fmt: skip
    conversations = [{"id": str(number), "conversations": messages[: 2 + 2 * (number % 3)]} for number in range(count)]
    path.write_text(json.dumps([*conversations, {"id": "half", "conversations": messages[:1]}]))
    return path
