"""Signatures: what they cover, which key is used, and how an invalid one is reported."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from qd import config
from qd.config.settings import Settings, SigningSettings
from qd.errors import ConfigError, SignatureRefused
from qd.payload.format import read
from qd.payload.reservation import answered, saving
from qd.payload.signing import Signing
from tests.support.fakes import FakeQd, settings

OLD, NEW, OTHER = "2026a:an-old-secret-of-ours", "2026b:a-new-secret-of-ours", "2026c:an-unknown-secret-key"


def app_with(*keys: str) -> FakeQd:
    app = FakeQd()
    app.settings = replace(settings(), signing=SigningSettings(keys))
    app.job("mail.welcome")(welcome)
    return app


def welcome(to: str, n: int = 0) -> None: ...


def pushed(*keys: str) -> bytes:
    """A payload that an app with these keys has sent."""
    app = app_with(*keys)
    app.call("mail.welcome", b'{"to":"a/b \xc3\xa4","n":7}').dispatch()
    return app.sent[-1].payload


def refusal(payload: bytes, *keys: str, require: bool = True) -> str:
    """The reason why it is refused; empty if it may run."""
    try:
        Signing(keys, require).check(read(payload))
    except SignatureRefused as error:
        return str(error)
    return ""


@pytest.mark.parametrize("keys", [(OLD,), (OLD, NEW), (NEW, OLD)])
def test_the_first_key_signs_and_all_of_them_verify(keys: tuple[str, ...]):
    payload = pushed(*keys)
    assert json.loads(payload)["sig"].startswith(f"v2.{keys[0][:5]}.")
    assert refusal(payload, NEW, OLD) == refusal(payload, OLD, NEW) == ""


def test_every_way_to_send_signs():
    app = app_with(NEW)
    queue, job = app.queue("php"), app._registry.get("mail.welcome")
    assert job is not None
    calls = [app.call("mail.welcome", b'{"to":"a"}') for _ in range(3)]
    calls[0].dispatch()
    app.dispatch(*calls[1:])
    queue.push(r"App\Jobs\X@fire", {"n": [1, {}]})
    queue.push("later", delay=60)
    queue.push("no data at all")
    assert len(app.sent) == 6
    assert {refusal(sent.payload, NEW) for sent in app.sent} == {""}
    queue.push_raw(b'{"job":"x"}')
    assert app.sent[-1].payload == b'{"job":"x"}'


def test_nothing_is_signed_without_a_key():
    assert b'"sig"' not in pushed()


@pytest.mark.parametrize("key", ["uuid", "id", "job", "data"])
def test_a_change_of_signed_content_is_detected(key: str):
    payload = pushed(NEW)
    value = json.loads(payload)[key]
    wrong = (
        payload.replace(json.dumps(value).encode(), b'"other"') if key != "data" else payload.replace(b":7}", b":8}")
    )
    assert wrong != payload
    why = "job, id or data were changed, or it was signed with another secret of key 2026b"
    assert refusal(wrong, NEW) == f"its signature does not match: {why}"


def test_the_version_of_the_arguments_is_signed():
    app = app_with(NEW)

    @app.job("priced", version=2, upgrade={1: dict})
    def priced(n: int) -> None: ...

    priced.dispatch(7)
    payload = app.sent[0].payload
    version = b'"job_version":2,'
    assert version in payload
    assert refusal(payload, NEW) == ""
    for other in (b"", b'"job_version":1,', b'"job_version":3,', b'"job_version":2,"job_version":1,'):
        assert refusal(payload.replace(version, other), NEW).startswith("its signature does not match"), other
    unversioned = pushed(NEW)
    assert refusal(unversioned.replace(b'"data":', b'"job_version":2,"data":'), NEW).startswith(
        "its signature does not"
    )
    assert refusal(unversioned.replace(b'"data":', b'"job_version":1,"data":'), NEW) == ""  # what no key means


def test_each_flipped_bit_of_the_signature_is_detected():
    payload = pushed(NEW)
    start, end = payload.index(b"v2."), payload.index(b'",')
    for at in range(start, end):
        for bit in range(7):
            wrong = payload[:at] + bytes([payload[at] ^ 1 << bit]) + payload[at + 1 :]
            if wrong[at : at + 1] not in (b'"', b"\\") and wrong[at] >= 32:
                assert refusal(wrong, NEW), wrong


MOVED = [("ab", "c", "d"), ("a", "bc", "d"), ("abc", "", "d"), ("", "abc", "d"), ("a b", "c", "d"), ("a", "b c", "d")]
MOVED += [("a", "b", "c d"), ("a 1:b", "c", "d"), ("a", "1:b 1:c", "d"), ("a", "b", "1:c 1:d"), ("a", "b c", "d 1")]


@pytest.mark.parametrize("signed", MOVED)
def test_bytes_cannot_be_moved_between_signed_parts(signed: tuple[str, str, str]):
    """Each part is preceded by its length."""
    texts = {
        parts: json.dumps({"uuid": parts[0], "id": parts[1], "job": parts[2], "data": 1}).encode() for parts in MOVED
    }
    sig = Signing([NEW]).signed(b"{", *signed, b"1")[:-1]
    refused = {parts for parts, text in texts.items() if refusal(sig + b"," + text[1:], NEW)}
    assert refused == set(MOVED) - {signed}
    assert refusal(sig.replace(b'"v2.', b'"v1.') + b"," + texts[signed][1:], NEW)


def test_an_unknown_key_is_named():
    assert refusal(pushed(OTHER), NEW, OLD) == "signed with an unknown key: 2026c"
    assert refusal(b'{"job":"x","sig":"' + b"." * 1000 + b'"}', NEW).startswith("signed with an unknown version")
    assert len(refusal(b'{"job":"x","sig":"v2.' + b"k" * 9999 + b'"}', NEW)) < 100


def test_a_missing_signature_is_refused_if_required_and_a_wrong_one_always():
    assert refusal(pushed(), NEW) == "unsigned"
    assert refusal(pushed(), NEW, require=False) == ""
    assert refusal(pushed(OTHER), NEW, require=False)


def test_the_signature_stays_valid_when_counts_change():
    payload = pushed(NEW).replace(b'"attempts":0', b'"attempts":1,"rsv":"Tok3n.1.1.1"')
    assert refusal(answered(payload, "Tok3n.1.1.1", attempts=5, exceptions=2, held=9), NEW) == ""


def test_the_duplicate_key_that_is_verified_is_the_one_that_runs():
    payload = pushed(NEW)
    twice = payload[:-1] + b',"data":{"to":"mallory"}}'
    assert b"mallory" in bytes(read(twice).data)
    assert refusal(twice, NEW)


# -- the configuration


def load(tmp_path, text: str, **environ: str) -> Settings:
    (tmp_path / "qd.toml").write_text(text)
    return config.load(tmp_path / "qd.toml", environ=environ)


def test_signing_keys_come_from_the_configuration_files_and_the_environment(tmp_path):
    (tmp_path / "key").write_text("a-new-secret-of-ours\n")
    found = load(tmp_path, f'[signing]\nkeys = ["2026b:file:key", "{OLD}"]\n')
    assert found.signing == SigningSettings((NEW, OLD), True)
    assert found.secret_files == (str(tmp_path / "key"),)
    assert config.from_json(config.to_json(found)).signing == found.signing
    found = load(tmp_path, "", QD_SIGNING_KEYS=f"{OLD},{NEW}", QD_SIGNING_REQUIRE="no")
    assert found.signing == SigningSettings((OLD, NEW), False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('keys = ["s3cret-without-an-id!"]', "key 1 is not ID:SECRET"),
        ('keys = ["a:s3cret-with a space"]', "key 1 is not ID:SECRET"),
        ('keys = ["a:s3cret"]', "the signing key a is too short"),
        ('keys = ["a:file:s3cret"]', "cannot read the signing key a from .*s3cret: No such file"),
        ('keys = ["a:s3cret-s3cret-s3cret", "a:s3cret-s3cret-s3cre2"]', "two signing keys have the id a"),
        ("require = true", "require = true needs signing keys"),
    ],
)
def test_a_key_that_cannot_be_used_is_refused_and_not_shown(tmp_path, text: str, message: str):
    with pytest.raises(ConfigError, match=message) as error:
        load(tmp_path, f"[signing]\n{text}\n")
    assert "file:" in text or "s3cret" not in str(error.value)


def test_no_repr_shows_a_secret(tmp_path):
    found = load(tmp_path, f'[signing]\nkeys = ["{NEW}"]\n[connections.redis]\nurl = "redis://:hunter2000@h"\n')
    app = app_with(NEW)
    shown = repr((found, found.signing, app, app.settings, Signing([NEW]), vars(app)))
    assert not re.search("a-new-secret|hunter2000", shown)


def saved_by(payload: bytes, state: bytes, *keys: str) -> bytes:
    """The reserved payload after job.checkpoint()."""
    held = payload.replace(b'"attempts":0', b'"attempts":1,"rsv":"T.1.2.1"')
    return saving(held, "T.1.2.1", Signing(keys).sealed(read(held), state))


def test_a_checkpoint_is_signed_and_verified_with_any_key():
    payload = pushed(OLD)
    held = saved_by(payload, b'{"row":7}', NEW, OLD)
    assert Signing([OLD, NEW]).opened(read(held)) == b'{"row":7}'
    assert Signing([OLD]).opened(read(payload)) is None


def test_a_forged_or_foreign_checkpoint_is_refused():
    mine, other = pushed(NEW), pushed(NEW)
    held = saved_by(mine, b"7", NEW)
    forged = [
        saved_by(mine, b"7", OTHER),
        saving(held, "T.1.2.1", b"8"),
        saving(held, "T.1.2.1", (read(held).checkpoint or b"")[:-1] + b"8"),
        saving(saved_by(other, b"7", NEW), "T.1.2.1", read(held).checkpoint or b""),
    ]
    for text in forged:
        with pytest.raises(SignatureRefused, match="its checkpoint does not match"):
            Signing([NEW]).opened(read(text))


def test_an_unsigned_job_saves_an_unsigned_checkpoint():
    held = saved_by(pushed(), b"7", NEW)
    assert read(held).checkpoint == Signing([NEW], require=False).opened(read(held)) == b"7"


def test_the_result_of_a_step_is_signed_with_its_name_and_job():
    mine, other = read(pushed(NEW)), read(pushed(NEW))
    signing = Signing([NEW])
    sealed = signing.sealed(mine, b"7", b"fetch")
    assert Signing([OLD, NEW]).opened(mine, sealed, b"fetch") == b"7"
    forged = [
        (mine, sealed, b"pay"),
        (other, sealed, b"fetch"),
        (mine, sealed[:-1] + b"8", b"fetch"),
        (mine, b"8", b"fetch"),
        (mine, signing.sealed(mine, b"7"), b"fetch"),  # a checkpoint
        (mine, Signing([OTHER]).sealed(mine, b"7", b"fetch"), b"fetch"),
    ]
    for payload, text, name in forged:
        with pytest.raises(SignatureRefused, match=f"its step '{name.decode()}' does not match"):
            signing.opened(payload, text, name)
    unsigned = read(pushed())
    assert Signing([NEW], require=False).opened(unsigned, signing.sealed(unsigned, b"7", b"fetch"), b"fetch") == b"7"
