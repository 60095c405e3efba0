"""URLs of connections: what they may contain, the queue names they lead to, and errors that never show a password."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qd.drivers.database.dialects import server_of
from qd.drivers.urls import BeanstalkdUrl, SqsUrl
from qd.errors import ConfigError
from qd.store.failed_jobs_table import FailedJobs


def test_a_url_names_region_account_and_options() -> None:
    address = SqsUrl("sqs://eu-west-1/123456789012?endpoint=http://localhost:9324/&suffix=-staging&longest_delay=60")
    assert (address.region, address.account, address.suffix) == ("eu-west-1", "123456789012", "-staging")
    assert (address.endpoint, address.place, address.longest_delay) == ("http://localhost:9324", "localhost:9324", 60)
    plain = SqsUrl("sqs://us-east-1")
    assert (plain.account, plain.endpoint, plain.longest_delay, plain.shared) == ("", None, 900, False)
    assert plain.place == "sqs.us-east-1.amazonaws.com"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqs://", "names a region"),
        ("sqs:///mail", "names a region"),
        ("sqs://AKIA:secret-word@eu-west-1", "holds no key"),
        ("sqs://eu-west-1/mail", "twelve digits"),
        ("sqs://eu-west-1?endpont=x", "did you mean 'endpoint'"),
        ("sqs://eu-west-1?endpoint=localhost:9324", "written http://"),
        ("sqs://eu-west-1?longest_delay=901", "from 0 to 900"),
        ("sqs://eu-west-1?longest_delay=-1", "from 0 to 900"),
        ("sqs://eu-west-1?shared=maybe", "neither true nor false"),
    ],
)
def test_errors_in_an_sqs_url_are_reported(url: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as raised:
        SqsUrl(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("suffix", "queue", "name"),
    [
        ("", "mail", "mail"),
        ("-staging", "mail", "mail-staging"),
        ("-staging", "mail-staging", "mail-staging"),
        ("-staging", "mail.fifo", "mail-staging.fifo"),
        ("-staging", "mail-staging.fifo", "mail-staging.fifo"),
    ],
)
def test_queue_names_get_the_same_suffix_as_in_laravel(suffix: str, queue: str, name: str) -> None:
    assert SqsUrl(f"sqs://eu-west-1?suffix={suffix}").name(queue) == name


def test_queue_names_begin_with_the_prefix_of_the_connection() -> None:
    assert SqsUrl("sqs://eu-west-1?suffix=-x").name("mail.fifo", "shop-") == "shop-mail-x.fifo"


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


@pytest.mark.parametrize(("read", "url", "message"), WRONG, ids=[row[1] for row in WRONG])
def test_an_unusable_url_is_refused(read: Callable[[str], object], url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        read(url)
    assert "s3cret" not in str(raised.value)
