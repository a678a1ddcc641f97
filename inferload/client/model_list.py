"""Models in a server's list, whose form differs between servers. No I/O."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferload.client.answers.number_bounds import MAX_TOKENS

# Keys of a list within a document, and of the name within an entry.
_LISTS = ("data", "models", "model_list")
_NAMES = ("id", "name", "model", "model_id", "model_name")
# Names that stand for no model: sglang-router lists the first if it does not know the models of its workers.
_NO_MODEL = ("unknown", "none", "null")
# Keys of the longest context that requests can have: of vLLM and SGLang; of Dynamo and Groq; of services. 0 is unknown.
_CONTEXTS = ("max_model_len", "context_window", "context_length", "max_context_length")
_MOST_SHOWN = 8
_DEPTH = 3  # of the list within a document


@dataclass(frozen=True, slots=True)
class ListedModel:
    """Entry of a list. `base`: identity of the weights, equal for several names of one model; `adapter`: a LoRA adapter."""

    name: str
    owner: str = ""
    max_model_len: int | None = None
    base: str = ""
    adapter: bool = False

    @property
    def usable(self) -> bool:
        """True if requests can use the name: not a wildcard of a gateway, such as openai/*, and no placeholder."""
        return "*" not in self.name and self.name.lower() not in _NO_MODEL


def models_in(document: Any) -> tuple[ListedModel, ...] | None:
    """Return the models of a document, each name once; None if it is no list of models.

    Known forms: `{"data": [...]}` and `{"models": [...]}`, also nested or as an object by name, and a plain list; entries are
    names, or objects with the key id, name or model.
    """
    entries = _entries(document)
    if entries is None:
        return None
    models = (model for entry in entries if (model := _model(entry)) is not None)
    return tuple({model.name: model for model in reversed([*models])}.values())[::-1]


def only_model(models: Sequence[ListedModel]) -> ListedModel | None:
    """Return the single model of a list; None if there is no usable one, or several. Adapters and further names do not count."""
    usable = [model for model in models if model.usable and not model.adapter]
    if len(usable) == 1 or (usable and len({model.base or model.name for model in usable}) == 1):
        return usable[0]
    return None


def listed(names: Sequence[str]) -> str:
    """Return the names of models for a message; of a long list the first ones."""
    shown = ", ".join(names[:_MOST_SHOWN]) or "no model"
    return f"{shown} and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else shown


def _entries(document: Any, depth: int = _DEPTH) -> list[Any] | None:
    if isinstance(document, list):
        return document
    if not isinstance(document, dict) or not depth:
        return None
    found = [entries for key in _LISTS if (entries := _entries(document.get(key), depth - 1)) is not None]
    if found:
        return max(found, key=len)
    by_name = depth < _DEPTH and document and all(isinstance(value, dict) for value in document.values())
    return [{"id": name} | value for name, value in document.items()] if by_name else None


def _model(entry: Any) -> ListedModel | None:
    if isinstance(entry, str):
        return ListedModel(entry) if entry else None
    if not isinstance(entry, dict):
        return None
    name = next((entry[key] for key in _NAMES if isinstance(entry.get(key), str) and entry[key]), None)
    if name is None:
        return None
    meta = entry.get("meta")  # of llama.cpp, whose n_ctx_train is no limit of the server
    contexts = [entry.get(key) for key in _CONTEXTS] + [meta.get("n_ctx") if isinstance(meta, dict) else None]
    return ListedModel(
        name,
        _text(entry.get("owned_by")),
        next((longest for value in contexts if (longest := context_of(value)) is not None), None),
        _text(entry.get("root")),
        bool(entry.get("parent")),
    )


def context_of(value: Any) -> int | None:
    """Return a number of tokens as the longest context; None for other values, and for none."""
    return value if type(value) is int and 0 < value <= MAX_TOKENS else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
