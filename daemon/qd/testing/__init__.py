"""For tests of apps: `app.fake()` records what would be sent."""

from __future__ import annotations

from qd.testing.fake import Batched, Chained, Dispatched, Fake, Pushed

__all__ = ["Batched", "Chained", "Dispatched", "Fake", "Pushed"]
