"""Connections to servers: allowed addresses, proxies and certificates of the environment, redirects."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from enfold.http_client import Request, WebError, open_client
from enfold.http_client.client import WebClient, follow
from enfold.http_client.connection import Connection, Pool, dial, proxy_for
from enfold.http_client.urls import Endpoint, network_of, read_endpoint


def only_public(_endpoint: Endpoint, address: str) -> bool:
    return network_of(address) == "public"


async def body(client: Any, origin: str, target: str = "/") -> bytes:
    response = await client.send(Request("GET", origin, target))
    try:
        return bytes(await response.body(1000))
    finally:
        await response.close()


# --- addresses


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("8.8.8.8", "public"),
        ("2606:4700::1111", "public"),
        ("127.0.0.1", "loopback"),
        ("127.255.0.9", "loopback"),
        ("::1", "loopback"),
        ("0.0.0.0", "loopback"),
        ("::", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("2002:7f00:1::", "loopback"),
        ("64:ff9b::7f00:1", "loopback"),
        ("10.1.2.3", "private"),
        ("172.16.0.1", "private"),
        ("192.168.1.1", "private"),
        ("100.64.0.1", "private"),
        ("198.18.0.1", "private"),
        ("fd00::1", "private"),
        ("::ffff:10.0.0.1", "private"),
        ("64:ff9b::a00:1", "private"),
        ("240.0.0.1", "private"),
        ("169.254.169.254", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("::ffff:169.254.169.254", "link-local"),
        ("224.0.0.1", "link-local"),
        ("ff02::1", "link-local"),
    ],
)
def test_every_address_belongs_to_a_network(address: str, network: str) -> None:
    assert network_of(address) == network


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127。0。0。1",
        "①②⑦.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.1",
        "017700000001",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "0",
        "localhost",
        "LOCALHOST.",
        "ｌｏｃａｌｈｏｓｔ",
        socket.gethostname(),
    ],
)
async def test_only_public_addresses_are_contacted_however_they_are_spelled(listen: Any, words: Any, host: str) -> None:
    raw = await listen(words.answering(words.reply(b"secret")))
    client = open_client(allows=only_public)
    with pytest.raises(WebError) as caught:
        await body(client, f"http://{host}:{raw.port}")
    assert caught.value.kind in ("refused", "unreachable", "unsendable")
    assert (raw.connections, caught.value.was_sent) == (0, False)


async def test_a_name_is_looked_up_once_and_what_was_checked_is_connected_to(listen: Any, words: Any) -> None:
    """The second answer of a resolver, which could be another one, is never asked for."""
    raw = await listen(words.answering(words.reply(b"x")))
    loop = asyncio.get_running_loop()
    looked_up: list[Any] = []
    look_up = loop.getaddrinfo

    async def counted(host: Any, *arguments: Any, **options: Any) -> Any:
        looked_up.append(host)
        return await look_up(host, *arguments, **options)

    checked: list[str] = []

    def allows(_endpoint: Endpoint, address: str) -> bool:
        checked.append(address)
        return address == "127.0.0.1"

    loop.getaddrinfo = counted  # type: ignore[method-assign]
    client = WebClient(allows)
    response = await client.send(Request("GET", f"http://localhost:{raw.port}", "/"))
    assert (await response.body(10), response.peer) == (b"x", "127.0.0.1")
    assert (looked_up, "127.0.0.1" in checked) == (["localhost"], True)
    await client.aclose()


async def test_an_address_that_does_not_answer_does_not_hold_up_the_next(listen: Any, words: Any) -> None:
    """`localhost` has two addresses on many machines, and only one of them listens here."""
    raw = await listen(words.answering(words.reply(b"x")))
    client = WebClient()
    assert await body(client, f"http://localhost:{raw.port}") == b"x"
    await client.aclose()


async def test_a_closed_port_is_reported_as_unreachable(client: WebClient) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for host in (f"127.0.0.1:{port}", "no-such-host.invalid", f"{'a' * 70}.test"):
        with pytest.raises(WebError) as caught:
            await body(client, f"http://{host}")
        assert (caught.value.kind, caught.value.was_sent) == ("unreachable", False)


async def test_an_attempt_to_connect_ends_in_time() -> None:
    with socket.socket() as deaf:  # takes the connection, and says nothing of encryption
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        endpoint = read_endpoint(f"https://127.0.0.1:{deaf.getsockname()[1]}")
        with pytest.raises(WebError, match=r"within 0\.2 seconds"):
            await dial(endpoint, None, lambda: Connection(Pool(), (endpoint, None)), None, 0.2)


# --- encryption


class Authority:
    """An authority of our own, and the certificates it gives."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.file = folder / "authority.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Test authority")])
        self._certificate = self._signed(self._name, self._key, None)
        self.file.write_bytes(self._certificate.public_bytes(Encoding.PEM))

    def context(self, *names: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
        certificate = self._signed(subject, key, names)
        chain = self._folder / "chain.pem"
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        chain.write_bytes(certificate.public_bytes(Encoding.PEM) + secret)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        return context

    def _signed(self, subject: x509.Name, key: Any, names: tuple[str, ...] | None) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=names is None, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if names is not None:
            builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_name, names))), critical=False)
        else:
            usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
            builder = builder.add_extension(usage, critical=True)
        return builder.sign(self._key, hashes.SHA256())


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_the_authorities_of_the_environment_are_believed_and_no_others(
    listen: Any, words: Any, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = await listen(words.answering(words.reply(b"x")), "127.0.0.1", ssl=authority.context("localhost", "127.0.0.1"))
    with pytest.raises(WebError, match="certificate verify failed"):
        await body(WebClient(), raw.origin)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    client = WebClient()
    assert await body(client, raw.origin) == b"x"
    assert await body(client, raw.origin.replace("127.0.0.1", "localhost")) == b"x"
    await client.aclose()


async def test_a_certificate_for_another_host_is_refused(
    listen: Any, words: Any, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    raw = await listen(words.answering(words.reply(b"x")), "127.0.0.1", ssl=authority.context("elsewhere.test"))
    with pytest.raises(WebError, match="certificate verify failed"):
        await body(WebClient(), raw.origin)
    assert raw.requests == []


async def test_authorities_that_cannot_be_read_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/no/such/file.pem")
    with pytest.raises(WebError, match="SSL_CERT_FILE"):
        await body(WebClient(), "https://127.0.0.1:9")


# --- proxies


def proxy(words: Any) -> Any:
    """A proxy: tunnels where it is asked to, and answers the rest itself."""

    async def talk(line: Any) -> None:
        while request := await line.request():
            if not request.startswith(b"CONNECT"):
                await line.write(words.reply(b"by the proxy"))
                continue
            host, _, port = request.split(b" ")[1].decode().rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            await line.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(_pipe(line.reader, writer), _pipe(reader, line.writer))
            return

    return talk


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()


async def test_a_plain_request_goes_to_the_proxy_with_the_whole_url(
    listen: Any, words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = await listen(proxy(words))
    monkeypatch.setenv("HTTP_PROXY", raw.origin.replace("://", "://me:secret@"))
    client = WebClient()
    assert await body(client, "http://api.test:81", "/a?b") == b"by the proxy"
    assert raw.requests[0].startswith(b"GET http://api.test:81/a?b HTTP/1.1\r\nHost: api.test:81\r\n")
    assert b"Proxy-Authorization: Basic bWU6c2VjcmV0\r\n" in raw.requests[0]
    await client.aclose()


async def test_an_encrypted_request_goes_through_a_tunnel_and_shows_the_proxy_nothing(
    listen: Any, words: Any, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await listen(words.answering(words.reply(b"x")), "127.0.0.1", ssl=authority.context("localhost"))
    raw = await listen(proxy(words))
    monkeypatch.setenv("https_proxy", raw.origin)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    client = WebClient()
    for _ in range(2):
        assert await body(client, f"https://localhost:{server.port}", "/secret") == b"x"
    assert [each.split(b"\r\n")[0] for each in raw.requests] == [b"CONNECT localhost:%d HTTP/1.1" % server.port]
    assert (len(server.requests), b"Proxy" in server.requests[0]) == (2, False)
    await client.aclose()


async def test_a_proxy_that_refuses_is_reported(listen: Any, words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = await listen(words.answering(words.reply(b"", "407 Proxy Authentication Required")))
    monkeypatch.setenv("HTTPS_PROXY", raw.origin)
    with pytest.raises(WebError, match="the proxy rejected the request: HTTP 407") as caught:
        await body(WebClient(), "https://api.test")
    assert caught.value.kind == "unreachable"


@pytest.mark.parametrize("host", ["127.0.0.1", "127。0。0。1", "localhost", "[::1]", "169.254.169.254", "10.0.0.1"])
async def test_a_proxy_is_not_sent_to_addresses_that_are_written_and_not_allowed(
    listen: Any, words: Any, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    raw = await listen(proxy(words))
    monkeypatch.setenv("HTTP_PROXY", raw.origin)
    with pytest.raises(WebError) as caught:
        await body(WebClient(only_public), f"http://{host}")
    assert (caught.value.kind, raw.connections) == ("refused", 0)


@pytest.mark.parametrize(
    ("variables", "origin", "proxied"),
    [
        ({"HTTP_PROXY": "p:1"}, "http://a.test", True),
        ({"http_proxy": "p:1"}, "http://a.test", True),
        ({"HTTP_PROXY": "p:1"}, "https://a.test", False),
        ({"HTTPS_PROXY": "http://p:1/"}, "https://a.test", True),
        ({"ALL_PROXY": "http://p:1"}, "https://a.test", True),
        ({"HTTP_PROXY": "p:1", "REQUEST_METHOD": "GET"}, "http://a.test", False),
        ({"http_proxy": "p:1", "REQUEST_METHOD": "GET"}, "http://a.test", True),
        ({"HTTP_PROXY": ""}, "http://a.test", False),
        ({"HTTP_PROXY": "p:1", "NO_PROXY": "*"}, "http://a.test", False),
        ({"HTTP_PROXY": "p:1", "NO_PROXY": "a.test"}, "http://a.test", False),
        ({"HTTP_PROXY": "p:1", "NO_PROXY": "A.TEST"}, "http://a.test", False),
        ({"HTTP_PROXY": "p:1", "NO_PROXY": "test"}, "http://a.test", False),
        ({"HTTP_PROXY": "p:1", "NO_PROXY": ".test"}, "http://a.test", False),
        ({"HTTP_PROXY": "p:1", "NO_PROXY": "*.test"}, "http://a.test", False),
        ({"HTTP_PROXY": "p:1", "NO_PROXY": "b.test, a.test"}, "http://a.test", False),
        ({"HTTP_PROXY": "p:1", "NO_PROXY": "est"}, "http://a.test", True),
        ({"HTTP_PROXY": "p:1", "NO_PROXY": "a.test:81"}, "http://a.test", True),
        ({"HTTP_PROXY": "p:1", "NO_PROXY": "a.test:81"}, "http://a.test:81", False),
        ({"HTTP_PROXY": "p:1", "NO_PROXY": "10.0.0.0/8"}, "http://10.1.2.3", False),
        ({"HTTP_PROXY": "p:1", "NO_PROXY": "10.0.0.0/8"}, "http://11.1.2.3", True),
        ({"HTTP_PROXY": "p:1", "NO_PROXY": "::1"}, "http://[::1]", False),
        ({"HTTP_PROXY": "p:1", "NO_PROXY": "[::1]:80"}, "http://[::1]", False),
        ({"HTTP_PROXY": "p:1", "NO_PROXY": "fd00::/8"}, "http://[fd00::2]", False),
    ],
    ids=repr,
)
def test_the_variables_say_which_requests_go_through_a_proxy(
    variables: dict[str, str], origin: str, proxied: bool
) -> None:
    found = proxy_for(read_endpoint(origin), variables)
    assert (found is not None) == proxied
    assert found is None or found.with_port == "p:1"


def test_a_proxy_of_another_kind_is_named() -> None:
    with pytest.raises(WebError, match="socks5"):
        proxy_for(read_endpoint("http://a.test"), {"ALL_PROXY": "socks5://p:1"})


# --- redirects


async def test_credentials_are_not_sent_to_another_server(listen: Any, words: Any, client: WebClient) -> None:
    other = await listen(words.answering(words.reply(b"there")))
    raw = await listen(words.answering(words.reply(b"", "307 Temporary", Location=f"{other.origin}/y")))
    headers = [("Authorization", "Bearer t"), ("Cookie", "a=b"), ("X-Key", "k"), ("Content-Type", "a/b")]
    origin = raw.origin.replace("://", "://me:secret@")
    request = Request("POST", origin, "/x", headers, b"body")
    response = await follow(client.send, request, lambda *_: False, 3)
    assert await response.body(10) == b"there"
    [received] = other.requests
    assert received.startswith(b"POST /y HTTP/1.1\r\n")
    assert received.endswith(b"\r\n\r\nbody")
    assert [word for word in (b"Bearer", b"a=b", b"X-Key", b"Basic") if word in received] == []


@pytest.mark.parametrize("location", ["http://[", "\x00", "http://a b/", "ftp://x/", "//", "http:///x"])
async def test_a_redirect_to_no_address_is_an_error(listen: Any, words: Any, client: WebClient, location: str) -> None:
    raw = await listen(words.answering(words.reply(b"", "302 Found", Location=location)))
    with pytest.raises(WebError):
        await follow(client.send, Request("GET", raw.origin, "/"), lambda *_: False, 3)
