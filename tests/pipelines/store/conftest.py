"""The ranker made by hand, published."""

from __future__ import annotations

from tests.ranking.conftest import (  # noqa: F401
    _one_thread,
    draw_rows,
    hand_encoder,
    hand_ranker,
    hand_schema,
    hand_tables,
    make_mixture,
    make_model,
    set_codes,
)
from tests.service.store.repositories import with_tables  # noqa: F401
