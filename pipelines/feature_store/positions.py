"""Positions of the readers that add impressions to the counters in the feature store.

A position says how far an input was added. It changes in the transaction that changes the sums, so that both are
always of the same time.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import redis

from pipelines.feature_store.counter_store import CounterStore

TOKEN, RULES = "token", "rules"
"""Fields beside the positions: a random text that changes with them, and the rules of the readers."""


class Positions:
    """Cached positions of readers, read again only after another program has changed them.

    Args:
        store: the store.
        rules: text of the rules that give the positions their meaning; None for positions without rules.
    """

    def __init__(self, store: CounterStore, rules: str | None = None) -> None:
        self._store, self._rules = store, rules
        self._token: str | None = None
        self._next_token: str | None = None
        self._copy: dict[str, dict[str, str]] = {}

    def read(self, reader: str) -> Mapping[str, str]:
        """Return the positions of a reader by input.

        Raises:
            OutputError: the store cannot be reached.
        """
        with self._store.errors("fix the store, then repeat the command"):
            (token,) = self._fields(TOKEN)
            if token != self._token or token is None:
                fields: Any = self._store.client.hgetall(self._store.positions)
                self._copy = {}
                for name, position in fields.items():
                    other, _, source = name.decode().partition(":")
                    self._copy.setdefault(other, {})[source] = position.decode()
                self._token = self._copy.pop(TOKEN, {}).get("")
                self._copy.pop(RULES, None)
        return dict(self._copy.get(reader, {}))

    def have_other_rules(self) -> bool:
        """Return whether the store has positions of other rules.

        Raises:
            OutputError: the store cannot be reached.
        """
        with self._store.errors("fix the store, then repeat the command"):
            (rules,) = self._fields(RULES)
        return rules not in (None, self._rules)

    def is_at(self, position: str | None, reader: str, source: str) -> bool:
        """Return whether a reader is at a position of an input, and the store has no other rules."""
        stored, rules = self._fields(f"{reader}:{source}", RULES)
        same_rules = self._rules is None or rules in (None, self._rules)
        return same_rules and stored == position

    def move(self, pipeline: redis.client.Pipeline, reader: str, source: str, position: str) -> None:
        """Add the change of a position to a transaction."""
        self._token = None  # unless it succeeds, everything is read again: it may succeed without a reply
        self._next_token = uuid.uuid4().hex
        fields: dict[Any, Any] = {f"{reader}:{source}": position, TOKEN: self._next_token}
        if self._rules is not None:
            fields[RULES] = self._rules
        pipeline.hset(self._store.positions, mapping=fields)

    def moved(self, reader: str, source: str, position: str) -> None:
        """Change the copy after the transaction."""
        self._copy.setdefault(reader, {})[source] = position
        self._token = self._next_token

    def _fields(self, *names: str) -> list[str | None]:
        values: Any = self._store.client.hmget(self._store.positions, list(names))
        return [None if value is None else value.decode() for value in values]
