"""Encryption of arguments, in the format of Laravel's Encrypter with AES-256-GCM. dispatch/route.py encrypts on push; the
worker decrypts after it has verified the signature, which covers the encrypted bytes.

    "data":{"encrypted":"BASE64"}      BASE64 of {"iv":"...","value":"...","mac":"","tag":"...","key":"2026b"}

`value` is the encrypted JSON text of the arguments. `key` is the id of the key; Laravel ignores it and writes none: then
each key is tried. keys: "ID:SECRET", SECRET being 32 bytes as base64; the first encrypts, all of them decrypt.
"""

from __future__ import annotations

import os
import re
from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from qd.errors import ConfigError, DecryptionRefused
from qd.options.extras import to_install

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

IV, TAG = 12, 16  # bytes
_SEALED = re.compile(r'\{\s*"encrypted"\s*:\s*"eyJ[^"]*"\s*\}')  # eyJ: base64 of {"


class _Sealed(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    encrypted: str


class _Envelope(msgspec.Struct, kw_only=True, gc=False):
    iv: bytes  # in JSON: base64
    value: bytes
    mac: str = ""
    tag: bytes
    key: str | None = None


def hidden(text: str) -> str:
    """`text` for people: arguments, or a payload, without what is encrypted in it."""
    return _SEALED.sub('"<encrypted>"', text)


def cipher(key: str) -> AESGCM:
    """Raises ConfigError if the library, which the first encrypted job loads, is missing."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        way = to_install("encryption")
        raise ConfigError(f"encrypted jobs need the library 'cryptography', which is not installed: {way}") from None
    return AESGCM(a2b_base64(key.partition(":")[2].removeprefix("base64:")))


def sealed(data: bytes, keys: Sequence[str], job: str) -> bytes:
    """The arguments of a payload, encrypted. Raises ConfigError without a key or without the library."""
    if not keys:
        way = 'keys = ["ID:SECRET"] below [encryption]; `openssl rand -base64 32` generates a secret'
        raise ConfigError(f"job '{job}' is to be encrypted, but no key is configured: {way}")
    iv = os.urandom(IV)
    text = cipher(keys[0]).encrypt(iv, data, None)
    found = _Envelope(iv=iv, value=text[:-TAG], tag=text[-TAG:], key=keys[0].partition(":")[0])
    return b'{"encrypted":"%b"}' % b2a_base64(msgspec.json.encode(found), newline=False)


def opened(data: bytes, keys: Sequence[str]) -> bytes:
    """The arguments, decrypted; unchanged if they are not encrypted. Raises ConfigError if the key or the library is missing
    here, DecryptionRefused if they were changed."""
    try:
        text = msgspec.json.decode(data, type=_Sealed).encrypted
    except msgspec.MsgspecError:
        return data
    try:
        found = msgspec.json.decode(a2b_base64(text, strict_mode=True), type=_Envelope)
    except (msgspec.MsgspecError, ValueError):
        raise DecryptionRefused("its arguments are not in the format of encrypted ones: they were changed") from None
    fitting = [cipher(key) for key in keys if found.key in (None, key.partition(":")[0])]
    for each in fitting:
        from cryptography.exceptions import InvalidTag

        with suppress(InvalidTag, ValueError):  # ValueError: the iv is too short
            return each.decrypt(found.iv, found.value + found.tag, None)
    if fitting and found.key is not None:
        raise DecryptionRefused(f"its encrypted arguments were changed, or key '{found.key}' has another secret here")
    what = "a key" if found.key is None else f"the key '{found.key[:32]}'"
    way = "add it to keys = of [encryption], then `qd restart`"
    raise ConfigError(f"its arguments are encrypted with {what} that this program does not have: {way}")
