"""The url of a connection to SQS, and what its queues are called there."""

from __future__ import annotations

import pytest

from qd.drivers.urls import SqsUrl
from qd.errors import ConfigError


def test_a_url_names_region_account_and_options() -> None:
    address = SqsUrl("sqs://eu-west-1/123456789012?endpoint=http://localhost:9324/&suffix=-staging&longest_delay=60")
    assert (address.region, address.account, address.suffix) == ("eu-west-1", "123456789012", "-staging")
    assert (address.endpoint, address.place, address.longest_delay) == ("http://localhost:9324", "localhost:9324", 60)
    plain = SqsUrl("sqs://us-east-1")
    assert (plain.account, plain.endpoint, plain.longest_delay, plain.shared) == ("", None, 900, False)
    assert plain.place == "sqs.us-east-1.amazonaws.com"


@pytest.mark.parametrize(
    ("url", "says"),
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
def test_what_is_wrong_in_a_url_is_said(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as told:
        SqsUrl(url)
    assert "secret" not in str(told.value)


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
def test_names_get_their_suffix_as_laravel_gives_it(suffix: str, queue: str, name: str) -> None:
    assert SqsUrl(f"sqs://eu-west-1?suffix={suffix}").name(queue) == name


def test_names_begin_with_the_connections_prefix() -> None:
    assert SqsUrl("sqs://eu-west-1?suffix=-x").name("mail.fifo", "shop-") == "shop-mail-x.fifo"
