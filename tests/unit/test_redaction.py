"""Which strings are masked, in any encoding, and which are not."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from qd import redaction
from qd.redaction import redact, register_secrets

SECRET = 'p"a\\ss/w@rd ä'


@pytest.fixture(autouse=True)
def forgotten(unhidden: None) -> None:
    """Only the secrets of the test are masked."""
    redaction._hidden.clear()
    redaction._pattern = None


@pytest.mark.parametrize("registered", [SECRET, quote(SECRET), quote(SECRET, safe="")])
@pytest.mark.parametrize(
    "written",
    [SECRET, repr(SECRET), json.dumps(SECRET), json.dumps(SECRET, ensure_ascii=False), quote(SECRET, safe="")],
)
def test_a_secret_is_found_however_it_is_written(registered: str, written: str):
    register_secrets([registered])
    assert "***" in redact(f"before {written} behind")
    assert redact(f"before {written} behind").startswith("before ")
    assert "rd" not in redact(written)


def test_a_longer_secret_is_masked_as_a_whole():
    register_secrets(["secret", "secret-and-more"])
    assert redact("x secret-and-more y secret z") == "x *** y *** z"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no url, no secret", "no url, no secret"),
        ("at redis://:pw@h/1 and rediss://u:p@w/x@h", "at redis://:***@h/1 and rediss://u:***@h"),
        ("('redis://:pw@h',)", "('redis://:***@h',)"),
        ("https://h/a?token=abc&n=1", "https://h/a?token=***&n=1"),
        ("redis://user@h:6379/0", "redis://user@h:6379/0"),
    ],
)
def test_passwords_of_any_url_are_masked(text: str, shown: str):
    assert redact(text) == shown


def test_a_short_secret_is_masked_in_urls_only():
    register_secrets(["pw"])
    assert redact("a pwd in redis://:pw@h") == "a pwd in redis://:***@h"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://user:secret@host:6379/0", "redis://user:***@host:6379/0"),
        ("rediss://:secret@host/0", "rediss://:***@host/0"),
        ("redis://user:se@cr/et@host/0", "redis://user:***@host/0"),
        ("unix://user:secret@/run/valkey.sock?db=1", "unix://user:***@/run/valkey.sock?db=1"),
        ("redis://host/0?password=secret&db=1", "redis://host/0?password=***&db=1"),
        ("embedded:", "embedded:"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_its_secrets(url, shown):
    assert redaction.mask_url(url) == shown
