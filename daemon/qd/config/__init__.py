"""Files, environment, code and flags -> one Settings, each value with its origin. `load` reads them;
`from_json` takes over those that another process has read.
"""

from __future__ import annotations

from qd.config.load import load, load_without_app, open_files, overridden_urls, unknown_drivers, unknown_variables
from qd.config.settings import check_work, from_json, provider_of, to_json

__all__ = [
    "check_work",
    "from_json",
    "load",
    "load_without_app",
    "open_files",
    "overridden_urls",
    "provider_of",
    "to_json",
    "unknown_drivers",
    "unknown_variables",
]
