"""Grey pictures in the PGM format (P5, one byte per pixel): read, scale down, write. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

HEADER = re.compile(rb"P5\s+(\d+)\s+(\d+)\s+255\s")


class Picture(NamedTuple):
    width: int
    height: int
    pixels: bytes


def read(content: bytes) -> Picture:
    """Raises ValueError if it is not such a picture or is truncated."""
    header = HEADER.match(content)
    if header is None:
        raise ValueError(f"not a PGM picture of one byte per pixel: {content[:20]!r}")
    picture = Picture(int(header[1]), int(header[2]), content[header.end() :])
    if len(picture.pixels) != picture.width * picture.height:
        raise ValueError(f"truncated: {len(picture.pixels)} of {picture.width * picture.height} pixels")
    return picture


def written(picture: Picture) -> bytes:
    return b"P5\n%d %d\n255\n" % (picture.width, picture.height) + picture.pixels


def scaled(picture: Picture, width: int) -> Picture:
    """Scale to at most `width`; each new pixel is the mean of the pixels it replaces."""
    step = max(1, -(-picture.width // width))
    rows = [row(picture, y, step) for y in range(0, picture.height - step + 1, step)]
    return Picture(len(rows[0]), len(rows), b"".join(rows))


def row(picture: Picture, top: int, step: int) -> bytes:
    lines = [picture.pixels[y * picture.width : (y + 1) * picture.width] for y in range(top, top + step)]
    starts = range(0, picture.width - step + 1, step)
    return bytes(sum(sum(line[x : x + step]) for line in lines) // (step * step) for x in starts)
