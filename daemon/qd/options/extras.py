"""How to install what an optional part of qd needs, for error messages."""

from __future__ import annotations

import re
from collections.abc import Iterator

PACKAGE = "qd-worker"


def to_install(extra: str) -> str:
    """The command that installs the libraries of an extra: `pip install 'boto3>=1.34'`. It names them, not the extra, so
    that it works wherever qd itself was installed from. Without its metadata (a copy on PYTHONPATH) it names the extra."""
    from importlib.metadata import PackageNotFoundError, requires  # 20 ms, only for an error

    try:
        found = [*_libraries(extra, requires(PACKAGE) or [])]
    except PackageNotFoundError:
        found = []
    return "pip install " + " ".join(f"'{library}'" for library in found or [f"{PACKAGE}[{extra}]"])


def _libraries(extra: str, rows: list[str]) -> Iterator[str]:
    """rows: as `sqlalchemy>=2.0.30; extra == "database"`. An extra may include another one of qd."""
    for row in rows:
        library, _, marker = row.partition(";")
        if re.search(rf"extra == [\"']{re.escape(extra)}[\"']", marker):
            included = re.fullmatch(rf"{PACKAGE}\[(.+)\]", library)
            if included:
                for name in included[1].split(","):
                    yield from _libraries(name, rows)
            else:
                yield library.strip()
