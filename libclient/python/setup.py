# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Puts the built library (and daemon) of $ROCECOMM_BUILD into the wheel.

ROCECOMM_BUILD is a meson build directory, or what tools/bundle made: then the libraries that those two
need are in the wheel as well. Without it the wheel has Python only, and uses the system's library.
"""
import glob
import os
import shutil

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

BUILD = os.environ.get("ROCECOMM_BUILD")
FILES = {"libroceclient.so.0": "libclient/libroceclient.so.0", "rocecommd": "daemon/rocecommd"}
if BUILD and os.path.exists(os.path.join(BUILD, "libroceclient.so.0")):
    FILES = {os.path.basename(path): os.path.basename(path) for path in glob.glob(BUILD + "/lib*.so.*")}
    FILES["rocecommd"] = "rocecommd"


class BuildWithLibrary(build_py):
    """build_py, and the files above."""

    def run(self):
        super().run()
        if not BUILD:
            return
        for name, source in FILES.items():
            path = os.path.join(BUILD, source)
            if os.path.exists(path):
                shutil.copy2(os.path.realpath(path), os.path.join(self.build_lib, "rocecomm", name))
            elif name != "rocecommd":
                raise SystemExit(f"setup.py: {path} does not exist: build it, or unset ROCECOMM_BUILD")


class WithLibrary(Distribution):
    """Makes the wheel one of this platform; of any Python, since nothing is linked with it."""

    def has_ext_modules(self):
        return bool(BUILD)


options = {}
if BUILD:
    from sysconfig import get_platform

    options = {"bdist_wheel": {"python_tag": "py3", "plat_name": get_platform(), "py_limited_api": "cp39"}}

setup(cmdclass={"build_py": BuildWithLibrary}, distclass=WithLibrary, options=options)
