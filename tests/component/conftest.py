"""What several files of this folder need."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from support.participant import PartnerApi


@pytest.fixture
def partner() -> Iterator[PartnerApi]:
    with contextlib.closing(PartnerApi()) as made:
        yield made
