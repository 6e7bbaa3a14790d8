"""Schema of a ranker: the features it reads and the tasks it predicts.

The schema is a pydantic model that users write in ``ranker.toml``. It applies to logs, model, bundle and HTTP requests.
"""

from ranking.schema.base import ID_OWNERS, MODEL_NAME, ColumnName, ListOf, Name, Owner, StrictModel, Widths
from ranking.schema.counters import Counter, History
from ranking.schema.features import (
    BagFeature,
    BucketsFeature,
    CategoricalFeature,
    CrossFeature,
    Feature,
    IdFeature,
    InputFeature,
    NumberFeature,
    NumericFeature,
    PooledFeature,
    SequenceFeature,
    SingleFeature,
    SparseFeature,
)
from ranking.schema.schema import Columns, Schema
from ranking.schema.tasks import MAX_OBJECTIVE_WEIGHT, Objective, Task

__all__ = [
    "ID_OWNERS",
    "MAX_OBJECTIVE_WEIGHT",
    "MODEL_NAME",
    "BagFeature",
    "BucketsFeature",
    "CategoricalFeature",
    "ColumnName",
    "Columns",
    "Counter",
    "CrossFeature",
    "Feature",
    "History",
    "IdFeature",
    "InputFeature",
    "ListOf",
    "Name",
    "NumberFeature",
    "NumericFeature",
    "Objective",
    "Owner",
    "PooledFeature",
    "Schema",
    "SequenceFeature",
    "SingleFeature",
    "SparseFeature",
    "StrictModel",
    "Task",
    "Widths",
]
