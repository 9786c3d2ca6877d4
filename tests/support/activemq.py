"""A real ActiveMQ broker of one node, which is killed and started again."""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import stomp
from py4j.java_gateway import GatewayParameters, JavaGateway

from participants.processes import free_ports
from support.brokers import Node, Seen
from support.waiting import ANSWERED, AT_LAST, SOON, until

for _name in ("stomp.py", "py4j"):  # it may be down
    logging.getLogger(_name).setLevel(logging.CRITICAL)

START: Final = Path(__file__).parents[2] / "tools" / "activemq" / "start.py"
_OF_STOMP: Final = frozenset(
    {
        *("ack", "content-length", "destination", "expires", "message-id"),
        *("persistent", "priority", "redelivered", "subscription", "timestamp"),
    }
)


class Broker(Node):
    """One node, in a folder.

    Args:
        folder: of its data; two that have the same one are master and slave.
        options: of its connector for STOMP.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder)
        (self._port,) = free_ports(1)
        self._log = folder / f"log {self._port}"
        self.command = [
            sys.executable,
            str(START),
            str(folder),
            str(self._port),
            *options,
        ]
        self.place = f"127.0.0.1:{self._port}"
        self.address = f"activemq:{self.place}"
        self._names = (f"queue{n}" for n in itertools.count(1))
        self._taken: defaultdict[str, list[Seen]] = defaultdict(list)

    def start(self, *, wait: bool = True) -> None:
        """Start it, and wait until it answers."""
        self.folder.mkdir(exist_ok=True)
        self._spawn(self.command, self._log)
        if wait:
            until(self.answers)

    def answers(self) -> bool:
        """Whether a client is answered."""
        self._assert_alive(self._log)
        try:
            with self.client():
                return True
        except (OSError, stomp.exception.StompException):
            return False

    def gateway(self) -> JavaGateway:
        """Speak with its Java, whose port is the last one that its log names."""
        lines = self._log.read_text(encoding="utf-8").splitlines()
        *_, port = (int(line) for line in lines if line.isdigit())
        parameters = GatewayParameters(port=port, auto_convert=True)
        return JavaGateway(gateway_parameters=parameters)

    def topic(self) -> str:
        """Name a queue of this test's own."""
        return next(self._names)

    def client(self) -> contextlib.AbstractContextManager[Client]:
        """Connect somebody else's client."""
        return connected(self._port)

    def read(self, name: str) -> list[Seen]:
        """Look at what is in a queue, and leave it there; it must be small."""
        with self.client() as client:
            return [_seen(frame) for frame in client.browse(name)]

    def each(self, name: str, count: int) -> Iterator[Seen]:
        """Take so many messages from a queue."""
        with self.client() as client:
            client.link.subscribe(f"/queue/{name}", "each", "auto")
            for _ in range(count):
                yield _seen(client.frames.get(timeout=AT_LAST))

    def taken(self, name: str) -> list[Seen]:
        """Take what is in a queue, and return all that was ever taken from it."""
        with self.client() as client:
            client.link.subscribe(f"/queue/{name}", "all", "auto")
            with contextlib.suppress(queue.Empty):
                while True:
                    frame = client.frames.get(timeout=SOON)
                    self._taken[name].append(_seen(frame))
        return self._taken[name]

    def send(self, name: str, *bodies: str, **headers: str) -> None:
        """Send messages, as any sender does; underscores in names are dashes here."""
        named = {key.replace("_", "-"): text for key, text in headers.items()}
        with self.client() as client:
            for number, body in enumerate(bodies):
                client.send(name, body, {"persistent": "true", **named}, str(number))


class Client(stomp.ConnectionListener):  # type: ignore[misc]
    """A consumer or sender by STOMP; `ConnectionError`: there is no answer."""

    def __init__(self, port: int) -> None:
        self.frames: queue.Queue[Any] = queue.Queue()
        self._receipts: queue.Queue[str] = queue.Queue()
        self.link = stomp.StompConnection12(
            [("127.0.0.1", port)], reconnect_attempts_max=1, timeout=ANSWERED
        )
        self.link.set_listener("client", self)
        self._is_in = False
        self._greeted = threading.Event()  # stomp.py itself would wait without end
        self.link.connect(wait=False)
        if not self._greeted.wait(ANSWERED) or not self._is_in:
            self.link.transport.disconnect_socket()
            raise ConnectionError("the broker does not say CONNECTED")
        self.link.transport.socket.settimeout(None)

    def on_connected(self, frame: Any) -> None:
        self._is_in = True
        self._greeted.set()

    def on_message(self, frame: Any) -> None:
        self.frames.put(frame)

    def on_receipt(self, frame: Any) -> None:
        self._receipts.put(frame.headers["receipt-id"])

    def on_disconnected(self) -> None:
        self._greeted.set()
        self._receipts.put("")

    def send(
        self, name: str, body: str, headers: Mapping[str, str], receipt: str
    ) -> None:
        """Send, and wait for the receipt; `ConnectionError`: there is none."""
        self.link.send(f"/queue/{name}", body, headers=dict(headers), receipt=receipt)
        if not (found := self._receipts.get(timeout=AT_LAST)):
            raise ConnectionError(f"no receipt for a message to {name}")
        assert found == receipt

    def browse(self, name: str) -> Iterator[Any]:
        """Yield what is in a queue."""
        self.link.subscribe(f"/queue/{name}", "look", "auto", {"browser": "true"})
        while True:
            frame = self.frames.get(timeout=AT_LAST)
            if frame.headers.get("browser") == "end":
                return
            yield frame


@contextlib.contextmanager
def connected(port: int) -> Iterator[Client]:
    """Connect a client with a broker on this machine."""
    client = Client(port)
    try:
        yield client
    finally:
        client.link.transport.disconnect_socket()


def _seen(frame: Any) -> Seen:
    key = frame.headers.get("JMSXGroupID")
    headers = {
        name: text
        for name, text in frame.headers.items()
        if name not in _OF_STOMP and not name.startswith("JMSX")
    }
    body = frame.body if isinstance(frame.body, bytes) else frame.body.encode()
    return Seen(0, key and key.encode(), body, headers)


running = Broker.running
