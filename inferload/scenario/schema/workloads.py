"""Schema of `workload`: the union of its kinds, and mixes of them."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from inferload.base.errors import instead
from inferload.scenario.schema.agent import Agent, LiveAgentWorkload
from inferload.scenario.schema.base import GrownPart, ScenarioPart, Share, SloLimits, add_up, distinct, optional
from inferload.scenario.schema.chat import Chat, Texts
from inferload.scenario.schema.fields import word
from inferload.scenario.schema.replay import Replay
from inferload.scenario.schema.request import ClassRequest
from inferload.scenario.schema.tasks import Tasks

# Kinds of workload of a run or of one class of a mix; `inferload.workload.sessions` has their scripts.
_OneKind = Chat | Agent | LiveAgentWorkload | Replay | Texts
Single = Annotated[_OneKind, Field(discriminator="kind")]
_ClassName = Annotated[str, word(32, ": tables, files and gates use the name")]


class MixClass(GrownPart):
    """Class of a mix."""

    added_later: ClassVar[tuple[str, ...]] = ("request",)

    name: _ClassName = Field(description="name in tables, files and gates: at most 32 letters, digits, '.', '_' or '-'")
    share: Share = Field(description="fraction of the sessions; the shares of all classes sum to 1")
    workload: Single = Field(description="workload of its sessions: {kind: chat, ...}")
    slo: SloLimits | None = optional(None, "SLO of its turns; null: the scenario's slo")
    request: ClassRequest | None = optional(
        None, "options of its requests: {headers, api_key_file, priority, model}; null: those of the run"
    )


class Mix(ScenarioPart):
    """Several classes of sessions in one run. Results are reported per class."""

    kind: Literal["mix"] = Field(description="mix: several classes of sessions in one run")
    classes: Annotated[tuple[MixClass, ...], Field(strict=False, min_length=1)] = Field(
        description="list of {name, share, workload, slo, request}"
    )
    only: str | None = optional(
        None, "name of the only class to send, with the sessions and times that it has in the mix; null: all"
    )

    @field_validator("classes", mode="after")
    @classmethod
    def _adds_up(cls, classes: tuple[MixClass, ...]) -> tuple[MixClass, ...]:
        add_up([mix_class.share for mix_class in classes])
        distinct("class", [mix_class.name for mix_class in classes], "give each class its own name")
        return classes

    @model_validator(mode="after")
    def _only_one_of_them(self) -> "Mix":
        names = [mix_class.name for mix_class in self.classes]
        if self.only is not None and self.only not in names:
            raise ValueError(f"only: {self.only} is not a class of this mix; {instead(self.only, names)}")
        return self


Workload = Annotated[_OneKind | Tasks | Mix, Field(discriminator="kind")]
