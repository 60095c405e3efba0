"""Marks that several files share: which keys of Redis a test leaves behind on purpose (clean_redis allows them)."""

from __future__ import annotations

import pytest

FAILED = pytest.mark.leaves("queues:*:failed", "queues:*:failed_at", "queues:*:deaths")
DEATHS = pytest.mark.leaves("queues:*:deaths")
