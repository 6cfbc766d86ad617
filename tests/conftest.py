"""What all tests share: compiled programs are cached in a folder of the session, never in the user's."""

import atexit
import os
import shutil
import tempfile

from simulate import cache

_FOLDER = tempfile.mkdtemp(prefix="staircase-compiled-")
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
os.environ[cache.VARIABLE] = _FOLDER
