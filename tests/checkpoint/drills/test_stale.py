"""A writer that slept through two terms, on a folder and on an S3 server; all calls: the command of the drill."""

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from tests.checkpoint.stores.conftest import Bucket

import closeranks

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def drilled(*words, **environment):
    command = [sys.executable, "-m", "closeranks.checkpoint.drills.stale", *words]
    path = str(Path(closeranks.__file__).parent.parent)
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "held", done.stdout + done.stderr
    return done.stdout


def test_a_writer_that_slept_through_two_terms_changes_nothing_in_a_folder():
    told = drilled("--every", "17")
    assert "calls of the store: stopped at " in told and "calls of files: stopped at " in told
    assert "stopped at 0" not in told


def test_a_writer_that_slept_through_two_terms_changes_nothing_on_s3():
    bucket = Bucket()
    try:
        url = bucket.url(f"stale/{secrets.token_hex(4)}")
        told = drilled("--every", "40", "--store", url, AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b")
    finally:
        bucket.stop()
    assert "broken 0" in told and "stopped at 0" not in told
