import os
import sys

from hypothesis import settings

# A hundred processes of these tests would each compile the sources anew, and so would pytest.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A busy machine makes single examples slow; what a test may take as a whole is pytest's to say.
settings.register_profile("repo", deadline=None)
settings.load_profile("repo")
