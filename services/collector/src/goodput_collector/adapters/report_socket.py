"""The socket on which this host's ranks hand over their reports (`goodput_common.runtime.run_dir.reports_socket`).

A stream socket with a path: it works across containers that share the run directory, whatever their network, and a rank sees
at once when this process is gone. Whoever may open the path may report for any job of this host, as whoever has the agents'
credentials for the bus may: reports are believed, not proven.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import msgspec

from goodput_collector.application.send_reports import ReportSender
from goodput_common.contracts.job import RankProgress
from goodput_common.runtime.lifecycle import Part
from goodput_common.runtime.logs import get_logger

LINE_BYTES_MAX = 1 << 20
CONNECTIONS_MAX = 1024
UNREAD_BYTES_MAX = 64 << 10  # answers that a rank does not read
PATH_MODE = 0o666  # ranks run as users of their own

_log = get_logger(__name__)
_DECODER = msgspec.json.Decoder(RankProgress)


class ReportSocket(Part):
    """Without it (the path cannot be made) ranks report by themselves, so it never keeps a collector from starting."""

    name = "reports of ranks"

    def __init__(self, path: Path, sender: ReportSender) -> None:
        self._path = path
        self._sender = sender
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def connected(self) -> int:
        return len(self._open)

    async def start(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._server = await asyncio.start_unix_server(self._serve, str(self._path), limit=LINE_BYTES_MAX)
            self._path.chmod(PATH_MODE)
        except OSError as error:
            _log.warning(
                "ranks report by themselves: no socket for their reports", path=str(self._path), error=str(error),
                next="make the run directory writable, with a path of less than 90 characters",
            )  # fmt: skip

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= CONNECTIONS_MAX:
            writer.close()
            return
        self._open.add(writer)
        try:
            while line := await reader.readline():
                if writer.transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
                    break
                report = _DECODER.decode(line)
                self._sender.take(report, len(line), partial(_answer, writer, report.seq))
        except (OSError, ValueError) as error:  # ValueError: no report, or a line beyond the limit
            _log.info("a rank's connection was closed", error=str(error))
        finally:
            self._open.discard(writer)
            writer.close()

    async def stop_pulling(self) -> None:
        """Send what is held; whatever is not answered by the end its rank sends by itself."""
        if self._server is not None:
            self._server.close()
        self._sender.stop()

    async def drain(self) -> None:
        await self._sender.drain()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            self._path.unlink(missing_ok=True)
        for writer in list(self._open):
            writer.close()


def _answer(writer: asyncio.StreamWriter, seq: int) -> None:
    if not writer.is_closing():
        writer.write(b"%d\n" % seq)
