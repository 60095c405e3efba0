"""Replaces secrets by ***: passwords in urls, and every configured password and key, wherever they appear in a text.

config/ registers the secrets of this process; children inherit them. log.py, the failed store and the command line redact
what they show.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

SHORTEST = 6  # characters: a shorter secret would match ordinary words, and is redacted in urls only
_URL = re.compile(r"[a-zA-Z][\w+.-]*://[^\s\"'<>]*")
# Up to the last "@" before the query: a password may contain an unescaped "@" or "/".
_USERINFO = re.compile(r"(?<=//)(?P<user>[^/?#:@]*):[^?#]*(?=@)")
_PASSWORD = re.compile(r"(?<=//)[^/?#:@]*:([^?#]*)(?=@)")
_SECRET_QUERY = re.compile(r"(?<=[?&])(?P<key>[^=&]*(?:password|secret|token)[^=&]*)=(?P<value>[^&#]*)", re.IGNORECASE)

_hidden: set[str] = set()
_pattern: re.Pattern[str] | None = None


def register_secrets(secrets: Iterable[str]) -> None:
    """Make `redact` replace these secrets, also as urls, JSON and repr write them."""
    global _pattern
    before = len(_hidden)
    for secret in secrets:
        if len(secret) >= SHORTEST:
            _hidden.update(_spellings(secret))
    if len(_hidden) > before:
        _pattern = re.compile("|".join(map(re.escape, sorted(_hidden, key=len, reverse=True))))


def _spellings(secret: str) -> set[str]:
    import json  # only processes with a secret pay for it
    from urllib.parse import quote, unquote

    plain = unquote(secret)
    found = {secret, plain, quote(plain), quote(plain, safe="")}
    for text in (secret, plain):
        found |= {repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}
    return found


def redact(text: str) -> str:
    """`text` with its secrets replaced by ***."""
    if _pattern is not None:
        text = _pattern.sub("***", text)
    return mask_urls(text)


def mask_urls(text: str) -> str:
    """`text` with the secrets in its urls replaced by ***; does not depend on the registered secrets."""
    return _URL.sub(lambda found: mask_url(found[0]), text) if "://" in text else text


def mask_url(url: str) -> str:
    """The url with its password and secret-looking query values replaced by ***."""
    return _SECRET_QUERY.sub(r"\g<key>=***", _USERINFO.sub(r"\g<user>:***", url))


def passwords_in(url: str) -> list[str]:
    """The passwords as the url contains them: before the host and in the query."""
    match = _PASSWORD.search(url)
    return [*([match[1]] if match else []), *(found["value"] for found in _SECRET_QUERY.finditer(url))]
