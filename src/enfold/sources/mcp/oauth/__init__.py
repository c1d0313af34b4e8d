"""OAuth for MCP servers: `from_mcp(url, auth=UserLogin(open_url=…))`, or one of the logins without a user."""

from enfold.sources.mcp.oauth.login_settings import AssertionLogin, Auth, ClientCredentials, EnterpriseLogin, UserLogin
from enfold.sources.mcp.oauth.login_store import (
    FileStore,
    LoginStore,
    LoginTokens,
    MemoryStore,
    RegisteredClient,
    Saved,
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
