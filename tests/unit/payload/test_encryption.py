"""Encryption of arguments: the format, the choice of the key, what is reported, and what is shown."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64decode, b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qd import DeclarationError, Qd, config, current_job
from qd.config.settings import EncryptionSettings, Settings, SigningSettings
from qd.errors import ArgumentError, ConfigError, DecryptionRefused
from qd.payload.encryption import hidden, opened, sealed
from qd.payload.format import read
from qd.payload.signing import Signing
from qd.redaction import redact
from tests.support.fakes import FakeQd, settings

SECRET = b64encode(b"0123456789abcdef0123456789abcdef").decode()
OTHER = b64encode(b"another key of exactly 32 bytes!").decode()
OLD, NEW = f"2026a:{SECRET}", f"2026b:base64:{OTHER}"
DATA = '{"n":1,"text":"é/ü"}'.encode()
# What Illuminate\Encryption\Encrypter::encryptString(DATA) returned, with the key OLD and AES-256-GCM.
LARAVEL = (
    b'{"encrypted":"eyJpdiI6Ik5wUDVJV253c2o1Ym5qZ3IiLCJ2YWx1ZSI6IlVmVzJDMGs1ZmZLLzZFUVZ1ZUNnSWpuNlBOWWV5QT09IiwibWFjIjoi'
    b'IiwidGFnIjoiVmFPZVFIM3lybXVJeDlRWDZQbDdSZz09In0="}'
)


def envelope(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(b64decode(json.loads(data)["encrypted"]))
    return found


def changed(data: bytes, **values: object) -> bytes:
    text = json.dumps(envelope(data) | values).encode()
    return json.dumps({"encrypted": b64encode(text).decode()}).encode()


def test_the_first_key_encrypts_and_all_of_them_decrypt():
    text = sealed(DATA, (NEW, OLD), "x")
    assert list(envelope(text)) == ["iv", "value", "mac", "tag", "key"]
    assert envelope(text)["key"] == "2026b"
    assert opened(text, (OLD, NEW)) == opened(text, (NEW,)) == DATA
    assert text != sealed(DATA, (NEW, OLD), "x")


def test_what_laravel_has_encrypted_is_decrypted_with_any_of_the_keys():
    assert opened(LARAVEL, (NEW, OLD)) == DATA
    assert opened(LARAVEL.replace(b'":"', b'" : "'), (OLD,)) == DATA


@pytest.mark.parametrize("data", [b"{}", b'""', b'{"encrypted":7}', b'{"encrypted":"eyJ","other":1}'])
def test_other_data_is_returned_unchanged(data: bytes):
    assert opened(data, (OLD,)) == data


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (
            changed(sealed(DATA, (OLD,), "x"), value=envelope(sealed(DATA, (OLD,), "x"))["value"]),
            "arguments were changed",
        ),
        (changed(sealed(DATA, (OLD,), "x"), tag="AAAAAAAAAAAAAAAAAAAAAA=="), "key '2026a' has another secret here"),
        (changed(sealed(DATA, (OLD,), "x"), iv="AAAA"), "were changed, or key '2026a'"),
        (changed(sealed(DATA, (OLD,), "x"), iv=7), "not in the format of encrypted ones"),
        (b'{"encrypted":"e30="}', "not in the format of encrypted ones"),
        (b'{"encrypted":"no base64"}', "not in the format of encrypted ones"),
        (changed(sealed(DATA, (f"2026a:{OTHER}",), "x")), "has another secret here"),
    ],
)
def test_changed_arguments_are_refused(data: bytes, fact: str):
    with pytest.raises(DecryptionRefused, match=fact):
        opened(data, (OLD, NEW))


@pytest.mark.parametrize(("data", "named"), [(sealed(DATA, (NEW,), "x"), "the key '2026b'"), (LARAVEL, "a key")])
@pytest.mark.parametrize("keys", [(), (f"2025:{OTHER}",)])
def test_a_missing_key_is_named_with_the_fix(data: bytes, named: str, keys: tuple[str, ...]):
    with pytest.raises(ConfigError) as error:
        opened(data, keys)
    way = "that this program does not have: add it to keys = of [encryption], then `qd restart`"
    assert str(error.value) == f"its arguments are encrypted with {named} {way}"


def test_a_missing_library_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    for act in (lambda: sealed(DATA, (OLD,), "x"), lambda: opened(LARAVEL, (OLD,))):
        with pytest.raises(
            ConfigError, match=r"'cryptography', which is not installed: pip install 'cryptography>=42'"
        ):
            act()


def test_encrypted_arguments_are_not_shown():
    data = sealed(DATA, (OLD,), "x").decode()
    assert hidden(data) == '"<encrypted>"'
    assert hidden(f'{{"data":{data},"id":"1"}}') == '{"data":"<encrypted>","id":"1"}'
    assert hidden('{"encrypted":"yes"}') == '{"encrypted":"yes"}'


# -- dispatch


def pay(card: str, more: object = None) -> None: ...


def app_with(*keys: str, signed: bool = False) -> FakeQd:
    app = FakeQd()
    signing = SigningSettings(("a:s3cret-of-32-characters-or-more!",)) if signed else SigningSettings()
    app.settings = replace(settings(), encryption=EncryptionSettings(keys), signing=signing)
    return app


def test_every_way_to_send_encrypts_and_signs_what_is_encrypted():
    app = app_with(OLD, signed=True)
    job = app.job("shop.pay", encrypted=True)(pay)
    for _ in range(3):
        job.dispatch("4111")
    app.dispatch(job.bind("4111"), job.bind("4111"))
    app.chain(job.bind("4111"), job.bind("4111")).dispatch()
    app.queue("php").push("App\\Jobs\\Pay@fire", {"card": "4111"}, encrypted=True)
    assert len(app.sent) == 7  # a chain is sent as one payload
    for sent in app.sent:
        assert b"4111" not in sent.payload
        payload = read(sent.payload)
        Signing(app.settings.signing.keys).check(payload)
        assert opened(bytes(payload.data), (OLD,)) == b'{"card":"4111"}'


def test_an_encrypted_job_does_not_take_the_readable_result_of_another_one():
    app = app_with(OLD)
    first, job = app.job("shop.find")(find), app.job("shop.pay", encrypted=True)(pay)
    with pytest.raises(DeclarationError, match=r"job 'shop.pay' is encrypted and cannot take the result of a job: "):
        app.chain(first.bind(), job.link(), pass_results=True).dispatch()
    assert app.sent == []


def find() -> str:
    return "4111"


def test_a_job_without_arguments_and_a_raw_job_are_encrypted():
    app = app_with(OLD)
    app.job("a", encrypted=True)(lambda_free).dispatch()
    app.job("b", encrypted=True, raw=True)(raw).dispatch([1])
    assert [opened(bytes(read(sent.payload).data), (OLD,)) for sent in app.sent] == [b"{}", b"[1]"]


def lambda_free() -> None: ...


def raw(data: object) -> None: ...


def test_without_a_key_nothing_is_sent():
    app = app_with()
    with pytest.raises(ConfigError, match=r"job 'shop.pay' is to be encrypted, but no key is configured: keys ="):
        app.job("shop.pay", encrypted=True)(pay).dispatch("4111")
    with pytest.raises(ConfigError, match="no key is configured"):
        app.queue("php").push("App\\Jobs\\Pay@fire", {}, encrypted=True)
    assert app.sent == []


def test_using_cannot_change_whether_a_job_is_encrypted():
    job = app_with(OLD).job("shop.pay")(pay)
    with pytest.raises(DeclarationError, match=r"using\(\) cannot change encrypted: set it in @app.job\(encrypted="):
        job.using(encrypted=True)
    job.using(tries=2).dispatch("4111")


def test_arguments_that_are_nested_too_deep_are_refused_before_they_are_encrypted():
    deep: object = 1
    for _ in range(600):
        deep = [deep]
    with pytest.raises(ArgumentError, match=r"job 'shop.pay' is nested 60[0-9] deep, more than max_depth = 512"):
        app_with(OLD).job("shop.pay", encrypted=True)(pay).dispatch("4111", deep)


def test_fakes_and_inline_jobs_need_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    app, ran = Qd(), list[object]()

    @app.job("shop.pay", encrypted=True)
    def pay(card: str) -> None:
        ran.append((card, current_job().arguments))

    with app.fake() as fake:
        pay.dispatch("4111")
    assert [each.arguments for each in fake.dispatched(pay)] == [{"card": "4111"}]
    with app.inline():
        pay.dispatch("4111")
    assert ran == [("4111", {"card": "4111"})]


def test_the_driver_sync_runs_encrypted_jobs(tmp_path: Path):
    (tmp_path / "qd.toml").write_text(
        f'[qd]\ndefault = "s"\n[connections.s]\ndriver = "sync"\n[encryption]\nkeys = ["{OLD}"]'
    )
    app, ran = Qd(), list[str]()
    app.settings = config.load(tmp_path / "qd.toml", environ={})

    @app.job("shop.pay", encrypted=True)
    def pay(card: str) -> None:
        ran.append(card)

    pay.dispatch("4111")
    assert ran == ["4111"]


# -- the configuration


def load(tmp_path: Path, text: str, **environ: str) -> Settings:
    (tmp_path / "qd.toml").write_text(text)
    return config.load(tmp_path / "qd.toml", environ=environ)


def test_keys_come_from_the_configuration_files_and_the_environment(tmp_path: Path):
    (tmp_path / "key").write_text(f"base64:{OTHER}\n")
    found = load(tmp_path, f'[encryption]\nkeys = ["2026b:file:key", "{OLD}"]\nkeep_messages = true\n')
    assert found.encryption == EncryptionSettings((NEW, OLD), True)
    assert config.from_json(config.to_json(found)).encryption == found.encryption
    found = load(tmp_path, "", QD_ENCRYPTION_KEYS=f"{OLD},base64:{OTHER}")  # Laravel's APP_KEY as it is
    assert opened(sealed(DATA, found.encryption.keys[1:], "x"), found.encryption.keys) == DATA


def test_keys_are_masked_and_have_no_repr(tmp_path: Path):
    found = load(tmp_path, f'[encryption]\nkeys = ["{NEW}", "{OLD}"]\n')
    assert redact(f"{OTHER} and base64:{SECRET}") == "*** and base64:***"
    assert not re.search(f"{OTHER}|{SECRET}", repr(found))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('keys = ["s3cret"]', "key 1 is not ID:SECRET"),
        (
            'keys = ["a:s3cret"]',
            r"the encryption key a is not 32 bytes as base64 \(`openssl rand -base64 32` generates",
        ),
        (f'keys = ["a:{SECRET[:-4]}"]', "the encryption key a is not 32 bytes"),
        (f'keys = ["a:{SECRET[:-1]}"]', "the encryption key a is not 32 bytes"),
        (f'keys = ["a:{SECRET}{SECRET}"]', "the encryption key a is not 32 bytes"),
        ('keys = ["a:file:s3cret"]', "cannot read the encryption key a from .*s3cret: No such file"),
        (f'keys = ["a:{SECRET}", "a:{OTHER}"]', "two encryption keys have the id a"),
    ],
)
def test_a_key_that_cannot_be_used_is_refused_and_not_shown(tmp_path: Path, text: str, message: str):
    with pytest.raises(ConfigError, match=message) as error:
        load(tmp_path, f"[encryption]\n{text}\n")
    assert "file:" in text or not re.search(f"s3cret|{SECRET[:20]}", str(error.value))
