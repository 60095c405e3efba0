"""Urls of databases and of beanstalkd that cannot be used: one line, and never a part of a password in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qd.drivers.database.dialects import server_of
from qd.drivers.urls import BeanstalkdUrl
from qd.errors import ConfigError
from qd.store.failed_jobs_table import FailedJobs

WRONG: list[tuple[Callable[[str], object], str, str]] = [
    (server_of, "postgresql://h:port/x", "not the url of a database"),
    (server_of, "postgresql://[::1/x", "not the url of a database"),
    (server_of, "postgresql://shop:p/ss@h:s3cret", "not the url of a database"),
    (server_of, "sqlite://", "name a file"),
    (server_of, "sqlite:///:memory:", "name a file"),
    (FailedJobs, "postgresql://shop@h:s3cret/x", "port in its url is not a number"),
    (BeanstalkdUrl, "beanstalkd://[::1", "needs a host and a number as port"),
    (BeanstalkdUrl, "beanstalkd://h:port", "needs a host and a number as port"),
]


@pytest.mark.parametrize(("read", "url", "said"), WRONG, ids=[row[1] for row in WRONG])
def test_a_url_that_cannot_be_used_is_refused(read: Callable[[str], object], url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        read(url)
    assert "s3cret" not in str(raised.value)
