from __future__ import annotations

from datetime import date, datetime, timedelta

import pyarrow as pa
import pytest

from pipelines.data.days import count_days, format_gaps, missing_days


@pytest.mark.parametrize("count", [10, 13])
def test_gaps_that_are_many_are_cut_short(count: int) -> None:
    day = date(2026, 1, 1)
    gaps = missing_days(day + timedelta(days=2 * i) for i in range(count + 1))
    assert len(gaps) == count
    assert format_gaps(gaps).count("2026") == 10
    assert format_gaps(gaps).endswith(f" and {count - 10} more gaps") == (count > 10)


def test_days_are_those_of_the_columns_own_zone() -> None:
    moments = pa.chunked_array([pa.array([datetime(2026, 1, 1, 20)], pa.timestamp("ms", "Asia/Shanghai"))])
    assert count_days(moments) == {date(2026, 1, 2): 1}
