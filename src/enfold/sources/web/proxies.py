"""Proxies and trusted certificates, as the variables of the environment and the system name them."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Final

from enfold.sources.web.urls import Endpoint, literal_address, read_endpoint
from enfold.sources.web.web_error import WebError

# Where distributions keep what they trust, for a Python that was built on another one.
_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def proxy_for(endpoint: Endpoint, variables: Mapping[str, str] = os.environ) -> Endpoint | None:
    """The proxy for an endpoint, by HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY; None where there is none."""
    url = _variable(f"{endpoint.scheme}_proxy", variables) or _variable("all_proxy", variables)
    if not url or _bypasses_proxy(endpoint, _variable("no_proxy", variables)):
        return None
    return _read_proxy(url)


def _variable(name: str, variables: Mapping[str, str]) -> str:
    """A variable in either spelling; in a CGI program HTTP_PROXY is a header of the request, and anybody's."""
    if name == "http_proxy" and "REQUEST_METHOD" in variables:
        return variables.get(name, "")
    return variables.get(name) or variables.get(name.upper(), "")


@lru_cache(maxsize=32)
def _read_proxy(url: str) -> Endpoint:
    written = url if "://" in url else f"http://{url}"
    scheme, _, rest = written.partition("://")
    if scheme not in ("http", "https"):
        raise WebError("unsendable", f"A proxy with {scheme} is not supported: pass an httpx2 client that supports it")
    return read_endpoint(f"{scheme}://{rest.partition('/')[0]}")


def _bypasses_proxy(endpoint: Endpoint, exceptions: str) -> bool:
    return any(_matches(endpoint, each.strip().lower()) for each in exceptions.split(",") if each.strip())


def _matches(endpoint: Endpoint, exception: str) -> bool:
    if exception == "*":
        return True
    if exception in (endpoint.with_port, endpoint.host, f"[{endpoint.host}]"):
        return True
    name, _, port = exception.rpartition(":") if exception.count(":") == 1 else (exception, "", "")
    if port and port != str(endpoint.port):
        return False
    name = (name or exception).removeprefix("*").lstrip(".")
    return endpoint.host == name or endpoint.host.endswith(f".{name}") or _is_in_network(endpoint.host, name)


def _is_in_network(host: str, network: str) -> bool:
    address = literal_address(host)
    try:
        return address is not None and "/" in network and ip_address(address) in ip_network(network, strict=False)
    except ValueError:
        return False


# --- encryption ---------------------------------------------------------------------------------------------------


def tls_context() -> ssl.SSLContext:
    """The context for encrypted connections, as SSL_CERT_FILE and SSL_CERT_DIR have it, made once."""
    return _context(os.environ.get("SSL_CERT_FILE", ""), os.environ.get("SSL_CERT_DIR", ""))


@lru_cache(maxsize=8)
def _context(file: str, folder: str) -> ssl.SSLContext:
    if file or folder:
        try:
            context = ssl.create_default_context(cafile=file or None, capath=folder or None)
        except OSError as error:
            raise WebError("unsendable", f"SSL_CERT_FILE or SSL_CERT_DIR cannot be read: {error}") from None
    elif sys.platform in ("win32", "darwin"):
        context = _system_context()
    else:
        context = ssl.create_default_context()
        if not context.get_ca_certs() and (bundle := _bundle()) is not None:
            context.load_verify_locations(bundle)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _system_context() -> ssl.SSLContext:
    """A context that asks the trust store of the system, where the package truststore is installed."""
    try:
        import truststore
    except ImportError:
        return ssl.create_default_context()
    context: ssl.SSLContext = truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return context


def _bundle() -> str | None:
    """The system's bundle, unless OpenSSL finds its certificates in a folder by itself."""
    paths = ssl.get_default_verify_paths()
    if paths.capath and any(Path(paths.capath).glob("*.0")):
        return None
    return next((each for each in _BUNDLES if Path(each).is_file()), None)
