"""Published data sets that scenarios read, with their sources. Another data set is one more row."""

from collections.abc import Mapping

from msgspec import Struct


class DataSet(Struct, frozen=True):
    """One published file, known by its size and SHA-256 (hex). `urls`: its sources, in the order in which they are tried."""

    file: str
    content: str
    size_bytes: int
    sha256: str
    urls: tuple[str, ...]


DATA_SETS: Mapping[str, DataSet] = {
    "sharegpt": DataSet(
        file="ShareGPT_V3_unfiltered_cleaned_split.json",
        content="conversations of ShareGPT, as in vLLM's benchmarks",
        size_bytes=672_837_942,
        sha256="35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4",
        urls=(
            "https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered/resolve/"
            "192ab2185289094fc556ec8ce5ce1e8e587154ca/ShareGPT_V3_unfiltered_cleaned_split.json",
            "https://modelscope.cn/datasets/gliang1001/ShareGPT_V3_unfiltered_cleaned_split/resolve/"
            "master/ShareGPT_V3_unfiltered_cleaned_split.json",
        ),
    ),
}


def name_of(file: str) -> str | None:
    """Return the data set with a file of this name; None if it is in none."""
    return next((name for name, data_set in DATA_SETS.items() if data_set.file == file), None)
