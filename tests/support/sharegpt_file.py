"""A file with the schema, size and shape of ShareGPT_V3_unfiltered_cleaned_split.json, without its content.

python tests/support/sharegpt_file.py FILE [CONVERSATIONS]

Published: 94,145 conversations with 3.51 turns of 94.46 (standard deviation 626.39) tokens of the user and 348.45 (269.93) of the
chatbot, in 41 languages (Zhao et al. 2024, arXiv 2405.01470, table 1; repeated in arXiv 2512.17843); 672,837,942 bytes; JSON with
an indent of 2; ids end in the position of the part of a split conversation. Assumed here, as nothing is published: lognormal
lengths, the shares of languages, of common beginnings and of broken records.
"""

import json
import sys
from collections import Counter
from math import log, sqrt
from pathlib import Path
from random import Random
from typing import Any

from inferload.workload.sources import corpus

CONVERSATIONS, TURNS = 94_145, 3.51
USER, CHATBOT = (94.46, 626.39), (348.45, 269.93)  # mean and standard deviation, tokens
LEAST = 4  # tokens of a message
CHARS_PER_TOKEN = {"en": 4.2, "zh": 1.5, "es": 3.6, "ja": 1.4, "ru": 2.8, "ko": 1.6}
LANGUAGES = {"en": 0.76, "zh": 0.07, "es": 0.06, "ja": 0.05, "ru": 0.03, "ko": 0.03}
_WORDS = {
    "zh": "我们 如何 数据 模型 可以 时间 问题 系统 学习 使用 一个 方法 。",
    "es": "la el de que una para con los datos como puede tiempo sistema página",
    "ja": "これは です 方法 データ について 教えて ください モデル 時間 問題 。",
    "ru": "как это для система данные можно время модель вопрос если который",
    "ko": "어떻게 데이터 모델 시간 문제 방법 시스템 사용 있습니다 그리고",
}
# Share of the first questions, and tokens of the beginning that they have in common.
BEGINNINGS = {"Summarize the main ideas of": (0.02, 0), "Act as the person described here.": (0.03, 220)}
SAME = 0.01  # of the first questions are one of a few
# Share of the records.
BROKEN: dict[str, float] = {
    "empty": 0.004, "chatbot first": 0.05, "no conversations": 0.001, "no text": 0.001, "odd role": 0.002, "user only": 0.004,
}  # fmt: skip


def _lognormal(rng: Random, mean: float, deviation: float) -> float:
    sigma = sqrt(log(1 + (deviation / mean) ** 2))
    return rng.lognormvariate(log(mean) - sigma**2 / 2, sigma)


def _texts(rng: Random, language: str) -> str:
    """Return a long text of a language, of which messages are parts."""
    if language == "en":
        return " ".join(corpus.message(rng, subject, 40_000) for subject in ("travel", "software", "gardening"))
    gap = "" if language in ("zh", "ja") else " "
    return gap.join(rng.choices(_WORDS[language].split(), k=40_000))


def records(count: int, rng: Random, made: Counter[str]) -> Any:
    """Yield records; `made` counts the broken ones by kind."""
    texts = {language: _texts(rng, language) for language in LANGUAGES}
    starts = {begin: f"{begin} {texts['en'][: int(tokens * 4.2)]}" for begin, (_, tokens) in BEGINNINGS.items()}

    def message(language: str, law: tuple[float, float]) -> str:
        mean, deviation = law
        chars = int((LEAST + _lognormal(rng, mean - LEAST, deviation)) * CHARS_PER_TOKEN[language])
        text = texts[language]
        at = rng.randrange(len(text))
        return (text[at : at + chars] + text * (chars // len(text)))[:chars]

    for number in range(count):
        (language,) = rng.choices([*LANGUAGES], [*LANGUAGES.values()])
        turns = min(200, 1 + int(_lognormal(rng, TURNS - 0.5, 1.5 * TURNS)))
        talk: list[dict[str, Any]] = []
        for _ in range(turns):
            talk += [{"from": "human", "value": message(language, USER)}]
            talk += [{"from": "gpt", "value": message(language, CHATBOT)}]
        drawn = rng.random()
        if drawn < SAME:
            talk[0]["value"] = f"What can you do? {'?' * rng.randrange(5)}"
        for begin, (share, _) in BEGINNINGS.items():
            if SAME <= drawn < SAME + share:
                talk[0]["value"] = f"{starts[begin]} {talk[0]['value']}"
            drawn -= share
        record: dict[str, Any] = {"id": f"{number:07x}_{rng.choice((0, 0, 0, 14, 28))}", "conversations": talk}
        (kind,) = rng.choices([*BROKEN, ""], [*BROKEN.values(), 1 - sum(BROKEN.values())])
        made[kind] += 1
        match kind:
            case "empty":
                talk.clear()
            case "chatbot first":
                del talk[0]
            case "no conversations":
                del record["conversations"]
            case "no text":
                del talk[0]["value"]
            case "odd role":
                talk[0]["from"] = "narrator"
            case "user only":
                del talk[1:]
        yield record


def write(path: Path, count: int = CONVERSATIONS, seed: int = 0) -> Counter[str]:
    """Write the file. Return the broken records by kind."""
    made: Counter[str] = Counter()
    with path.open("w", encoding="utf-8") as file:
        for number, record in enumerate(records(count, Random(seed), made)):
            file.write("," if number else "[")
            file.write("\n" + json.dumps(record, indent=2, ensure_ascii=False))
        file.write("\n]\n")
    return made


if __name__ == "__main__":
    print(dict(write(Path(sys.argv[1]), *map(int, sys.argv[2:]))))
