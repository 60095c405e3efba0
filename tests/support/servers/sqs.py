"""Amazon SQS as implemented by moto: an HTTP server in its own process. It keeps queues in memory only, so a restart forgets
them."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import urllib.request
from pathlib import Path

from tests.support.programs import missing
from tests.support.servers.running import Running

PROGRAM = Path(__file__).with_name("moto_alone.py")
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing-secret",
    "AWS_SESSION_TOKEN": "testing-token",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Sqs(Running):
    """endpoint: for boto3's endpoint_url. credentials: environment variables for its clients; not secret."""

    name = "moto"
    credentials = CREDENTIALS

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The url for qd.toml."""
        return f"sqs://{CREDENTIALS['AWS_DEFAULT_REGION']}?endpoint={self.endpoint}"

    @property
    def env(self) -> dict[str, str]:
        return CREDENTIALS

    def command(self) -> list[str]:
        return [sys.executable, "-P", "-W", "ignore", str(PROGRAM), "-H", "127.0.0.1", "-p", str(self.port)]

    def answers(self) -> bool:
        with urllib.request.urlopen(f"{self.endpoint}/moto-api/data.json", timeout=10) as reply:
            return isinstance(json.load(reply), dict)

    def reset(self) -> None:
        """Forget every queue."""
        asked = urllib.request.Request(f"{self.endpoint}/moto-api/reset", method="POST", data=b"")
        with urllib.request.urlopen(asked, timeout=60) as reply:
            assert reply.status == 200

    def stands_still(self, seconds: float) -> None:
        """Suspend the server for this many seconds."""
        with self.suspended():
            threading.Event().wait(seconds)

    def client(self):
        """A boto3 client for SQS."""
        import boto3

        names = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing-secret"}
        return boto3.client("sqs", endpoint_url=self.endpoint, region_name=CREDENTIALS["AWS_DEFAULT_REGION"], **names)


def installed() -> None:
    """Skip the test if moto or boto3 is missing."""
    for name in ("moto", "flask", "boto3"):
        if importlib.util.find_spec(name) is None:
            missing(f"{name} (moto[server])")
