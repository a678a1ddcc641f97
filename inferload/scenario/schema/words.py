"""Texts in English and Chinese, and the language of the process: set once, where a command starts."""

import os
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Literal, get_args

from pydantic import Field, model_serializer, model_validator

from inferload.scenario.schema.base import ScenarioPart

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = get_args(Language)
_current: ContextVar[Language] = ContextVar("language", default="en")


def current() -> Language:
    return _current.get()


def use(language: Language) -> None:
    """Set the language of this process."""
    _current.set(language)


def of_environment(environment: Mapping[str, str] = os.environ) -> Language:
    """Return the language of the locale (LC_ALL, LC_MESSAGES, LANG, the first that is set); English for all but Chinese."""
    locale = next((value for name in ("LC_ALL", "LC_MESSAGES", "LANG") if (value := environment.get(name))), "")
    return "zh" if locale.lower().startswith("zh") else "en"


class Words(ScenarioPart):
    """A text in English, and in Chinese if it is there; in a file `{en: text, zh: text}`, or the English text alone."""

    en: str = Field(description="the text in English")
    zh: str = Field(default="", description="the text in Chinese; empty: the English one is shown")

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, data: Any) -> Any:
        return {"en": data} if isinstance(data, str) else data

    @model_serializer
    def _short(self) -> str | dict[str, str]:
        return {"en": self.en, "zh": self.zh} if self.zh else self.en

    def __str__(self) -> str:
        """Return the text in the language of the process."""
        return (self.zh if current() == "zh" else "") or self.en

    def __bool__(self) -> bool:
        return bool(self.en)


NO_WORDS = Words(en="")
