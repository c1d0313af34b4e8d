"""OAuth for MCP servers: `from_mcp(url, auth=UserLogin(open_url=…))`, or one of the logins without a user."""

from enfold.sources.mcp.oauth.settings import (
    AssertionLogin,
    Auth,
    ClientCredentials,
    EnterpriseLogin,
    FileStore,
    LoginStore,
    LoginTokens,
    MemoryStore,
    RegisteredClient,
    Saved,
    UserLogin,
)

__all__ = [
    "AssertionLogin",
    "Auth",
    "ClientCredentials",
    "EnterpriseLogin",
    "FileStore",
    "LoginStore",
    "LoginTokens",
    "MemoryStore",
    "RegisteredClient",
    "Saved",
    "UserLogin",
]
