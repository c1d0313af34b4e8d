"""What the tests of commands share: what a command sets for its whole process is taken back after it."""

from collections.abc import Iterator

import pytest

from enfold import log


@pytest.fixture(autouse=True)
def _talkative() -> Iterator[None]:
    """A command that is run in this process silences logs, which other tests read."""
    yield
    log._silent.clear()
