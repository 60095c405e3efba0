"""qd help prints what --help prints."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run, done


@pytest.mark.parametrize("words", [(), ("work",), ("failed",), ("failed", "retry")])
def test_help_prints_what_the_option_prints(qd: Run, words: tuple[str, ...]) -> None:
    assert done(qd("help", *words)) == done(qd(*words, "--help"))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("wrok",), "unknown command 'wrok' (did you mean 'work'?)"),
        (("failed", "rety"), "unknown command 'failed rety' (did you mean 'retry'?)"),
        (("work", "x"), "unknown command 'work x'"),
    ],
)
def test_help_names_the_nearest_command(qd: Run, words: tuple[str, ...], text: str) -> None:
    assert qd("help", *words).stderr == f"qd help: {text}; see `qd help --help`\n"
    assert qd("help", *words).exit_code == 2
