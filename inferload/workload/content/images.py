"""Generated images: PNG files of coloured tiles, drawn by a key, as `data:` URLs."""

import base64
import zlib
from collections.abc import Iterable
from functools import lru_cache
from random import Random

_TILE_PX = 16


@lru_cache(maxsize=128)
def picture_url(key: str, width_px: int, height_px: int) -> str:
    """Return the image of a key and size as a `data:` URL; the same on any machine."""
    return "data:image/png;base64," + base64.b64encode(png(key, width_px, height_px)).decode()


def pictures(keys: Iterable[str], variants: int, width_px: int, height_px: int) -> tuple[str, ...]:
    """Return an image for each key, one of so many different ones."""
    drawn = (f"picture/{Random(key).randrange(variants)}" for key in keys)
    return tuple(picture_url(each, width_px, height_px) for each in drawn)


def png(key: str, width_px: int, height_px: int) -> bytes:
    """Return a PNG file (8-bit RGB, not interlaced) of tiles in random colours, seeded by the key."""
    rng = Random(key)
    across, down = -(-width_px // _TILE_PX), -(-height_px // _TILE_PX)
    rows = []
    for tile_row in range(down):
        colours = rng.randbytes(3 * across)
        pixels = b"".join(colours[3 * x : 3 * x + 3] * _TILE_PX for x in range(across))[: 3 * width_px]
        rows.append((b"\0" + pixels) * min(_TILE_PX, height_px - tile_row * _TILE_PX))
    head = width_px.to_bytes(4, "big") + height_px.to_bytes(4, "big") + b"\x08\x02\0\0\0"
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(b"".join(rows), 6)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big")
