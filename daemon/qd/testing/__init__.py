"""For the tests of those who use qd: `app.fake()` writes down what would be sent. Loaded only where it is asked for."""

from __future__ import annotations

from qd.testing.fake import Batched, Chained, Dispatched, Fake, Pushed

__all__ = ["Batched", "Chained", "Dispatched", "Fake", "Pushed"]
