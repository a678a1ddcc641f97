"""Schema of the text sources of the workload `chat`: a class for each, read by its row of `inferload.workload.sources.registry`."""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union

from pydantic import Field, model_validator

from inferload.scenario.schema.base import AtLeastOne, GrownPart, ScenarioPart, Whole, optional
from inferload.scenario.schema.distributions import NonNegative, Positive

Sampler = Literal["conversation", "first_two", "whole_prompt"]
BelowOne = Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)]


class SourceKind(GrownPart):
    """One kind of source. A class with a value of `kind` is one of `Source`.

    `open_ended`: the scenario sets turns and lengths. `prompt_keys`: keys with the lengths of prompts, of a source of single
    requests, whose answers have the key `output_tokens`. A source with neither has recorded turns and lengths.
    """

    open_ended: ClassVar[bool] = False
    prompt_keys: ClassVar[tuple[str, ...]] = ()

    if TYPE_CHECKING:  # a field here would be the first key of each source
        kind: str

    @classmethod
    def __pydantic_init_subclass__(cls, **_options: Any) -> None:
        """Add each class with a value of `kind`."""
        if "kind" in cls.model_fields:
            _classes.append(cls)


_classes: list[type[SourceKind]] = []


class Synthetic(SourceKind):
    """Random words from the bundled word list, with exact token counts."""

    open_ended = True

    kind: Literal["synthetic"] = Field(description="synthetic: random words with known token counts")


class Corpus(SourceKind):
    """Generated English prose from sentence templates: questions and documents on several topics."""

    open_ended = True

    kind: Literal["corpus"] = Field(description="corpus: generated English prose with estimated token counts")
    chars_per_token: Positive | None = optional(
        None, "characters per token, for token counts; null: measured on the server, 4 in a plan"
    )


class VllmDraws(ScenarioPart):
    """Draws of the data set `random` in `benchmark_serving.py` of vLLM 0.8, which decide the prefixes that two runs share.

    A prompt consists of consecutive token numbers from a random one on. All numbers are drawn from one generator, so that the
    first tokens of the prompts depend on the seed, on the number of prompts and on their lengths.
    """

    prompts: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] = Field(
        description="number of prompts (--num-prompts); later sessions repeat them in order"
    )
    seed: Annotated[int, Field(strict=True, ge=0, lt=1 << 32)] = optional(0, "seed (--seed)")
    vocabulary: AtLeastOne = optional(151_643, "tokens of the model; the default is that of Qwen2.5")
    input_tokens: AtLeastOne | None = optional(
        None,
        "--random-input-len of the draws, if prompts are shorter or longer than it; null: input_tokens of the source",
    )
    output_tokens: AtLeastOne | None = optional(
        None,
        "--random-output-len of the draws, if answers are shorter or longer than it; null: output_tokens of the source",
    )


class RandomLengths(SourceKind):
    """Single requests of random words and random lengths, as in the data set `random` of `vllm bench serve`."""

    prompt_keys = ("input_tokens",)

    kind: Literal["random"] = Field(description="random: single requests, as in vllm bench serve")
    input_tokens: AtLeastOne = optional(1024, "mean tokens of a prompt, without the shared prefix")
    output_tokens: AtLeastOne = optional(128, "mean tokens of an answer")
    range_ratio: BelowOne = optional(0.0, "lengths are uniform from mean * (1 - ratio) to mean * (1 + ratio)")
    prefix_tokens: Whole = optional(0, "tokens of the prefix that all prompts share; 0: none")
    draws: VllmDraws | None = optional(
        None, "lengths and shared prefixes as vLLM 0.8 draws them: {prompts: 10}; null: by the seed"
    )


class PrefixRepetition(SourceKind):
    """Single requests with one of several shared prefixes, as in the data set of that name of `vllm bench serve`."""

    prompt_keys = ("prefix_tokens", "suffix_tokens")
    added_later = ("zipf",)

    kind: Literal["prefix_repetition"] = Field(
        description="prefix_repetition: single requests with shared prefixes, as in vllm bench serve"
    )
    prefix_tokens: AtLeastOne = optional(256, "tokens of each prefix")
    suffix_tokens: AtLeastOne = optional(256, "tokens after the prefix, different in each request")
    prefixes: Annotated[int, Field(strict=True, ge=1, le=100_000)] = optional(10, "number of prefixes")
    zipf: NonNegative | None = optional(
        None, "exponent of Zipf's law: prefix n is drawn with weight 1 / n ** zipf; null: each of them once in a round"
    )
    output_tokens: AtLeastOne = optional(128, "tokens of an answer")


class Filters(ScenarioPart):
    """Token limits of the conversations; null: no limit. Conversations outside the limits are skipped and counted."""

    min_prompt_tokens: AtLeastOne | None = optional(None, "least tokens of the first message")
    min_output_tokens: AtLeastOne | None = optional(None, "least tokens of the first answer")
    max_prompt_tokens: AtLeastOne | None = optional(None, "most tokens of the first message")
    max_total_tokens: AtLeastOne | None = optional(None, "most tokens of all messages and answers")


# Limits that `vllm bench serve` applies to single requests sampled from conversations.
VLLM_FILTERS = Filters(min_prompt_tokens=4, min_output_tokens=4, max_prompt_tokens=1024, max_total_tokens=2048)


class Recorded(SourceKind):
    """Keys of all sources of recorded conversations. `skips_invalid`: invalid records are skipped and counted, not refused."""

    added_later = ("zipf",)
    skips_invalid: ClassVar[bool] = False

    sampler: Sampler = optional(
        "conversation",
        "conversation: one turn per user message; first_two: one turn with the first message, its answer as "
        "long as the second, as in vllm bench serve; whole_prompt: one turn with all messages up to the last user message",
    )
    filters: Filters | None = optional(
        None,
        "token limits of the conversations; null: with first_two those of vllm bench serve "
        "(4, 4, 1024, 2048), else none",
    )
    shuffle: bool = optional(True, "true: seeded random order; false: order of the file", strict=True)
    zipf: NonNegative | None = optional(
        None,
        "exponent of Zipf's law: conversation n of this order is drawn with weight 1 / n ** zipf, so that some return "
        "often; null: one after another",
    )
    chars_per_token: Positive | None = optional(
        None, "characters per token, for token counts; null: measured on the server, 4 in a plan"
    )
    tokenizer: str | None = optional(
        None, "tokenizer.json or its folder, for exact token counts; null: estimated counts"
    )

    @property
    def limits(self) -> Filters:
        if self.filters is not None:
            return self.filters
        return VLLM_FILTERS if self.sampler == "first_two" else Filters()

    @model_validator(mode="after")
    def _one_way_to_count(self) -> "Recorded":
        if self.tokenizer is not None and self.chars_per_token is not None:
            raise ValueError("tokenizer and chars_per_token are both given; remove one")
        return self


class Columns(ScenarioPart):
    """Column names (keys) of a data set, or paths of keys and positions such as `body.messages` and `turns.0`."""

    prompt: str = optional("prompt", "user message of a single turn, or a list of them, one for each turn")
    answer: str = optional("answer", "answer to prompt")
    messages: str = optional(
        "messages",
        "list of {role, content} or {from, value}, or of texts of user and assistant in turn; replaces prompt",
    )
    output_tokens: str = optional("output_tokens", "tokens of the answer, or of the last answer")
    session_id: str = optional("session_id", "records with the same id are turns of one session")
    system: str = optional("system", "system prompt")
    tools: str = optional("tools", "JSON array of tool definitions")


class FileSource(Recorded):
    """Keys of all sources that are one file."""

    path: str = Field(
        min_length=1, description="file, relative to the current directory, else to the scenario's folder"
    )


class ShareGpt(FileSource):
    """File in the ShareGPT format: one JSON array of {id, conversations: [{from, value}]}."""

    skips_invalid = True  # public data sets contain conversations with one side only

    kind: Literal["sharegpt"] = Field(description="sharegpt: one JSON array of conversations")


class JsonLines(FileSource):
    """File of prompts or conversations: JSON Lines, or one JSON array."""

    kind: Literal["jsonl"] = Field(
        description="jsonl: one {prompt | messages | conversations, output_tokens, session_id, system, tools} per line, "
        "or a JSON array of them"
    )
    columns: Columns = optional(Columns(), "key names that differ from the defaults")


class Csv(FileSource):
    """CSV file of prompts, with a header line."""

    kind: Literal["csv"] = Field(description="csv: table with a header line; columns as the keys of jsonl")
    columns: Columns = optional(Columns(), "column names that differ from the defaults")


class HuggingFace(Recorded):
    """Data set of the Hugging Face hub, or a local one, read by the package `datasets`."""

    kind: Literal["huggingface"] = Field(description="huggingface: data set read by the package datasets")
    dataset: str = Field(min_length=1, description="name on the hub, or a folder")
    subset: str | None = optional(None, "configuration of the data set; null: the default one")
    split: str = optional("train", "split of the data set")
    revision: str | None = optional(None, "revision of the data set; null: the newest")
    columns: Columns = optional(Columns(), "column names that differ from the defaults")


if TYPE_CHECKING:
    Source = SourceKind
else:
    Source = Annotated[Union[tuple(_classes)], Field(discriminator="kind")]  # noqa: UP007 - of classes in a list
"""Text sources of chat sessions: generated text and recorded conversations."""
