"""Signatures of payloads: HMAC-SHA256 with keys that only producers and workers know. dispatch/route.py signs what is
pushed; the worker checks before it looks at an argument.

    "sig":"v2.KEY.MAC"     a key of the payload; MAC is base64url without padding

What is signed can be read in one way only: the version, then each part as ` LENGTH:BYTES` (bytes of UTF-8, a part that is
missing has the length 0). v2 has uuid, id, job and data; v1 has no id, for Laravel adds the id after its hooks have run.
What a job saves is signed too, in one piece with these (c1: uuid, id, job, the state), and kept as `KEY.MAC.STATE`.
`data` is signed byte for byte as it stands in the payload, so whoever writes the JSON anew breaks the signature.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qd.errors import SignatureRefused

if TYPE_CHECKING:
    from qd.payload.format import Payload


LONGEST = 200  # characters of a signature that anybody looks at


class Signing:
    """keys: "ID:SECRET" each; the first one signs, all of them verify. require: an unsigned payload is refused too."""

    def __init__(self, keys: Sequence[str], require: bool = True) -> None:
        pairs = [key.partition(":") for key in keys]
        self._secrets = {id: secret.encode() for id, _, secret in pairs}
        self._first = pairs[0][0]
        self._require = require

    def __repr__(self) -> str:
        return f"<signing with {self._first}, verifying {', '.join(self._secrets)}>"

    def signed(self, body: bytes, uuid: str, id: str, job: str, data: bytes) -> bytes:
        """The payload `body` with its signature in front. The others are what stands in it."""
        text = _text(b"v2", (uuid.encode(), id.encode(), job.encode(), data))
        mac = _mac(self._secrets[self._first], text)
        return b'{"sig":"v2.%b.%b",%b' % (self._first.encode(), mac, body[1:])

    def check(self, payload: Payload) -> None:
        """Raises SignatureRefused with the reason, unless it may run."""
        sig = payload.sig
        if sig is None:
            if self._require:
                raise SignatureRefused("unsigned")
            return
        version, _, rest = sig[:LONGEST].partition(".")
        name, _, mac = rest.partition(".")
        if version not in ("v1", "v2"):
            raise SignatureRefused(f"signed in a way that is not known: {version[:32]}")
        secret = self._secrets.get(name)
        if secret is None:
            raise SignatureRefused(f"signed with a key that is not known: {name[:32]}")
        uuid, id = (payload.uuid or "").encode(), (payload.id or "").encode()
        who = (uuid, id) if version == "v2" else (uuid,)
        text = _text(version.encode(), (*who, payload.job.encode(), bytes(payload.data)))
        if len(sig) > LONGEST or not hmac.compare_digest(_mac(secret, text), mac.encode()):
            raise SignatureRefused("its signature does not fit: job, id or data were changed")

    def sealed(self, payload: Payload, state: bytes) -> bytes:
        """What the job saves, as it is kept: `KEY.MAC.` in front of it. In an unsigned job nothing is."""
        if payload.sig is None:
            return state
        mac = _mac(self._secrets[self._first], _text(b"c1", (*_who(payload), state)))
        return b"%b.%b.%b" % (self._first.encode(), mac, state)

    def opened(self, payload: Payload) -> bytes | None:
        """What the job has saved, None: nothing. Raises SignatureRefused when it is of somebody without a key."""
        sealed = payload.checkpoint
        if sealed is None or payload.sig is None:
            return sealed
        name, _, rest = sealed.partition(b".")
        mac, _, state = rest.partition(b".")
        secret = self._secrets.get(name.decode("utf-8", "replace"))
        if secret is None or not hmac.compare_digest(_mac(secret, _text(b"c1", (*_who(payload), state))), mac):
            raise SignatureRefused("what it has saved does not fit: it was changed, or is another job's")
        return state


def _who(payload: Payload) -> tuple[bytes, bytes, bytes]:
    return (payload.uuid or "").encode(), (payload.id or "").encode(), payload.job.encode()


def _text(version: bytes, parts: Sequence[bytes]) -> bytes:
    return version + b"".join([b" %d:%b" % (len(part), part) for part in parts])


def _mac(secret: bytes, text: bytes) -> bytes:
    return urlsafe_b64encode(hmac.digest(secret, text, "sha256")).rstrip(b"=")
