"""Dependencies of an operation: `Depends`, and the providers of a function, read once at registration.

`enfold.runtime.dependencies` calls the providers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from enfold.operations.context import Context
from enfold.schema.types import Injected

if TYPE_CHECKING:
    from enfold.schema.types.callables import Injection, Kind

DependencyScope: TypeAlias = Literal["call", "app"]
Dependencies: TypeAlias = "tuple[tuple[str, Provider], ...]"  # the provider of each parameter


class Depends(msgspec.Struct, Injected, frozen=True, eq=False):
    """Provides the value of a parameter: `pool: Annotated[Pool, Depends(get_pool)]`.

    A provider is a function, method or class; without one it is the annotated class. What follows its `yield` runs after
    the call or, with `scope="app"`, when the application stops. A call asks each provider once, unless `use_cache` is False.
    """

    provider: Callable[..., Any] | None = None
    scope: DependencyScope = "call"
    use_cache: bool = True

    def __post_init__(self) -> None:
        if self.provider is not None and not callable(self.provider):
            raise TypeError(
                f"Depends takes a function, not {type(self.provider).__name__}: write Depends(get_pool), "
                "without parentheses behind the function"
            )
        if self.scope not in ("call", "app"):
            raise ValueError(f"Unknown scope {self.scope!r}: use call or app")

    def __repr__(self) -> str:
        return f"Depends({'' if self.provider is None else provider_name(self.provider)})"


class Provider(msgspec.Struct, frozen=True, eq=False):
    """A provider whose parameters have been read."""

    function: Callable[..., Any]
    name: str
    kind: Kind
    scope: DependencyScope
    is_shared: bool  # one value for all of a call
    key: Hashable  # what identifies its value
    context_parameter: str | None
    needs: Dependencies

    @property
    def is_async(self) -> bool:
        """Whether it, or a provider that it needs, runs on an event loop."""
        return self.kind in ("async", "stream") or any(each.is_async for _, each in self.needs)


def read_dependencies(injected: Mapping[str, Injection]) -> Dependencies:
    """The providers of the parameters of a function; TypeError for those that form a cycle or mix scopes wrongly."""
    return tuple((name, _read(each, ())) for name, each in injected.items())


def read_provider(
    function: Callable[..., Any], scope: DependencyScope, *, is_shared: bool = True, above: tuple[Provider, ...] = ()
) -> Provider:
    """A function as a provider, with those of everything that it needs; `above` are those that need it."""
    from enfold.schema.types.callables import read_filled_parameters  # with the first dependency

    read = read_filled_parameters(function, Context)
    own = Provider(function, read.name, read.kind, scope, is_shared, _key(function), read.context_parameter, needs=())
    _check(own, above)
    return replace(own, needs=tuple((name, _read(each, (*above, own))) for name, each in read.injected.items()))


def _read(injection: Injection, above: tuple[Provider, ...]) -> Provider:
    mark = injection.mark
    if not isinstance(mark, Depends):
        raise TypeError(f"{mark!r} is not supported for parameters: use enfold.Depends")
    function = _annotated_class(injection.annotation) if mark.provider is None else mark.provider
    return read_provider(function, mark.scope, is_shared=mark.use_cache, above=above)


def _annotated_class(annotation: Any) -> Callable[..., Any]:
    while hasattr(annotation, "__value__"):  # an alias
        annotation = annotation.__value__
    cls: Any = get_args(annotation)[0]
    if not callable(cls):
        raise TypeError(f"Depends() without a function needs a class to create, not {cls!r}: write Depends(get_it)")
    return cls  # type: ignore[no-any-return]


def _check(own: Provider, above: tuple[Provider, ...]) -> None:
    """Refuse a provider that needs itself, and one for the whole application that needs something of one call."""
    names = [each.name for each in above]
    for place, each in enumerate(above):
        if each.key == own.key:
            raise TypeError(f"Dependencies form a cycle: {' -> '.join([*names[place:], own.name])}")
    if own.scope == "app" and own.context_parameter is not None:
        raise TypeError(f"{own.name}() has scope 'app' and cannot take a Context, which belongs to one call")
    if own.scope == "call" and above and above[-1].scope == "app":
        raise TypeError(
            f"{above[-1].name}() has scope 'app' and cannot depend on {own.name}(), which has scope 'call': "
            f"write Depends({own.name}, scope='app') there"
        )


def provider_name(function: Any) -> str:
    while hasattr(function, "func"):  # functools.partial
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def _key(function: Any) -> Hashable:
    """Equal for the same function; bound methods of one object are equal, although each is another object."""
    try:
        hash(function)
    except TypeError:
        return id(function)
    key: Hashable = function
    return key
