"""The table of connections in docs/reliability.md: new cells are added, others stay."""

from __future__ import annotations

from tests.support.reliability import with_cells

EMPTY = "head\n<!-- connections -->\n\n<!-- end of connections -->\ntail\n"


def seen(connection: str, **more: object) -> dict[str, object]:
    return {
        "what": "kill",
        "holds": "back",
        "outcome": "passed",
        "doubles": 0,
        "back": [0.25],
        "connection": connection,
        **more,
    }


def test_a_run_of_one_connection_keeps_the_cells_of_others() -> None:
    text = with_cells(EMPTY, {"60": {"a": seen("redis")}, "61": {"b": seen("redis", doubles=2, back=[2.0])}})
    text = with_cells(text, {"60": {"a": seen("sqs", outcome="failed")}})
    assert text == (
        "head\n<!-- connections -->\n\n"
        "| row | what is done, and what holds | redis | sqs |\n| --- | --- | --- | --- |\n"
        "| 60 | kill: back | 250 ms | **broken** |\n| 61 | kill: back | 2.0 s, 2 twice |  |\n"
        "\n<!-- end of connections -->\ntail\n"
    )
