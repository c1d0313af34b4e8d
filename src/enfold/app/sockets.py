"""How a server listens and stops: its socket, its TLS certificate, the proxies in front of it."""

from __future__ import annotations

from collections.abc import Sequence
from errno import EADDRINUSE
from typing import TYPE_CHECKING, Final

import msgspec

from enfold.errors import CallError
from enfold.runtime.application import GRACE

if TYPE_CHECKING:
    from socket import socket

BACKLOG: Final = 2048


class Certificate(msgspec.Struct, frozen=True):
    """The files of a certificate and of its key."""

    certificate: str
    key: str | None = None


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a server listens and stops."""

    certificate: Certificate | None = None
    proxies: Sequence[str] = ()  # addresses and networks whose X-Forwarded-For and X-Forwarded-Proto are trusted
    root_path: str = ""  # the path prefix that a proxy strips
    grace: float = GRACE  # seconds for calls to finish at the end


def bind(host: str, port: int) -> socket:
    """Return a bound socket; it listens only after `start_listening`."""
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise _unusable(host, port, error) from None
    return listening


def start_listening(listening: socket) -> None:
    """Listen: from now on clients can connect, so the address may be printed."""
    try:
        listening.listen(BACKLOG)
    except OSError as error:  # another had bound the address too, and was first to listen
        host, port = listening.getsockname()[:2]
        listening.close()
        raise _unusable(host, port, error) from None


def _unusable(host: str, port: int, error: Exception) -> CallError:
    reason = (
        "is in use: choose another with --port"
        if getattr(error, "errno", None) == EADDRINUSE
        else f"cannot be used: {error}"
    )
    return CallError("UNAVAILABLE", f"Port {port} on {host} {reason}")


def check_certificate(files: Certificate) -> None:
    """Read the certificate and its key as the server will; what is wrong is one sentence."""
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key, password="")
    except ssl.SSLError as error:
        reason = error.reason or str(error)
    except OSError as error:
        reason = error.strerror or str(error)
    else:
        return
    place = files.certificate if files.key is None else f"{files.certificate} and {files.key}"
    raise CallError("VALIDATION_ERROR", f"Cannot read the certificate from {place}: {reason}")
