"""Tests of what tests rely on: ports that nobody else takes, and the output of services."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ports import HOST, free_port
from tests.support.processes import forget_services, outputs_of_current_test, started_service
from tests.support.waiting import TIMEOUT_SECONDS

RESERVE = """
from tests.support.ports import free_port
print(*(free_port() for _ in range(200)), flush=True)
input()
"""


def test_free_ports_of_two_processes_are_disjoint() -> None:
    command = [sys.executable, "-c", RESERVE]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    ports: list[str] = []
    for process in processes:
        assert process.stdout is not None
        ports += process.stdout.readline().split()
    for process in processes:
        process.communicate("\n")
    assert len(set(ports)) == len(ports) == 400


def test_free_port_is_kept_from_others_and_given_to_a_server_again_and_again() -> None:
    port = free_port()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((HOST, port))
    for _ in range(2):
        with socket.socket() as client:
            assert client.connect_ex((HOST, port)) != 0
        with socket.create_server((HOST, port)), socket.create_connection((HOST, port)):
            pass


def test_output_of_a_service_can_be_reported_after_its_end(tmp_path: Path) -> None:
    with started_service(tmp_path / "nothing") as service:
        service.process.wait(TIMEOUT_SECONDS)
    assert "no such repository" in dict(outputs_of_current_test())[f"service {service.process.pid}"]
    forget_services()
    assert f"service {service.process.pid}" not in dict(outputs_of_current_test())
