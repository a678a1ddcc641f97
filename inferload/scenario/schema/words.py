"""Texts in English and Chinese, shown in the language of the process."""

from typing import Any

from pydantic import Field, model_serializer, model_validator

from inferload.scenario import language
from inferload.scenario.schema.base import ScenarioPart, optional


class Words(ScenarioPart):
    """A text in English, and in Chinese if it is there; in a file `{en: text, zh: text}`, or the English text alone."""

    en: str = Field(description="the text in English")
    zh: str = optional("", "the text in Chinese; empty: the English one is shown")

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, data: Any) -> Any:
        return {"en": data} if isinstance(data, str) else data

    @model_serializer
    def _short(self) -> str | dict[str, str]:
        return {"en": self.en, "zh": self.zh} if self.zh else self.en

    def __str__(self) -> str:
        """Return the text in the language of the process."""
        return (self.zh if language.current() == "zh" else "") or self.en

    def __bool__(self) -> bool:
        return bool(self.en)


NO_WORDS = Words(en="")
