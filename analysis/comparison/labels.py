"""Labels of the sides of a comparison: sides of one name are told apart by what differs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .comparable import ARGUMENTS, NOT_SET, SEPARATOR, configuration, differing_values
from .sides import Side


def distinct(sides: Sequence[Side]) -> list[Side]:
    """Return the sides; those of one label get what differs between them: properties of the servers, else paths or numbers."""
    labels = [side.label for side in sides]
    named = list(sides)
    for label in dict.fromkeys(labels):
        alike = [index for index, other in enumerate(labels) if other == label]
        others = {other for other in labels if other != label}
        if len(alike) > 1:
            new = next(
                found
                for found in _suffixed(label, [sides[index] for index in alike])
                if len({*found}) == len(found) and not others & {*found}
            )
            for index, text in zip(alike, new, strict=True):
                named[index] = replace(sides[index], label=text)
    return named


def _suffixed(label: str, sides: Sequence[Side]) -> Iterator[list[str]]:
    """Yield labels in the order of preference; one of them is distinct."""
    properties = [configuration(side.runs[0]) for side in sides]
    differing = [key for key in properties[0] if len({of_side[key] for of_side in properties}) > 1]
    columns = [_described(key, [of_side[key] for of_side in properties]) for key in differing]
    if columns:
        yield [f"{label} ({', '.join(texts)})" for texts in zip(*columns, strict=True)]
    yield [str(side.path) for side in sides]
    start = 1
    while True:
        yield [f"{label} ({start + index})" for index in range(len(sides))]
        start += len(sides)


def _described(key: str, values: Sequence[str]) -> list[str]:
    """Describe the values of one property that differs between sides."""
    if key != ARGUMENTS:
        return [f"{key} {value}" for value in values]
    shown = differing_values(key, values)
    options = dict.fromkeys(option for value in shown if value != NOT_SET for option in value.split(SEPARATOR))
    return [f"without {', '.join(options)}" if value == NOT_SET else value for value in shown]
