"""Call a ranking service from Python: `RankingClient`, and `AsyncRankingClient` for asyncio.

    with RankingClient("http://127.0.0.1:8000") as client:
        ranking = client.rank(["v1", "v2"], user="u7", context={"hour": 9}, tasks=["click"])
        client.feedback(ranking.request_id, [{"item": ranking.items[0].id, "labels": {"click": 1}}])

The extra `client` installs the HTTP library.
"""

try:
    from ranking.client.async_client import AsyncRankingClient
except ModuleNotFoundError as error:
    if error.name != "httpx2":
        raise
    hint = "ranking.client needs httpx2, which the extra client installs: pip install 'dselect-ranker[client]'"
    raise ModuleNotFoundError(hint, name=error.name) from None

from ranking.client.errors import (
    AuthenticationError,
    ConnectionFailedError,
    DeadlineExceededError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    PermissionDeniedError,
    RankingError,
    RequestTimeoutError,
    RequestTooLargeError,
    ServiceError,
    UnavailableError,
)
from ranking.client.results import Accepted, Explanation, ModelDetails, ModelSummary, RankedItem, RankedTable, Ranking
from ranking.client.sync_client import RankingClient

__all__ = [
    "Accepted",
    "AsyncRankingClient",
    "AuthenticationError",
    "ConnectionFailedError",
    "DeadlineExceededError",
    "Explanation",
    "InvalidRequestError",
    "ModelDetails",
    "ModelSummary",
    "NotFoundError",
    "OverloadedError",
    "PermissionDeniedError",
    "RankedItem",
    "RankedTable",
    "Ranking",
    "RankingClient",
    "RankingError",
    "RequestTimeoutError",
    "RequestTooLargeError",
    "ServiceError",
    "UnavailableError",
]
