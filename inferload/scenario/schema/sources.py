"""The sources of text as a scenario file says them."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from inferload.scenario.schema.base import AtLeastOne, Part, Whole
from inferload.scenario.schema.distributions import Positive

Sampler = Literal["conversation", "first_two", "whole_prompt"]
BelowOne = Annotated[float, Field(strict=True, ge=0, lt=1, allow_inf_nan=False)]


class Synthetic(Part):
    """Text of exact token counts from the bundled word list."""

    kind: Literal["synthetic"] = Field(description="synthetic: words with known token counts")


class Corpus(Part):
    """Plausible English that is written at need: questions, documents, many topics."""

    kind: Literal["corpus"] = Field(
        description="corpus: plausible English prose, written at need; counts are estimated"
    )
    chars_per_token: Positive | None = Field(
        default=None, description="characters of a token, for counts; null: measured on the server, 4 in a plan"
    )


class RandomLengths(Part):
    """Single requests of random words and lengths, as the random data set of vLLM's benchmark has them."""

    kind: Literal["random"] = Field(description="random: requests of random words, as vLLM's benchmark means it")
    input_tokens: AtLeastOne = Field(default=1024, description="mean tokens of a prompt, the shared prefix not counted")
    output_tokens: AtLeastOne = Field(default=128, description="mean tokens of an answer")
    range_ratio: BelowOne = Field(
        default=0.0, description="lengths are drawn uniformly from mean * (1 - ratio) to mean * (1 + ratio)"
    )
    prefix_tokens: Whole = Field(default=0, description="tokens in front of every prompt, the same in all")


class PrefixRepetition(Part):
    """Single requests that share one of a few prefixes, as vLLM's benchmark has them."""

    kind: Literal["prefix_repetition"] = Field(
        description="prefix_repetition: a few prefixes, each followed by its own words"
    )
    prefix_tokens: AtLeastOne = Field(default=256, description="tokens of each prefix")
    suffix_tokens: AtLeastOne = Field(default=256, description="tokens of what follows, different in each request")
    prefixes: Annotated[int, Field(strict=True, ge=1, le=100_000)] = Field(
        default=10, description="how many prefixes; each is used equally often"
    )
    output_tokens: AtLeastOne = Field(default=128, description="tokens of an answer")


class Filters(Part):
    """Which conversations are left out, by tokens; null: no such limit. What they leave out is counted and said."""

    min_prompt_tokens: AtLeastOne | None = Field(default=None, description="least tokens of a session's first message")
    min_output_tokens: AtLeastOne | None = Field(default=None, description="least tokens of its first answer")
    max_prompt_tokens: AtLeastOne | None = Field(default=None, description="most tokens of a session's first message")
    max_total_tokens: AtLeastOne | None = Field(
        default=None, description="most tokens of a session, messages and answers"
    )


# What vLLM's benchmark leaves out of the single requests that it samples from conversations.
VLLM_FILTERS = Filters(min_prompt_tokens=4, min_output_tokens=4, max_prompt_tokens=1024, max_total_tokens=2048)


class Recorded(Part):
    """What all sources have in common that hold conversations which were really had."""

    sampler: Sampler = Field(
        default="conversation",
        description="conversation: a turn for each message of the user; first_two: one turn, its first message, and the "
        "length of the second, as vLLM's benchmark samples; whole_prompt: one turn, all messages up to the user's last",
    )
    filters: Filters | None = Field(
        default=None,
        description="which conversations are left out, by tokens; null: with first_two those of vLLM's benchmark "
        "(4, 4, 1024, 2048), else none",
    )
    shuffle: bool = Field(default=True, strict=True, description="order drawn by the seed; false: that of the file")
    chars_per_token: Positive | None = Field(
        default=None, description="characters of a token, for counts; null: measured on the server, 4 in a plan"
    )
    tokenizer: str | None = Field(
        default=None, description="a tokenizer.json, or its folder, to count with exactly; null: counts are estimated"
    )

    @property
    def limits(self) -> Filters:
        """The filters that hold."""
        if self.filters is not None:
            return self.filters
        return VLLM_FILTERS if self.sampler == "first_two" else Filters()

    @property
    def of_people(self) -> bool:
        """Whether it is a collection in which anything may stand: what is no conversation is passed, and counted."""
        return False

    @model_validator(mode="after")
    def _one_way_to_count(self) -> "Recorded":
        if self.tokenizer is not None and self.chars_per_token is not None:
            raise ValueError("tokenizer and chars_per_token say the same thing in two ways; give one")
        return self


class Columns(Part):
    """What a data set calls its columns, where it uses other names."""

    prompt: str = Field(default="prompt", description="the user's text, of one turn")
    answer: str = Field(default="answer", description="what was answered to it")
    messages: str = Field(default="messages", description="a list of {role, content} or {from, value}")
    output_tokens: str = Field(default="output_tokens", description="tokens of the answer; of the last one of messages")
    session_id: str = Field(
        default="session_id", description="records of one id are the turns of one session, in order"
    )
    system: str = Field(default="system", description="a system prompt")
    tools: str = Field(default="tools", description="a JSON array of tools that may be called")


class FileSource(Recorded):
    """A source that is one file."""

    path: str = Field(min_length=1, description="the file; from the current directory, else from the scenario's folder")


class ShareGpt(FileSource):
    """Conversations in the shape of the ShareGPT files: one JSON array of {id, conversations: [{from, value}]}."""

    kind: Literal["sharegpt"] = Field(description="sharegpt: one JSON array of conversations")

    @property
    def of_people(self) -> bool:
        """Yes: what is no conversation of two sides is left out."""
        return True


class JsonLines(FileSource):
    """One's own prompts or conversations, a JSON object a line."""

    kind: Literal["jsonl"] = Field(
        description="jsonl: a line each: {prompt | messages | conversations, output_tokens, session_id, system, tools}"
    )
    columns: Columns = Field(default=Columns(), description="names of the keys, where they differ")


class Csv(FileSource):
    """One's own prompts from a table with a header line."""

    kind: Literal["csv"] = Field(description="csv: a table with a header line; columns as in a jsonl file")
    columns: Columns = Field(default=Columns(), description="names of the columns, where they differ")


class HuggingFace(Recorded):
    """A data set of the Hugging Face hub, or one in a folder, read by the package datasets."""

    kind: Literal["huggingface"] = Field(description="huggingface: a data set, by the package datasets")
    dataset: str = Field(min_length=1, description="its name on the hub, or a folder")
    subset: str | None = Field(default=None, description="its configuration; null: the default one")
    split: str = Field(default="train", description="its part")
    revision: str | None = Field(default=None, description="its version; null: the newest")
    columns: Columns = Field(default=Columns(), description="names of the columns, where they differ")


Source = Annotated[
    Synthetic | Corpus | RandomLengths | PrefixRepetition | ShareGpt | JsonLines | Csv | HuggingFace,
    Field(discriminator="kind"),
]
