"""Damaged HTTP messages, Arrow streams and JSON: none causes a 5xx, or a crash of a process."""

from __future__ import annotations

import http.client
import json
import random
import re
import struct
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from service.http.decode import MIN_COLUMNS_BYTES
from service.http.media_types import ARROW, JSON
from tests.support.arrow_streams import stream
from tests.support.disclosure import internal_details
from tests.support.http_client import post_json, read_until_closed
from tests.support.json_schema import fits
from tests.support.memory import memory_bytes
from tests.support.ports import HOST
from tests.support.processes import ServiceProcess, running_service
from tests.support.rank_request import rank

COUNT = pytest.mark.parametrize(
    "count",
    [pytest.param(300, marks=pytest.mark.system), pytest.param(3_500, marks=pytest.mark.nightly)],
)
CLIENTS = 24
LIMITS = {"read_seconds": 0.3, "keep_alive_seconds": 0.3}
"""Short timeouts, because many damaged messages are incomplete."""
MAX_BYTES = 400 * 1024 * 1024
"""Upper bound on the growth of the process's peak memory."""
STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [ -~]*\r\n")

BODIES = [
    b'{"items": [{"id": "v1"}, {"id": "v2", "features": {"price": 3.2}}]}',
    b'{"user": {"id": "u3"}, "items": {"id": ["v1", "v2"], "features": {"price": [1.5, null]}}, "top_n": 1}',
    b'{"request_id": "r-1", "events": [{"item": "v1", "labels": {"is_click": 1}}]}',
    b"{}",
]
TARGETS = [
    "/v1/rank",
    "/v1/models/feed/rank",
    "/v1/models/feed/versions/1/rank",
    "/v1/feedback",
    "/v2/repository/index",
]
GET_TARGETS = ["/v2/health/live", "/v2/health/ready", "/v2/models/feed", "/metrics", "/openapi.json", "/docs", "/"]
HEADERS = [
    "X-Request-ID: {}",
    "Accept: {}",
    "Content-Encoding: {}",
    "Transfer-Encoding: {}",
    "Content-Length: {}",
    "Host: {}",
    "Connection: {}",
    "Expect: {}",
    "Upgrade: {}",
    "traceparent: {}",
    "Content-Type: {}",
    "Authorization: {}",
    "{}: x",
    "Cookie: {}",
    "Range: {}",
    "X-Forwarded-For: {}",
    "X-HTTP-Method-Override: {}",
    "TE: {}",
    "Trailer: {}",
]
VALUES = [
    "",
    "x",
    "0",
    "-1",
    "5",
    "+5",
    "5, 5",
    "0x10",
    "1e3",
    "99999999999999999999999",
    "18446744073709551615",
    "chunked",
    "identity",
    "gzip",
    "gzip, chunked",
    "chunked, chunked",
    "100-continue",
    "close",
    "keep-alive",
    "upgrade",
    "h2c",
    "websocket",
    "\x00",
    "\x7f",
    "é",
    "a" * 5_000,
    "\r\n X: y",
    "\t",
    " ",
    "*/*;q=nan",
    "application/json;q=-1",
    "bytes=0-",
    "application/vnd.apache.arrow.stream",
    "text/plain",
    "Bearer \xff",
    "../..",
    "%00",
    "00-0-0-00",
    ";;;,,,",
    "a:b",
]
METHODS = [
    "GET",
    "POST",
    "PUT",
    "DELETE",
    "HEAD",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "CONNECT",
    "PRI",
    "get",
    "",
    "P\x00ST",
    "G" * 300,
]
VERSIONS = [
    "HTTP/1.1",
    "HTTP/1.0",
    "HTTP/2.0",
    "HTTP/0.9",
    "HTTP/1.2",
    "HTTP/11",
    "http/1.1",
    "HTTX/1.1",
    "",
    "HTTP/1.1 x",
]
PATHS = [
    "/v1/rank?x=%ff",
    "/v1/rank#x",
    "//v1/rank",
    "/v1/../v1/rank",
    "/v1/%72ank",
    "/v1/rank/",
    "*",
    "x:443",
    "/%",
    "/%zz",
    "http://h/v1/rank",
    "/v1/models/%00/rank",
    "/v1/models/../../rank",
    "/v1/models/feed/versions/999999999999999999999/rank",
    "/v2/models/" + "a" * 2_000,
    "/v1/models/é/rank",
    "/\x01",
    "",
    "/v1/rank\t",
    "/v1/models/%ED%A0%80/rank",
    "/v2/models/%2e%2e",
]


class MessageGenerator:
    """Draws damaged HTTP messages; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def segments(self) -> list[bytes]:
        """One to four messages on a connection, split into up to five segments."""
        choose = self._random
        data = b"".join(self._message() for _ in range(choose.choice([1, 1, 1, 2, 4])))
        if choose.random() < 0.3:
            data = self._damaged(data)
        cuts = sorted(choose.randrange(len(data) + 1) for _ in range(choose.choice([0, 0, 1, 4])))
        return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]

    def _message(self) -> bytes:
        choose = self._random
        body = choose.choice(BODIES) if choose.random() < 0.8 else b""
        method, version = "POST" if body else "GET", "HTTP/1.1"
        target = choose.choice(TARGETS if body else GET_TARGETS)
        if choose.random() < 0.1:
            method = choose.choice(METHODS)
        if choose.random() < 0.15:
            target = choose.choice(PATHS)
        if choose.random() < 0.1:
            version = choose.choice(VERSIONS)
        lines = [f"{method} {target} {version}", "Host: x"]
        if body and choose.random() < 0.3:
            body, framing = self._chunks(body), "Transfer-Encoding: chunked"
        else:
            framing = f"Content-Length: {max(0, len(body) + choose.choice([0] * 8 + [-5, 1, 10**6, 10**12]))}"
        if body:
            lines += ["Content-Type: application/json", framing]
        for _ in range(choose.choice([0, 0, 1, 1, 3])):
            lines.insert(choose.randrange(1, len(lines) + 1), choose.choice(HEADERS).format(choose.choice(VALUES)))
        if choose.random() < 0.1:
            del lines[choose.randrange(len(lines))]
        end = choose.choice(["\r\n"] * 12 + ["\n", "\r", "\r\n\r\n"])
        return (end.join(lines) + end * 2).encode("latin-1") + body

    def _chunks(self, body: bytes) -> bytes:
        choose, at, pieces = self._random, 0, []
        while at < len(body):
            size = choose.randint(1, 40)
            piece = body[at : at + size]
            declared = f"{len(piece) + choose.choice([0] * 12 + [1, -1, 2**40]):x}"
            if choose.random() < 0.05:
                declared = choose.choice(["", "g", "-1", "0x5", "f" * 20, "5;x=" + "y" * 200, " 5"])
            pieces.append(declared.encode() + b"\r\n" + piece + choose.choice([b"\r\n"] * 12 + [b"", b"\n"]))
            at += size
        return b"".join(pieces) + choose.choice([b"0\r\n\r\n"] * 6 + [b"0\r\nX: y\r\n\r\n", b"", b"0\r\n"])

    def _damaged(self, data: bytes) -> bytes:
        choose, damaged = self._random, bytearray(data)
        for _ in range(choose.choice([1, 1, 3, 10])):
            at = choose.randrange(len(damaged) + 1)
            match choose.choice(["flip", "insert", "delete", "repeat", "end"]):
                case "flip" if damaged:
                    damaged[at % len(damaged)] ^= 1 << choose.randrange(8)
                case "insert":
                    damaged[at:at] = choose.choice([b"\x00", b"\r\n", b"\xff\xfe", b":", b" ", choose.randbytes(20)])
                case "delete":
                    del damaged[at : at + choose.randint(1, 20)]
                case "repeat":
                    damaged[at:at] = damaged[at : at + 60]
                case "end":
                    del damaged[max(at, 10) :]
        return bytes(damaged)


def base_streams() -> list[bytes]:
    """Valid streams of every layout that the service reads."""
    ids = [f"v{i}" for i in range(20)]
    columns: dict[str, Any] = {
        "item_id": ids,
        "price": [1.5, None] * 10,
        "category": pa.array(["K1", "K2"] * 10).dictionary_encode(),
        "topics": [["topic0_1", "a"], []] * 10,
    }
    fixed_size_lists = pa.array([["a"] * 3] * 20, pa.list_(pa.string(), 3))
    request = {"user": {"id": "u3"}, "context": {"hour": 9}, "tasks": ["click"]}
    return [
        stream({"item_id": ids}, {}),
        stream(columns, request),
        stream(columns, request, 5),
        stream(columns, request, compression="zstd"),
        stream(columns, request, compression="lz4"),
        stream({"item_id": pa.array(ids, pa.large_string()), "price": pa.array(range(20), pa.int8())}, request),
        stream({"item_id": pa.array(ids).cast(pa.string_view()), "topics": fixed_size_lists}, request),
    ]


EXTREMES = [0, 1, -1, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63), 8, 64]


def damaged_stream(choose: random.Random, streams: list[bytes]) -> bytes:
    """A stream that is truncated, has changed bytes, numbers or columns, or is made of pieces of two streams."""
    body = bytearray(choose.choice(streams))
    for _ in range(choose.choice([1, 1, 2, 5])):
        at = choose.randrange(len(body))
        match choose.choice(["bit", "bit", "byte", "word", "half", "end", "piece", "swap", "type"]):
            case "bit":
                body[at] ^= 1 << choose.randrange(8)
            case "byte":
                body[at] = choose.randrange(256)
            case "word":
                at -= at % 8
                body[at : at + 8] = struct.pack("<q", choose.choice(EXTREMES))
            case "half":
                at -= at % 4
                body[at : at + 4] = struct.pack("<i", choose.choice([0, 1, -1, 2**31 - 1, -(2**31), 1000]))
            case "end":
                del body[max(at, 16) :]
            case "piece":
                other = choose.choice(streams)
                begin = choose.randrange(len(other)) // 8 * 8
                body[at:at] = other[begin : begin + choose.choice([8, 64, 512])]
            case "swap":
                name, other_name = choose.sample([b"item_id", b"price\0\0", b"categor", b"topics\0"], 2)
                body = bytearray(bytes(body).replace(name, other_name, 1))
            case "type":
                words = [
                    i for i in range(0, min(len(body), 1_000), 4) if 0 < body[i] < 27 and not any(body[i + 1 : i + 4])
                ]
                if words:
                    body[choose.choice(words)] = choose.randrange(1, 27)
        if not body:
            return b""
    return bytes(body)


@contextmanager
def unharmed_service(repository: Path, request_body: Any, **settings: object) -> Iterator[ServiceProcess]:
    """A service that must respond as before at the end, has logged no error, and has not grown."""
    with running_service(repository, max_body_bytes=200_000, **settings) as service:
        expected = post_json(f"{service.url}/v1/rank", request_body)
        before = memory_bytes(service.process.pid, "VmHWM")
        yield service
        assert service.process.poll() is None, service.output()
        assert post_json(f"{service.url}/v1/rank", request_body) == expected
        assert memory_bytes(service.process.pid, "VmHWM") - before < MAX_BYTES
        output = service.output()
        assert "Traceback" not in output, output[-5_000:]
        assert '"error"' not in output, output[-5_000:]


def statuses_of(responses: bytes) -> list[int]:
    """Status codes of the responses on a connection; each follows the end of the previous one."""
    statuses = []
    while responses:
        match = STATUS.match(responses)
        assert match is not None, responses[:300]
        head, _, responses = responses.partition(b"\r\n\r\n")
        statuses.append(int(match[1]))
        length = re.search(rb"\r\ncontent-length: (\d+)", head)
        if length and not responses.startswith(b"HTTP/1.1 "):  # the response to HEAD has no body
            responses = responses[int(length[1]) :]
    return statuses


@COUNT
def test_mutated_http_messages_cause_no_5xx_and_no_crash(
    repository: Path, request_body: dict[str, Any], tmp_path: Path, count: int
) -> None:
    """A message of an attacker, thousands in the nightly form, must not end a process or fill its memory."""
    settings = {**LIMITS, "feedback_dir": tmp_path / "feedback"}
    with unharmed_service(repository, request_body, **settings) as service:

        def send(seed: int) -> list[int]:
            with service.connect() as connection:
                with suppress(ConnectionError):  # the service may close the connection before it has read everything
                    for segment in MessageGenerator(seed).segments():
                        connection.sendall(segment)
                        time.sleep(0.001)
                responses = read_until_closed(connection)
            statuses = statuses_of(responses)
            assert not any(status >= 500 for status in statuses), (seed, responses)
            return statuses

        with ThreadPoolExecutor(CLIENTS) as pool:
            statuses = Counter(status for found in pool.map(send, range(count)) for status in found)
    assert {200, 202, 400, 404, 405, 408, 413, 415, 422} <= statuses.keys(), statuses
    assert statuses.total() >= count * 0.8, "most messages reach the service as such"


@COUNT
def test_mutated_arrow_streams_cause_no_5xx_and_no_crash(
    repository: Path, request_body: dict[str, Any], count: int
) -> None:
    """The reader of Arrow streams is native code, in which a defect ends the process."""
    choose, streams, statuses = random.Random(17), base_streams(), Counter[int]()
    with unharmed_service(repository, request_body) as service:
        connection = http.client.HTTPConnection(HOST, service.port, timeout=60)
        for body in streams:
            connection.request("POST", "/v1/rank", body, {"Content-Type": ARROW})
            response = connection.getresponse()
            assert response.status == 200, response.read()
            response.read()
        for number in range(count):
            body = damaged_stream(choose, streams)
            connection.request(
                "POST", "/v1/rank", body, {"Content-Type": ARROW, "Accept": choose.choice([ARROW, JSON])}
            )
            response = connection.getresponse()
            content = response.read()
            statuses[response.status] += 1
            assert response.status < 500, (number, content)
            if response.status != 200:
                assert json.loads(content)["detail"]
    assert {200, 400, 413, 422} <= statuses.keys(), statuses


JsonPath = tuple[str | int, ...]
OPTIONS: dict[str, Any] = {
    "request_id": "r-1",
    "user": {"id": "u3", "features": {"age": 31}},
    "context": {"surface": "home", "hour": 9},
    "time": "2026-01-11T12:00:00Z",
    "tasks": ["click", "like"],
    "objective": {"click": 1.0, "like": 5.0},
    "top_n": 2,
    "deadline_ms": 60_000.0,
    "explain": True,
}
FEATURES = {"price": [3.5, None, 12], "topics": [["topic0_1"], None, []], "category": ["K1", None, "K2"]}
ROWS = [{"id": f"v{i}", "features": {name: values[i] for name, values in FEATURES.items()}} for i in range(3)]
COLUMNS = {"id": ["v0", "v1", "v2"], "features": FEATURES}
RANK_BODIES: list[dict[str, Any]] = [
    OPTIONS | {"items": ROWS},
    OPTIONS | {"items": COLUMNS, "layout": "columns"},
    {"time": OPTIONS["time"], "items": {"id": [1, 2, 3]}},
]

PLAUSIBLE = [
    *("null", "0", "1", "12", "0.5", "true", "[]", "{}"),
    *('"v7"', '"K1"', '["topic0_1"]', '["click"]', '{"click": 2}', '"columns"'),
]
HOSTILE = [
    *("-1", "1e308", "1e999", "NaN", "-Infinity", "01", "+1", "9223372036854775808", "[[]]", "[null]", '[1, "1"]'),
    *('""', '{"": 1}', '{"id": "v9"}', '["v9", "v9"]', '"../../etc/passwd"'),
    *(r'"\u0000"', r'"\ud800"', r'"\udc00\ud800"'),
    *("'v1'", "9" * 400, "9" * 5000, '"' + "a" * 5000 + '"', "", "\x00", "/* */ 1"),
    *("[" * 50_000, "[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900),
    *('1, "tasks": ["like"]', 'null, "id": "v8"', 'null, "items": []'),  # a repeated key
]
REPLACEMENTS = st.sampled_from(PLAUSIBLE) | st.sampled_from(HOSTILE)
"""Text in place of a value, valid JSON or not."""
PLACEHOLDER = "placeholder"


def paths(value: Any, path: JsonPath = ()) -> list[JsonPath]:
    """Return the paths of all values of a document."""
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(child for key, member in members for child in paths(member, (*path, key)))]


def with_value(document: Any, path: JsonPath, value: Any) -> Any:
    """Return a copy of a document with another value at a path."""
    if not path:
        return value
    copy = document.copy()
    copy[path[0]] = with_value(document[path[0]], path[1:], value)
    return copy


@st.composite
def mutated_json(draw: st.DrawFn) -> bytes:
    """A document with one or two replaced values, sometimes truncated or with changed bytes."""
    document = draw(st.sampled_from(RANK_BODIES))
    mutated = draw(st.lists(st.sampled_from(paths(document)), min_size=1, max_size=2, unique=True))
    for number, path in enumerate(sorted(mutated, key=len, reverse=True)):  # inner values before their containers
        document = with_value(document, path, f"{PLACEHOLDER}{number}")
    text = json.dumps(document)
    for number in range(len(mutated)):
        text = text.replace(json.dumps(f"{PLACEHOLDER}{number}"), draw(REPLACEMENTS))
    return draw(damaged(text.encode()))


@st.composite
def damaged(draw: st.DrawFn, body: bytes) -> bytes:
    """Usually the same bytes; else truncated, or with up to four changed bytes."""
    damage = draw(st.sampled_from(["none"] * 6 + ["truncated", "changed"]))
    if damage == "truncated":
        return body[: draw(st.integers(0, len(body)))]
    changed = bytearray(body)
    for _ in range(draw(st.integers(1, 4)) if damage == "changed" and body else 0):
        changed[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(changed)


@pytest.mark.parametrize("body", RANK_BODIES, ids=["rows", "columns", "ids"])
def test_unmutated_json_is_valid(client: TestClient, body: dict[str, Any]) -> None:
    rank(client, body)


def assert_documented_responses(client: TestClient, document: dict[str, Any], body: bytes, accept: str) -> None:
    """No value of a request may cause a 5xx or disclose internals, in the reader of small or of large bodies."""
    headers = {"Content-Type": JSON, "Accept": accept, "X-Request-ID": "r-1"}
    response = client.post("/v1/rank", content=body, headers=headers)
    assert response.status_code in (200, 400, 413, 422, 504), response.text  # 504: mutated deadline_ms
    content = document["paths"]["/v1/rank"]["post"]["responses"][str(response.status_code)]["content"]
    media_type = response.headers["content-type"]
    assert media_type == (accept if response.status_code == 200 else "application/problem+json")
    if media_type == ARROW:
        table = pa.ipc.open_stream(response.content).read_all()
        summary = json.loads(table.schema.metadata[b"response"])
        assert fits(summary, document["components"]["schemas"]["RankSummary"], document)
    else:
        assert fits(response.json(), content[media_type]["schema"], document)
    assert not internal_details(response.text if response.status_code >= 400 else "")
    large = client.post("/v1/rank", content=body + b" " * MIN_COLUMNS_BYTES, headers=headers)
    if body and 504 not in (response.status_code, large.status_code):
        assert large.status_code == response.status_code, large.text
        assert response.status_code == 400 or large.content == response.content


@given(body=mutated_json(), accept=st.sampled_from([JSON, ARROW]))
def test_mutated_json_has_a_documented_response_of_both_readers(
    client: TestClient, document: dict[str, Any], body: bytes, accept: str
) -> None:
    assert_documented_responses(client, document, body, accept)


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (RANK_BODIES[0], ("request_id",)),
        (RANK_BODIES[0], ("items", 0, "features", "price")),
        (RANK_BODIES[1], ("items", "id", 0)),
        (RANK_BODIES[1], ("items", "features", "topics")),
    ],
    ids=["text", "number", "id", "column of lists"],
)
def test_every_hostile_value_has_a_documented_response_of_both_readers(
    client: TestClient, document: dict[str, Any], body: dict[str, Any], path: JsonPath
) -> None:
    text = json.dumps(with_value(body, path, PLACEHOLDER))
    for value in HOSTILE:
        assert_documented_responses(client, document, text.replace(f'"{PLACEHOLDER}"', value).encode(), JSON)
