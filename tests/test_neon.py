"""The engine gives the same ids and words on 64-bit ARM, under an emulator."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
import neon


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_driver_fits_the_engine():
    driver = Path(neon.__file__).with_name("neon_driver.c")
    folders = [f"-I{neon._SOURCES}", f"-I{neon._DOCUMENTS}"]
    subprocess.run(["cc", "-std=gnu11", "-fsyntax-only", "-Wall", "-Werror", *folders, driver], check=True)


@pytest.mark.slow
@pytest.mark.skipif(neon.missing() is not None, reason=str(neon.missing()))
def test_arm_gives_the_ids_and_words_of_this_machine():
    assert neon.run(texts=20, seed=0).startswith("neon plain 13 cases, 0 wrong")
