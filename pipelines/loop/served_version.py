"""A published version as the join needs it: its schema, the tables of its bundle, and the time zone of its log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from ranking.artifacts.bundle import COUNTERS, as_bundle_error
from ranking.counters.state import StateClock
from ranking.encoding.feature_table import FeatureTable, LazyFeatureTables
from ranking.encoding.vocabulary import IdArray
from ranking.errors import BundleError, LogError
from ranking.regular_files import read_regular
from ranking.schema import Owner, Schema
from ranking.served_log.reader import ServedFile

STEP = 900_000_000
"""Microseconds between two times at which the offset of local time may change."""


@dataclass(frozen=True)
class ServedVersion:
    """A published version.

    Attributes:
        schema: its schema.
        tables: features of users and items by id.
        zone: time zone of the log that it was trained on; None if that has none.
    """

    schema: Schema
    tables: Mapping[Owner, FeatureTable]
    zone: str | None

    @classmethod
    def open(cls, repository: Path, model: str, version: str) -> ServedVersion:
        """Open a version.

        Raises:
            BundleError: the repository has no such version, or its bundle is damaged.
        """
        folder = repository / model / version
        if not folder.is_dir():
            raise BundleError(
                f"{folder}: no such version, but the served log has answers of it: restore it, name the repository "
                "with --repository, or move its files of the served log away"
            )
        with as_bundle_error(folder):
            manifest = json.loads(read_regular(folder / "manifest.json"))
            schema = Schema.model_validate(manifest["schema"])
            # Bundles of earlier versions name no time zone; without counters their rows were in UTC.
            zone = manifest.get("details", {}).get("time_zone", "UTC")
            zone = StateClock.read(folder / COUNTERS).zone if schema.counter_features else zone
            return cls(schema, LazyFeatureTables(folder, schema), zone)

    def times(self, times: IdArray, local: str | None) -> pa.Array:
        """Convert times in microseconds to the time zone of the log, or to local time if it has none.

        Args:
            times: microseconds since 1970, UTC [n].
            local: time zone of the machine that served; None: that of this one.

        Raises:
            LogError: this machine does not know the time zone.
        """
        if self.zone is not None:
            return pa.array(times, pa.timestamp("us", self.zone))
        steps, inverse = np.unique(times // STEP, return_inverse=True)
        try:
            zone = None if local is None else ZoneInfo(local)
        except (OSError, ValueError, LookupError):
            raise LogError(
                f"the service ran in time zone '{local}', which this machine does not know: install tzdata"
            ) from None
        moments = [datetime.fromtimestamp(step * STEP / 1e6, UTC).astimezone(zone) for step in steps.tolist()]
        offsets = [(moment.utcoffset() or timedelta()) // timedelta(microseconds=1) for moment in moments]
        return pa.array(times + np.array(offsets, np.int64)[inverse], pa.timestamp("us"))


def open_versions(files: Iterable[ServedFile], repository: Path | None) -> dict[str, ServedVersion]:
    """Return the versions that answered the requests of some files by name, oldest first.

    Args:
        files: files of one model.
        repository: repository of the versions; None for the one that each file names.

    Raises:
        BundleError: the repository lacks a version, or its bundle is damaged.
    """
    folders = {file.version: file for file in files}
    ordered = sorted(folders.values(), key=lambda file: (len(file.version), file.version))
    return {
        file.version: ServedVersion.open(repository or file.repository, file.model, file.version) for file in ordered
    }


def in_one_zone(versions: Mapping[str, ServedVersion], zone: str | None) -> dict[str, ServedVersion]:
    """Return versions whose rows have times of one kind: with or without a time zone.

    Versions with counters name the zone of their training log. Others of an earlier format do not, and get ``zone``.
    """
    return {
        name: version if version.schema.counter_features else replace(version, zone=zone)
        for name, version in versions.items()
    }
