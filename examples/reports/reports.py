"""The jobs."""

from __future__ import annotations

from qd import Qd, current_job

queue = Qd()


@queue.job("reports.build", tries=3, backoff=[1, 5, 30], timeout=60, result_ttl=3600)
def build(month: int) -> dict[str, int]:
    pages = 0
    for chapter in range(1, 5):
        pages += chapter * month
        current_job().progress(25 * chapter)
    print(f"report of month {month}: {pages} pages")
    return {"month": month, "pages": pages}
