"""The compose file is whole, closed to the network, and bounds each container."""

import os
import re

import pytest
from support.programs import ran
from support.waiting import AT_LAST

from containers.files import (
    COMPOSE,
    DOCKERFILE,
    ENV_FILES,
    ONCE,
    OURS,
    PROFILES,
    ROOT,
    mounts,
    plugin,
    services,
    settings,
    stack,
    variables,
)

SERVICES = sorted(services())
MAIN_ENV = settings(ENV_FILES[0])


@pytest.mark.nightly
@pytest.mark.parametrize("extra", [None, *ENV_FILES[1:]], ids=lambda p: p and p.name)
def test_docker_compose_takes_the_file(extra):
    """With .env alone, and with each of the other files after it."""
    files = [ENV_FILES[0], *([extra] if extra else [])]
    chosen = [word for path in files for word in ("--env-file", str(path))]
    command = [plugin(), "-f", str(COMPOSE), *chosen, "--profile", "*", "config", "-q"]
    path = {"PATH": os.environ["PATH"], "HOME": "/"}
    done = ran(command, timeout=AT_LAST, env=path)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_variable_is_in_the_environment_file():
    """None is empty by mistake, and none is left over."""
    read = variables(COMPOSE.read_text())
    assert read | {"COMPOSE_PROFILES"} == set(MAIN_ENV)
    for path in ENV_FILES[1:]:
        assert settings(path).keys() <= MAIN_ENV.keys(), path


def test_profiles_are_those_that_are_documented():
    """What each file of settings switches on exists."""
    named = {p for s in services().values() for p in s.get("profiles", [])}
    assert named == PROFILES
    for path in ENV_FILES:
        assert set(settings(path)["COMPOSE_PROFILES"].split(",")) <= named, path


def test_every_image_is_pinned():
    """To a version that is not a name for the newest, and in .env only."""
    for name, service in services().items():
        (variable,) = variables(service["image"])
        assert service["image"] == f"${{{variable}}}", name
        assert re.fullmatch(r"[a-z0-9/-]+:v?\d+\.\d+[\w.-]*", MAIN_ENV[variable]), name
    assert MAIN_ENV["PYTHON_IMAGE"] in DOCKERFILE.read_text()


def test_every_port_is_published_on_loopback_only():
    """Nobody else on the network reaches a container; no two want one port."""
    ports = [port for s in services().values() for port in s.get("ports", [])]
    for port in ports:
        assert re.fullmatch(r"127\.0\.0\.1:\$\{[A-Z_]+_PORT\}:\d+", port), port
    wanted = [value for name, value in MAIN_ENV.items() if name.endswith("_PORT")]
    assert len(ports) == len(wanted) == len(set(wanted))


def test_every_mount_exists():
    """A file of this repository, read only; or a volume that is declared."""
    declared, used = set(stack()["volumes"]), set()
    for name, service in services().items():
        for source, target, read_only in mounts(service):
            if source.startswith("./"):
                assert (ROOT / source).exists(), (name, source)
                assert read_only, (name, source)
            else:
                used.add(source)
            assert target.startswith("/"), (name, target)
    assert used == declared


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_bounded_and_asked_how_it_is(name):
    """A limit of its memory, and a health check unless it ends by itself."""
    service = services()[name]
    assert re.fullmatch(r"\d+[mg]", service["mem_limit"])
    assert ("healthcheck" in service) == (name not in ONCE)
    if name in ONCE:
        assert service["restart"] == "no"
    elif service["image"] == OURS and "HEALTH_URL" in str(service["healthcheck"]):
        assert service["environment"]["HEALTH_URL"].startswith("http://127.0.0.1:")


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_depended_on_is_waited_for(name):
    """Until it is healthy, or has ended well; it is there in every profile."""
    everything = services()
    for other, how in everything[name].get("depends_on", {}).items():
        ends = other in ONCE
        wanted = "service_completed_successfully" if ends else "service_healthy"
        assert how["condition"] == wanted, other
        elsewhere = set(everything[other].get("profiles", []))
        if not elsewhere <= set(everything[name].get("profiles", [])):
            assert how["required"] is False, other


def test_ours_run_as_nobody_with_nothing():
    """One image without root, in exec form: SIGTERM reaches who can end cleanly."""
    for name, service in services().items():
        if service["image"] == OURS:
            assert service["cap_drop"] == ["ALL"], name
            assert service["init"] is True, name
            assert "user" not in service, name
    said = DOCKERFILE.read_text()
    *_, last = re.findall(r"^USER (.+)$", said, re.MULTILINE)
    assert last == "10001:10001"
    for word in ("ENTRYPOINT", "CMD"):
        forms = re.findall(rf"^\s*{word} (.)", said, re.MULTILINE)
        assert forms, word
        assert set(forms) == {"["}, word


def test_no_password_is_written_down():
    """Not in a file of ours, not in a URL: they are made at the first start."""
    texts = [COMPOSE.read_text(), *(path.read_text() for path in ENV_FILES)]
    for text in texts:
        assert not re.search(r"://[^/\s@]*:[^/\s@]*@", text)
        for name, value in re.findall(r"(\w*PASSWORD\w*)[=:] *(\S+)", text):
            assert name.endswith("_FILE") or value.startswith("$$(cat"), name
