"""A real issuer on loopback (oidc-provider): its tokens are accepted, new keys are found, and old ones are rejected."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from tests.auth.little_issuer import Clock
from tests.conftest import not_run

from enfold import Identity
from enfold.auth.issuers import Issuer, Issuers

HERE = Path(__file__).parent
MODULES = HERE.parents[1] / ".parts" / "node_modules"
AUDIENCE = "https://api.example.com/"


class RealIssuer:
    """The program, and what it can be asked for."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{self._line()}"

    def _line(self) -> str:
        """The next line that is ours; the program's library has advice for operators."""
        assert self.process.stdout is not None
        return next(line.strip() for line in self.process.stdout if not line.startswith("oidc-provider"))

    def rotate(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("ROTATE\n")
        self.process.stdin.flush()
        assert self._line() == "rotated"

    def token(self) -> str:
        form = {
            "grant_type": "client_credentials",
            "client_id": "ann",
            "client_secret": "a secret of the tests",
            "resource": AUDIENCE,
            "scope": "shop:order",
        }
        asked = Request(f"{self.url}/token", urlencode(form).encode())  # noqa: S310  # our own, on this machine
        with urlopen(asked) as answer:  # noqa: S310  # as above
            return str(json.load(answer)["access_token"])


@pytest.fixture
def issuer(program: Callable[[str], str], tmp_path: Path) -> Iterator[RealIssuer]:
    if not (MODULES / "oidc-provider").exists():
        not_run("oidc-provider")
    (tmp_path / "node_modules").symlink_to(MODULES)
    (tmp_path / "issuer.mjs").write_text((HERE / "oidc_issuer.mjs").read_text())
    process = subprocess.Popen(
        [program("node"), str(tmp_path / "issuer.mjs")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield RealIssuer(process)
    finally:
        process.kill()
        process.communicate()


async def test_its_tokens_are_taken_until_their_key_is_withdrawn(issuer: RealIssuer) -> None:
    clock = Clock(time.time())
    trusted = Issuer(issuer=issuer.url, audiences=(AUDIENCE,))
    verifier = Issuers([trusted], clock=clock)
    first = issuer.token()
    assert await verifier.identify(first) == Identity("ann", frozenset({"shop:order"}))
    elsewhere = Issuers([Issuer(issuer=issuer.url, audiences=("another audience",))], clock=clock)
    assert await elsewhere.identify(first) is None

    issuer.rotate()
    second = issuer.token()
    assert await verifier.identify(first) is not None
    assert await verifier.identify(second) is None  # fetched less than 30 seconds ago
    clock.move(31)
    assert await verifier.identify(second) is not None
    assert await verifier.identify(first) is None

    issuer.process.kill()
    issuer.process.wait()
    for _ in range(5):
        clock.move(60)
        assert await verifier.identify(second) is not None
