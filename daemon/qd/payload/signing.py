"""Signatures of payloads: HMAC-SHA256 with keys that only producers and workers know. dispatch/route.py signs on push; the
worker verifies before it decodes an argument.

    "sig":"v2.KEY.MAC"     a key of the payload; MAC is base64url without padding

The signed text is unambiguous: the version, then each part as ` LENGTH:BYTES` (UTF-8; a missing part has length 0). v2
signs uuid, id, job, data, and the version of the job's arguments if that is not 1; v1 signs no id, because Laravel adds it
after its hooks. A chained job that lacks a result also signs `takes`: of which job, for which parameter. The worker that
adds the result signs it again. A checkpoint is signed together with uuid, id and job (c1), a step's result also with its
name; both are stored as `KEY.MAC.STATE`. `data` is signed byte for byte, so rewriting the JSON breaks the signature.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from qd.errors import SignatureRefused
from qd.payload.format import Payload, base64url

LONGEST = 200  # characters of a signature that are checked


class Signing:
    """keys: "ID:SECRET"; the first one signs, all of them verify. require: also refuse unsigned payloads."""

    def __init__(self, keys: Sequence[str], require: bool = True) -> None:
        pairs = [key.partition(":") for key in keys]
        self._secrets = {id: secret.encode() for id, _, secret in pairs}
        self._first = pairs[0][0]
        self._require = require

    def __repr__(self) -> str:
        return f"<signing with {self._first}, verifying {', '.join(self._secrets)}>"

    def signed(
        self, body: bytes, uuid: str, id: str, job: str, data: bytes, takes: str | None = None, version: int = 1
    ) -> bytes:
        """The payload `body` with its signature as first key. The other arguments are its values."""
        text = _text(b"v2", (uuid.encode(), id.encode(), job.encode(), data, *_more(version, takes)))
        mac = _mac(self._secrets[self._first], text)
        return b'{"sig":"v2.%b.%b",%b' % (self._first.encode(), mac, body[1:])

    def check(self, payload: Payload) -> None:
        """Raises SignatureRefused with the reason if the job must not run."""
        sig = payload.sig
        if sig is None:
            if self._require:
                raise SignatureRefused("unsigned")
            return
        version, _, rest = sig[:LONGEST].partition(".")
        name, _, mac = rest.partition(".")
        if version not in ("v1", "v2"):
            raise SignatureRefused(f"signed with an unknown version: {version[:32]}")
        secret = self._secrets.get(name)
        if secret is None:
            raise SignatureRefused(f"signed with an unknown key: {name[:32]}")
        uuid, id, job = _identity(payload)
        identity = (uuid, id, job) if version == "v2" else (uuid, job)
        more = _more(payload.job_version, payload.qd.takes if payload.qd else None)
        text = _text(version.encode(), (*identity, bytes(payload.data), *more))
        if len(sig) > LONGEST or not hmac.compare_digest(_mac(secret, text), mac.encode()):
            raise SignatureRefused(
                "its signature does not match: job, id or data were changed, "
                f"or it was signed with another secret of key {name}"
            )

    def sealed(self, payload: Payload, state: bytes, *step: bytes) -> bytes:
        """A checkpoint, or the result of a step, as it is stored: signed, unless the job is unsigned. step: its name."""
        if payload.sig is None:
            return state
        mac = _mac(self._secrets[self._first], _text(b"c1", (*_identity(payload), state, *step)))
        return b"%b.%b.%b" % (self._first.encode(), mac, state)

    def opened(self, payload: Payload, sealed: bytes | None = None, *step: bytes) -> bytes | None:
        """The checkpoint, None without one; or the result of a step. Raises SignatureRefused if it was changed."""
        sealed = sealed if step else payload.checkpoint
        if sealed is None or payload.sig is None:
            return sealed
        name, _, rest = sealed.partition(b".")
        mac, _, state = rest.partition(b".")
        secret = self._secrets.get(name.decode("utf-8", "replace"))
        text = _text(b"c1", (*_identity(payload), state, *step))
        if secret is None or not hmac.compare_digest(_mac(secret, text), mac):
            what = f"step {step[0].decode()!r}" if step else "checkpoint"
            raise SignatureRefused(f"its {what} does not match: it was changed, or belongs to another job")
        return state


def _more(version: int, takes: str | None) -> list[bytes]:
    """Version 1 of the arguments has no key in the payload and no part in the signed text."""
    return [*([b"version %d" % version] if version != 1 else []), *([takes.encode()] if takes else [])]


def _identity(payload: Payload) -> tuple[bytes, bytes, bytes]:
    return (payload.uuid or "").encode(), (payload.id or "").encode(), payload.job.encode()


def _text(version: bytes, parts: Sequence[bytes]) -> bytes:
    return version + b"".join([b" %d:%b" % (len(part), part) for part in parts])


def _mac(secret: bytes, text: bytes) -> bytes:
    return base64url(hmac.digest(secret, text, "sha256"))
