import signal
import tempfile

import pytest
import typer
from typer.testing import CliRunner


@pytest.fixture
def of_one_command(monkeypatch, tmp_path):
    """Makes a program of the one command that is registered with it; temporary folders and handlers are the test's."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def program(register):
        app = typer.Typer()
        app.callback()(lambda: None)
        register(app)
        return lambda *words: CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})

    yield program
    for number, handler in before.items():
        signal.signal(number, handler)
