"""Meaning of column names: the words that suggest a time, an id, a label or a value from the past."""

from __future__ import annotations

import re

from ranking.schema.base import MODEL_NAME


def _listed(text: str) -> list[str]:
    return text.split()


USERS = _listed(
    "user usr member customer visitor account person viewer reader client buyer subscriber guest shopper consumer "
    "player patient employee household cookie profile reviewer rater voter commenter learner student respondent "
    "borrower investor traveler traveller passenger"
)
ITEMS = _listed(
    "item movie film video product article ad advert creative doc document song track book post photo news content "
    "listing hotel restaurant business recipe game app sku asin isbn candidate offer job course show episode anime "
    "beer page pin tweet question poi venue place property destination url artist album wine dish meal joke story clip "
    "reel podcast lesson lecture coupon vacancy attraction"
)
REQUESTS = _listed("request req impression query search slate session srch")
PLAIN = 1
"""Rank of a name that consists of an entity only."""
ID_SUFFIX = r"(id|ids|idx|key|uid|guid|uuid|hash|no|nr|number)?"

TIME_NAMES = _listed("time timestamp datetime ts eventtime requesttime impressiontime servertime unixtime date day")
TIME_WORDS = {"time", "timestamp", "datetime", "ts", "date", "day", "dt", "ms", "epoch", "unix", "at"}
OTHER_TIMES = {
    *_listed("birth birthday born signup register registered registration upload uploaded release released publish"),
    *_listed("published update updated expire expires expiry end start watch play stay dwell duration"),
}
POSITIONS = {"position", "pos", "rank", "slot", "displayposition", "displayrank", "itemposition", "listposition"}
EXAMPLE_WEIGHTS = {"sampleweight", "instanceweight", "rowweight", "exampleweight"}
"""Names of sample weights only; ``weight`` alone may also be a feature, such as a weight in kg."""

ACTIONS = set(
    _listed(
        "click clicked clicks like liked likes dislike disliked follow followed comment commented forward forwarded "
        "share shared hate hated view viewed watched played purchase purchased buy bought order ordered cart convert "
        "converted conversion install installed download downloaded save saved favorite favorited favourite bookmark "
        "bookmarked subscribe subscribed enter entered open opened reply replied retweet retweeted skip skipped "
        "complete completed finish finished booked accept accepted applied hide hidden report reported block blocked "
        "unfollow unfollowed unsubscribe unsubscribed churn churned engaged redeemed defaulted survived fraud"
    )
)
"""Words for what users do with an item after it is shown."""
NEGATIVE_ACTIONS = set(
    _listed(
        "dislike disliked hate hated skip skipped hide hidden report reported block blocked unfollow unfollowed "
        "unsubscribe unsubscribed churn churned defaulted fraud"
    )
)
FILLERS = set(
    _listed(
        "is has did was label flag target long valid effective profile to add added user item ad link detail page "
        "video product wish list wishlist the y"
    )
)
"""Words that may stand beside an action in the name of a label."""
GENERIC_LABELS = set(_listed("label target y outcome class response income relevance"))
RATINGS = {"rating", "ratings", "stars", "overall"}
WATCHING = set(
    _listed("watch watched watching play played playing dwell view viewing viewed stay listen listened read")
)
DURATIONS = set(_listed("time ms sec secs second seconds duration length minutes millis"))
AMOUNTS = {"revenue", "gmv", "spend", "spent", "payment"}
PAST = set(
    _listed(
        "history hist prev previous past last before prior avg average mean rate ctr cvr cnt count counts num number "
        "n days ago total sum recent ratio frequency freq score pred predicted probability prob max median std"
    )
)
"""Words for statistics of earlier impressions, which are known before the impression."""
SEQUENCES = {"history", "hist", "recent", "last", "seq", "sequence", "prev", "previous", "past", "clicked", "watched"}
CATEGORIES = set(
    _listed(
        "id category cat type kind code zip zipcode postcode region city country state genre brand class tab surface "
        "device os browser channel source gender sex language lang onehot feat hash segment group cluster weekday "
        "hour month"
    )
)
"""Words for integers that are codes rather than amounts."""
CALENDAR = {"weekday", "hour", "month"}
"""Those of them that have few values; with more, they are part of the name of an amount, such as a wage per hour."""
AMOUNT_WORDS = set(
    _listed(
        "age price cost count num number total amount duration length size width height days hours score year income "
        "gain loss distance rate ratio views likes level wage salary"
    )
)
"""Words for integers that are amounts rather than codes."""


def words(name: str) -> list[str]:
    """Return the words of a column name in lower case: ``isLongView_7d`` becomes is, long, view, 7d."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return [word for word in re.split(r"[^A-Za-z0-9]+", spaced.lower()) if word]


def squeezed(name: str) -> str:
    """Return the letters and digits of a column name in lower case."""
    return "".join(words(name))


def entity_rank(name: str, entities: list[str]) -> int | None:
    """Return how well a name fits the id of an entity: 0 for ``user_id``, ``PLAIN`` for ``user``, None for others."""
    text = squeezed(name)
    for entity in entities:
        match = re.fullmatch(f"{entity}s?{ID_SUFFIX}", text)
        if match:
            return 0 if match[1] else PLAIN
    return 0 if entities is USERS and text == "uid" else None


def is_past(name: str) -> bool:
    """Return whether a name describes a statistic of the past, such as ``clicks_7d`` or ``avg_rating``."""
    return any(word in PAST or re.fullmatch(r"\d+[dhm]", word) for word in words(name))


def is_action(name: str) -> bool:
    """Return whether a name consists of words for what a user does, such as ``is_long_view`` or ``liked``."""
    parts = set(words(name))
    return bool(parts & ACTIONS) and parts <= ACTIONS | FILLERS


def is_negative(name: str) -> bool:
    """Return whether a name describes an action that items should not cause, such as ``is_hate``."""
    return bool(set(words(name)) & NEGATIVE_ACTIONS)


def is_watch_time(name: str) -> bool:
    """Return whether a name describes how long a user watched, played or stayed."""
    parts = set(words(name))
    return not is_past(name) and ("dwell" in parts or bool(parts & WATCHING and parts & DURATIONS))


def identifier(name: str, taken: set[str]) -> str:
    """Return a valid name for a feature or task that is not in ``taken``, and add it."""
    text = re.sub(r"[^A-Za-z0-9_]+", "_", name).rstrip("_")
    text = f"_{text}" if not text or text[0].isdigit() else text
    unique, number = text, 2
    while unique in taken:
        unique, number = f"{text}_{number}", number + 1
    taken.add(unique)
    return unique


def model_name(stem: str) -> str:
    """Return a valid model name that resembles the name of a file."""
    text = re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")
    return text if re.fullmatch(MODEL_NAME, text) else "ranker"
