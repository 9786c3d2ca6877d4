"""What a registry answers to strangers, and what a login is taken from.

No image is needed: the registry of these tests has one manifest, and whatever else a
test wants of it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from support.endless import BODY, HEAD, drip, flood
from support.served import StandIn, served
from support.waiting import SOON

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.launch.registry import MOST, Manifest, RegistryError, Repository

KIND = "application/vnd.oci.image.manifest.v1+json"
IMAGE = Manifest(KIND, b'{"schemaVersion": 2}')
LOGIN = base64.b64encode(b"robot:a-password").decode()


class Guarded(ThreadingHTTPServer):
    """Gives its manifest to whoever has the token that it gives to a login.

    `challenges` are its headers, in which `REALM` is where tokens are asked for.
    """

    def __init__(self) -> None:
        self.challenges = ['Bearer realm="REALM",service="r"']
        self.speaks: Callable[[StandIn], bool] = lambda _: False  # says all by itself
        self.asked: list[tuple[str, str | None]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(StandIn):
    server: Guarded

    def do_GET(self) -> None:  # noqa: N802
        told = self.headers.get("Authorization")
        self.server.asked.append((self.path, told))
        if self.server.speaks(self):
            self.close_connection = True
        elif self.path.startswith("/token"):
            if told == f"Basic {LOGIN}":
                self.answer(200, b'{"token": "a-token"}', "application/json")
            else:
                self.answer(401)
        elif told == "Bearer a-token":
            self.answer(200, IMAGE.content, KIND)
        else:
            self.send_response(401)
            for challenge in self.server.challenges:
                realm = f"http://{self.server.host}/token"
                self.send_header("WWW-Authenticate", challenge.replace("REALM", realm))
            self.send_header("Content-Length", "0")
            self.end_headers()


@pytest.fixture
def registry() -> Iterator[Guarded]:
    with served(Guarded()) as server:
        yield server


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path / "config.json"


@pytest.fixture
def login(registry: Guarded, config: Path) -> None:
    config.write_text(json.dumps({"auths": {registry.host: {"auth": LOGIN}}}))


@pytest.mark.parametrize(
    "realm",
    [
        "http://localhost.evil.example/token",
        "http://127.0.0.1.evil.example/token",
        "http://127.0.0.1@evil.example/token",
        "http://localhost@evil.example/token",
        "https://127.0.0.1:1@evil.example/token",
        "http://evil.example/token",
        "http://evil.example\\\\@127.0.0.1/token",
        "HTTP://evil.example#@localhost/token",
        "ftp://127.0.0.1/token",
        "https://169.254.169.254/token",
        "https:/token",
        "",
    ],
)
@pytest.mark.usefixtures("login")
def test_a_login_goes_nowhere_in_clear(registry, realm):
    """A realm that only looks like this machine is not asked."""
    registry.challenges = [f'Bearer realm="{realm}"']
    with pytest.raises(RegistryError, match="not asked"):
        Repository(f"{registry.host}/totals").get("live")


def test_a_login_of_another_machine_is_not_sent_to_this_one():
    """Plain HTTP is for a registry that is here itself."""
    near, far = Repository("localhost:5000/totals"), Repository("registry:5000/totals")
    realm = "http://127.0.0.1:5001/token?a=b"
    assert near._realm(realm) == ("http://127.0.0.1:5001", "/token?a=b")
    with pytest.raises(RegistryError, match="not asked"):
        far._realm(realm)
    assert far._realm("https://auth:1/t") == ("https://auth:1", "/t")


@pytest.mark.parametrize(
    "challenges",
    [
        ['Bearer realm="REALM",service="r",scope="repository:totals:pull,push"'],
        ['Basic realm="Bearer", Bearer realm="REALM"'],
        ['Basic realm="a registry"', 'Bearer realm="REALM"'],
        ['Bearer realm="REALM"', 'Basic realm="a registry"'],
        ['  bearer   realm = "REALM" ,  service = r  '],
        ['Basic realm="Bearer realm=\\"http://evil.example\\"", BEARER realm="REALM"'],
        ['Negotiate YII=, Bearer realm="REALM"'],
        ['Bearer, Bearer realm="REALM"'],
        ['Bearer error="invalid_token",realm="REALM?of=this"'],
    ],
)
@pytest.mark.usefixtures("login")
def test_a_registry_that_offers_a_token_is_understood(registry, challenges):
    """In one header or in several, whatever it offers beside it."""
    registry.challenges = challenges
    assert Repository(f"{registry.host}/totals").get("live") == IMAGE


USER = {"username": "robot", "password": "a-password"}
FORMS = {
    "HOST": {"auth": LOGIN},
    "https://HOST": {"auth": LOGIN},
    "https://HOST/": USER,
    "https://HOST/v1/": {"auth": LOGIN},
    "https://HOST/v2/": {"auth": ""} | USER,
    "http://HOST": {"auth": LOGIN},
    "HOST/team": {"auth": LOGIN},
    "HOST/team/totals": USER,
}


@pytest.mark.parametrize("form", FORMS)
def test_a_login_is_found(registry, config, form):
    """However Docker, or podman, has written it."""
    kept = {form.replace("HOST", registry.host): FORMS[form], "other": {"auth": "x"}}
    config.write_text(json.dumps({"auths": kept}))
    assert Repository(f"{registry.host}/team/totals").get("live") == IMAGE


@pytest.mark.parametrize(
    "text",
    [
        None,
        "no JSON",
        "[]",
        '{"auths": {"HOST.evil.example": {"auth": "LOGIN"}}}',
        '{"auths": {"HOST/other": {"auth": "LOGIN"}}}',
        '{"auths": {"HOST": {}}, "credsStore": "desktop"}',
        '{"auths": {"HOST": {"identitytoken": "x"}}}',
        '{"auths": {"HOST": {"auth": "no base64"}}}',
    ],
)
@pytest.mark.parametrize("challenge", ['Bearer realm="REALM"', 'Basic realm="r"'])
def test_no_login_found_is_said(registry, config, text, challenge):
    """With the file that was read, and what writes it."""
    registry.challenges = [challenge]
    if text is not None:
        config.write_text(text.replace("HOST", registry.host).replace("LOGIN", LOGIN))
    with pytest.raises(RegistryError) as refused:
        Repository(f"{registry.host}/totals").get("live")
    assert f"no login of {registry.host} found in {config}" in str(refused.value)


def test_a_login_that_is_refused_is_said(registry, config):
    """It is there, and the registry does not take it."""
    auth = base64.b64encode(b"robot:another-password").decode()
    config.write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
    with pytest.raises(RegistryError) as refused:
        Repository(f"{registry.host}/totals").get("live")
    assert f"the login of {registry.host} in {config} is refused" in str(refused.value)
    assert auth not in str(refused.value)


@pytest.mark.ci
@pytest.mark.parametrize("at", ["/v2/", "/token"])
@pytest.mark.parametrize("part", [HEAD, BODY])
@pytest.mark.parametrize("speaks", [drip, flood])
@pytest.mark.usefixtures("login")
def test_an_answer_without_end_is_given_up(registry, at, part, speaks):
    """In bytes and in time, wherever it is read."""
    registry.speaks = lambda handler: (
        handler.path.startswith(at) and speaks(handler, part)
    )
    with pytest.raises(RegistryError, match=f"no answer of {registry.host}"):
        Repository(f"{registry.host}/totals", SOON / 4).get("live")


@pytest.mark.usefixtures("login")
def test_a_manifest_that_is_too_long_is_refused(registry):
    """It would go into the decision log."""

    def speak(handler: StandIn) -> bool:
        handler.answer(200, bytes(MOST + 1), KIND)
        return True

    registry.speaks = speak
    with pytest.raises(ConfigurationError, match="build for fewer platforms"):
        Repository(f"{registry.host}/totals").get("live")
