"""The ranker made by hand, which has every kind of feature."""

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
