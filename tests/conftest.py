import atexit
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from hypothesis import settings

HERE = Path(__file__).parent

# A hundred processes of these tests would each compile the sources anew, and so would pytest.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Answers are compared as they are for a file, and what is called is on this host.
for name in ("FORCE_COLOR", "PY_COLORS", "TTY_COMPATIBLE"):
    os.environ.pop(name, None)
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"

# A shell that starts the tests in the background has them ignore Ctrl-C, and with them whatever they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What these tests and their processes put aside is gone with them, but for the folders of tests that failed.
if "PYTEST_XDIST_WORKER" not in os.environ:  # a worker has that of the process which started it
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="cr-")  # short: sockets are named in it
    atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)

# What runs of these tests remember of nodes is nobody else's.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="state-")

# A busy machine makes single examples slow; what a test may take as a whole is pytest's to say.
settings.register_profile("repo", deadline=None)
settings.load_profile("repo")

# Whole files go to workers of pytest-xdist. What takes minutes begins first, so that no worker waits for it at the end.
LONGEST = (
    "situations/test_saving.py",
    "train/test_recovery.py",
    "drill/test_equality.py",
    "situations/test_lost_ranks.py",
    "situations/test_endings.py",
    "checkpoint/drills/test_stale.py",
    "run/test_run.py",
    "run/test_left_behind.py",
    "situations/test_leaving.py",
)


def pytest_configure(config):
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False  # files with many tests first: those with few long ones would come last


def pytest_collection_modifyitems(items):
    """The longest files, then those that start processes, then the rest; each file stays together."""
    starts_processes = {item.path for item in items if item.get_closest_marker("process")}

    def turn(item):
        place = item.path.relative_to(HERE).as_posix()
        return LONGEST.index(place) if place in LONGEST else len(LONGEST) + (item.path not in starts_processes)

    items.sort(key=turn)
