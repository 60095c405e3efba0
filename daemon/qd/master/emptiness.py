"""--stop-when-empty and --stop-when-empty-for: whether empty queues are a reason to stop. Asked at each look."""

from __future__ import annotations

import time


class Emptiness:
    """Since when every worker has found nothing."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._jobs = 0

    def reason(self, empty: bool, jobs: int, at_once: bool, seconds: float) -> str | None:
        """Why to stop now, or None. `empty`: all workers found nothing at this moment. `jobs`: they have done so many; one
        may have come and gone between two looks."""
        now = time.monotonic()
        if jobs != self._jobs:
            self._jobs, self._since = jobs, None
        self._since = (self._since or now) if empty else None
        if self._since is None or not (at_once or seconds):
            return None
        if at_once:
            return "the queues are empty"
        return f"the queues were empty for {seconds:g} s" if now - self._since >= seconds else None
