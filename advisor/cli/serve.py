"""`fusion-advisor serve`: the dashboard over saved runs."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import click

from advisor.errors import UsageError
from advisor.store import DEFAULT_ROOT, RunStore

if TYPE_CHECKING:
    from dashboard.access import Access


@click.command()
@click.argument("run_store", type=click.Path(path_type=Path), default=DEFAULT_ROOT)
@click.option("--port", type=click.IntRange(0, 65535), default=8050, show_default=True)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Anything but loopback needs tokens.",
)
@click.option(
    "--allow-apply",
    is_flag=True,
    help="Let pages apply, revert and cancel; without it the server is read-only.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Private file with the lines view=TOKEN and apply=TOKEN.",
)
@click.option("--open", "open_browser", is_flag=True, help="Open the page in a browser.")
def serve(
    run_store: Path,
    port: int,
    host: str,
    allow_apply: bool,
    token_file: Path | None,
    open_browser: bool,
) -> None:
    """Open the dashboard over RUN_STORE (default: ./runs), until Ctrl-C.

    New runs appear without a restart. Applying executes the code of the profiled workload, so it is
    off unless --allow-apply is given, and possible only for runs that this machine profiled.

    Beyond loopback a view token is needed, and a second one to apply, which is as good as a shell
    on this machine. They come from --token-file, or from FUSION_ADVISOR_VIEW_TOKEN and
    FUSION_ADVISOR_APPLY_TOKEN. They travel in clear text: put TLS before the server, or use
    `ssh -L 8050:localhost:8050`.
    """
    from dashboard.access import Access, read_tokens

    if not run_store.is_dir():
        raise UsageError(
            "no run store here",
            where=str(run_store),
            remedy="profile a workload first (`fusion-advisor profile`), or name the directory",
        )
    access = Access(host=host, allow_apply=allow_apply, tokens=read_tokens(token_file))
    _serve(RunStore(run_store), access, port, str(run_store), None if not open_browser else "/")


def open_dashboard(store: RunStore, page: str) -> None:
    """The dashboard over a store, read-only, opened at one run, until Ctrl-C."""
    from dashboard.access import Access, read_tokens
    from dashboard.page import run_path

    access = Access(host="127.0.0.1", allow_apply=False, tokens=read_tokens(None))
    _serve(store, access, 0, str(store.root), run_path(page))


def _serve(store: RunStore, access: Access, port: int, shown: str, opened: str | None) -> None:
    """Serve until Ctrl-C; `opened` is the page to open in a browser, None to open none."""
    from dashboard.app import create_app
    from dashboard.server import bind
    from dashboard.server import serve as serve_forever

    app, runner = create_app(store, access)
    server = bind(app, access.host, port)
    host = f"[{access.host}]" if ":" in access.host else access.host
    address = f"http://{host}:{server.server_port}"
    mode = "runs can be applied" if access.allow_apply else "read-only"
    click.echo(f"Dashboard of {shown} at {address}/ ({mode}); Ctrl-C ends it.")
    if opened is not None:
        webbrowser.open(address + opened)
    serve_forever(server, runner)
