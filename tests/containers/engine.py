"""A container engine of our own, and the images of the file, made here under its tags.

Nothing can be pulled where these tests run. Ours is built from the Dockerfile as it is;
the others from `tools/engine/images`, out of Debian's packages, the jars of SkyWalking,
Kafka and ActiveMQ, and Jaeger's source. So this proves wiring, mounts, health checks,
names and networks; it does not prove the versions that .env names.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from support.waiting import AT_LAST, until

from containers.files import ENGINE, ENV_FILES, ROOT, settings
from participants.processes import Process, stopping

CACHE: Final = ROOT / ".cache"
IMAGES: Final = ROOT / "tools" / "engine" / "images"


class Engine:
    """It, by its command line.

    Args:
        folder: for its socket and what it holds while it runs.
    """

    def __init__(self, folder: Path) -> None:
        unpacked = ENGINE / "unpacked" / "usr"
        libraries = unpacked / "lib" / "x86_64-linux-gnu"
        path = [ENGINE / "bin", unpacked / "bin", unpacked / "sbin"]
        self.folder = folder
        self.socket = f"unix://{folder / 'docker.sock'}"
        self.environment = {
            "PATH": ":".join([*map(str, path), os.environ["PATH"]]),
            "LD_LIBRARY_PATH": str(libraries),
            "XTABLES_LIBDIR": str(libraries / "xtables"),
            "DOCKER_BUILDKIT": "0",
            "HOME": str(folder),
        }

    def process(self) -> Process:
        """Return the engine; nothing of it listens but a socket in its folder."""
        options = {
            "data-root": ENGINE / "images",
            "exec-root": self.folder / "exec",
            "pidfile": self.folder / "docker.pid",
            "storage-driver": "overlay2",
            "iptables": "false",
            "ip6tables": "false",
            "ip-forward": "false",
            "bridge": "none",
            "host": self.socket,
        }
        program = str(ENGINE / "unpacked" / "usr" / "sbin" / "dockerd")
        command = [program, *(f"--{name}={value}" for name, value in options.items())]
        return Process("engine", command, self.folder / "dockerd.log", self.environment)

    def docker(self, *words: str) -> str:
        """Run a command of docker, which must succeed; return what it says."""
        return self.run("docker", *words)

    def run(
        self, program: str, *words: str, told: Mapping[str, str] | None = None
    ) -> str:
        """Run a program against it, which must succeed; return what it says."""
        done = subprocess.run(
            [shutil.which(program, path=self.environment["PATH"]) or program, *words],
            env={**self.environment, "DOCKER_HOST": self.socket, **(told or {})},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=AT_LAST,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"[-4000:]
        return done.stdout


@contextlib.contextmanager
def engine(folder: Path) -> Iterator[Engine]:
    """Run one; at the end it is gone, with its mounts. Its images are kept."""
    made = Engine(folder)
    process = made.process()
    try:
        with stopping(process):
            process.start()
            until((folder / "docker.sock").exists)
            yield made
            process.stop(timeout=AT_LAST)
    finally:
        for place in mounted(folder):  # it leaves a name of the host's network
            subprocess.run(["umount", place], check=True)


def mounted(folder: Path) -> list[str]:
    """Return what is mounted of it, or below it."""
    lines = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    return [line.split()[1] for line in lines if f"{folder}/" in line]


def build(at: Engine, scratch: Path) -> None:
    """Make every image that the file names; what has not changed is not made again."""
    tags = settings(ENV_FILES[0])
    base(at, scratch)
    image(at, tags["PYTHON_IMAGE"], IMAGES / "python")
    image(at, f"{tags['OURS_IMAGE']}-build", ROOT, "--target=build")
    image(at, tags["OURS_IMAGE"], ROOT)
    image(at, tags["POSTGRES_IMAGE"], IMAGES / "postgres")
    jaeger = context(scratch, "jaeger", {"jaeger": CACHE / "jaeger"})
    image(at, tags["JAEGER_IMAGE"], jaeger)
    prometheus = context(scratch, "prometheus", {"usr": CACHE / "prometheus" / "usr"})
    image(at, tags["PROMETHEUS_IMAGE"], prometheus, PROGRAM="prometheus")
    alertmanager = "prometheus-alertmanager"
    image(at, tags["ALERTMANAGER_IMAGE"], prometheus, PROGRAM=alertmanager)
    conf = ROOT / "tools" / "oap" / "conf"
    oap = context(scratch, "oap", {"oap": CACHE / "oap", "conf": conf})
    image(at, tags["SKYWALKING_OAP_IMAGE"], oap)
    for name in ("kafka", "activemq"):
        broker = context(scratch, name, {name: CACHE / name})
        image(at, tags[f"{name.upper()}_IMAGE"], broker)
    image(at, tags["SKYWALKING_UI_IMAGE"], IMAGES / "pages", PORT="8080")
    image(at, tags["GRAFANA_IMAGE"], IMAGES / "pages", PORT="3000")
    at.docker("image", "prune", "--force")  # those whose tag went to a newer one


def base(at: Engine, scratch: Path) -> None:
    """Make what the stand-ins are built on, unless it is there."""
    if not at.docker("images", "-q", "tracing-2pc-base:bookworm"):
        packed = scratch / "base.tar"
        subprocess.run(["tar", "-C", ENGINE / "base", "-cf", packed, "."], check=True)
        at.docker("import", str(packed), "tracing-2pc-base:bookworm")
        packed.unlink()


def image(at: Engine, tag: str, folder: Path, *how: str, **arguments: str) -> None:
    """Build one image; its steps may load packages."""
    told = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    how = ("-q", "--network=host", f"--tag={tag}", *how, *told)
    at.docker("build", *how, str(folder))


def context(scratch: Path, name: str, parts: Mapping[str, Path]) -> Path:
    """Lay out what an image is made of: its own files, and large ones of the cache."""
    folder = scratch / name
    shutil.copytree(IMAGES / name, folder)
    for target, source in parts.items():
        if source.is_dir():
            shutil.copytree(source, folder / target, ignore_dangling_symlinks=True)
        else:
            shutil.copy2(source, folder / target)
    return folder
