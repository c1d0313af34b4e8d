"""The pytest plugin: fixtures that run a test on every surface. Nothing of Enfold is imported before a test asks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from enfold.testing import Client

MARK = "enfold_surfaces"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARK}(*names): the surfaces on which the test runs; without it all of them")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that uses `enfold_surface`, itself or through `enfold_client`, once for each surface."""
    if "enfold_surface" in metafunc.fixturenames:
        from enfold.testing import SURFACES  # loaded in every test run, even if unused

        marker = metafunc.definition.get_closest_marker(MARK)
        metafunc.parametrize("enfold_surface", marker.args if marker else tuple(SURFACES), indirect=True)


@pytest.fixture
def enfold_surface(request: pytest.FixtureRequest) -> str:
    """The name of the surface on which the test runs."""
    return str(request.param)


@pytest.fixture
def enfold_client(enfold_surface: str) -> Callable[..., AbstractAsyncContextManager[Client]]:
    """Opens a client of the surface: `async with enfold_client(registry) as client:`."""
    from enfold.testing import open_client  # as above

    return partial(open_client, enfold_surface)
