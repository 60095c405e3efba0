"""Half an hour of all faults together: row 41. QD_SOAK_SECONDS=60 for a short run, QD_SOAK_SEED for another seed,
QD_PREVIOUS=/path/to/an/older/checkout/daemon to run one of the two masters with older code."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from qd.drivers.keyspace.queue import DEATHS
from tests.support.project import MakeProject
from tests.support.reliability import Figures
from tests.support.servers.redis import Server
from tests.support.soak import JOBS, PRODUCER, Soak
from tests.support.soak_report import page
from tests.support.tally import by_role

ROOT = Path(__file__).resolve().parents[2]
SECONDS = float(os.environ.get("QD_SOAK_SECONDS", "1800"))
SEED = int(os.environ.get("QD_SOAK_SEED", "1"))
AOF = ("--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-min-size", "8mb")


@pytest.mark.slow
@pytest.mark.fault(
    "41",
    "two masters with ten workers for half an hour, one of them older code; Redis, masters, workers killed repeatedly",
    "nothing lost; only jobs running at a kill run twice; memory, descriptors and keys do not grow",
)
def test_a_long_run_under_every_fault_loses_nothing(project: MakeProject, figures: Figures) -> None:
    previous = os.environ.get("QD_PREVIOUS", "")
    (ROOT / "build").mkdir(exist_ok=True)
    with Server(*AOF) as server:
        shop = project(jobs=JOBS, url=server.url, config='retry_after = "10s"')
        shop.allowed |= {"ledger", "producer.py", "enough", "pushed.0", "pushed.1"}
        (shop.root / "producer.py").write_text(PRODUCER)
        soak = Soak(shop, server, ROOT / "build/soak.jsonl", seed=SEED, seconds=SECONDS, previous=previous)
        try:
            soak.run()
            soak.finish()
        finally:
            report = page(soak, SEED)
            (ROOT / "build/soak.md").write_text(report)
            left = set(soak.client.keys()) if server.process else set()
            soak.close()
    if figures.strict:
        (ROOT / "docs/explanation/soak.md").write_text(report)
    doubles = soak.tally.doubles()
    figures.add(lost=len(soak.tally.open(Counter())), doubles=len(doubles), jobs=len(soak.tally.kinds))
    assert not soak.odd
    assert not soak.tally.overlaps
    assert not [double for double in doubles if not double.reason], report
    assert left <= {"queues:default:deaths"}
    does_not_grow(soak)


def does_not_grow(soak: Soak) -> None:
    """Memory grows by less than 5 MB per hour, the number of files is stable, and Redis has only bounded keys."""
    for seat in soak.seats:
        for role, growth in by_role(s for s in soak.samples if s["seat"] == seat.name).items():
            assert growth["rss"] < 60, f"{seat.name} {role}: {growth}"
            assert growth["fds"] < 60, f"{seat.name} {role}: {growth}"
            assert growth.get("rss_hour", 0) < 5, f"{seat.name} {role}: {growth}"
            assert abs(growth.get("fds_hour", 0)) < 20, f"{seat.name} {role}: {growth}"
    for _, sizes in soak.sizes:
        assert sizes.get("qd:masters", 0) <= 4, "reports of dead masters"
        assert sizes.get("queues:default:deaths", 0) <= DEATHS + 100, (
            "an older master writes there too, without trimming"
        )
        assert len(sizes) < 15, sizes
