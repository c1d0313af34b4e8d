"""Issuers: callers who prove themselves by a JWT of an issuer that the operator trusts. Enfold verifies, it never issues.

Needs the extra `auth`; what checks signatures is loaded with the first token.
"""

# Imports inside functions: joserfc and the HTTP client come with the first token that needs them.

from enfold.issuers.settings import ClaimPlaces, Issuer, read_issuers
from enfold.issuers.verifier import Issuers, RefusedTokenError

__all__ = ["ClaimPlaces", "Issuer", "Issuers", "RefusedTokenError", "read_issuers"]
