"""Names of keys on a cluster, their slots, and the parts of a cluster URL."""

from __future__ import annotations

import pytest

from qd.drivers.cluster.nodes import Names, ready_name, slot_of
from qd.drivers.redis.url import seeds_of
from qd.errors import ConfigError, ServerRefused

QUEUE_KEYS = (
    "",
    ":delayed",
    ":reserved",
    ":notify",
    ":owners",
    ":paused",
    ":failed",
    ":failed_at",
    ":deaths",
    ":keyed",
)


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        ("123456789", 0x31C3),  # the check value of CRC16/XMODEM
        ("foo", 12182),
        ("{user1000}.following", 3443),
        ("user1000", 3443),
        ("foo{}{bar}", 8363),
        ("foo{{bar}}zap", 4015),
        ("foo{bar}{zap}", 5061),
        (b"\xff\xfe", slot_of(b"\xff\xfe")),
    ],
)
def test_slots_are_computed_as_the_server_does(key: str | bytes, slot: int) -> None:
    assert slot_of(key) == slot  # from the Redis documentation and CLUSTER KEYSLOT


@pytest.mark.parametrize(
    ("name", "real"),
    [
        ("queues:mail", "queues:{mail}"),
        ("queues:mail:delayed", "queues:{mail}:delayed"),
        ("queues:mail:failed_at", "queues:{mail}:failed_at"),
        ("queues:{shop}:mail", "queues:{shop}:mail"),
        ("queues:{}mail", "queues:{{}mail}"),
        ("queues:shop:mail:notify", "queues:{shop:mail}:notify"),
        ("queues:mail:ends", "queues:{mail:ends}"),
        ("qd:batch:6f1c", "qd:batch:{6f1c}"),
        ("qd:batch:6f1c:pending", "qd:batch:{6f1c}:pending"),
        ("qd:errors:a:b", "qd:errors:{a:b}"),
        ("qd:rest:a:b", "qd:rest:{a:b}"),
        ("qd:ticks", "qd:{ticks}"),
        ("qd:ticks:ends", "qd:{ticks}:ends"),
        ("qd:mutex:{a}:line", "qd:mutex:{a}:line"),
        ("qd:masters", "qd:masters"),
        ("{qd:at:other}:queues:mail:notify", "{qd:at:other}:queues:mail:notify"),
        ("{qd:at:other}:qd:batch:6f1c", "{qd:at:other}:qd:batch:6f1c"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "shop_database_"])
def test_names_of_related_keys_get_a_hash_tag(name: str, real: str, prefix: str) -> None:
    names = Names(prefix)
    assert names.real(prefix + name) == prefix + real
    assert names.slot(prefix + name) == slot_of(prefix + real)
    if not name.endswith(":ends") and "{}" not in name:
        assert names.original(prefix + real) == prefix + name


@pytest.mark.parametrize("queue", ["mail", "shop:mail", "{shop}:mail", "{}", "{", "a{b", "a}b", "é 世界", "{a}{b}"])
@pytest.mark.parametrize("prefix", ["", "app_", "{app}", "a:{app}:"])
def test_all_keys_of_a_queue_share_one_slot(queue: str, prefix: str) -> None:
    names = Names(prefix)
    ready = names.real(f"{prefix}queues:{queue}")
    own = [ready + ending for ending in (":ends", ":seen", ":cancel", ":none")]
    real = [names.real(f"{prefix}queues:{queue}{ending}") for ending in QUEUE_KEYS]
    assert len({slot_of(key) for key in (*real, *own)}) == 1
    assert real[0] == ready
    assert {ready_name(names, f"{prefix}queues:{queue}{ending}") for ending in QUEUE_KEYS} == {ready}


def test_a_queue_that_cannot_be_tagged_is_refused() -> None:
    with pytest.raises(ServerRefused, match="begins with a closing brace"):
        Names().real("queues:}x")


def test_keys_that_only_exist_on_a_cluster_are_not_queues() -> None:
    names = Names("p_")
    assert [names.original(f"p_queues:{{a}}:{word}") for word in ("ends", "seen", "cancel")] == [None] * 3
    assert names.original("p_queues:{a}:paused") == "p_queues:a:paused"


def test_a_cluster_url_lists_nodes_and_connection_options() -> None:
    seeds = seeds_of("rediss+cluster://me:s%40cret@c1,c2:7000, [::1]:7001?ssl_cert_reqs=none")
    assert seeds.places == ("c1:6379", "c2:7000", "[::1]:7001")
    assert seeds.url("c9:1") == "rediss://me:s%40cret@c9:1?ssl_cert_reqs=none"
    assert seeds_of("redis+cluster://c1/0").url("c1:6379") == "redis://c1:6379"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis+cluster://", "names no server"),
        ("redis+cluster://c1/3", "database 0 only"),
        ("redis+cluster://c1?db=3", "database 0 only"),
        ("redis+cluster://c1:x", "is not host:port"),
        ("redis+cluster://c1?colour=red", "unknown option 'colour'"),
        ("redis://c1", "unknown kind of url 'redis:'"),
    ],
)
def test_errors_in_a_cluster_url_do_not_show_the_password(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        seeds_of(url.replace("//", "//me:secret@"))
    assert "secret" not in str(raised.value)
