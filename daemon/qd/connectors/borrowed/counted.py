"""Attempts that another program has made and only the server has counted, in a payload that has no count of its own."""

from __future__ import annotations

from qd.connectors.base import Reserved
from qd.connectors.borrowed.backend import Parcel


def counted(parcel: Parcel) -> bytes:
    """The payload as it is leased: with what the server has counted at its end, where it says nothing itself."""
    body = parcel.body
    if not (parcel.attempts or parcel.crashes) or b'"attempts"' in body or not body.rstrip().endswith(b"}"):
        return body
    close = body.rindex(b"}")
    if body[:close].strip() == b"{":
        return body
    crashes = b',"crashes":%d' % parcel.crashes if parcel.crashes else b""
    return body[:close] + b',"attempts":%d' % parcel.attempts + crashes + body[close:]


def uncounted(job: Reserved) -> Reserved:
    """Of what `counted` has changed: so that what stood there before is what was pushed, without those counts."""
    return job._replace(start=job.start - 1, length=job.length + 1, before=b"")
