"""A network that is far away: `python -m bench.delay SECONDS PORT UPSTREAM ...`.

Listens on each PORT, on 127.0.0.1, and passes on to the port after it. What a client
sends arrives so many seconds late; what comes back is not held up.
"""

from __future__ import annotations

import asyncio
import sys


async def _pass_on(
    seconds: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    while sent := await reader.read(1 << 16):
        if seconds:
            await asyncio.sleep(seconds)
        writer.write(sent)
        await writer.drain()
    writer.close()


async def _listen(seconds: float, port: int, upstream: int) -> asyncio.Server:
    async def connected(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        back, there = await asyncio.open_connection("127.0.0.1", upstream)
        await asyncio.gather(
            _pass_on(seconds, reader, there),
            _pass_on(0, back, writer),
            return_exceptions=True,  # either side may go at any moment
        )

    return await asyncio.start_server(connected, "127.0.0.1", port)


async def main(seconds: float, *ports: int) -> None:
    """Pass on until the process ends."""
    pairs = zip(ports[::2], ports[1::2], strict=True)
    servers = [await _listen(seconds, *pair) for pair in pairs]
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1]), *map(int, sys.argv[2:])))
