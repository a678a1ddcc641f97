"""What a scenario may ask, as the file says it: the kinds of workload and where their text comes from."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from inferload.scenario.schema.agent import Agent, LiveAgent
from inferload.scenario.schema.base import Part, Share, SloLimits, add_up
from inferload.scenario.schema.chat import Chat
from inferload.scenario.schema.replay import Replay
from inferload.scenario.schema.tasks import Tasks

# A kind of workload that a whole run, or one class of a mix, can be of.
Single = Annotated[Chat | Agent | LiveAgent | Replay, Field(discriminator="kind")]


def _class_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}", value):
        raise ValueError("must be letters, digits, '.', '_' or '-', at most 32: it names a row of every table")
    return value


class MixClass(Part):
    """One class of a mix."""

    name: Annotated[str, AfterValidator(_class_name)] = Field(description="its name in tables, files and gates")
    share: Share = Field(description="its share of the sessions; all shares add up to 1")
    workload: Single = Field(description="what its sessions ask: {kind: chat, ...}")
    slo: SloLimits | None = Field(default=None, description="limits of its turns; null: the scenario's")


class Mix(Part):
    """Several classes of sessions in one run, each with its own figures."""

    kind: Literal["mix"] = Field(description="mix: several classes in one run")
    classes: Annotated[tuple[MixClass, ...], Field(strict=False, min_length=1)] = Field(
        description="list of {name, share, workload, slo}"
    )
    only: str | None = Field(
        default=None,
        description="name of the one class that is sent, the same sessions at the same times as in the mix; null: all",
    )

    @field_validator("classes", mode="after")
    @classmethod
    def _adds_up(cls, classes: tuple[MixClass, ...]) -> tuple[MixClass, ...]:
        add_up([one.share for one in classes])
        names = [one.name for one in classes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"class {twice[0]} stands twice; each needs a name of its own")
        return classes

    @model_validator(mode="after")
    def _only_one_of_them(self) -> "Mix":
        names = [one.name for one in self.classes]
        if self.only is not None and self.only not in names:
            raise ValueError(f"only: {self.only} is no class of this mix, which has {', '.join(names)}")
        return self


Workload = Annotated[Chat | Agent | LiveAgent | Replay | Tasks | Mix, Field(discriminator="kind")]
