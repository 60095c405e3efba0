"""Time zones by their names: those of the installed zone data, and UTC, which needs none."""

from __future__ import annotations

from datetime import UTC, tzinfo


def zone_of(name: str) -> tzinfo:
    """name: as options.kinds reads a zone."""
    if name == "UTC":
        return UTC
    from zoneinfo import ZoneInfo  # not on the way of `import qd`; it keeps those that it has read

    return ZoneInfo(name)
