"""The keys that sign payloads, ID:SECRET, also where the secret stands in a file."""

from __future__ import annotations

from pathlib import Path

from qd.errors import ConfigError

FROM_FILE = "file:"
SHORTEST = 16  # characters of a signing key


def with_secret(key: str, root: Path, origin: str) -> str:
    """ID:SECRET, also where the secret is in a file. Raises ConfigError, which never shows it."""
    id, _, secret = key.partition(":")
    path = secret_file(key, root)
    if path is not None:
        try:
            secret = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no UTF-8 text"
            raise ConfigError(f"{origin}: cannot read the signing key {id} from {path}: {why}") from None
    if len(secret) < SHORTEST or not secret.isprintable():
        raise ConfigError(
            f"{origin}: the signing key {id} is too short to be one (at least {SHORTEST} characters; "
            "`openssl rand -hex 32` makes one)"
        )
    return f"{id}:{secret}"


def secret_file(key: str, root: Path) -> Path | None:
    secret = key.partition(":")[2]
    return root / secret.removeprefix(FROM_FILE) if secret.startswith(FROM_FILE) else None
