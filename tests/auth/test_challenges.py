"""The challenge that a client without access gets."""

from enfold import OperationRegistry
from enfold.auth.challenges import challenge, metadata_url, protected_resource, scopes_of


def test_a_challenge_names_the_error_the_scopes_and_where_to_read_more() -> None:
    assert challenge() == 'Bearer realm="enfold"'
    url = metadata_url("https://api.example.com", "/mcp")
    assert url == "https://api.example.com/.well-known/oauth-protected-resource/mcp"
    assert challenge("invalid_token", scope=["b", "a"], resource_metadata=url) == (
        f'Bearer realm="enfold", error="invalid_token", scope="a b", resource_metadata="{url}"'
    )


def test_nothing_breaks_out_of_its_quotes() -> None:
    told = challenge("invalid_token", scope=['a", error="none'], resource_metadata='x"\r\nSet-Cookie: y\\')
    assert told.count('"') == 8
    assert "\r" not in told
    assert "\n" not in told


def test_the_metadata_says_who_gives_tokens_and_which_scopes_there_are() -> None:
    ops = OperationRegistry("shop")
    ops.query(name="one", access={"required_scopes": ["read"], "required_scopes_any": ["a", "b"]})(lambda: 1)
    document = protected_resource(
        "https://api.example.com/mcp",
        name="Shop",
        issuers=["https://login.example.com"] * 2,
        scopes=scopes_of(ops.list()),
    )
    assert document == {
        "resource": "https://api.example.com/mcp",
        "authorization_servers": ["https://login.example.com"],
        "scopes_supported": ["a", "b", "read"],
        "bearer_methods_supported": ["header"],
        "resource_name": "Shop",
    }
    assert "authorization_servers" not in protected_resource("https://api.example.com/", name="Shop")
