"""Which exit codes of a child are orderly, and the exit code of the program after them."""

import pytest

from qd.process.exit_codes import ORDERLY, Exit, StopReason, ending, of_program


@pytest.mark.parametrize("reason", StopReason)
def test_every_reason_to_stop_is_an_orderly_exit(reason: StopReason) -> None:
    assert reason.code in ORDERLY


@pytest.mark.parametrize("code", [Exit.BUG, Exit.USAGE, Exit.IMPORT, Exit.UNAVAILABLE, Exit.CONFIG, -9, 255])
def test_any_other_exit_is_not_orderly(code: int) -> None:
    assert code not in ORDERLY
    assert of_program(code) == code


def test_the_program_exits_with_0_after_an_orderly_exit_and_with_12_for_memory() -> None:
    codes = {reason: of_program(reason.code) for reason in StopReason}
    assert codes.pop(StopReason.MEMORY) == 12
    assert set(codes.values()) == {0}


def test_a_known_exit_code_is_described() -> None:
    assert ending(12 << 8) == "exit 12 (memory)"
    assert ending(3 << 8) == "exit 3 (import)"
    assert ending(0) == "exit 0"
    assert ending(1 << 8) == "exit 1"
    assert ending(9) == "signal 9 (SIGKILL)"
