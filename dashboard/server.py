"""Serving the app: a threaded HTTP server on one address, until it is interrupted."""

from __future__ import annotations

import errno
import io
import logging
from contextlib import redirect_stderr, suppress

from dash import Dash
from werkzeug.serving import BaseWSGIServer, make_server

from advisor.errors import UsageError
from dashboard.jobs import JobRunner


def bind(app: Dash, host: str, port: int) -> BaseWSGIServer:
    """A server that listens but does not answer yet; `UsageError` if the address is taken."""
    # Every poll of every page would be a line; failures are still logged by the app.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    try:
        # Werkzeug prints its own words before it gives up; ours say what to do.
        with redirect_stderr(io.StringIO()):
            return make_server(host, port, app.server, threaded=True)
    except (OSError, SystemExit) as error:
        cause = error.__context__ if isinstance(error, SystemExit) else error
        taken = isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE
        raise UsageError(
            f"cannot listen on {host} port {port}",
            why="the port is in use" if taken else str(cause),
            remedy="choose another with --port, or --port 0 for any free one",
        ) from error


def serve(server: BaseWSGIServer, runner: JobRunner) -> None:
    """Answer requests and run jobs until Ctrl-C; running jobs outlive the server."""
    runner.start()
    try:
        with suppress(KeyboardInterrupt):
            server.serve_forever()
    finally:
        runner.stop()
        server.server_close()
