"""Take an upload: a form, a raw body or base64 in JSON; the operation gets bytes."""

import asyncio
from dataclasses import dataclass
from hashlib import sha256

from enfold import OperationRegistry, testing

ops = OperationRegistry("lab")


@dataclass
class Stored:
    name: str
    size: int
    digest: str


@ops.mutation
def upload(content: bytes, name: str = "unnamed") -> Stored:
    """Store a file."""
    return Stored(name, len(content), sha256(content).hexdigest()[:8])


FORM = b"""--x\r
Content-Disposition: form-data; name="content"; filename="notes.txt"\r
\r
Hello\r
--x\r
Content-Disposition: form-data; name="name"\r
\r
notes\r
--x--\r
"""


async def main() -> None:
    async with testing.http(ops) as client:
        for kind, query, body in (
            ("multipart/form-data; boundary=x", "", FORM),
            ("application/octet-stream", "?name=notes", b"Hello"),
            ("application/json", "", b'{"content": "SGVsbG8=", "name": "notes"}'),
        ):
            answer = client.request("POST", f"/functions/lab.upload{query}", body, headers={"content-type": kind})
            print(await answer.json())


if __name__ == "__main__":
    asyncio.run(main())
