"""Parts of redis+sentinel:// URLs, and errors in them, which never show a password."""

from __future__ import annotations

import pytest

from qd import redaction
from qd.drivers.redis.sentinel import Primary, address_of, target_of
from qd.drivers.redis.url import RedisUrl
from qd.errors import ConfigError


def test_all_parts_of_a_url_are_found() -> None:
    url = "redis+sentinel://me:p%40ss@s1:1,[::1]:2,s3/shop/3?sentinel_username=w&sentinel_password=w%21"
    found = Primary(url)
    assert (found.login.user, found.login.password, found.service, found.db) == ("me", "p@ss", "shop", 3)
    assert found.sentinels == [("s1", 1), ("::1", 2), ("s3", 26379)]
    assert found._login == ("w", "w!")
    assert found.tls is None
    assert found.place == "'shop' by the sentinels s1:1, [::1]:2, s3:26379"


def test_database_and_port_are_optional() -> None:
    found = Primary("redis+sentinel://s1/shop")
    assert (found.sentinels, found.db) == ([("s1", 26379)], 0)


def test_tls_applies_to_sentinels_and_servers() -> None:
    assert Primary("rediss+sentinel://s1/shop?ssl_cert_reqs=none").tls is not None


def test_only_a_sentinel_url_queries_sentinels() -> None:
    assert isinstance(target_of("redis+sentinel://s1/shop"), Primary)
    assert type(target_of("redis://s1/0")) is RedisUrl


WRONG = [
    ("redis+sentinel://s1:26379,s2:26379", "names no service"),
    ("redis+sentinel://s1:26379/", "names no service"),
    ("redis+sentinel:///shop", "'' is not the host:port of a sentinel"),
    ("redis+sentinel://s1,/shop", "'' is not the host:port of a sentinel"),
    ("redis+sentinel://s1:port/shop", "'s1:port' is not the host:port of a sentinel"),
    ("redis+sentinel://s1:70000/shop", "'s1:70000' is not the host:port of a sentinel"),
    ("redis+sentinel://s1,[::1/shop", "'[::1' is not the host:port of a sentinel"),
    ("redis+sentinel://s1:0/shop", "'s1:0' is not the host:port of a sentinel"),
    ("redis+sentinel://s1/shop/first", "'first' is not a database number"),
    ("redis+sentinel://s1/shop?sentinel_pasword=secret99", "did you mean 'sentinel_password'"),
    ("rediss+sentinel://s1/shop?ssl_ca_certs=/nowhere", "ssl_ca_certs=/nowhere"),
    ("rediss+sentinel://s1/shop?ssl_cert_reqs=maybe", "is neither required nor none"),
]


@pytest.mark.parametrize(("url", "message"), WRONG)
def test_errors_in_a_url_are_named(url: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Primary(url)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "secret99" not in str(raised.value)


def test_an_ipv6_address_is_one_address() -> None:
    assert address_of("[fe80::1]") == ("fe80::1", 26379)
    with pytest.raises(ConfigError):
        address_of("fe80::1:26379")


def test_both_passwords_of_a_sentinel_url_are_secrets() -> None:
    url = "redis+sentinel://me:of-the-server@s1,s2/shop?sentinel_username=w&sentinel_password=of-the-sentinels"
    assert redaction.passwords_in(url) == ["of-the-server", "of-the-sentinels"]
    shown = redaction.mask_url(url)
    assert shown == "redis+sentinel://me:***@s1,s2/shop?sentinel_username=w&sentinel_password=***"
