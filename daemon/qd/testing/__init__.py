"""For the tests of those who use qd: `app.fake()` writes down what would be sent. Loaded only where it is asked for."""

from qd.testing.fake import Fake
from qd.testing.records import Batched, Chained, Dispatched, Pushed

__all__ = ["Batched", "Chained", "Dispatched", "Fake", "Pushed"]
