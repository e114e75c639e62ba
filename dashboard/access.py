"""Who may look and who may apply: the addresses, names and tokens of one server."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from advisor.errors import RefusedError, UsageError
from advisor.store.files import read_bounded

VIEW_VARIABLE, APPLY_VARIABLE = "FUSION_ADVISOR_VIEW_TOKEN", "FUSION_ADVISOR_APPLY_TOKEN"
MIN_TOKEN_CHARACTERS = 20
_MAX_TOKEN_FILE_BYTES = 4096
_TOKEN_HELP = (
    f"give --token-file with lines view=TOKEN and apply=TOKEN, or set {VIEW_VARIABLE} and "
    f"{APPLY_VARIABLE}; make one with `python3 -c 'import secrets; print(secrets.token_urlsafe())'`"
)


@dataclass(frozen=True)
class Tokens:
    """The secrets of one server; None where none is asked for."""

    view: str | None = None
    apply: str | None = None


@dataclass(frozen=True)
class Access:
    """What a server lets whom do.

    On a loopback address no token is asked for unless one is given. `allow_apply` is the switch for
    every change of state; an apply token, where there is one, is asked for on top of it.
    """

    host: str = "127.0.0.1"
    allow_apply: bool = False
    tokens: Tokens = Tokens()

    def accepts_host(self, header: str) -> bool:
        """True for a `Host` header that a page of another site could not have produced.

        Rebinding needs a DNS name, so addresses are accepted as far as the server listens beyond
        loopback; names must be `localhost`, the name given as `--host`, or the machine's own.
        """
        name = host_name(header)
        address = _address(name)
        if address is not None:
            return address.is_loopback or not is_loopback(self.host)
        names = {"localhost"}
        if not is_loopback(self.host):
            names |= {self.host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
        return name in names


def check_access(access: Access) -> None:
    """Raise `RefusedError` if the server would listen beyond loopback without its tokens."""
    if is_loopback(access.host):
        return
    missing = [
        word
        for word, token in (("view", access.tokens.view), ("apply", access.tokens.apply))
        if token is None and (word == "view" or access.allow_apply)
    ]
    if missing:
        raise RefusedError(
            f"listening on {access.host} needs a token to {' and one to '.join(missing)}",
            why="anyone who reaches this port could read the runs"
            + (" and run code as you" if access.allow_apply else ""),
            remedy=_TOKEN_HELP,
        )
    if access.allow_apply and access.tokens.view == access.tokens.apply:
        raise RefusedError("the view token and the apply token must differ", remedy=_TOKEN_HELP)


def is_loopback(host: str) -> bool:
    """True for `localhost` and the loopback addresses."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def host_name(header: str) -> str:
    """The name in a `Host` header, in lower case, without port and brackets."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if text.count(":") == 1 else text


def read_tokens(path: Path | None) -> Tokens:
    """Tokens from a private file of `view=` and `apply=` lines, else from the environment.

    Raises `UsageError` for a malformed file or a short token, `RefusedError` if others can read it.
    """
    if path is None:
        found = {"view": os.environ.get(VIEW_VARIABLE), "apply": os.environ.get(APPLY_VARIABLE)}
    else:
        found = _token_lines(path)
    for word, token in found.items():
        if token is not None and len(token) < MIN_TOKEN_CHARACTERS:
            raise UsageError(
                f"the {word} token is shorter than {MIN_TOKEN_CHARACTERS} characters",
                remedy=_TOKEN_HELP,
            )
    return Tokens(view=found["view"], apply=found["apply"])


def cookie_value(token: str) -> str:
    """What a browser keeps in place of the token, so that a leaked cookie is not the token."""
    return hmac.new(token.encode(), b"fusion-advisor cookie", hashlib.sha256).hexdigest()


def same(first: str, second: str) -> bool:
    """Equal, compared in constant time."""
    return hmac.compare_digest(first.encode(errors="replace"), second.encode(errors="replace"))


def _token_lines(path: Path) -> dict[str, str | None]:
    text = read_bounded(path, _MAX_TOKEN_FILE_BYTES).decode(errors="replace")
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise RefusedError(
            "the token file can be read by others", where=str(path), remedy=f"chmod 600 {path}"
        )
    found: dict[str, str | None] = {"view": None, "apply": None}
    for number, line in enumerate(text.splitlines(), 1):
        word, equals, token = line.strip().partition("=")
        if not word or word.startswith("#"):
            continue
        if not equals or word.strip() not in ("view", "apply"):
            raise UsageError(
                "not a view=TOKEN or apply=TOKEN line",
                where=f"{path}:{number}",
                remedy=_TOKEN_HELP,
            )
        found[word.strip()] = token.strip()
    return found


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
