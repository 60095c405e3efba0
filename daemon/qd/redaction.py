"""What is never shown: passwords in urls, and every password and key that was configured, wherever they stand in a text.

config/ names the secrets of this process with `hide`; log.py, the failure records and the command line pass through
`masked` what they show. Children know what their parent has hidden.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

SHORTEST = 6  # characters: a shorter one would be found in half of all words; it is masked in urls only
_URL = re.compile(r"[a-zA-Z][\w+.-]*://[^\s\"'<>]*")
# Up to the last "@" before the query, whatever stands between: a password may hold an "@" or "/" that nobody escaped.
_USERINFO = re.compile(r"(?<=//)(?P<user>[^/?#:@]*):[^?#]*(?=@)")
_PASSWORD = re.compile(r"(?<=//)[^/?#:@]*:([^?#]*)(?=@)")
_SECRET_QUERY = re.compile(r"(?<=[?&])(?P<key>[^=&]*(?:password|secret|token)[^=&]*)=(?P<value>[^&#]*)", re.IGNORECASE)

_hidden: set[str] = set()
_pattern: re.Pattern[str] | None = None


def register_secrets(secrets: Iterable[str]) -> None:
    """From now on `masked` replaces them, as they are and as urls, JSON and repr write them."""
    global _pattern
    before = len(_hidden)
    for secret in secrets:
        if len(secret) >= SHORTEST:
            _hidden.update(_written(secret))
    if len(_hidden) > before:
        _pattern = re.compile("|".join(map(re.escape, sorted(_hidden, key=len, reverse=True))))


def _written(secret: str) -> set[str]:
    import json  # only who has a secret pays for it
    from urllib.parse import quote, unquote

    plain = unquote(secret)
    ways = {secret, plain, quote(plain), quote(plain, safe="")}
    ways |= {way for each in (secret, plain) for way in (repr(each)[1:-1], json.dumps(each)[1:-1])}
    return ways | {json.dumps(each, ensure_ascii=False)[1:-1] for each in (secret, plain)}


def redact(text: str) -> str:
    """`text` with *** in the place of secrets."""
    if _pattern is not None:
        text = _pattern.sub("***", text)
    return mask_urls(text)


def mask_urls(text: str) -> str:
    """`text` with *** in the place of what is secret in urls: the same in every process, whatever it has hidden."""
    return _URL.sub(lambda found: mask_url(found[0]), text) if "://" in text else text


def mask_url(url: str) -> str:
    """The url as it may be shown: its password and secret-looking query values replaced by "***"."""
    return _SECRET_QUERY.sub(r"\g<key>=***", _USERINFO.sub(r"\g<user>:***", url))


def passwords_in(url: str) -> list[str]:
    """The passwords as they stand in the url: before the host, and behind the `?`."""
    match = _PASSWORD.search(url)
    return [*([match[1]] if match else []), *(found["value"] for found in _SECRET_QUERY.finditer(url))]
