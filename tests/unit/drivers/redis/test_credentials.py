"""What a credential provider may return, and how its errors are reported: never with the value it returned or raised."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from qd import config
from qd.config.settings import Settings
from qd.drivers.redis.credentials import Login, check
from qd.drivers.redis.url import RedisUrl
from qd.drivers.redis_driver import parsed
from qd.errors import ConfigError, NeedsMending, Unreachable, Unusable

SECRET = "secret-0123"


class Fixed:
    def __init__(self, given: Any) -> None:
        self.given = given

    def get_credentials(self) -> Any:
        if isinstance(self.given, BaseException):
            raise self.given
        return self.given


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("shop_credentials")
    monkeypatch.setitem(sys.modules, "shop_credentials", module)
    return module


def ask(shop: ModuleType, provider: object) -> tuple[str | None, str | None]:
    shop.provider = provider  # type: ignore[attr-defined]
    return Login(provider="shop_credentials:provider").ask("h:6379/0")


def test_without_a_provider_the_url_applies() -> None:
    assert Login().ask("h") == (None, None)
    assert RedisUrl("redis://me:word@h/0").login.ask("h") == ("me", "word")


@pytest.mark.parametrize("given", [("me", "word"), ["me", "word"], ("word",), (None, "word"), ("", "word")])
def test_a_provider_returns_user_and_password_or_a_password(shop: ModuleType, given: Any) -> None:
    assert ask(shop, Fixed(given)) == (given[0] if given[0] == "me" else None, "word")
    assert ask(shop, lambda: given)[1] == "word"


WRONG = [
    (None, "returns None instead of (user, password)"),
    (SECRET, "returns an object of type str instead of (user, password)"),
    ((), "returns an object of type tuple instead of (user, password)"),
    (("me", None), "returns None as password instead of a string"),
    (("me", SECRET.encode()), "returns an object of type bytes as password instead of a string"),
    ((b"me", SECRET), "returns an object of type bytes as user instead of a string"),
    (("me", SECRET + "\udc80"), "returns a password that UTF-8 cannot encode"),
    (("me\udc80", SECRET), "returns a user that UTF-8 cannot encode"),
    (ValueError(f"bad answer: {SECRET}\nsecond line"), "raises ValueError (" + __file__),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=lambda each: each if isinstance(each, str) else "")
def test_invalid_credentials_are_one_error_that_does_not_show_them(shop: ModuleType, given: Any, message: str) -> None:
    with pytest.raises(Unusable) as raised:
        ask(shop, Fixed(given))
    assert str(raised.value).startswith(f"no credentials for Redis at h:6379/0: 'shop_credentials:provider' {message}")
    assert isinstance(raised.value, NeedsMending | Unreachable)
    assert SECRET not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_a_provider_does_not_swallow_the_end_of_a_job(shop: ModuleType) -> None:
    with pytest.raises(KeyboardInterrupt):
        ask(shop, Fixed(KeyboardInterrupt()))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module_here:provider", "does not import: ModuleNotFoundError"),
        ("shop_credentials:other", "does not exist: module shop_credentials has no other"),
        ("shop_credentials:number", "is neither an object with get_credentials() nor a function"),
        ("shop_credentials:Kind", "is neither an object with get_credentials() nor a function"),
        ("Qd:NoSuchProvider", "is part of the app, which this process has not imported"),
    ],
)
def test_a_missing_provider_is_named(shop: ModuleType, name: str, message: str) -> None:
    shop.number, shop.Kind = 7, Fixed  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=name) as raised:
        check(parsed(f"redis://h/0?credentials={name}").login.provider)
    assert message in str(raised.value)
    with pytest.raises(Unusable):
        Login(provider=name).ask("h")


def test_an_existing_provider_is_found_by_its_path(shop: ModuleType) -> None:
    shop.inner = Fixed(Fixed(("a", "b")))  # type: ignore[attr-defined]
    check("shop_credentials:inner.given")
    assert Login(provider="shop_credentials:inner.given").ask("h") == ("a", "b")


# -- in qd.toml


def load(folder: Path, text: str, **environ: str) -> Settings:
    path = folder / "qd.toml"
    path.write_text(text)
    return config.load(path, environ=environ)


@pytest.mark.parametrize("kind", ["redis", "rediss+sentinel", "redis+cluster"])
def test_the_url_names_the_provider(tmp_path: Path, kind: str) -> None:
    found = load(tmp_path, f'[connections.redis]\nurl = "{kind}://h/s?a=1"\ncredentials = "shop.aws:provider"\n')
    assert found.connection("redis").url == f"{kind}://h/s?a=1&credentials=shop.aws:provider"
    assert config.provider_of(found.connection("redis").url) == "shop.aws:provider"
    assert config.from_json(config.to_json(found)) == found


def test_a_url_of_the_environment_keeps_the_provider_of_the_file(tmp_path: Path) -> None:
    text = '[connections.redis]\ncredentials = "shop.aws:provider"\n'
    assert load(tmp_path, text).connections["redis"].url is None
    found = load(tmp_path, text, QD_REDIS_URL="redis://h/0")
    assert found.connection("redis").url == "redis://h/0?credentials=shop.aws:provider"


REFUSED = [
    ('url = "embedded:"\ncredentials = "a:b"', "credentials are for a Redis url"),
    ('url = "sqlite:///x"\ncredentials = "a:b"', "credentials are for a Redis url"),
    ('url = "redis://h?credentials=c:d"\ncredentials = "a:b"', "has a credential provider, too: 'c:d'"),
    ('url = "redis://h"\ncredentials = "a.b"', "'a.b' is not of the form MODULE:ATTRIBUTE"),
]


@pytest.mark.parametrize(("lines", "message"), REFUSED)
def test_invalid_credentials_settings_are_refused(tmp_path: Path, lines: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, f"[connections.redis]\n{lines}\n")
    assert message in str(raised.value)
    assert "qd.toml:3" in str(raised.value)


def test_a_password_together_with_a_provider_is_refused() -> None:
    with pytest.raises(ConfigError, match="remove one of them") as raised:
        RedisUrl(f"redis://me:{SECRET}@h/0?credentials=a:b")
    assert SECRET not in str(raised.value)
