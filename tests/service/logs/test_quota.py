"""Quotas of the feedback folder."""

from __future__ import annotations

import math

import pytest

from service.logs.quota import FolderFullError, KeyQuotaError, LogQuota
from service.logs.sink import LogUsage


def test_check_counts_the_scanned_files_and_what_was_written_since() -> None:
    quota = LogQuota(1, 100)
    quota.replace_usage(LogUsage(60, {"shop": 30}, math.inf))
    quota.check("shop", 20)
    quota.add("shop", 15)
    with pytest.raises(KeyQuotaError, match="its files have 45 bytes, and the limit is half of max_log_bytes, 50"):
        quota.check("shop", 6)
    quota.check("shop", 5)
    quota.check("app", 25)
    with pytest.raises(FolderFullError, match="its files have 75 bytes, and max_log_bytes is 100"):
        quota.check("app", 26)


def test_check_without_keys_applies_the_quota_of_the_folder_only() -> None:
    quota = LogQuota(1, 100)
    quota.add(None, 60)
    quota.check(None, 40)
    with pytest.raises(FolderFullError):
        quota.check(None, 41)


def test_collected_files_free_their_quota_at_the_next_scan() -> None:
    quota = LogQuota(1, 100)
    quota.add("shop", 50)
    with pytest.raises(KeyQuotaError):
        quota.check("shop", 1)
    quota.replace_usage(LogUsage(0, {}, math.inf))
    quota.check("shop", 50)


@pytest.mark.parametrize(
    ("processes", "size", "expected"), [(1, 40, False), (1, 41, True), (4, 10, False), (4, 11, True)]
)
def test_needs_scan_assumes_that_other_processes_write_as_much(processes: int, size: int, expected: bool) -> None:
    quota = LogQuota(processes, 100)
    quota.replace_usage(LogUsage(60, {}, math.inf))
    assert quota.needs_scan(None, size) == expected


def test_needs_scan_before_the_quota_of_a_key_is_exceeded() -> None:
    quota = LogQuota(2, 100)
    quota.add("shop", 20)
    assert not quota.needs_scan("shop", 5)
    assert quota.needs_scan("shop", 6)
    assert not quota.needs_scan("app", 6)
