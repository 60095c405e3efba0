"""Laravel's JSON payload: `making` writes it, `reading` knows its keys: a key that is new is written there
first. `names` draws the uuid and the id.

bus/route.py makes payloads, the worker reads them. Bytes of a payload that is made are changed in files beside this
folder, each for its own keys: unit.py while a job is held, ties.py and links.py for what waits for others, retried.py when
it is sent again, signing.py for "sig".
"""

from qd.payload.making import OWN_KEYS, added, make, tied
from qd.payload.names import new_id, new_pair, new_pairs, new_uuid
from qd.payload.reading import NO_DATA, OBJECT_JOB, Payload, base64url, base64url_decoded, read, tags_of

__all__ = [
    "NO_DATA",
    "OBJECT_JOB",
    "OWN_KEYS",
    "Payload",
    "added",
    "base64url",
    "base64url_decoded",
    "make",
    "new_id",
    "new_pair",
    "new_pairs",
    "new_uuid",
    "read",
    "tags_of",
    "tied",
]
