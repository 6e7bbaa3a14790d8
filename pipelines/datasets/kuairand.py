"""Adapter for KuaiRand (Gao et al., CIKM 2022), a short-video feed with 8 binary feedback signals and watch time.

Reads the original files as CSV or Parquet: the logs of the standard policy (``log/`` or ``log_standard_*``), the user
features and the basic video features. The random-exposure log is ignored, because another policy chose its videos.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.dataset as ds

from pipelines.datasets.write import counter, feature, task, write_logs
from ranking.artifacts.atomic_files import check_creatable
from ranking.errors import LogError

UTC_OFFSET_MS = 8 * 3_600_000
"""Offset of the feed's local time (China) from UTC in milliseconds."""
UNKNOWN = -124
"""Sentinel value of KuaiRand for an unknown number."""

SIGNALS = {
    "click": ("is_click", 1.0, "engagement"),
    "long_view": ("long_view", 1.0, "engagement"),
    "like": ("is_like", 10.0, "satisfaction"),
    "profile_enter": ("is_profile_enter", 10.0, "engagement"),
    "comment": ("is_comment", 10.0, "satisfaction"),
    "follow": ("is_follow", 10.0, "satisfaction"),
    "forward": ("is_forward", 10.0, "satisfaction"),
    "hate": ("is_hate", 10.0, "satisfaction"),
}
"""Label column, loss weight and group of each task. Rare signals have larger weights: see docs/results.md."""

COUNTED = ["click", "long_view", "like", "profile_enter", "watch_time"]
"""Tasks whose rates are features. The other signals are too rare."""

HISTORIES = [("video_id", "click"), ("author_id", "click"), ("video_id", "like")]
"""Item feature and label of each history."""

OBJECTIVE = {"click": 1.0, "long_view": 1.0, "like": 5.0, "follow": 10.0, "forward": 10.0, "hate": -10.0}

USER_IDS = ["user_active_degree", "is_live_streamer", "is_video_author", *(f"onehot_feat{i}" for i in range(18))]
USER_NUMBERS = ["follow_user_num", "fans_user_num", "friend_user_num", "register_days"]
VIDEO_IDS = ["author_id", "music_id", "music_type", "video_type", "upload_type"]
VIDEO_NUMBERS = ["video_duration", "server_width", "server_height"]


def convert(raw: Path, out: Path) -> None:
    """Write ``out/ranker.toml``, ``out/log/``, ``out/users.parquet`` and ``out/items.parquet``.

    The log keeps every original column and adds ``time`` (local), ``hour``, ``weekday``, ``watch_time`` (seconds) and
    ``upload_age`` (days from upload to impression). The days up to 2 May 2022 train, 3 May validates and 4 May tests.

    Raises:
        LogError: a file is missing, cannot be read, or has no such column.
        OutputError: ``out`` is not empty, or cannot be written.
    """
    check_creatable(out)
    videos = _read(raw, "video_features_basic")
    users = _read(raw, "user_features")
    try:
        uploaded = videos.select(["video_id", "upload_dt"])
        log = _impressions(_read_log(raw), uploaded)
        users, items = _users(users), _items(videos, log)
    except KeyError as error:
        raise LogError(f"{raw}: a column is missing: {error.args[0]}; restore the original files of KuaiRand") from None
    write_logs(out, _config(), log, users=users, items=items)


def _read(raw: Path, name: str) -> pa.Table:
    files = [
        f for folder in (raw, raw / "data") for f in sorted(folder.glob(f"{name}*")) if f.suffix in (".csv", ".parquet")
    ]
    if not files:
        raise LogError(f"{raw}: no file {name}*.csv or {name}*.parquet; --raw must name the folder of KuaiRand")
    return _table(files)


def _read_log(raw: Path) -> pa.Table:
    files = sorted(raw.glob("log/**/*.parquet")) or [
        f
        for folder in (raw, raw / "data")
        for f in sorted(folder.glob("log_standard*"))
        if f.suffix in (".csv", ".parquet")
    ]
    if not files:
        raise LogError(f"{raw}: no file log/**/*.parquet or log_standard_*; --raw must name the folder of KuaiRand")
    return _table(files)


def _table(files: list[Path]) -> pa.Table:
    try:
        if files[0].suffix == ".csv":
            empty_is_null = pa_csv.ConvertOptions(strings_can_be_null=True)
            return pa.concat_tables([pa_csv.read_csv(f, convert_options=empty_is_null) for f in files])
        return ds.dataset(files, format="parquet").to_table()
    except (OSError, pa.ArrowException) as error:
        raise LogError(f"{', '.join(map(str, files))}: cannot be read ({error})") from None


def _impressions(log: pa.Table, uploaded: pa.Table) -> pa.Table:
    local = pc.add(log["time_ms"], UTC_OFFSET_MS).cast(pa.timestamp("ms"))
    seconds = pc.divide(log["play_time_ms"].cast(pa.float64()), 1000.0)
    row = pc.index_in(log["video_id"], uploaded["video_id"])
    upload = uploaded["upload_dt"].cast(pa.date32()).take(row).cast(pa.timestamp("ms"))
    age = _days_between(upload, local)
    added = {
        "time": local,
        "hour": pc.hour(local),
        "weekday": pc.day_of_week(local),
        "watch_time": seconds,
        "upload_age": age,
    }
    for name, column in added.items():
        log = log.append_column(name, column)
    return log


def _users(users: pa.Table) -> pa.Table:
    return pa.table({c: _without_sentinel(users[c]) for c in ["user_id", *USER_IDS, *USER_NUMBERS]})


def _items(videos: pa.Table, log: pa.Table) -> pa.Table:
    columns = {c: _without_sentinel(videos[c]) for c in ["video_id", *VIDEO_IDS, *VIDEO_NUMBERS]}
    columns["tag"] = pc.split_pattern(videos["tag"].cast(pa.string()), ",")
    end = pc.max(log["time"])  # items in a bundle have the age at which it is published, when the log ends
    upload = videos["upload_dt"].cast(pa.date32()).cast(pa.timestamp("ms"))
    columns["upload_age"] = _days_between(upload, end)
    return pa.table(columns)


def _days_between(start: pa.ChunkedArray, end: pa.ChunkedArray | pa.Scalar) -> pa.ChunkedArray:
    return pc.divide(pc.milliseconds_between(start, end).cast(pa.float64()), 86_400_000.0)


def _without_sentinel(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(pc.equal(column, UNKNOWN), None, column) if pa.types.is_integer(column.type) else column


def _config() -> dict[str, Any]:
    features = [feature("user_id", "categorical", "user"), feature("video_id", "categorical", "item")]
    features += [feature(name, "categorical", "user") for name in USER_IDS]
    features += [feature(name, "numeric", "user", transform="log1p") for name in USER_NUMBERS]
    features += [feature(name, "categorical", "item") for name in VIDEO_IDS]
    features += [feature("tag", "bag", "item")]
    features += [feature(name, "numeric", "item", transform="log1p") for name in VIDEO_NUMBERS]
    features += [feature("upload_age", "numeric", "item")]
    features += [feature(name, "categorical", "context") for name in ("tab", "hour", "weekday")]
    tasks = [
        task(name, "binary", label=label, weight=weight, group=group)
        for name, (label, weight, group) in SIGNALS.items()
    ]
    tasks += [task("watch_time", "regression", transform="log1p", group="engagement")]
    # Counters of users are as of midnight, so that they do not follow the labels that are compared within a day.
    counters = [counter(of, COUNTED) for of in (["user_id"], ["user_id", "tab"], ["user_id", "tag"])]
    counters += [counter(["user_id"], COUNTED, half_life="1d", name="user_recent")]
    counters += [counter(of, COUNTED, delay="1h") for of in (["video_id"], ["video_id", "tab"])]
    histories = [{"of": of, "label": label, "max_length": 20} for of, label in HISTORIES]
    return {
        "name": "kuairand",
        "columns": {"time": "time", "user": "user_id", "item": "video_id"},
        "logs": {"validation_from": "2022-05-03T00:00:00", "test_from": "2022-05-04T00:00:00"},
        "model": {"gate": {"kind": "dselect_k"}},
        "training": {"batch_size": 256},
        "serving": {"objective": OBJECTIVE},
        "counters": counters,
        "histories": histories,
        "features": features,
        "tasks": tasks,
    }
