"""Texts that travel through a client and come back as they were: signed, so that a changed one is known. No I/O."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode


class StateSigner:
    """Signs what a client keeps for us; `purpose` keeps apart what one secret signs."""

    def __init__(self, secret: bytes, purpose: bytes = b"") -> None:
        self._secret = secret
        self._purpose = purpose

    def sign(self, content: bytes) -> str:
        """The content as a text of `A-Za-z0-9_-` and one dot, which `content_of` gives back."""
        text = urlsafe_b64encode(content).rstrip(b"=")
        return f"{text.decode()}.{self._signature(text)}"

    def content_of(self, signed: str) -> bytes | None:
        """What was signed; None where the text has been changed, or was never signed here."""
        from hmac import compare_digest  # few clients keep something for us

        text, _, signature = signed.encode("utf-8", "replace").rpartition(b".")
        if not compare_digest(signature, self._signature(text).encode()):
            return None
        return urlsafe_b64decode(text + b"=" * (-len(text) % 4))

    def _signature(self, text: bytes) -> str:
        import hmac  # as above

        return hmac.digest(self._secret, self._purpose + text, "sha256").hex()
