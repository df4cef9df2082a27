# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""What a test of this suite gets beside a laboratory: PyTorch, and the installed package."""
import atexit
import os
import shutil
import sys
import tempfile

from harness.runner import Context
from torchlab import Job, install


class TorchContext(Context):
    """ctx.python is the interpreter with PyPI's PyTorch, ctx.package the folder of our wheel."""

    def __init__(self, options):
        super().__init__(options)
        self.python = os.environ.get("ROCECOMM_TORCH_PYTHON", "")
        if not os.access(self.python, os.X_OK):
            sys.exit("pytorch: ROCECOMM_TORCH_PYTHON does not name an interpreter with PyTorch; "
                     "tools/test pytorch makes one")
        folder = tempfile.mkdtemp(prefix="rocecomm-package-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self.package = install(self.python, self.build, folder)
        self.torchrun = [self.python, "-m", "torch.distributed.run"]

    def job(self, lab, daemons, per_host, program, *arguments, **options):
        """A job of this interpreter; options as for Job."""
        command = [self.python, program, *arguments]
        return Job(lab, self.package, daemons, per_host, command, **options)
