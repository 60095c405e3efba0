"""A command of the shell that is not there, told only where it is sure."""

import pytest

from qd.schedule.shells import missing

NONE = "qd-has-no-such-command"


@pytest.mark.parametrize(
    "line",
    [
        NONE,
        f"{NONE} --flag > /dev/null",
        f"A=1 B='x y' {NONE}",
        f"echo hello | {NONE}",
        f"ls && {NONE}",
        f"true; {NONE} &",
        f"'{NONE}' quoted",
    ],
)
def test_it_is_named(line):
    assert missing(line) == NONE


@pytest.mark.parametrize(
    "line",
    [
        "ls -l",
        "echo 'a | b'",
        f"echo {NONE}",
        f"cd /srv/shop && {NONE}",  # there it may be
        f"PATH=/opt/bin:$PATH {NONE}",
        f"export PATH=/opt/bin; {NONE}",
        f"ls || {NONE}",
        f"if true; then {NONE}; fi",
        f"( {NONE} )",
        f"$COMMAND {NONE}",
        f"`which ls` {NONE}",
        f"~/bin/{NONE}",
        f"[ -f /etc/x ] && exec {NONE}",
        f"bin/{NONE}",  # from which folder is not known here
        f"cat <<END\n{NONE}\nEND",
        "'unclosed",
        "",
    ],
)
def test_what_is_not_sure_is_not_told(line):
    assert missing(line) == ""


def test_paths(tmp_path):
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "dump"
    assert missing(f"{script} now") == str(script)
    assert missing("bin/dump now", (tmp_path,)) == "bin/dump"
    script.write_text("#!/bin/sh\n")
    assert missing(f"{script} now") == str(script)  # it cannot be executed
    script.chmod(0o755)
    assert missing(f"{script} now") == ""
    assert missing("bin/dump now", (tmp_path / "bin", tmp_path)) == ""
