"""Safety over HTTP: names, origins, tokens, CSRF, signatures, headers, ids."""

from __future__ import annotations

import json
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from advisor.errors import RefusedError, UsageError
from advisor.store import RunDirectory, RunStore
from dashboard.access import Access, Tokens, check_access, host_name, is_loopback, read_tokens
from dashboard.security import CSRF_HEADER
from tests.builders.run import sample_run
from tests.dashboard.conftest import wait_for

VIEW, APPLY = "view-token-of-twenty-or-more", "apply-token-of-twenty-or-more"
BASE = "http://127.0.0.1:8050"
Client = Callable[..., FlaskClient]


def get(client: FlaskClient, path: str, **headers: str) -> TestResponse:
    """GET from a browser on the same host."""
    return client.get(path, base_url=BASE, headers=_headers(headers))


def post(client: FlaskClient, path: str, body: object = None, **headers: str) -> TestResponse:
    """POST of JSON from a browser on the same host."""
    return client.post(path, base_url=BASE, json=body or {}, headers=_headers(headers))


def _headers(given: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in given.items()}


def csrf(client: FlaskClient) -> dict[str, str]:
    """The header that a page of the server would send."""
    return {CSRF_HEADER: get(client, "/api/csrf").get_json()["token"]}


def apply(client: FlaskClient, run_id: str) -> TestResponse:
    """POST /api/jobs as the page does."""
    return client.post("/api/jobs", base_url=BASE, json={"run": run_id}, headers=csrf(client))


def reason(response: TestResponse) -> str:
    """The message of a refusal."""
    return str(response.get_json()["error"]["message"])


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8050", "127.0.0.1.evil.example", "192.168.0.7:8050", "[fe80::1]",
     "localhost.evil.example", "", "0.0.0.0:8050", "a:b:c"],
)  # fmt: skip
def test_other_names_are_not_answered(client: Client, host: str) -> None:
    served = client(allow_apply=True)
    for path in ("/", "/api/csrf", "/_dash-layout", "/assets/jobs.js", "/login"):
        assert get(served, path, Host=host).status_code == 421


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1:8050", "[::1]:8050"])
def test_loopback_names_are_answered(client: Client, host: str) -> None:
    assert get(client(), "/", Host=host).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:3000"},
        {"Origin": "http://localhost:8050"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_other_origins_change_and_read_nothing(
    client: Client, run: RunDirectory, headers: dict[str, str]
) -> None:
    served = client(allow_apply=True)
    for path in ("/api/jobs", "/_dash-update-component", "/login"):
        response = served.post(
            path, base_url=BASE, json={"run": run.id}, headers=csrf(served) | headers
        )
        assert response.status_code == 403
    assert run.job() is None


def test_a_link_from_elsewhere_opens_a_page_but_loads_no_data(client: Client) -> None:
    navigation = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    served = client()
    assert served.get("/", base_url=BASE, headers=navigation).status_code == 200
    fetch = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    assert served.get("/assets/jobs.js", base_url=BASE, headers=fetch).status_code == 403


def test_read_only_unless_asked(client: Client, run: RunDirectory) -> None:
    served = client()
    for path in ("/api/jobs", f"/api/jobs/{run.id}/cancel", f"/api/runs/{run.id}/revert"):
        response = served.post(path, base_url=BASE, json={"run": run.id}, headers=csrf(served))
        assert response.status_code == 403
        assert "read-only" in reason(response)
    assert run.job() is None


def test_state_changes_only_by_post(client: Client, run: RunDirectory) -> None:
    served = client(allow_apply=True)
    for path in (f"/api/jobs/{run.id}/cancel", f"/api/runs/{run.id}/revert"):
        assert get(served, path).status_code in (404, 405)
    assert get(served, "/api/jobs").status_code in (404, 405)
    assert run.job() is None


def test_apply_needs_the_pair_of_cookie_and_header(client: Client, run: RunDirectory) -> None:
    served = client(allow_apply=True)
    assert post(served, "/api/jobs", {"run": run.id}).status_code == 403
    header = csrf(served)
    cookie = served.get_cookie("fusion_session", domain="127.0.0.1")
    assert cookie is not None
    assert cookie.http_only
    assert cookie.same_site == "Strict"
    stranger = client(allow_apply=True)
    get(stranger, "/api/csrf")
    for bad in ({}, {CSRF_HEADER: ""}, {CSRF_HEADER: "0" * 64}, {CSRF_HEADER: "é"}):
        refused = served.post("/api/jobs", base_url=BASE, json={"run": run.id}, headers=bad)
        assert refused.status_code == 403
        assert "CSRF" in reason(refused)
    foreign = stranger.post("/api/jobs", base_url=BASE, json={"run": run.id}, headers=header)
    assert foreign.status_code == 403
    assert run.job() is None
    accepted = served.post("/api/jobs", base_url=BASE, json={"run": run.id}, headers=header)
    assert accepted.status_code == 202
    view = wait_for(served.runner, run, lambda v: not v.active)
    assert view.id == accepted.get_json()["job"]
    assert get(served, f"/api/jobs/{run.id}").get_json()["state"] == "done"


def test_forms_cannot_post_jobs(client: Client, run: RunDirectory) -> None:
    served = client(allow_apply=True)
    response = served.post("/api/jobs", base_url=BASE, data={"run": run.id}, headers=csrf(served))
    assert response.status_code == 400


@pytest.mark.parametrize(
    "body", [{}, {"run": 1}, {"run": "x", "argv": ["sh"]}, [], {"run": None}, {"run": "../runs"}]
)
def test_malformed_bodies_are_refused(client: Client, body: object) -> None:
    served = client(allow_apply=True)
    data = json.dumps(body)
    response = served.post(
        "/api/jobs", base_url=BASE, data=data, headers=csrf(served), content_type="application/json"
    )
    assert response.status_code == 400


def test_only_findings_of_the_run_can_be_named(client: Client, run: RunDirectory) -> None:
    served = client(allow_apply=True)
    for only in (
        ["--help"],
        ["register-spill-1"],
        ["0" * 16],
        ["absent"],
        ["row-program-1", "../x"],
    ):
        body = {"run": run.id, "only": only}
        refused = served.post("/api/jobs", base_url=BASE, json=body, headers=csrf(served))
        assert refused.status_code == 400
        assert "no such finding" in reason(refused)
    assert run.job() is None
    body = {"run": run.id, "only": ["row-program-1"]}
    accepted = served.post("/api/jobs", base_url=BASE, json=body, headers=csrf(served))
    assert accepted.status_code == 202
    wait_for(served.runner, run, lambda v: not v.active)
    assert f"{run.id} row-program-1" in run.log_tail()


def test_large_bodies_are_refused(client: Client) -> None:
    served = client(allow_apply=True)
    response = served.post("/api/jobs", base_url=BASE, data=b"x" * (2 << 20), headers=csrf(served))
    assert response.status_code in (400, 413)


@pytest.mark.parametrize(
    "run_id", ["..", "%2e%2e", "a b", "-rf", "x" * 200, "..%2f..%2fetc", ".jobs"]
)
def test_hostile_ids_reach_no_file(client: Client, run_id: str) -> None:
    served = client(allow_apply=True)
    for path in (f"/api/jobs/{run_id}/cancel", f"/api/runs/{run_id}/revert"):
        response = served.post(path, base_url=BASE, json={}, headers=csrf(served))
        assert response.status_code in (400, 404, 405, 308)
    assert get(served, f"/api/jobs/{run_id}").status_code in (400, 404, 405, 308)


def test_runs_that_are_not_ours_are_refused_with_the_reason(
    client: Client, store: RunStore, run: RunDirectory
) -> None:
    served = client(allow_apply=True)
    shutil.copytree(run.path, store.root / "copied")
    unsigned = sample_run(store, signed=False)
    for run_id, why in (("copied", "copied, moved or edited"), (unsigned.id, "not signed")):
        response = apply(served, run_id)
        assert response.status_code == 403
        assert why in reason(response)


def test_every_answer_carries_the_headers(client: Client) -> None:
    served = client()
    for path in ("/", "/assets/jobs.js", "/api/csrf", "/login", "/nowhere", "/api/jobs/absent"):
        headers = get(served, path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        scripts = next(p for p in policy.split("; ") if p.startswith("script-src"))
        assert "unsafe" not in scripts
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Referrer-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers
    assert get(served, "/api/csrf").headers["Cache-Control"] == "no-store"


def test_what_is_not_there_is_404(client: Client, run: RunDirectory) -> None:
    served = client()
    found = ("/", f"/run/{run.id}", f"/run/{run.id}/", f"/run/{run.id}/findings")
    for path in (*found, f"/run/{run.id}/finding/row-program-1", "/login"):
        assert get(served, path).status_code == 200, path
    absent = ("/nowhere", "/run/absent", "/run/absent/findings", f"/run/{run.id}/finding/absent")
    for path in absent:
        answer = get(served, path)
        assert answer.status_code == 404, path
        assert "fusion advisor" in answer.get_data(as_text=True), "the page says what is missing"


def test_everything_is_served_from_here(client: Client) -> None:
    page = get(client(), "/").get_data(as_text=True)
    sources = [part.split('"')[0] for part in page.split('src="')[1:]]
    links = [part.split('"')[0] for part in page.split('href="')[1:]]
    assert len(sources) > 5
    assert all(url.startswith("/") and not url.startswith("//") for url in sources + links)


def test_scripts_are_kept_by_their_version_and_pages_never(
    client: Client, run: RunDirectory
) -> None:
    served = client()
    answer = get(served, f"/run/{run.id}/findings")
    assert answer.headers["Cache-Control"] == "no-store"
    page = answer.get_data(as_text=True)
    addresses = re.findall(r'<(?:script src|link rel="preload" as="script" href)="([^"]+)"', page)
    assert any("async-community" in address for address in addresses), "the table's second half"
    assert not any("cytoscape" in address for address in addresses), "no subgraph stands here"
    late = re.findall(r'<meta name="late-script" content="([^"]+)">', page)
    for address in (*addresses, *late):
        assert get(served, address).status_code == 200, address
    ours = next(address for address in addresses if address.startswith("/assets/jobs.js?m="))
    assert "immutable" in get(served, ours).headers["Cache-Control"]
    assert "immutable" not in get(served, "/assets/jobs.js").headers.get("Cache-Control", "")
    assert "preload" not in get(served, "/upload").get_data(as_text=True)


def test_beyond_loopback_the_tokens_are_asked_for() -> None:
    with pytest.raises(RefusedError, match="token to view"):
        check_access(Access(host="0.0.0.0"))
    with pytest.raises(RefusedError, match="token to apply"):
        check_access(Access(host="::", allow_apply=True, tokens=Tokens(view=VIEW)))
    with pytest.raises(RefusedError, match="must differ"):
        check_access(Access(host="::", allow_apply=True, tokens=Tokens(view=VIEW, apply=VIEW)))
    check_access(Access(host="0.0.0.0", tokens=Tokens(view=VIEW)))
    check_access(Access(host="localhost", allow_apply=True))


def test_tokens_open_the_page_and_then_apply(client: Client, run: RunDirectory) -> None:
    tokens = Tokens(view=VIEW, apply=APPLY)
    served = client(host="0.0.0.0", allow_apply=True, tokens=tokens)
    login = {"Accept": "text/html"}
    assert get(served, "/", **login).headers["Location"] == "/login"
    for path in ("/", "/_dash-layout", "/assets/jobs.js", "/api/csrf", f"/api/jobs/{run.id}"):
        assert get(served, path).status_code == 401
    assert get(served, "/login").status_code == 200
    wrong = served.post("/login", base_url=BASE, data={"token": "<script>"})
    assert wrong.status_code == 403
    early = served.post("/login", base_url=BASE, data={"token": APPLY})
    assert early.status_code == 403
    assert get(served, "/").status_code == 401
    assert served.post("/login", base_url=BASE, data={"token": VIEW}).status_code == 302
    cookie = served.get_cookie("fusion_view", domain="127.0.0.1")
    assert cookie is not None
    assert cookie.http_only
    assert VIEW not in cookie.value
    assert get(served, "/").status_code == 200
    refused = apply(served, run.id)
    assert refused.status_code == 403
    assert "apply token" in reason(refused)
    served.post("/login", base_url=BASE, data={"token": APPLY})
    assert apply(served, run.id).status_code == 202
    wait_for(served.runner, run, lambda v: not v.active)


def test_names_beyond_loopback(client: Client) -> None:
    served = client(host="gpu-box.example", tokens=Tokens(view=VIEW))
    for host, status in (("gpu-box.example:8050", 401), ("10.0.0.3", 401), ("evil.example", 421)):
        assert get(served, "/", Host=host).status_code == status


def test_token_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# both\nview={VIEW}\n\napply = {APPLY}\n")
    path.chmod(0o644)
    with pytest.raises(RefusedError, match="read by others"):
        read_tokens(path)
    path.chmod(stat.S_IRUSR)
    assert read_tokens(path) == Tokens(view=VIEW, apply=APPLY)
    path.chmod(0o600)
    path.write_text("view=short\n")
    with pytest.raises(UsageError, match="shorter than 20"):
        read_tokens(path)
    path.write_text("password=x\n")
    with pytest.raises(UsageError, match=r"tokens:1.*not a view=TOKEN"):
        read_tokens(path)
    monkeypatch.setenv("FUSION_ADVISOR_VIEW_TOKEN", VIEW)
    assert read_tokens(None) == Tokens(view=VIEW)


def test_host_headers() -> None:
    assert [host_name(h) for h in ("A:1", "[::1]:8050", "::1", "x")] == ["a", "::1", "::1", "x"]
    assert [is_loopback(h) for h in ("127.9.9.9", "::1", "LocalHost", "0.0.0.0", "x")] == [
        True, True, True, False, False,
    ]  # fmt: skip
