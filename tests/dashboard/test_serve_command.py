"""`fusion-advisor serve` as a process: it answers on loopback, says what is wrong, and ends."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from advisor.store import RunDirectory, RunStore
from tests.builders.child import interruptible


@contextmanager
def served(*arguments: str) -> Iterator[int]:
    """A real server; yields its port."""
    argv = [sys.executable, "-m", "advisor.cli.main", "serve", "--port", "0", *arguments]
    with interruptible():
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r":(\d+)/", line)
    assert found, line + process.stdout.read()
    yield int(found[1])
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0


def failure(*arguments: str, **environment: str) -> tuple[int, str]:
    """Exit status and message of a serve that does not start."""
    argv = [sys.executable, "-m", "advisor.cli.main", "serve", *arguments]
    result = subprocess.run(
        argv, capture_output=True, text=True, timeout=60, env=os.environ | environment, check=False
    )
    assert "Traceback" not in result.stderr
    return result.returncode, result.stderr


def test_it_listens_on_loopback_only_and_checks_names(store: RunStore, run: RunDirectory) -> None:
    with served(str(store.root)) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/")
        response = connection.getresponse()
        assert response.status == 200
        assert b"fusion advisor" in response.read()
        connection.request("GET", "/", headers={"Host": f"evil.example:{port}"})
        assert connection.getresponse().status == 421
        connection.close()
        connection.request("POST", "/api/jobs", json.dumps({"run": run.id}))
        assert connection.getresponse().status == 403
        connection.close()
        outside = _own_address()
        if outside is not None:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((outside, port), timeout=5)


def _own_address() -> str | None:
    """An address of this machine that is not loopback; no packet is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        address = str(probe.getsockname()[0])
    return None if address.startswith("127.") else address


def test_failures_to_start_say_what_to_do(
    store: RunStore, run: RunDirectory, tmp_path: Path
) -> None:
    code, text = failure(str(tmp_path / "absent"))
    assert code == 2
    assert "no run store here" in text
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, text = failure(str(store.root), "--port", str(taken.getsockname()[1]))
    assert code == 2
    assert "the port is in use" in text
    assert text.count("\n") == 1, "werkzeug's own words come before ours"
    assert "--port 0" in text
    code, text = failure(str(store.root), "--host", "0.0.0.0", "--allow-apply")
    assert code == 2
    assert "token to view" in text
