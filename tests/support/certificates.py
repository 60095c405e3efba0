"""A certificate authority of the test's own, by the openssl program: a server's certificate for 127.0.0.1 and a client's."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.peers import program


class Certificates:
    """Files in `folder`: ca.crt, server.crt, server.key, client.crt, client.key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._make("ca", "-x509", "-subj", "/CN=an authority nobody knows")
        self._sign("server", "subjectAltName=IP:127.0.0.1")
        self._sign("client", "extendedKeyUsage=clientAuth")

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def _make(self, name: str, *options: str) -> None:
        kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        out = f"{name}.crt" if "-x509" in options else f"{name}.csr"
        self._openssl("req", "-new", *kind, "-keyout", self.path(f"{name}.key"), "-out", self.path(out), *options)

    def _sign(self, name: str, extension: str) -> None:
        self._make(name, "-subj", f"/CN={name}")
        (self.folder / "extension").write_text(extension)
        by = ["-CA", self.path("ca.crt"), "-CAkey", self.path("ca.key"), "-CAcreateserial", "-days", "2"]
        with_ = ["-extfile", self.path("extension"), "-out", self.path(f"{name}.crt")]
        self._openssl("x509", "-req", "-in", self.path(f"{name}.csr"), *by, *with_)

    def _openssl(self, *words: str) -> None:
        subprocess.run([program("openssl"), *words], check=True, capture_output=True)
