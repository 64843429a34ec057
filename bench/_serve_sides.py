"""The gateways that bench/serve_failover.py and bench/serve_cost.py compare: how each is started, and its settings."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

START_LIMIT_S = 30.0


class Running(NamedTuple):
    """A started gateway."""

    process: subprocess.Popen[bytes]
    port: int

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Return once somebody listens there.

    Raises:
        RuntimeError: the process ended, or it took too long.
    """
    end_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end_s and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError(f"{process.args} does not listen on {port}")


def _started(command: list[str], port: int, folder: Path) -> Running:
    with (folder / f"{Path(command[0]).name}.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    wait_for_port(port, process)
    return Running(process, port)


def closeranks(ports: list[int], folder: Path, replica: str = "", more: str = "", processes: int = 1) -> Running:
    """Ours, with ``replica`` in every [[replica]]."""
    port = free_port()
    tables = [
        f'[[replica]]\nname = "r{number}"\nurl = "http://127.0.0.1:{there}"\n{replica}\n'
        for number, there in enumerate(ports)
    ]
    path = folder / "gateway.toml"
    path.write_text(f"{more}\n[listen]\nport = {port}\nprocesses = {processes}\n{''.join(tables)}")
    return _started([sys.executable, "-m", "closeranks", "serve", str(path)], port, folder)


def bare(port: int, folder: Path) -> Running:
    """The least that a proxy in Python can do."""
    own = free_port()
    program = str(Path(__file__).with_name("_bare_proxy.py"))
    return _started([sys.executable, program, str(own), str(port)], own, folder)


def nginx(ports: list[int], folder: Path) -> Running | None:
    """The server nginx with the retries that its guide shows; None where it is not installed."""
    program = shutil.which("nginx")
    if program is None:
        return None
    port = free_port()
    servers = "".join(f"server 127.0.0.1:{there} max_fails=1 fail_timeout=5s;" for there in ports)
    path = folder / "nginx.conf"
    path.write_text(
        f"daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.err;"
        "events { worker_connections 4096; }"
        f"http {{ access_log off; keepalive_requests 100000000; client_body_temp_path {folder}/body;"
        f" proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u;"
        f" scgi_temp_path {folder}/s; upstream u {{ {servers} keepalive 64; keepalive_requests 100000000; }}"
        f" server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://u; proxy_http_version 1.1;"
        ' proxy_set_header Connection ""; proxy_buffering off;'
        " proxy_next_upstream error timeout http_502 http_503 non_idempotent; } } }"
    )
    return _started([program, "-c", str(path)], port, folder)


def envoy(ports: list[int], folder: Path) -> Running | None:
    """Envoy with retries under a budget, checks and outlier detection; None where it is not installed."""
    program = shutil.which("envoy")
    if program is None:
        return None
    port = free_port()
    retry = {"retry_on": "5xx,reset,connect-failure,refused-stream", "num_retries": 3}
    route = {"match": {"prefix": "/"}, "route": {"cluster": "c", "timeout": "0s", "retry_policy": retry}}
    filters = "type.googleapis.com/envoy.extensions.filters"
    router = {"name": "r", "typed_config": {"@type": f"{filters}.http.router.v3.Router"}}
    manager = {
        "@type": f"{filters}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "h",
        "http_filters": [router],
        "route_config": {"virtual_hosts": [{"name": "v", "domains": ["*"], "routes": [route]}]},
    }
    ends = [{"endpoint": {"address": _address(there)}} for there in ports]
    check = {"timeout": "1s", "interval": "1s", "unhealthy_threshold": 2, "healthy_threshold": 1}
    cluster = {
        "name": "c",
        "connect_timeout": "2s",
        "lb_policy": "LEAST_REQUEST",
        "load_assignment": {"cluster_name": "c", "endpoints": [{"lb_endpoints": ends}]},
        "health_checks": [{**check, "http_health_check": {"path": "/health"}}],
        "outlier_detection": {"consecutive_5xx": 1, "base_ejection_time": "5s", "max_ejection_percent": 50},
        "circuit_breakers": {"thresholds": [{"retry_budget": {"budget_percent": {"value": 20.0}}}]},
    }
    chain = {"filters": [{"name": "h", "typed_config": manager}]}
    listener = {"address": _address(port), "filter_chains": [chain]}
    path = folder / "envoy.json"
    path.write_text(json.dumps({"static_resources": {"listeners": [listener], "clusters": [cluster]}}))
    options = ["--concurrency", "1", "--use-dynamic-base-id", "-l", "error"]
    return _started([program, "-c", str(path), *options], port, folder)


def _address(port: int) -> dict[str, object]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def haproxy(ports: list[int], folder: Path) -> Running | None:
    """HAProxy with checks, retries and redispatch; None where it is not installed."""
    program = shutil.which("haproxy")
    if program is None:
        return None
    port = free_port()
    servers = "".join(f"  server r{n} 127.0.0.1:{there} check inter 1s fall 2\n" for n, there in enumerate(ports))
    path = folder / "haproxy.cfg"
    path.write_text(
        "global\n  maxconn 4096\n  nbthread 1\n"
        "defaults\n  mode http\n  option http-no-delay\n  option redispatch\n  retries 3\n"
        "  retry-on conn-failure empty-response response-timeout 502 503\n"
        "  timeout connect 2s\n  timeout client 60s\n  timeout server 60s\n"
        f"frontend f\n  bind 127.0.0.1:{port}\n  default_backend b\n"
        f"backend b\n  balance leastconn\n{servers}"
    )
    return _started([program, "-db", "-f", str(path)], port, folder)
