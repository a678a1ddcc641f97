"""Base model of all mappings of a scenario file, and its common value types."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    create_model,
    model_serializer,
)

from inferload.figures.limits.slo import SLO_MEASURES
from inferload.scenario.schema.distributions import MAX_COUNT, MOST, Positive, not_tiny

T = TypeVar("T")
Whole = Annotated[int, Field(strict=True, ge=0, le=MAX_COUNT)]
AtLeastOne = Annotated[int, Field(strict=True, ge=1, le=MAX_COUNT)]
Limit = Annotated[int, Field(strict=True, ge=1, le=int(MOST))]  # of the sessions or turns of a run
Seed = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]  # messages between processes carry 64 bits
Flag = Annotated[bool, Field(strict=True)]
Share = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False), AfterValidator(not_tiny)]
Part = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Pixels = Annotated[int, Field(strict=True, ge=1, le=8192)]


def optional(default: T, description: str, **checks: Any) -> T:
    """Return the field of a key that has a default. `checks`: other arguments of pydantic's `Field`."""
    field: T = Field(default, description=description, **checks)
    return field


class ScenarioPart(BaseModel):
    """Immutable mapping of the file. Unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class GrownPart(ScenarioPart):
    """Mapping with keys that were added later, and are null by default: then they are not written, and the digest is the same."""

    added_later: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _without_unset(self, usual: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = usual(self)
        return {key: value for key, value in written.items() if value is not None or key not in self.added_later}


def kinds(union: Any) -> list[str]:
    """Return the values of `kind` of the classes of a union, or of a union with its discriminator."""
    classes = get_args(get_args(union)[0] if get_origin(union) is Annotated else union)
    return [get_args(each.model_fields["kind"].annotation)[0] for each in classes]


def one_of(union: Any) -> str:
    """Return a mapping with one of the kinds of a union, as text of a description."""
    return f"{{kind: {' | '.join(kinds(union))}, ...}}"


def add_up(shares: Sequence[float]) -> None:
    """Raise ValueError unless the shares sum to 1."""
    total = sum(shares)
    if abs(total - 1) > 1e-6:
        raise ValueError(
            f"shares are {' + '.join(f'{share:g}' for share in shares)} = {total:g}; they must add up to 1"
        )


def distinct(kind: str, names: Sequence[str], remedy: str) -> None:
    """Raise ValueError if a name occurs twice."""
    for number, name in enumerate(names):
        if name in names[:number]:
            raise ValueError(f"{kind} {name} is listed twice; {remedy}")


class _Limits(ScenarioPart):
    """Limits that a turn must meet to count towards goodput; null: no limit."""

    @property
    def limits(self) -> dict[str, float]:
        """Limits in ms by key, without those that are not set."""
        return self.model_dump(exclude_none=True)


_KEYS: Any = {row.figure.key: (Positive | None, Field(None, description=row.description)) for row in SLO_MEASURES}

if TYPE_CHECKING:
    SloLimits = _Limits
else:
    SloLimits = create_model("SloLimits", __base__=_Limits, __doc__=_Limits.__doc__, **_KEYS)
