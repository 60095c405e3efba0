"""The colors of the dashboard have the contrast that WCAG AA asks for, computed from the style sheet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import qd.dashboard

CSS = (Path(qd.dashboard.__file__).parent / "static" / "style.css").read_text()
BLOCKS = [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in re.split(r"\n +color-scheme:", CSS)[1:]]
GROUNDS = ("bg", "surface", "sunken", "hover", "selected")
SOFT = ("ok", "warn", "fail", "idle")


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ratio(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def pairs(theme: dict[str, str]) -> list[tuple[str, str, float]]:
    texts = ("text", "text-2", "text-3", "accent", "ok", "warn", "fail", "idle")
    found = [(text, ground, 4.5) for text in texts for ground in GROUNDS]
    found += [(name, f"{name}-soft", 4.5) for name in SOFT]
    found += [("control", ground, 3.0) for ground in GROUNDS]
    found += [(f"s{n}", ground, 3.0) for n in range(1, 7) for ground in ("bg", "surface")]
    return found


@pytest.mark.parametrize("theme", BLOCKS[:3], ids=["light", "dark of the system", "dark chosen"])
def test_colors_have_enough_contrast(theme: dict[str, str]) -> None:
    low = [
        (one, other, ratio(theme[one], theme[other]))
        for one, other, least in pairs(theme)
        if ratio(theme[one], theme[other]) < least
    ]
    assert low == []
    assert ratio("#ffffff", theme["solid"]) >= 4.5
    assert ratio("#ffffff", theme["fail-solid"]) >= 4.5


def test_both_dark_themes_are_the_same() -> None:
    assert BLOCKS[1] == BLOCKS[2]
