"""Generated requests never cause a server error, and their responses match the OpenAPI document."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.config import SchemathesisConfig
from schemathesis.schemas import APIOperation, BaseSchema

from service.app import create_app
from service.http.auth.keys import Scope, create_key
from service.http.media_types import ARROW
from service.settings import Settings
from tests.support.arrow_streams import stream

EXAMPLES = {"POST": 8, "PUT": 5, "GET": 3}
"""Number of generated cases per operation, for valid and for invalid requests each."""
PARTS = 3
"""Number of tests that share the operations of a service, because all of them take long on busy cores."""
MIN_CASES = 334
"""Minimum number of cases per part."""
NAMES = {"model": "feed", "version": "1"}
CHECKS = {
    "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", 504]},  # an exceeded deadline
    "allow_header_conformance": {"enabled": False},  # Starlette lists the methods of one operation per path
    "positive_data_acceptance": {"enabled": False},  # features and tasks depend on the model
}


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Arrow streams of rank requests, some with changed bytes."""
    ids = draw(st.lists(st.sampled_from(["v1", "v2", "v3", ""]), unique=True, max_size=3))
    rest = draw(st.sampled_from([{}, {"tasks": ["click"], "explain": True}, {"top_n": 0}]))
    body = bytearray(stream({"item_id": ids, "price": [1.0] * len(ids)}, rest))
    for _ in range(draw(st.integers(0, 3))):
        body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(body)


schemathesis.openapi.media_type(ARROW, streams())


class CaseRunner:
    """Sends cases to a service and validates the responses."""

    def __init__(self, repository: Path, keys: Path | None, feedback: Path | None) -> None:
        limits = {"max_candidates": 200, "max_body_bytes": 100_000}
        self._app = create_app(Settings(repository=repository, keys=keys, feedback_dir=feedback, **limits))
        self._headers = {"X-API-Key": create_key(keys, "tests", get_args(Scope))} if keys else {}
        self.statuses: Counter[int] = Counter()

    def schema(self) -> BaseSchema:
        config = SchemathesisConfig.from_dict({"checks": CHECKS, "generation": {"with-security-parameters": False}})
        return schemathesis.openapi.from_asgi("/openapi.json", self._app, config=config)

    def __call__(self, case: Case) -> None:
        response = case.call(headers=self._headers)
        self.statuses[response.status_code] += 1
        case.validate_response(response, headers=self._headers)


@pytest.fixture(params=[pytest.param("without keys", marks=pytest.mark.nightly), "with keys and feedback"])
def runner(request: pytest.FixtureRequest, repository: Path, tmp_path: Path) -> CaseRunner:
    repository = shutil.copytree(repository, tmp_path / "repository")  # admin operations may change it
    if request.param == "without keys":
        return CaseRunner(repository, None, None)
    create_key(tmp_path / "keys.json", "other", ("rank",))
    return CaseRunner(repository, tmp_path / "keys.json", tmp_path / "feedback")


def run_generated_cases(operation: APIOperation, mode: GenerationMode, runner: CaseRunner) -> None:
    """Run cases that hypothesis generates; half of them name an existing model."""

    @settings(
        max_examples=EXAMPLES[operation.method.upper()],
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), use_existing_model=st.booleans())
    def run(case: Case, use_existing_model: bool) -> None:
        if use_existing_model:
            case.path_parameters = {name: NAMES[name] for name in case.path_parameters or {}}
        runner(case)

    run()


@pytest.mark.parametrize("part", range(PARTS))
def test_generated_requests_have_responses_that_match_the_openapi_document(runner: CaseRunner, part: int) -> None:
    """Every operation of the service, with valid and invalid parameters, headers and bodies."""
    schema = runner.schema()
    operations = [result.ok() for result in schema.get_all_operations()][part::PARTS]
    for operation in operations:
        config = schema.config.generation_for(operation=operation)
        for case in schema.iter_coverage_cases(
            operation, generation_modes=list(GenerationMode), generation_config=config
        ):
            runner(case)
        run_generated_cases(operation, GenerationMode.POSITIVE, runner)
        if operation.body:
            run_generated_cases(operation, GenerationMode.NEGATIVE, runner)
    assert runner.statuses.total() >= MIN_CASES
    assert {200, 404, 405} <= runner.statuses.keys()
    if "POST /v1/rank" in {operation.label for operation in operations}:
        assert {400, 422} <= runner.statuses.keys()
