"""The ranker made by hand, which has every kind of feature: what a conftest imports whole to have it."""

from __future__ import annotations

from tests.ranking.conftest import (
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

__all__ = [
    "_one_thread",
    "draw_rows",
    "hand_encoder",
    "hand_ranker",
    "hand_schema",
    "hand_tables",
    "make_mixture",
    "make_model",
    "set_codes",
]
