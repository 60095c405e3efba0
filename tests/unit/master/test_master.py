"""Many signals of a kind that come in one look of the master."""

from __future__ import annotations

import signal

from qd.master.master import merged


def test_many_reloads_are_one_and_each_worker_more_counts():
    burst = [
        signal.SIGHUP,
        signal.SIGTTIN,
        signal.SIGHUP,
        signal.SIGUSR1,
        signal.SIGTTIN,
        signal.SIGHUP,
        signal.SIGTERM,
    ]
    assert sorted(merged([*burst])) == [
        *(signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM),
        *(signal.SIGTTIN, signal.SIGTTIN),
    ]


def test_nothing_came():
    assert merged([]) == []
