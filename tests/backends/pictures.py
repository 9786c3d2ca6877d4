"""Pictures of traces at a real Jaeger, for docs/tracing.md: `make pictures`.

`TPC_JAEGER` is its binary. `JAEGER_PAGE` is a folder with the files of its page, where
the binary has a placeholder only, as ours has.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import sync_playwright
from support.waiting import until

from backends.backend import Trace, count
from backends.demo_path import DemoPath, armed, demo_path, run
from backends.jaeger import Jaeger, jaeger
from backends.job import decisions
from participants.processes import Process, stopping
from tracing_2pc.core.model import TransactionId
from tracing_2pc.store import open_log
from tracing_2pc.testing import Fault, FaultProxy

FOLDER: Final = Path(__file__).parents[2] / "docs" / "pictures"
SIZE: Final = {"width": 1280, "height": 1150}
LARGEST: Final = 200_000

Shoot = Callable[..., None]
"""Takes a picture into a file: of a trace in which some spans are open."""


@contextmanager
def camera(backend: Jaeger) -> Iterator[Shoot]:
    """Open a browser that takes pictures of traces."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport=SIZE)

        def shoot(file: str, trace_id: str, *names: str) -> None:
            """Open the first of each name that failed; of the last all attributes."""
            spans = sorted(backend.trace(trace_id), key=lambda span: span["start"])
            wanted = "%20".join(first(spans, name) for name in names)
            page.goto(f"{backend.page}/trace/{trace_id}?uiFind={wanted}")
            page.get_by_text("Tags:").last.click()
            page.get_by_role("cell", name="tpc.transaction.id").wait_for()
            page.mouse.move(0, 0)
            page.wait_for_timeout(500)
            page.screenshot(path=FOLDER / file)
            size = (FOLDER / file).stat().st_size
            assert size < LARGEST, (file, size)

        yield shoot
        browser.close()


def first(spans: Trace, name: str) -> str:
    """Return the id of the first span of a name that is an error, if any is."""
    named = [span for span in spans if span["name"] == name]
    return min(named, key=lambda span: span["status"] != "ERROR")["span_id"]


def stuck(path: DemoPath, backend: Jaeger, folder: Path, shoot: Shoot) -> None:
    """The notifier is killed before it hears of the commit."""
    with FaultProxy(path.notifier.url) as proxy:
        proxy.plan("commit", Fault.UNAVAILABLE, times=2)
        proxy.plan("commit", Fault.DELAY)
        job = path.job(folder, "stuck", 1, notifier=proxy.url)
        with stopping(job):
            job.start()
            until(lambda: len([s for s in proxy.seen if s.verb == "commit"]) > 2)
            path.notifier.kill()

            names = ("POST /commit", "tpc.in_doubt.snapshot")
            look = path.watch_once(folder)
            shoot("stuck.png", arrived(backend, folder, names, look), *names)
    path.notifier.start()


def aborted(path: DemoPath, backend: Jaeger, folder: Path, shoot: Shoot) -> None:
    """The notifier does not answer a prepare, and the job ends."""
    with FaultProxy(path.notifier.url) as proxy:
        proxy.plan("prepare", Fault.UNAVAILABLE, times=100)
        assert run(path.job(folder, "aborted", 1, notifier=proxy.url)) != 0
    trace_id = arrived(backend, folder, ["tpc.transaction", "POST /abort"])
    shoot("aborted.png", trace_id, "tpc.transaction", "POST /prepare")


def recovered(path: DemoPath, backend: Jaeger, folder: Path, shoot: Shoot) -> None:
    """The driver is killed after the decision, and recovery delivers it."""
    point = armed("driver.after_decide", folder)
    assert run(path.job(folder, "recovered", 1), **point) == -signal.SIGKILL
    assert run(path.recovery(folder)) == 0
    trace_id = arrived(backend, folder, ["tpc.finish", "POST /commit"])
    shoot("recovered.png", trace_id, "tpc.finish")


def arrived(
    backend: Jaeger, folder: Path, names: Sequence[str], watch: Process | None = None
) -> str:
    """Wait until a job's first trace has these spans, and watch; return its id."""
    with closing(open_log(decisions(folder))) as log:
        record = log.read(TransactionId.parse(f"{folder.name}.0.1"))
    assert record is not None
    assert record.trace_id is not None
    trace_id = record.trace_id

    def there() -> bool:
        if watch:
            run(watch)
        trace = backend.trace(trace_id)
        return all(count(trace, name) for name in names)

    until(there)
    return trace_id


def main() -> None:
    """Take all of them."""
    FOLDER.mkdir(exist_ok=True)
    binary, assets = Path(os.environ["TPC_JAEGER"]), os.environ.get("JAEGER_PAGE", "")
    with (
        tempfile.TemporaryDirectory() as made,
        jaeger(binary, Path(made), page=assets) as backend,
        demo_path(Path(made), backend.endpoint) as path,
        camera(backend) as shoot,
    ):
        for tell in (aborted, recovered, stuck):
            folder = Path(made, tell.__name__)
            folder.mkdir()
            tell(path, backend, folder, shoot)


if __name__ == "__main__":
    main()
