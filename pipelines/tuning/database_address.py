"""Address of the PostgreSQL database in which several machines record the trials of a study."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qsl, unquote, urlsplit

FORM = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
PORT = 5432
"""Default port of PostgreSQL."""
PASSWORD_VARIABLE = "PGPASSWORD"
"""Variable with the password of an address that has none, as for the programs of PostgreSQL."""
SSL_MODES = ("disable", "prefer", "require", "verify-full")
"""Values of ``?sslmode=``, with the meaning that they have in PostgreSQL; ``prefer`` is the default."""


@dataclass(frozen=True)
class DatabaseAddress:
    """A parsed address; as text, it has no password.

    Attributes:
        user: name of the user.
        password: password; None if neither the address nor the variable has one.
        host: host of the server.
        port: port of the server.
        database: name of the database.
        ssl_mode: one of ``SSL_MODES``.
    """

    user: str
    password: str | None = field(repr=False)
    host: str
    port: int
    database: str
    ssl_mode: str

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse an address.

        Raises:
            ValueError: it is not valid; the message does not quote the address, which may hold a password.
        """
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
            ssl_mode, database = options.pop("sslmode", "prefer"), unquote(parts.path.removeprefix("/"))
            known = parts.scheme in ("postgresql", "postgres") and not options and ssl_mode in SSL_MODES
            if not known or parts.fragment or not (parts.username and parts.hostname and database):
                raise ValueError
            password = os.environ.get(PASSWORD_VARIABLE) if parts.password is None else unquote(parts.password)
            port = PORT if parts.port is None else parts.port
            return cls(unquote(parts.username), password, parts.hostname, port, database, ssl_mode)
        except ValueError:  # also of a port that is not a number, and of an incomplete IPv6 address
            raise ValueError(
                f"is not the address of a database: write {FORM}, at most with ?sslmode={'|'.join(SSL_MODES)}; in a "
                "user name or a password write '/', '@', ':', '?', '#' and '%' as %2F, %40, %3A, %3F, %23 and %25"
            ) from None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"postgresql://{host}:{self.port}/{self.database}"
